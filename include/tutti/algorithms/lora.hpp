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
#include <tutti/algorithms/lora.inl.hpp>
#endif
