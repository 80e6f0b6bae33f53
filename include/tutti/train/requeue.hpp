// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <tutti/config.hpp>
#include <tutti/core/state.hpp>
#include <tutti/train/options.hpp>

/// A job of Slurm that has no more time, run again.
namespace tutti::train {

/// The number by which Slurm knows the job that this process is part of: "4711", of an array
/// "4711_3"; empty outside of Slurm.
std::string slurm_job();

/// After SIGUSR1, asks Slurm on rank 0 to run the job again: `scontrol requeue <job>`. Nothing
/// happens after another signal, outside of Slurm, and without options.auto_requeue.
///
/// A job that does not resume by itself is not run again, since it would begin anew each time: the
/// warning says so, as it does when scontrol fails.
/// Source: PyTorch Lightning, `SLURMEnvironment(auto_requeue=True)`.
void requeue(const TrainerOptions& options, const State& state, int signal);

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/requeue.inl.hpp>
#endif
