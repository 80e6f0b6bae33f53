// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/lora.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

namespace tutti::detail {

/// Tensors by their names in an adapter's file, with their shapes.
using AdapterShapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

/// The weights of an adapter as PEFT writes them.
class AdapterFile {
 public:
  /// Throws c10::Error when the file is missing or damaged.
  explicit AdapterFile(const std::string& path) : path_(path), file_(path) {}

  /// Throws c10::Error that lists the differences when the file has other tensors than these, or of
  /// other shapes. Those of base layers' weights may be missing.
  void check(const AdapterShapes& wanted) const;

  /// Copies the tensors of the file that are among these, in the types that they have there.
  void read_into(const std::vector<checkpoint::NamedTensor>& tensors) const;

 private:
  static bool may_be_missing(const std::string& name) {
    return name.ends_with(".base_layer.weight") ||
           name.find(".modules_to_save.") != std::string::npos ||
           name.find(".original_module.") != std::string::npos;
  }

  std::string path_;
  checkpoint::SafetensorsFile file_;
};

TUTTI_INLINE AdapterShapes shapes_of(const std::vector<checkpoint::NamedTensor>& tensors) {
  AdapterShapes out;
  for (const auto& [name, tensor] : tensors) {
    out.emplace_back(name, tensor.sizes().vec());
  }
  return out;
}

}  // namespace tutti::detail

namespace tutti::detail {

TUTTI_INLINE void AdapterFile::check(const AdapterShapes& wanted) const {
  constexpr std::size_t shown = 5;
  std::string text;
  const auto list = [&](const char* title, const std::vector<std::string>& names) {
    if (!names.empty()) {
      text += std::string("\n  ") + std::to_string(names.size()) + ' ' + title + ':';
      for (std::size_t i = 0; i < std::min(shown, names.size()); ++i) {
        text += "\n    " + names[i];
      }
      text +=
          names.size() > shown ? "\n    and " + std::to_string(names.size() - shown) + " more" : "";
    }
  };
  std::map<std::string, at::IntArrayRef> left;
  for (const auto& layout : file_.tensors()) {
    left.emplace(layout.name, layout.shape);
  }
  std::vector<std::string> missing;
  std::vector<std::string> unlike;
  std::vector<std::string> unexpected;
  for (const auto& [name, shape] : wanted) {
    const auto found = left.find(name);
    if (found == left.end()) {
      if (!may_be_missing(name)) {
        missing.push_back(name);
      }
      continue;
    }
    if (found->second != at::IntArrayRef(shape)) {
      unlike.push_back(c10::str(name, ": ", found->second, " in the file, ", at::IntArrayRef(shape),
                                " in the model"));
    }
    left.erase(found);
  }
  for (const auto& [name, shape] : left) {
    unexpected.push_back(name);
  }
  list("missing (the model needs them, the file has not)", missing);
  list("unexpected (the file has them, the model has no place for them)", unexpected);
  list("of another shape", unlike);
  TUTTI_CHECK(text.empty(), "LoRA: the adapter '", path_, "' does not fit the model:", text,
              "\nWas it trained on another model?");
}

TUTTI_INLINE void AdapterFile::read_into(
    const std::vector<checkpoint::NamedTensor>& tensors) const {
  const c10::AutoGradMode no_grad(false);
  for (auto [name, tensor] : tensors) {
    if (file_.contains(name)) {
      tensor.copy_(file_.read(name));
    }
  }
}

}  // namespace tutti::detail

