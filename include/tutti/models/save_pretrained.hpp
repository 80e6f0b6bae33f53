// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <tutti/checkpoint/model_folder.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/models/spread_of.hpp>
#include <tutti/models/weight_layout.hpp>
#include <tutti/nn/attention.hpp>
#include <tutti/nn/gyro_dropout.hpp>
#include <tutti/nn/lora.hpp>
#include <tutti/nn/slot.hpp>
#include <tutti/nn/walk.hpp>

/// Models to folders of weights, as Hugging Face's `save_pretrained` writes them.
namespace tutti::models {

/// Options of save_pretrained().
struct SavePretrainedOptions {
  /// What the parameters are written as, float32 or bfloat16 say. Empty: their own type.
  std::optional<c10::ScalarType> dtype{};
  /// Bytes of a file at most; the weights are in several files, shards, when they are more.
  std::uint64_t max_shard_size = 5'000'000'000;
  /// Replace the weights of a folder that is there; its other files stay.
  bool overwrite = false;
  /// Write the sums of weights and adapters of LoRA, so that the folder has a model like any other;
  /// the model itself keeps them apart. Else a model with adapters is refused.
  bool merge_adapters = false;
  /// The folder that the model came from, whose tokenizer and generation_config.json are copied.
  /// Empty: none.
  std::string copy_files_from{};
};

/// `Net` is a module that can be written: it has `weight_layout()` and `config()`.
template <class Net>
concept Pretrainable = requires(Net& net) {
  { net.weight_layout() } -> std::same_as<WeightLayout>;
  { net.config() } -> std::same_as<PretrainedConfig>;
};

/// `Part` says by itself what is written of a model, adapters alone say: it has
/// `pretrained_folder(options, tensors)`, which does what models::pretrained_folder() does.
template <class Part>
concept PretrainablePart = requires(const Part& part, const SavePretrainedOptions& options,
                                    std::vector<checkpoint::NamedTensor>& tensors) {
  { part.pretrained_folder(options, tensors) } -> std::same_as<checkpoint::ModelFolder>;
};

/// A model of any class that save_pretrained() writes, or a part of one; shares it.
class AnyPretrained {
 public:
  /// No model.
  AnyPretrained() = default;

  template <Pretrainable Net>
  AnyPretrained(const torch::nn::ModuleHolder<Net>& net)  // NOLINT: converts by design
      : AnyPretrained(net.ptr()) {}
  template <Pretrainable Net>
  AnyPretrained(std::shared_ptr<Net> net)  // NOLINT: converts by design
      : layout_([net] { return net->weight_layout(); }), config_([net] { return net->config(); }) {
    if constexpr (std::derived_from<Net, torch::nn::Module>) {
      module_ = net;
    }
  }

  template <PretrainablePart Part>
  AnyPretrained(std::shared_ptr<Part> part)  // NOLINT: converts by design
      : part_([part](const SavePretrainedOptions& options,
                     std::vector<checkpoint::NamedTensor>& tensors) {
          return part->pretrained_folder(options, tensors);
        }) {}

  /// There is a model.
  explicit operator bool() const { return layout_ != nullptr || part_ != nullptr; }

  /// What is written of a part; null where it is a whole model.
  [[nodiscard]] const auto& part() const { return part_; }

  /// Of a whole model. Throw c10::Error (ValueError) where there is none.
  [[nodiscard]] WeightLayout weight_layout() const {
    check_whole();
    return layout_();
  }
  [[nodiscard]] PretrainedConfig config() const {
    check_whole();
    return config_();
  }

  /// The model as a module; null where it is none.
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& module() const { return module_; }

 private:
  void check_whole() const {
    TUTTI_CHECK_VALUE(layout_ != nullptr, "models: there is no whole model here, ",
                      part_ ? "only a part of one" : "none at all");
  }

