// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/loggers/summary.hpp>

namespace tutti {

namespace detail {

TUTTI_INLINE std::string fact_text(std::string_view key, std::string_view text, const Look& look) {
  constexpr int indent = 11;
  if (text.empty()) {
    return {};
  }
  std::string head(key);
  head.resize(indent, ' ');
  return look.in("1", head) + folded(printable(text), look.width, indent) + "\n";
}

TUTTI_INLINE std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (int at = static_cast<int>(text.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3) {
    text.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return text;
}

// The text of the constant of that name; empty when it was not logged.
TUTTI_INLINE std::string constant_text(const Config& constants, std::string_view name) {
  for (const auto& [known, value] : constants) {
    if (known == name) {
      return hyperparameter_text(value);
    }
  }
  return {};
}

TUTTI_INLINE std::int64_t constant_number(const Config& constants, std::string_view name) {
  for (const auto& [known, value] : constants) {
    if (const auto* number = value.get_if<std::int64_t>(); known == name && number != nullptr) {
      return *number;
    }
  }
  return -1;
}

// "DecoupledSGDW: lr=0.1, momentum=0.9" of the constants optimizer and optimizer/...
TUTTI_INLINE std::string group_text(const Config& constants, const std::string& name) {
  std::string text = constant_text(constants, name);
  const char* between = text.empty() ? "" : ": ";
  for (const auto& [known, value] : constants) {
    if (!known.starts_with(name + "/")) {
      continue;
    }
    const std::string own = hyperparameter_text(value);
    if (!own.empty() && own != "0" && own != "false" && own != "not set") {
      text.append(between).append(known.substr(name.size() + 1)).append("=").append(own);
      between = ", ";
    }
  }
  return text;
}

TUTTI_INLINE std::string batches_text(std::int64_t count) {
  return grouped(count) + (count == 1 ? " batch" : " batches");
}

TUTTI_INLINE std::string run_text(const State& state, const Config& constants) {
  std::string text = state.run_name;
  if (state.max_duration) {
    text += ", " + to_string(state.max_duration);
    if (state.max_duration.unit() == TimeUnit::epoch && state.train_dataloader_len >= 0) {
      const auto epochs = static_cast<std::int64_t>(state.max_duration.value());
      text += " (" + batches_text(epochs * state.train_dataloader_len) + ")";
    }
  }
  const std::string loaded = constant_text(constants, "load_path");
  if (state.timestamp.batch > 0) {
    text += ", goes on after batch " + grouped(state.timestamp.batch);
  }
  return text + (loaded.empty() ? "" : " from " + loaded);
}

TUTTI_INLINE std::string model_text(const Config& constants) {
  std::string text = constant_text(constants, "model/class");
  const std::int64_t all = constant_number(constants, "model/parameters");
  if (all < 0) {
    return text;
  }
  const double megabytes = static_cast<double>(constant_number(constants, "model/bytes")) / 1e6;
  char size[32];
  std::snprintf(size, sizeof size, megabytes < 0.1 ? "%.1g" : "%.1f", megabytes);
  text += ", " + grouped(all) + " parameters (" + size + " MB)";
  const std::int64_t trained = constant_number(constants, "model/trainable_parameters");
  return text + (trained == all ? "" : ", " + grouped(trained) + " of them trained");
}

// The policies without those that print this.
TUTTI_INLINE std::string recipe_text(const Config& constants) {
  std::string text;
  const std::string all = constant_text(constants, "policies");
  for (std::string_view rest = all; !rest.empty();) {
    const auto end = std::min(rest.find(", "), rest.size());
    const std::string_view name = rest.substr(0, end);
    if (name != "ProgressBar" && name != "ConsoleLogger") {
      text.append(text.empty() ? "" : ", ").append(name);
    }
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return text.empty() ? "no policies" : text;
}

TUTTI_INLINE std::string schedule_text(const State& state, const Config& constants) {
  const std::string text = group_text(constants, "schedule");
  return !text.empty() ? text : state.initial_lrs.empty() ? "constant" : "a function";
}

// "23 batches of 64".
TUTTI_INLINE std::string set_text(const Config& constants, const std::string& key,
                                  std::int64_t batches) {
  const std::int64_t size = constant_number(constants, key + "/batch_size");
  std::string text = batches < 0 ? "batches" : batches_text(batches);
  text += size > 0 ? " of " + grouped(size) : std::string();
  return text;
}

TUTTI_INLINE std::string data_text(const State& state, const Config& constants) {
  std::string text;
  if (state.train_dataloader_len >= 0 || !group_text(constants, "train_loader").empty()) {
    text = "train " + set_text(constants, "train_loader", state.train_dataloader_len) +
           (state.world_size > 1 ? " a process" : "");
  }
  const std::string prefix = "eval_loader/";
  std::string last;
  for (const auto& [known, value] : constants) {
    if (known.starts_with(prefix)) {
      std::string key = known.substr(0, known.find('/', prefix.size()));
      if (key != last) {
        const std::int64_t batches = constant_number(constants, key + "/batches");
        text += text.empty() ? "" : ", ";
        text += key.substr(prefix.size()) + " " + set_text(constants, key, batches);
        last = std::move(key);
      }
    }
  }
  return text.empty() ? "given with the call" : text;
}

TUTTI_INLINE std::string device_text(const State& state) {
  std::string text = state.device.str() + ", " + std::string(to_string(state.precision));
  if (state.world_size > 1) {
    text += ", " + std::to_string(state.world_size) + " processes";
  }
  return text + ", seed " + std::to_string(state.rank_zero_seed);
}

TUTTI_INLINE std::string folder_text(const State& state, const Config& constants) {
  const std::string saves = constant_text(constants, "save_folder");
  const std::string& folder = state.run_folder;
  if (folder.empty()) {
    return saves.empty() ? "none: no checkpoints are saved" : saves;
  }
  return saves.starts_with(folder + "/") ? folder : folder + ", checkpoints in " + saves;
}

TUTTI_INLINE std::string summary_text(const State& state, const Config& constants,
                                      const Look& look) {
  return fact_text("run", run_text(state, constants), look) +
         fact_text("model", model_text(constants), look) +
         fact_text("recipe", recipe_text(constants), look) +
         fact_text("optimizer", group_text(constants, "optimizer"), look) +
         fact_text("schedule", schedule_text(state, constants), look) +
         fact_text("data", data_text(state, constants), look) +
         fact_text("device", device_text(state), look) +
         fact_text("folder", folder_text(state, constants), look);
}

}  // namespace detail

TUTTI_INLINE std::string run_summary(
    const State& state, const std::vector<std::pair<std::string, HyperparameterValue>>& constants,
    int width) {
  return detail::summary_text(state, constants, {.width = width});
}

}  // namespace tutti