namespace tutti::detail {

using checkpoint::NamedTensor;

TUTTI_INLINE LoraTargets lora_targets_of(const LoRA& lora) {
  return {lora.target_modules, lora.exclude_modules, saved_modules(lora), lora.layers_to_transform,
          lora.layers_pattern};
}

// The value of the first expression that matches the end of a module's name.
template <class T>
T by_pattern(const std::vector<std::pair<std::string, T>>& patterns, const std::string& module,
             T otherwise) {
  for (const auto& [pattern, value] : patterns) {
    if (Pattern("(.*\\.)?(" + pattern + ")").matches(module)) {
      return value;
    }
  }
  return otherwise;
}

TUTTI_INLINE nn::LoraOptions options_for(const LoRA& lora, const std::string& module) {
  const std::int64_t r = by_pattern(lora.rank_pattern, module, lora.r);
  const double alpha = by_pattern(lora.alpha_pattern, module, lora.alpha);
  const auto rank = static_cast<double>(r);
  return {.r = r,
          .scaling = alpha / (lora.use_rslora ? std::sqrt(rank) : rank),
          .use_dora = lora.use_dora,
          .dropout = lora.lora_dropout};
}

TUTTI_INLINE bool has_adapters(torch::nn::Module& model) {
  return surgery::count<nn::LoraLayer>(model) > 0;
}

// Keeps the biases of saved modules as they are now in the adapters.
TUTTI_INLINE void keep_saved_biases(torch::nn::Module& model, const LoRA& lora) {
  auto kept = std::make_shared<std::map<std::string, at::Tensor>>();
  each_saved_bias(model, lora,
                  [&](const std::string&, const std::string& before, const at::Tensor& tensor) {
                    kept->emplace(before, tensor.detach().clone());
                  });
  surgery::for_each<nn::LoraLayer>(
      model, [&](nn::LoraLayer& layer, const surgery::Visit&) { layer.beside = kept; });
}

// A parameter is trained by `bias`: by its name in the model, and whether it is of an adapter's
// base.
TUTTI_INLINE bool trains_bias(const LoRA& lora, const std::string& name) {
  if (lora.bias == LoraBias::lora_only) {
    return name.ends_with(".base_layer.bias");
  }
  return lora.bias == LoraBias::all && name.find("bias") != std::string::npos;
}

// What an adapter's file holds for `model`, which has adapters, by the names in the file.
TUTTI_INLINE std::vector<NamedTensor> adapter_tensors(torch::nn::Module& model, const LoRA& lora) {
  std::vector<NamedTensor> out;
  std::unordered_set<std::string> names;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (names.insert(name).second) {
      out.emplace_back("base_model.model." + name, tensor);
    }
  };
  const bool tables = saves_tables(lora.target_modules);
  std::shared_ptr<const std::map<std::string, at::Tensor>> beside;
  surgery::for_each<nn::LoraLayer>(model, [&](nn::LoraLayer& layer, const surgery::Visit& where) {
    beside = layer.beside;
    const std::string& path = where.path;
    add(path + (layer.is_embedding() ? ".lora_embedding_A" : ".lora_A.weight"), layer.factor_a());
    add(path + (layer.is_embedding() ? ".lora_embedding_B" : ".lora_B.weight"), layer.factor_b());
    if (layer.magnitude().defined()) {
      add(path + ".lora_magnitude_vector", layer.magnitude());
    }
    if (tables && (layer.is_embedding() || is_head(path))) {
      add(path + ".base_layer.weight", layer.is_transposed() ? layer.weight().t() : layer.weight());
    }
  });
  each_saved_bias(model, lora,
                  [&](const std::string& now, const std::string& before, const at::Tensor& tensor) {
                    add(now, tensor);
                    if (beside != nullptr && beside->contains(before)) {
                      add(before, beside->at(before));
                    }
                  });
  for (const auto& parameter : model.named_parameters()) {
    if (trains_bias(lora, parameter.key())) {
      add(parameter.key(), parameter.value());
    }
  }
  each_saved(model, lora, add);
  return out;
}

// Fills `tensors` with what an adapter's file holds; returns what its config says.
TUTTI_INLINE Json adapter_files(torch::nn::Module& model, const LoRA& lora,
                                std::vector<NamedTensor>& tensors) {
  TUTTI_CHECK(has_adapters(model), "LoRA: the model has no adapters to write");
  bool transposed = false;
  surgery::for_each<nn::LoraLayer>(model, [&](nn::LoraLayer& layer, const surgery::Visit& where) {
    TUTTI_CHECK(!layer.is_merged(), "LoRA: the adapter of ", where.path,
                " is merged into the model's weight; write it after unmerge_lora()");
    const nn::LoraOptions said = options_for(lora, where.path);
    const nn::LoraOptions& has = layer.lora_options();
    TUTTI_CHECK_VALUE(
        said.r == has.r && said.scaling == has.scaling && said.use_dora == has.use_dora,
        "LoRA: the adapter of ", where.path, " has r = ", has.r, " and the scale ", has.scaling,
        has.use_dora ? " with DoRA" : "",
        ", but the options that are to be written say r = ", said.r, " and ", said.scaling,
        said.use_dora ? " with DoRA" : "", "; give those that it was made with");
    transposed = transposed || (layer.is_transposed() && !layer.is_embedding());
  });
  tensors = adapter_tensors(model, lora);
  return adapter_config(lora, transposed);
}

