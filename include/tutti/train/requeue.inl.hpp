// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/requeue.hpp>

#include <chrono>
#include <csignal>
#include <cstdlib>

#include <c10/util/Exception.h>

#include <tutti/core/detail/command.hpp>

namespace tutti::train {

namespace detail {

TUTTI_INLINE std::string environment_text(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::string() : std::string(text);
}

}  // namespace detail

TUTTI_INLINE std::string slurm_job() {
  const std::string array = detail::environment_text("SLURM_ARRAY_JOB_ID");
  const std::string task = detail::environment_text("SLURM_ARRAY_TASK_ID");
  return array.empty() || task.empty() ? detail::environment_text("SLURM_JOB_ID")
                                       : array + "_" + task;
}

TUTTI_INLINE void requeue(const TrainerOptions& options, const State& state, int signal) {
  const std::string job = slurm_job();
  if (signal != SIGUSR1 || job.empty() || !options.auto_requeue || state.rank != 0) {
    return;
  }
  if (!options.autoresume) {
    TORCH_WARN("the job ", job, " of Slurm is not run again, since it would begin anew; set ",
               "autoresume, or auto_requeue = false");
    return;
  }
  constexpr std::chrono::minutes most(1);
  std::string problem;
  try {
    const auto result = ::tutti::detail::run_command({"scontrol", "requeue", job}, most);
    if (result.status != 0) {
      problem = "status " + std::to_string(result.status) + ": " + result.error + result.out;
    }
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  }
  if (problem.empty()) {
    TORCH_WARN("asked Slurm to run the job ", job, " again");
  } else {
    TORCH_WARN("scontrol requeue ", job, " failed (", problem, "); submit the job again yourself");
  }
}

}  // namespace tutti::train