  std::function<WeightLayout()> layout_;
  std::function<PretrainedConfig()> config_;
  std::function<checkpoint::ModelFolder(const SavePretrainedOptions&,
                                        std::vector<checkpoint::NamedTensor>&)>
      part_;
  std::shared_ptr<torch::nn::Module> module_;
};

/// Throws c10::Error when an algorithm has changed the model to one that its folder cannot say,
/// since a reader would compute something else: the biases of ALiBi, factors of Factorize, gates of
/// GatedLinearUnits and the like; and adapters of LoRA, unless `merge_adapters`. A part says itself
/// what it cannot write.
void check_expressible(const AnyPretrained& model, bool merge_adapters);

/// Writes a model as a folder that Transformers' from_pretrained reads.
///
///     tutti::models::save_pretrained(net, "/models/mine", {.dtype = at::kBFloat16});
///
/// Each tensor of the layout is written once, tied ones under the name that is no alias. `dtype` of
/// config.json says the type of the weights; all its other keys are written as they are. The folder
/// is there whole or not at all; write_model_folder() has the rules. In a run of several ranks call
/// it on one of them. Throws c10::Error when it cannot be written, and as check_expressible() does.
void save_pretrained(const AnyPretrained& model, const std::string& folder,
                     const SavePretrainedOptions& options = {});

/// What save_pretrained() writes: fills `tensors`, which are the model's own, and returns the rest.
/// Throws c10::Error (ValueError) for a type that weights are not written as.
checkpoint::ModelFolder pretrained_folder(const AnyPretrained& model,
                                          const SavePretrainedOptions& options,
                                          std::vector<checkpoint::NamedTensor>& tensors);

}  // namespace tutti::models

#if TUTTI_BODIES

namespace tutti::models::detail {

// The layers with an adapter, by where they are.
TUTTI_INLINE std::vector<std::pair<std::string, std::shared_ptr<nn::LoraLayer>>> adapted_layers(
    const AnyPretrained& model) {
  std::vector<std::pair<std::string, std::shared_ptr<nn::LoraLayer>>> out;
  if (model.module() != nullptr) {
    for (const surgery::Visit& where : surgery::walk(*model.module())) {
      if (auto layer = std::dynamic_pointer_cast<nn::LoraLayer>(where.module)) {
        out.emplace_back(where.path, std::move(layer));
      }
    }
  }
  return out;
}

// A tensor with the storage, sizes and strides that a base's weight has, and the adapter in it.
TUTTI_INLINE at::Tensor merged_like(const nn::LoraLayer& layer, const at::Tensor& stored) {
  const at::Tensor sum = layer.merged_weight();
  at::Tensor out = at::empty_strided(stored.sizes(), stored.strides(), stored.options());
  return out.copy_(layer.is_transposed() ? sum.t() : sum);
}

// The layout of a model whose adapters are sums with the weights.
TUTTI_INLINE WeightLayout merged_layout(const AnyPretrained& model) {
  WeightLayout layout = model.weight_layout();
  std::unordered_set<const void*> adapters;  // storages of what is in the sums
  struct Sum {
    at::Tensor stored, merged;
    bool of_table;
  };
  std::unordered_map<const void*, Sum> sums;  // by the storage of the base's weight
  const auto storage = [](const at::Tensor& x) -> const void* {
    return x.storage().unsafeGetStorageImpl();
  };
  for (const auto& [path, layer] : adapted_layers(model)) {
    for (const auto& own : layer->named_parameters()) {
      if (!own.key().starts_with("base_layer.")) {
        adapters.insert(storage(own.value()));
      }
    }
    const at::Tensor w = layer->weight().detach();
    const at::Tensor stored = layer->is_transposed() ? w.t() : w;
    const bool is_new =
        sums.emplace(storage(w), Sum{stored, merged_like(*layer, stored), layer->is_embedding()})
            .second;
    TUTTI_CHECK(is_new, "models: the weight of '", path,
                "' belongs to two layers with adapters, whose sums differ");
  }
  std::erase_if(layout.tensors, [&](const DiskTensor& tensor) {
    return adapters.contains(storage(tensor.tensor));
  });
  for (DiskTensor& tensor : layout.tensors) {
    constexpr std::string_view base = ".base_layer.";
    if (const std::size_t at = tensor.name.find(base); at != std::string::npos) {
      tensor.name.replace(at, base.size(), ".");
    }
    const auto found = sums.find(storage(tensor.tensor));
    if (found == sums.end()) {
      continue;
    }
    const auto& [stored, merged, of_table] = found->second;
    for (const auto& [alias, target] : layout.tied) {
      TUTTI_CHECK(!of_table || tensor.name != target, "models: '", target,
                  "' has an adapter of LoRA and is '", alias,
                  "', too, which has none, and a folder holds one tensor for both; write the "
                  "adapter by functional::save_lora()");
    }
    tensor.tensor = merged.as_strided(tensor.tensor.sizes(), tensor.tensor.strides(),
                                      tensor.tensor.storage_offset() - stored.storage_offset());
  }
  return layout;
}

}  // namespace tutti::models::detail

