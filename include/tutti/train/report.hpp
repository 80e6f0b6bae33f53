// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include <tutti/checkpoint/filename.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/constants.hpp>
#include <tutti/core/logger.hpp>
#include <tutti/core/state.hpp>
#include <tutti/loggers/run_path.hpp>
#include <tutti/optim/class_name.hpp>
#include <tutti/train/options.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/run_checkpoints.hpp>

/// What a run leaves behind for its user: its folder, and what is said of it.
namespace tutti::train {

namespace detail {

// The environment's COMPOSER_RUN_NAME, or else its RUN_NAME; empty when it has neither.
inline std::string environment_run_name() {
  for (const char* const variable : {"COMPOSER_RUN_NAME", "RUN_NAME"}) {
    if (const char* const name = std::getenv(variable); name != nullptr && *name != '\0') {
      return name;
    }
  }
  return "";
}

}  // namespace detail

/// The run's folder with its placeholders filled in; empty when the options name none. Checkpoints
/// go into its `checkpoints` where the options say of no other place.
/// state: has the run's name and ranks. Throws c10::ValueError for a placeholder that is unknown or
/// changes during a run.
std::string resolve_run_folder(TrainerOptions& options, const State& state);

/// The name of a module's class as Python would say it: "ResNet" for a ResNetImpl.
std::string class_name(const torch::nn::Module& module);

/// Adds what is constant of a model: `model/class`, `model/parameters`,
/// `model/trainable_parameters` and `model/bytes`, of parameters and buffers.
void add_model(tutti::detail::Constants& out, const torch::nn::Module& model);

/// Adds `run_folder` and `save_folder`, where there are such.
void add_folders(tutti::detail::Constants& out, const TrainerOptions& options, const State& state);

/// Writes the options that the program was called with as `config.toml` into the run's folder, at
/// rank 0, once the folder is known to be this run's. A warning says why it cannot be written.
void keep_config(const TrainerOptions& options, const State& state);

/// What goes on with a run that has ended: the command, where the program has told it, else the
/// option; empty when no checkpoint is there that could. complete: it has reached its length.
std::string resume_text(const TrainerOptions& options, const State& state,
                        const std::string& latest_checkpoint, bool complete);

/// Tells the loggers that fit() has ended.
void report_result(const TrainerOptions& options, const State& state, const Run& run);

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/report.inl.hpp>
#endif
