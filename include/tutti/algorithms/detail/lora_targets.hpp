// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/pattern.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/embedding.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/lora.hpp>
#include <tutti/nn/module_names.hpp>
#include <tutti/nn/transposed_linear.hpp>
#include <tutti/nn/walk.hpp>

#include <c10/util/Type.h>

/// Which layers get an adapter, by PEFT's rules.
namespace tutti::detail {

/// A layer that gets one.
struct LoraTarget {
  std::string path;
  std::int64_t out = 0;
  std::int64_t in = 0;
  bool is_embedding = false;
};

/// The choice of layers by the options of LoRA, whose names the members have.
struct LoraTargets {
  surgery::ModuleNames target_modules;
  surgery::ModuleNames exclude_modules;
  std::vector<std::string> modules_to_save;
  std::vector<std::int64_t> layers_to_transform;
  std::vector<std::string> layers_pattern;

  /// The module there is to have an adapter, of whatever type it is.
  [[nodiscard]] bool wants(const surgery::Visit& where) const;

  /// All layers that are to have one. Throws c10::Error when there is none, or a module is named
  /// that can have none.
  [[nodiscard]] std::vector<LoraTarget> find(torch::nn::Module& model) const;

 private:
  [[nodiscard]] bool is_layer_wanted(std::string_view path) const;
};

/// Whether an adapter for these modules is written with the tables that it stands beside, as PEFT
/// decides: embed_tokens or lm_head is named.
inline bool saves_tables(const surgery::ModuleNames& target_modules) {
  return std::any_of(target_modules.begin(), target_modules.end(), [&](const std::string& name) {
    return target_modules.is_expression() ? name.find("embed_tokens") != std::string::npos ||
                                                name.find("lm_head") != std::string::npos
                                          : name == "embed_tokens" || name == "lm_head";
  });
}

/// The output layer that such an adapter is written with.
inline bool is_head(std::string_view path) {
  return path == "lm_head" || path.ends_with(".lm_head");
}

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

/// The layer as one that can have an adapter; of no width when it cannot.
TUTTI_INLINE LoraTarget lora_target(const surgery::Visit& where) {
  LoraTarget out{.path = where.path};
  if (const auto* linear = dynamic_cast<torch::nn::LinearImpl*>(where.module.get())) {
    out.out = linear->weight.size(0);
    out.in = linear->weight.size(1);
  } else if (const auto* transposed =
                 dynamic_cast<nn::PlainTransposedLinearImpl*>(where.module.get())) {
    out.out = transposed->weight.size(1);
    out.in = transposed->weight.size(0);
  } else if (const auto* table = dynamic_cast<torch::nn::EmbeddingImpl*>(where.module.get())) {
    out.out = table->weight.size(1);
    out.in = table->weight.size(0);
    out.is_embedding = true;
  }
  return out;
}

/// The model's output, which "all-linear" passes over: by the names that models give it.
TUTTI_INLINE bool is_output_layer(std::string_view path) {
  static const surgery::ModuleNames anywhere{"lm_head", "embed_out", "score", "classifier",
                                             "predictions.decoder"};
  static const surgery::ModuleNames root{"head", "fc", "heads.head", "output"};
  return anywhere.contains(path) || root.lists(path);
}

/// A part of the path is called `name`, which may have dots.
TUTTI_INLINE bool is_part(std::string_view path, std::string_view name) {
  for (std::size_t at = path.find(name); at != std::string_view::npos;
       at = path.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    if ((at == 0 || path[at - 1] == '.') && (end == path.size() || path[end] == '.')) {
      return true;
    }
  }
  return false;
}

/// The number of the layer that a module is in; -1: none. pattern: what stands before the number;
/// empty: one name of any kind.
TUTTI_INLINE std::int64_t layer_number(std::string_view path, const std::string& pattern) {
  const Pattern before(pattern.empty() ? ".*\\.[^.]*" : "(.*\\.)?(" + pattern + ")");
  for (std::size_t dot = path.find('.'); dot != std::string_view::npos;
       dot = path.find('.', dot + 1)) {
    const std::size_t end = path.find('.', dot + 1);
    const std::string_view digits = path.substr(dot + 1, end - dot - 1);
    const bool number = end != std::string_view::npos && !digits.empty() && digits.size() < 10 &&
                        digits.find_first_not_of("0123456789") == std::string_view::npos;
    if (number && before.matches(path.substr(0, dot))) {
      return std::stoll(std::string(digits));
    }
  }
  return -1;
}

TUTTI_INLINE bool LoraTargets::is_layer_wanted(std::string_view path) const {
  std::int64_t number = -1;
  if (layers_pattern.empty()) {
    number = layer_number(path, "");
  }
  for (std::size_t i = 0; i < layers_pattern.size() && number < 0; ++i) {
    number = layer_number(path, layers_pattern[i]);
  }
  return std::find(layers_to_transform.begin(), layers_to_transform.end(), number) !=
         layers_to_transform.end();
}

TUTTI_INLINE bool LoraTargets::wants(const surgery::Visit& where) const {
  const std::string& path = where.path;
  if (exclude_modules.contains(path) || where.inside<nn::LoraLayer>()) {
    return false;
  }
  for (const std::string& saved : modules_to_save) {
    if (is_part(path, saved)) {
      return false;
    }
  }
  if (target_modules.is_expression() && target_modules.names().front() == "all-linear") {
    const LoraTarget target = lora_target(where);
    return target.out > 0 && !target.is_embedding && !is_output_layer(path);
  }
  return target_modules.contains(path) &&
         (layers_to_transform.empty() || target_modules.lists(path) || is_layer_wanted(path));
}

TUTTI_INLINE std::vector<LoraTarget> LoraTargets::find(torch::nn::Module& model) const {
  std::vector<LoraTarget> out;
  std::set<std::string> could;
  for (const surgery::Visit& where : surgery::walk(model)) {
    const LoraTarget target = lora_target(where);
    if (target.out > 0) {
      could.insert(where.path.substr(where.path.rfind('.') + 1));
    }
    if (wants(where)) {
      TUTTI_CHECK(target.out > 0, "LoRA: target_modules names ", where.path, ", which is ",
                  where.module->name(), "; adapters stand beside Linear, TransposedLinear and ",
                  "Embedding of tutti::nn");
      out.push_back(target);
    }
  }
  const auto listed = [](const auto& names) {
    std::string text;
    for (const std::string& name : names) {
      text += (text.empty() ? "" : ", ") + name;
    }
    return text.empty() ? std::string("none") : text;
  };
  TUTTI_CHECK(!out.empty(), "LoRA: target_modules is ", listed(target_modules),
              ", and no layer of the model is chosen by it and the other options; layers that can ",
              "have an adapter are called: ", listed(could));
  return out;
}

}  // namespace tutti::detail

#endif
