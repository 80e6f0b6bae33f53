// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/save_pretrained.hpp>

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

// What is kept by the first byte of a tensor, and found by any tensor that begins within it. Not by
// storages: the parameters of a sharded unit share one.
template <class T>
class ByMemory {
 public:
  // Whether there was none.
  bool add(const at::Tensor& tensor, T value) {
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < tensor.dim(); ++i) {
      last += (tensor.size(i) - 1) * tensor.stride(i);
    }
    const auto bytes = static_cast<std::uintptr_t>((last + 1) * tensor.element_size());
    return tensor.numel() == 0 ||
           kept_.try_emplace(begin_of(tensor), begin_of(tensor) + bytes, std::move(value)).second;
  }
  const T* find(const at::Tensor& tensor) const {
    auto at = kept_.upper_bound(begin_of(tensor));
    if (at == kept_.begin() || tensor.numel() == 0) {
      return nullptr;
    }
    --at;
    return begin_of(tensor) < at->second.first ? &at->second.second : nullptr;
  }

 private:
  static std::uintptr_t begin_of(const at::Tensor& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  }

  std::map<std::uintptr_t, std::pair<std::uintptr_t, T>> kept_;  // with its end
};

// Puts what StochasticDepth multiplies a residual by in evaluation into copies of the last layer's
// weight and bias, for readers that compute without it.
TUTTI_INLINE void fold_factors(const AnyPretrained& model, WeightLayout& layout) {
  if (model.module() == nullptr) {
    return;
  }
  ByMemory<std::pair<at::Tensor, at::Tensor>> scaled;  // as it is in the model, and scaled
  for (const surgery::Visit& where : surgery::walk(*model.module())) {
    const auto* block = dynamic_cast<const ResidualBlock*>(where.module.get());
    const double factor = block == nullptr ? 1 : block->evaluation_factor().value_or(1);
    if (factor == 1) {
      continue;
    }
    for (const at::Tensor& parameter : block->residual_scale()) {
      const at::Tensor own = parameter.detach();
      TUTTI_CHECK(scaled.add(own, {own, own * factor}), "models: the last layer of '", where.path,
                  "' belongs to two blocks that are skipped at random");
    }
  }
  for (DiskTensor& tensor : layout.tensors) {
    if (const auto* const found = scaled.find(tensor.tensor); found != nullptr) {
      tensor.tensor =
          found->second.as_strided(tensor.tensor.sizes(), tensor.tensor.strides(),
                                   tensor.tensor.storage_offset() - found->first.storage_offset());
    }
  }
}

// The layout of a model whose adapters are sums with the weights.
TUTTI_INLINE WeightLayout merged_layout(const AnyPretrained& model) {
  WeightLayout layout = model.weight_layout();
  struct Sum {
    at::Tensor stored, merged;
    bool of_table;
  };
  ByMemory<bool> adapters;  // what is in the sums
  ByMemory<Sum> sums;       // of the base's weight
  for (const auto& [path, layer] : adapted_layers(model)) {
    for (const auto& own : layer->named_parameters()) {
      if (!own.key().starts_with("base_layer.")) {
        adapters.add(own.value(), true);
      }
    }
    const at::Tensor w = layer->weight().detach();
    const at::Tensor stored = layer->is_transposed() ? w.t() : w;
    const bool is_new =
        sums.add(w, Sum{stored, merged_like(*layer, stored), layer->is_embedding()});
    TUTTI_CHECK(is_new, "models: the weight of '", path,
                "' belongs to two layers with adapters, whose sums differ");
  }
  std::erase_if(layout.tensors,
                [&](const DiskTensor& tensor) { return adapters.find(tensor.tensor) != nullptr; });
  for (DiskTensor& tensor : layout.tensors) {
    constexpr std::string_view base = ".base_layer.";
    if (const std::size_t at = tensor.name.find(base); at != std::string::npos) {
      tensor.name.replace(at, base.size(), ".");
    }
    const Sum* const found = sums.find(tensor.tensor);
    if (found == nullptr) {
      continue;
    }
    const auto& [stored, merged, of_table] = *found;
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
    const auto* block = dynamic_cast<const ResidualBlock*>(where.module.get());
    const bool folds = block == nullptr || !block->is_joined_otherwise() ||
                       (block->evaluation_factor() && !block->residual_scale().empty());
    TUTTI_CHECK(
        folds, "models: '", where.path,
        "' is joined by an algorithm (StochasticDepth), which in evaluation multiplies what "
        "the whole block adds; no weights of a folder express that for such a block, so "
        "its readers would compute something else; save a checkpoint, or call set_join({}) "
        "on each ResidualBlock, evaluate what the model computes then, and save that");
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
  WeightLayout layout = detail::merged_layout(model);
  detail::fold_factors(model, layout);
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