// The adapters of a model, as a part of it that save_pretrained() writes.
struct LoraAdapters {
  std::shared_ptr<torch::nn::Module> model;
  LoRA lora;

  [[nodiscard]] checkpoint::ModelFolder pretrained_folder(
      const models::SavePretrainedOptions& options, std::vector<NamedTensor>& tensors) const {
    return {.config = adapter_files(*model, lora, tensors),
            .options = {.max_shard_size = std::numeric_limits<std::uint64_t>::max(),
                        .dtype = options.dtype.value_or(c10::ScalarType::Undefined),
                        .overwrite = options.overwrite,
                        .copy_files_from = options.copy_files_from,
                        .weights_name = "adapter_model",
                        .config_name = "adapter_config.json"}};
  }
};

// The parameters that are trained.
TUTTI_INLINE std::unordered_set<c10::TensorImpl*> trained_parameters(torch::nn::Module& model,
                                                                     const LoRA& lora) {
  std::unordered_set<c10::TensorImpl*> out;
  surgery::for_each<nn::LoraLayer>(model, [&](nn::LoraLayer& layer, const surgery::Visit&) {
    out.insert({layer.factor_a().unsafeGetTensorImpl(), layer.factor_b().unsafeGetTensorImpl()});
    if (layer.magnitude().defined()) {
      out.insert(layer.magnitude().unsafeGetTensorImpl());
    }
  });
  for (const auto& parameter : model.named_parameters()) {
    if (trains_bias(lora, parameter.key())) {
      out.insert(parameter.value().unsafeGetTensorImpl());
    }
  }
  each_saved(model, lora, [&](const std::string&, const at::Tensor& tensor) {
    out.insert(tensor.unsafeGetTensorImpl());
  });
  return out;
}

// Freezes all but the adapters and what is trained beside them.
TUTTI_INLINE void freeze_base(torch::nn::Module& model, const LoRA& lora,
                              const surgery::Optimizers& optimizers) {
  const auto trained = trained_parameters(model, lora);
  std::unordered_set<c10::TensorImpl*> frozen;
  for (const auto& parameter : model.named_parameters()) {
    c10::TensorImpl* one = parameter.value().unsafeGetTensorImpl();
    const bool trains = trained.contains(one);
    TUTTI_CHECK(
        !trains || optimizers.empty() || surgery::holds(optimizers, one), "LoRA: ", parameter.key(),
        " is to be trained, but no optimizer has it, since it was frozen ",
        "when the optimizer was made; unfreeze it before, or take it out of ", "modules_to_save");
    parameter.value().set_requires_grad(trains);
    if (!trains) {
      parameter.value().mutable_grad().reset();
      frozen.insert(one);
    }
  }
  surgery::forget(optimizers, frozen);
}

// Of names in a list that no module of the model has, beside others that choose layers.
TUTTI_INLINE void warn_of_unknown_names(torch::nn::Module& model,
                                        const surgery::ModuleNames& names) {
  if (names.is_expression()) {
    return;
  }
  const std::vector<surgery::Visit> all = surgery::walk(model);
  for (const std::string& name : names) {
    const surgery::ModuleNames one(std::vector<std::string>{name});
    if (std::none_of(all.begin(), all.end(),
                     [&](const auto& at) { return one.contains(at.path); })) {
      TORCH_WARN("LoRA: target_modules names '", name,
                 "', and no module of the model is called so; correct it, or leave it out");
    }
  }
}

// One kind of layer.
template <class Layer, class Adapter>
void adapt(torch::nn::Module& model, const LoRA& lora, const LoraTargets& targets,
           const surgery::Optimizers& optimizers) {
  const auto beside = [&](typename Layer::Impl::Plain& layer,
                          const surgery::Visit& where) -> surgery::Replacement {
    if (!targets.wants(where)) {
      return nullptr;
    }
    auto adapter = std::make_shared<Adapter>(layer, options_for(lora, where.path));
    adapter->original = where.module;
    return adapter;
  };
  static_cast<void>(surgery::replace<Layer>(
      model, beside, {.optimizers = optimizers, .who = "LoRA", .keep_dtype = false}));
}

