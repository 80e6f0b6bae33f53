// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/report.hpp>

namespace tutti::train {

TUTTI_INLINE std::string resolve_run_folder(TrainerOptions& options, const State& state) {
  if (options.run_folder.empty()) {
    return {};
  }
  checkpoint::check_constant_placeholders("run folder", options.run_folder);
  if (options.save_folder.empty()) {
    options.save_folder = options.run_folder;  // and what is done with such a path
    options.save_folder += "/checkpoints";
  }
  return state.output_path(run_path(options.run_folder, state));
}

TUTTI_INLINE std::string class_name(const torch::nn::Module& module) {
  std::string name = optim::unqualified(c10::demangle(typeid(module).name()));
  if (name.size() > 4 && name.ends_with("Impl")) {
    name.resize(name.size() - 4);
  }
  return name;
}

TUTTI_INLINE void add_model(tutti::detail::Constants& out, const torch::nn::Module& model) {
  std::int64_t all = 0;
  std::int64_t trained = 0;
  std::int64_t bytes = 0;
  const auto size = [](const at::Tensor& tensor) { return tensor.numel() * tensor.element_size(); };
  for (const at::Tensor& parameter : model.parameters()) {
    all += parameter.numel();
    trained += parameter.requires_grad() ? parameter.numel() : 0;
    bytes += size(parameter);
  }
  for (const at::Tensor& buffer : model.buffers()) {
    bytes += buffer.defined() ? size(buffer) : 0;
  }
  out.emplace_back("model/class", class_name(model));
  out.emplace_back("model/parameters", all);
  out.emplace_back("model/trainable_parameters", trained);
  out.emplace_back("model/bytes", bytes);
}

TUTTI_INLINE void add_folders(tutti::detail::Constants& out, const TrainerOptions& options,
                              const State& state) {
  if (!state.run_folder.empty()) {
    out.emplace_back("run_folder", state.run_folder);
  }
  if (!options.save_folder.empty()) {
    out.emplace_back("save_folder", run_path(options.save_folder, state));
  }
}

TUTTI_INLINE void keep_config(const TrainerOptions& options, const State& state) {
  const std::string& text = options.command_line.config;
  if (state.rank != 0 || state.run_folder.empty() || text.empty()) {
    return;
  }
  try {
    checkpoint::make_folder(state.run_folder);
  } catch (const c10::Error& error) {
    TORCH_WARN(error.what_without_backtrace(), "; training goes on without config.toml in it");
    return;
  }
  const std::string path = state.run_folder + "/config.toml";
  const std::string unfinished = path + ".part";  // a reader finds all of it
  std::FILE* file = std::fopen(unfinished.c_str(), "wbe");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  good = file != nullptr && std::fclose(file) == 0 && good;
  if (!good || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    std::remove(unfinished.c_str());
    TORCH_WARN("the program's options cannot be kept as '", path, "': ", std::strerror(reason),
               "; training goes on without");
  }
}

TUTTI_INLINE std::string resume_text(const TrainerOptions& options, const State& state,
                                     const std::string& latest_checkpoint, bool complete) {
  if (latest_checkpoint.empty() || options.save_weights_only) {
    return {};
  }
  std::string command = options.command_line.command;
  constexpr std::string_view flag = " --max-duration ";
  const std::size_t given = complete ? command.find(flag) : std::string::npos;
  if (given != std::string::npos) {
    command.erase(given, command.find(' ', given + flag.size()) - given);
  }
  const bool points = !options.save_latest_filename.empty();
  if (command.empty()) {
    return "TrainerOptions{.load_path = \"" + latest_checkpoint + "\"}" +
           (complete ? " and a longer max_duration" : "");
  }
  std::string text = state.world_size > 1 ? "with the same launcher: " + command : command;
  text += points ? options.autoresume ? "" : " --autoresume" : " --load-path " + latest_checkpoint;
  if (options.run_name.empty() && detail::environment_run_name().empty()) {
    text += " --run-name " + state.run_name;
  }
  if (complete && options.max_duration) {
    text += " --max-duration " + to_string(options.max_duration * 2);
  }
  return text;
}

TUTTI_INLINE void report_result(const TrainerOptions& options, const State& state, const Run& run) {
  const bool complete = run.stop_signal == 0 || state.timestamp >= state.max_duration;
  const bool stays = state.scratch_folder.empty();  // what was written
  const std::string latest = stays ? run.last_checkpoint() : std::string();
  const std::string best = stays && run.checkpoints ? run.checkpoints->best() : std::string();
  const std::string resume = resume_text(options, state, latest, complete);
  state.logger.log_result({.state = state,
                           .complete = complete,
                           .latest_checkpoint = latest,
                           .best_checkpoint = best,
                           .resume = resume});
}

}  // namespace tutti::train
