// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

#include <tutti/config.hpp>

namespace tutti {

/// What a report of a bug has to say of the machine and of the libraries, a line each: tutti,
/// LibTorch, compiler, system, processor, memory, threads, GPUs with CUDA and cuDNN, and the
/// variables of the environment that change results or speed (OMP_NUM_THREADS, RANK, NCCL_DEBUG).
///
/// Looks at the machine as it is now, and starts nothing.
/// Source: PyTorch, `torch.utils.collect_env`; MosaicML Composer, `composer_collect_env`.
std::string environment_report();

/// Prints environment_report().
void print_environment(std::FILE* stream = stdout);

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/train/print_environment.inl.hpp>
#endif
