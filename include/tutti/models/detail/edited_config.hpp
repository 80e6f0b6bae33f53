// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include <tutti/config.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/models/pretrained_config.hpp>

/// What `edit_config` changes of a config.json; include <tutti/models/from_pretrained.hpp>.
namespace tutti::models::detail {

using ConfigEdit = std::function<void(PretrainedConfig&)>;

/// The config of a folder, as `edit` changes it; empty: as it is. `num_labels` and `num_classes`
/// that it sets become the key that configs of that library have. Keys that it sets are watched for
/// check_edits(). Throws c10::Error (ValueError) for two numbers of classes that differ.
PretrainedConfig edited_config(const std::string& folder, const ConfigEdit& edit);

/// Throws c10::Error (ValueError), naming the key, when nobody has read one that edit_config set
/// though it might change the model: it has no effect.
void check_edits(const PretrainedConfig& config, std::string_view model);

}  // namespace tutti::models::detail

#if TUTTI_BODIES

namespace tutti::models::detail {

TUTTI_INLINE bool is_config_of_timm(const PretrainedConfig& config) {
  return config.has("architecture") || config.model_type() == "timm_wrapper";
}

// The key changes no model: it is for readers of the folder, or for generate().
TUTTI_INLINE bool is_only_said(std::string_view key) {
  for (const std::string_view known :
       {"architectures", "id2label", "label2id", "label_names", "label_descriptions", "dtype",
        "torch_dtype", "transformers_version", "use_cache", "problem_type"}) {
    if (key == known) {
      return true;
    }
  }
  return key.starts_with('_') || key.ends_with("_token_id");
}

// The keys that `edited` has with another value.
TUTTI_INLINE std::set<std::string, std::less<>> changed_keys(const PretrainedConfig& before,
                                                             const PretrainedConfig& edited) {
  std::set<std::string, std::less<>> out;
  for (const auto& [key, value] : edited.values()) {
    const auto* old = before.find(key);
    if (!value.is_null() && (old == nullptr || *old != value)) {
      out.insert(key);
    }
  }
  return out;
}

// Writes the number of classes where configs of timm have it.
TUTTI_INLINE void set_timm_classes(const PretrainedConfig& before, std::int64_t count,
                                   PretrainedConfig& config) {
  PretrainedConfig args = config.section("model_args");
  if (args.has("num_classes")) {
    const std::int64_t said = args.integer("num_classes");
    TUTTI_CHECK_VALUE(
        said == count || said == before.section("model_args").integer("num_classes", said - 1),
        config.origin(), ": edit_config sets num_classes to ", said, " in model_args and to ",
        count, " beside it; set one of them");
    args.set("num_classes", count);
    config.set("model_args", args.values());
  }
  config.erase("num_labels");
  config.set("num_classes", count);
  config.erase("label_names");
  config.erase("label_descriptions");
}

// Gives num_labels and num_classes that were set the place where the config's library has them.
TUTTI_INLINE void place_classes(const PretrainedConfig& before,
                                const std::set<std::string, std::less<>>& changed,
                                PretrainedConfig& config) {
  const std::string type = config.model_type();
  const bool timm = is_config_of_timm(config);
  const bool torchvision =
      type.empty() &&
      config.text("class", config.text("function", "")).starts_with("torchvision.models.");
  const bool transformers = !timm && (type == "vit" || type == "resnet" || type == "bert");
  const bool labels = changed.contains("num_labels");
  const bool classes = changed.contains("num_classes");
  if ((!labels && !classes) || !(timm || torchvision || transformers)) {
    return;
  }
  const std::int64_t count = config.integer(classes ? "num_classes" : "num_labels");
  TUTTI_CHECK_VALUE(!labels || config.integer("num_labels") == count, config.origin(),
                    ": edit_config sets num_labels to ", config.integer("num_labels"),
                    " and num_classes to ", count, "; set one of them");
  if (timm) {
    set_timm_classes(before, count, config);
  } else if (torchvision) {
    config.erase("num_labels");
    config.set("num_classes", count);
  } else if (classes) {
    config.erase("num_classes");
    config.set("num_labels", count);
  }
}

TUTTI_INLINE PretrainedConfig edited_config(const std::string& folder, const ConfigEdit& edit) {
  PretrainedConfig config = PretrainedConfig::read(folder);
  if (edit) {
    const PretrainedConfig before = config;
    edit(config);
    place_classes(before, changed_keys(before, config), config);
    config.watch(changed_keys(before, config));
  }
  return config;
}

TUTTI_INLINE void check_edits(const PretrainedConfig& config, std::string_view model) {
  for (const std::string& key : config.stop_watching()) {
    TUTTI_CHECK_VALUE(
        is_only_said(key), config.origin(), ": edit_config sets ", key, " to ",
        tutti::detail::to_text(*config.find(key)), ", which ", model,
        " does not read, so that it would have no effect; ",
        is_config_of_timm(config)
            ? "timm's arguments, img_size and in_chans say, are in model_args: take "
              "config.section(\"model_args\"), set the argument there, and set \"model_args\" to "
              "its values()"
            : "expected a key that such a config.json has, or one of your own in the source_config "
              "of the model that was made");
  }
}

}  // namespace tutti::models::detail

#endif