namespace tutti::models {

TUTTI_INLINE void check_expressible(const AnyPretrained& model, bool merge_adapters) {
  if (model.part() != nullptr) {
    std::vector<checkpoint::NamedTensor> tensors;
    static_cast<void>(model.part()({}, tensors));
  }
  if (model.module() == nullptr) {
    return;
  }
  for (const surgery::Visit& where : surgery::walk(*model.module())) {
    const auto* attention = dynamic_cast<const nn::PositionBiased*>(where.module.get());
    TUTTI_CHECK(attention == nullptr || attention->position_bias() == nullptr, "models: '",
                where.path,
                "' has the biases of ALiBi, which no config.json has a key "
                "for: readers of the folder would compute without them; save a checkpoint instead");
    const auto* adapter = dynamic_cast<const nn::LoraLayer*>(where.module.get());
    TUTTI_CHECK(adapter == nullptr || merge_adapters, "models: the model has adapters of LoRA ('",
                where.path,
                "'), which its folder has no names for; save them by functional::save_lora(), set "
                "merge_adapters, or call functional::merge_lora() and functional::unload_lora() "
                "first");
    const auto* other = dynamic_cast<const nn::Substitute*>(where.module.get());
    const bool as_before = dynamic_cast<const nn::GyroDropoutImpl*>(other) != nullptr;
    TUTTI_CHECK(other == nullptr || adapter != nullptr || as_before, "models: '", where.path,
                "' was replaced by an algorithm (", other != nullptr ? other->name() : "",
                "), which its folder has no names for; save a checkpoint instead");
  }
}

TUTTI_INLINE checkpoint::ModelFolder pretrained_folder(
    const AnyPretrained& model, const SavePretrainedOptions& options,
    std::vector<checkpoint::NamedTensor>& tensors) {
  TUTTI_CHECK_VALUE(model, "models: there is no model to save");
  if (model.part() != nullptr) {
    return model.part()(options, tensors);
  }
  check_expressible(model, options.merge_adapters);
  const auto spread = model.module() != nullptr ? spread_of(*model.module()) : nullptr;
  TUTTI_CHECK(
      spread == nullptr || spread->summoned(),
      "models: the model is spread over ranks by tensor_parallel(), of which this one has a "
      "part; write the folder while what spread_of(model)->summon() returns lives");
  const c10::ScalarType dtype = options.dtype.value_or(c10::ScalarType::Undefined);
  std::string type;  // of the first floating tensor
  const WeightLayout layout = detail::merged_layout(model);
  for (const DiskTensor& tensor : layout.tensors) {
    tensors.emplace_back(tensor.name, tensor.tensor);
    if (type.empty() && tensor.tensor.is_floating_point()) {
      type = dtype_text(checkpoint::written_type(tensor.tensor, dtype));
    }
  }
  PretrainedConfig config = model.config();
  if (!type.empty()) {
    config.set(config.has("torch_dtype") && !config.has("dtype") ? "torch_dtype" : "dtype", type);
  }
  return {.config = config.values(),
          .options = {.max_shard_size = options.max_shard_size,
                      .dtype = dtype,
                      .overwrite = options.overwrite,
                      .copy_files_from = options.copy_files_from}};
}

TUTTI_INLINE void save_pretrained(const AnyPretrained& model, const std::string& folder,
                                  const SavePretrainedOptions& options) {
  std::vector<checkpoint::NamedTensor> tensors;
  const auto how = pretrained_folder(model, options, tensors);
  checkpoint::write_model_folder(folder, tensors, how.config, how.options);
}

}  // namespace tutti::models

#endif