// The shapes of adapter_tensors() once `model` has its adapters.
TUTTI_INLINE AdapterShapes planned_shapes(torch::nn::Module& model, const LoRA& lora) {
  AdapterShapes out;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    out.emplace_back("base_model.model." + name, std::move(shape));
  };
  std::map<std::string, std::string> biases;  // of layers that get one, as they will be called
  const bool tables = saves_tables(lora.target_modules);
  for (const LoraTarget& target : lora_targets_of(lora).find(model)) {
    const std::string& path = target.path;
    const std::int64_t r = options_for(lora, path).r;
    add(path + (target.is_embedding ? ".lora_embedding_A" : ".lora_A.weight"), {r, target.in});
    add(path + (target.is_embedding ? ".lora_embedding_B" : ".lora_B.weight"), {target.out, r});
    if (lora.use_dora) {
      add(path + ".lora_magnitude_vector", {target.out});
    }
    if (tables && (target.is_embedding || is_head(path))) {
      add(path + ".base_layer.weight", target.is_embedding
                                           ? std::vector<std::int64_t>{target.in, target.out}
                                           : std::vector<std::int64_t>{target.out, target.in});
    }
    biases.emplace(path + ".bias", path + ".base_layer.bias");
  }
  each_saved_bias(model, lora,
                  [&](const std::string& now, const std::string& before, const at::Tensor& tensor) {
                    add(now, tensor.sizes().vec());
                    add(before, tensor.sizes().vec());
                  });
  std::unordered_set<std::string> saved;
  each_saved(model, lora, [&](const std::string& name, const at::Tensor& tensor) {
    saved.insert(name);
    add(name, tensor.sizes().vec());
  });
  for (const auto& parameter : model.named_parameters()) {
    const auto of_adapter = biases.find(parameter.key());
    const std::string name = of_adapter == biases.end() ? parameter.key() : of_adapter->second;
    if (trains_bias(lora, name) && !saved.contains(name)) {
      add(name, parameter.value().sizes().vec());
    }
  }
  return out;
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE void LoRA::validate() const {
  expect(r >= 1, "LoRA: r", r, "at least 1");
  expect(std::isfinite(alpha), "LoRA: alpha", alpha, "a number");
  expect(lora_dropout >= 0 && lora_dropout < 1, "LoRA: lora_dropout", lora_dropout,
         "a number from 0 to below 1");
  expect(!target_modules.empty(),
         "LoRA: target_modules is empty; name the layers that get an adapter, as {\"q_proj\", "
         "\"v_proj\"}, or \"all-linear\".");
  expect(layers_to_transform.empty() || !target_modules.is_expression(),
         "LoRA: layers_to_transform is set and target_modules is an expression; let the expression "
         "choose the layers, or list names.");
  expect(layers_pattern.empty() || !layers_to_transform.empty(),
         "LoRA: layers_pattern is set and layers_to_transform is not; set both, or neither.");
  for (const auto& [pattern, rank] : rank_pattern) {
    expect(rank >= 1, "LoRA: rank_pattern of " + pattern, rank, "at least 1");
    detail::Pattern{pattern};
  }
  for (const auto& [pattern, value] : alpha_pattern) {
    detail::Pattern{pattern};
  }
}

TUTTI_INLINE void LoRA::apply(Init, State& state) const {
  const auto report = functional::apply_lora(*state.model, *this, state.optimizers);
  state.logger.log_hyperparameters(
      {{"lora/num_adapters", static_cast<std::int64_t>(report.adapters.size())},
       {"lora/trainable_parameters", report.trainable_parameters},
       {"lora/all_parameters", report.all_parameters}});
}

TUTTI_INLINE std::vector<std::string> LoRA::kept_elsewhere(const State& state) const {
  std::vector<std::string> out;
  for (const auto& parameter : state.model->named_parameters()) {
    if (!save_base && !parameter.value().requires_grad()) {
      out.push_back(parameter.key());
    }
  }
  return out;
}

}  // namespace tutti

