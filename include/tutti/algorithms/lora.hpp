// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <tutti/algorithms/detail/adapter_config.hpp>
#include <tutti/algorithms/detail/adapter_file.hpp>
#include <tutti/algorithms/detail/lora_targets.hpp>
#include <tutti/algorithms/detail/saved_modules.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/json_file.hpp>
#include <tutti/checkpoint/module_state.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/pattern.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/models/save_pretrained.hpp>
#include <tutti/nn/lora.hpp>
#include <tutti/nn/module_names.hpp>
#include <tutti/nn/optimizers.hpp>
#include <tutti/nn/surgery.hpp>

/// LoRA and DoRA: small adapters are trained, the model is not.
namespace tutti {

/// Which biases are trained beside the adapters.
enum class LoraBias {
  none,
  all,        ///< every bias of the model
  lora_only,  ///< those of the layers that have an adapter
};

/// Trains low-rank adapters of some layers, and nothing else of the model.
///
///     LoRA{.r = 16, .alpha = 32, .target_modules = {"q_proj", "v_proj"}}
///
/// Options have PEFT's names and meaning (`alpha` is its `lora_alpha`); functional::read_lora()
/// makes them of an adapter's file.
/// Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022; Liu et al.,
/// "DoRA: Weight-Decomposed Low-Rank Adaptation", ICML 2024.
struct LoRA final {
  std::int64_t r = 8;  ///< the rank of an adapter; >= 1
  double alpha = 8;    ///< an adapter is multiplied by alpha / r

  /// The layers that get an adapter, nn::Linear, nn::TransposedLinear and nn::Embedding: their
  /// names, or the ends of these behind a dot; or one expression for the whole name; or
  /// "all-linear", every linear layer but the model's output. Obligatory.
  surgery::ModuleNames target_modules{};
  surgery::ModuleNames exclude_modules{};  ///< those that get none, whatever target_modules says

  double lora_dropout = 0;         ///< of the adapters' inputs, in [0, 1)
  bool use_rslora = false;         ///< alpha / sqrt(r) instead
  bool use_dora = false;           ///< also trains the length of each output's weights
  LoraBias bias = LoraBias::none;  ///< which biases are trained

  /// Modules that are trained as they are, and written beside the adapters: a new head. The ends of
  /// their names, behind a dot or not: "norm" is each that ends so; one that the model lacks is
  /// passed over.
  std::vector<std::string> modules_to_save{};

  /// Only layers of these numbers: where target_modules are names and not the whole of them.
  std::vector<std::int64_t> layers_to_transform{};
  std::vector<std::string> layers_pattern{};  ///< what stands before the number; empty: anything

  /// Ranks and alphas of some layers: expressions for the end of a name, of which the first counts
  /// that matches.
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern{};
  std::vector<std::pair<std::string, double>> alpha_pattern{};

  std::string task_type{};  ///< "CAUSAL_LM"; "SEQ_CLS" and "TOKEN_CLS" also save `classifier` and
                            ///< `score`
  std::string base_model_name_or_path{};  ///< what the adapter's file says of the model
  bool save_base = false;  ///< checkpoints hold the frozen weights, too; else their hash

  models::PretrainedConfig source_config{};  ///< the adapter_config.json that it was made from, if
                                             ///< any

  static constexpr std::string_view name = "LoRA";
  static constexpr About about{.reads_batch = false};
  using events = types<Init>;
  static constexpr Rules rules{
      .tags = {id<changes_model>,
               id<replaces_layers<nn::Linear, nn::TransposedLinear, nn::Embedding>>},
      .runs_after = {{id<ALiBi>, "the model is frozen as it is then"},
                     {id<BlurPool>, "the model is frozen as it is then"},
                     {id<GhostBatchNorm>, "the model is frozen as it is then"},
                     {id<GyroDropout>, "the model is frozen as it is then"},
                     {id<StochasticDepth>, "the model is frozen as it is then"},
                     {id<WeightStandardization>, "the model is frozen as it is then"}},
      .conflicts_with = {{id<Factorize>, "both replace linear layers, and factors would be frozen"},
                         {id<LayerFreezing>,
                          "the model is frozen already, so it would freeze adapters"},
                         {id<adds_layers<nn::Linear>>,
                          "new layers of the frozen model would stay as they were drawn"}},
  };