namespace tutti::functional {

TUTTI_INLINE LoraReport apply_lora(torch::nn::Module& model, const LoRA& lora,
                                   const surgery::Optimizers& optimizers) {
  lora.validate();
  TUTTI_CHECK(!::tutti::detail::has_adapters(model),
              "LoRA: the model has adapters already; take them out by unload_lora() first");
  const ::tutti::detail::LoraTargets targets = ::tutti::detail::lora_targets_of(lora);
  LoraReport report;
  for (const auto& target : targets.find(model)) {
    report.adapters.push_back(target.path);
    static_cast<void>(::tutti::detail::options_for(lora, target.path));
  }
  ::tutti::detail::warn_of_unknown_names(model, lora.target_modules);
  ::tutti::detail::adapt<nn::Linear, nn::LoraLinear>(model, lora, targets, optimizers);
  ::tutti::detail::adapt<nn::TransposedLinear, nn::LoraTransposedLinear>(model, lora, targets,
                                                                         optimizers);
  ::tutti::detail::adapt<nn::Embedding, nn::LoraEmbeddingImpl>(model, lora, targets, optimizers);
  TUTTI_CHECK(::tutti::detail::has_adapters(model), "LoRA: none of the ", report.adapters.size(),
              " chosen layers can get an adapter, such as ", report.adapters.front(),
              ", because their parents call them directly; declare them as tutti::nn::Linear or ",
              "tutti::nn::Embedding, or put them into a Sequential");
  ::tutti::detail::keep_saved_biases(model, lora);
  ::tutti::detail::freeze_base(model, lora, optimizers);
  for (const at::Tensor& parameter : model.parameters()) {
    report.all_parameters += parameter.numel();
    report.trainable_parameters += parameter.requires_grad() ? parameter.numel() : 0;
  }
  return report;
}

TUTTI_INLINE std::int64_t merge_lora(torch::nn::Module& model, bool keep_weights) {
  return surgery::for_each<nn::LoraLayer>(
      model, [&](nn::LoraLayer& layer, const surgery::Visit&) { layer.merge(keep_weights); });
}

TUTTI_INLINE std::int64_t unmerge_lora(torch::nn::Module& model) {
  return surgery::for_each<nn::LoraLayer>(
      model, [](nn::LoraLayer& layer, const surgery::Visit&) { layer.unmerge(); });
}

TUTTI_INLINE std::int64_t unload_lora(torch::nn::Module& model,
                                      const surgery::Optimizers& optimizers) {
  std::unordered_set<c10::TensorImpl*> adapters;
  const std::int64_t count = surgery::for_each<nn::LoraLayer>(
      model, [&](nn::LoraLayer& layer, const surgery::Visit& where) {
        for (const auto& parameter : layer.named_parameters()) {
          if (!parameter.key().starts_with("base_layer.")) {
            adapters.insert(parameter.value().unsafeGetTensorImpl());
          }
        }
        surgery::put_back(where, layer.base(), layer.original.lock());
      });
  surgery::forget(optimizers, adapters);
  for (const at::Tensor& parameter : model.parameters()) {
    parameter.set_requires_grad(true);
  }
  return count;
}

TUTTI_INLINE void save_lora(torch::nn::Module& model, const LoRA& lora, const std::string& folder) {
  std::vector<checkpoint::NamedTensor> tensors;
  const ::tutti::detail::Json config = ::tutti::detail::adapter_files(model, lora, tensors);
  checkpoint::make_folder(folder);
  checkpoint::write_json(folder + "/adapter_config.json", config);
  checkpoint::write_safetensors(folder + "/adapter_model.safetensors", tensors, {{"format", "pt"}});
}

TUTTI_INLINE models::AnyPretrained lora_adapters(std::shared_ptr<torch::nn::Module> model,
                                                 LoRA lora) {
  TUTTI_CHECK_VALUE(model != nullptr, "LoRA: there is no model whose adapters could be written");
  return std::make_shared<::tutti::detail::LoraAdapters>(
      ::tutti::detail::LoraAdapters{std::move(model), std::move(lora)});
}

TUTTI_INLINE LoRA read_lora(const std::string& folder) {
  const std::string path = folder + "/adapter_config.json";
  const ::tutti::detail::Json json = checkpoint::read_json(path);
  TUTTI_CHECK_VALUE(json.is_object(), "'", path, "' is ", json.kind(), ", expected an object");
  return ::tutti::detail::lora_of<LoRA>(models::PretrainedConfig(json.object(), "'" + path + "'"));
}

TUTTI_INLINE LoRA load_lora(torch::nn::Module& model, const std::string& folder,
                            const surgery::Optimizers& optimizers) {
  LoRA lora = read_lora(folder);
  lora.validate();
  const std::string path = folder + "/adapter_model.safetensors";
  ::tutti::detail::AdapterFile file(path);
  file.check(::tutti::detail::has_adapters(model)
                 ? ::tutti::detail::shapes_of(::tutti::detail::adapter_tensors(model, lora))
                 : ::tutti::detail::planned_shapes(model, lora));
  if (!::tutti::detail::has_adapters(model)) {
    apply_lora(model, lora, optimizers);
  }
  file.read_into(::tutti::detail::adapter_tensors(model, lora));
  return lora;
}

}  // namespace tutti::functional