  /// Throws c10::ValueError when an option is missing or out of range.
  void validate() const;

  /// Changes the model, and logs `lora/num_adapters`, `lora/trainable_parameters` and
  /// `lora/all_parameters`.
  void apply(Init, State& state) const;

  /// Names of the frozen weights, which checkpoints leave to the program that trains.
  [[nodiscard]] std::vector<std::string> kept_elsewhere(const State& state) const;
};

namespace functional {

/// What apply_lora did.
struct LoraReport {
  std::vector<std::string> adapters;      ///< paths of the layers that have one
  std::int64_t trainable_parameters = 0;  ///< numbers that are trained
  std::int64_t all_parameters = 0;        ///< numbers of the model and its adapters
};

/// Puts adapters beside the layers that `lora` names, and freezes everything else.
///
/// optimizers: adapters join the group of the layer's weight; what is frozen leaves them, with its
/// state. New parameters of a layer `q_proj`: `q_proj.lora_A.weight`, `q_proj.lora_B.weight`; those
/// it had become `q_proj.base_layer.weight`, the same tensors.
/// Throws as LoRA::validate() does; c10::Error when nothing is named, a named module has no
/// adapter here, no named layer can be replaced, the model has adapters already, or a module to
/// save is in none of `optimizers`. The model is then as it was, but for the last.
LoraReport apply_lora(torch::nn::Module& model, const LoRA& lora,
                      const surgery::Optimizers& optimizers = {});

/// Adds the adapters to the weights, so that the model costs what it did without; see
/// nn::LoraLayer::merge(). Returns how many were merged.
std::int64_t merge_lora(torch::nn::Module& model, bool keep_weights = false);

/// Takes them out again. Returns how many there were.
std::int64_t unmerge_lora(torch::nn::Module& model);

/// Gives the layers back that the adapters stand beside, merged or as they were: a model of the
/// names that it had. Its parameters require gradients again; adapters leave the optimizers.
/// Returns how many there were.
std::int64_t unload_lora(torch::nn::Module& model, const surgery::Optimizers& optimizers = {});

/// Writes `adapter_config.json` and `adapter_model.safetensors` into a folder, as PEFT does.
///
/// model: with adapters that are not merged. lora: what they were made
/// with. Throws c10::ValueError when r, alpha or use_dora are others, c10::Error when a file is
/// there already or cannot be written.
void save_lora(torch::nn::Module& model, const LoRA& lora, const std::string& folder);

/// The adapters of a model as what models::save_pretrained() and HuggingFaceCheckpointer write:
/// PEFT's two files, and nothing of the model, whatever the size of a shard.
///
///     tutti::HuggingFaceCheckpointer{.model = tutti::functional::lora_adapters(net.ptr(), lora),
///                                    .folder = "{run_name}/adapters", .save_interval = "100ba"}
///
/// model: gets its adapters by the LoRA of a recipe or by apply_lora(), before something is
/// written. lora: the same options. Writing throws as save_lora() does.
models::AnyPretrained lora_adapters(std::shared_ptr<torch::nn::Module> model, LoRA lora);

/// The options in the `adapter_config.json` of a folder. Throws c10::Error (ValueError) for a key
/// that changes the computation and is not supported, by its name and value.
LoRA read_lora(const std::string& folder);

/// Loads an adapter of PEFT: makes the adapters, unless the model has them, and reads their
/// weights. Returns its options.
///
/// Throws as read_lora() and apply_lora() do, and c10::Error that lists the differences when the
/// file has other tensors than the model needs; nothing is then changed.
LoRA load_lora(torch::nn::Module& model, const std::string& folder,
               const surgery::Optimizers& optimizers = {});

}  // namespace functional

}  // namespace tutti

#if TUTTI_BODIES

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

#endif
