// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/pimpl.h>

#include <tutti/checkpoint/model_folder.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/models/weight_layout.hpp>

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

/// A model of any class that save_pretrained() writes; shares it.
class AnyPretrained {
 public:
  /// No model.
  AnyPretrained() = default;

  template <Pretrainable Net>
  AnyPretrained(const torch::nn::ModuleHolder<Net>& net)  // NOLINT: converts by design
      : AnyPretrained(net.ptr()) {}
  template <Pretrainable Net>
  AnyPretrained(std::shared_ptr<Net> net)  // NOLINT: converts by design
      : layout_([net] { return net->weight_layout(); }), config_([net] { return net->config(); }) {}

  /// There is a model.
  explicit operator bool() const { return layout_ != nullptr; }

  [[nodiscard]] WeightLayout weight_layout() const { return layout_(); }
  [[nodiscard]] PretrainedConfig config() const { return config_(); }

 private:
  std::function<WeightLayout()> layout_;
  std::function<PretrainedConfig()> config_;
};

/// Writes a model as a folder that Transformers' from_pretrained reads.
///
///     tutti::models::save_pretrained(net, "/models/mine", {.dtype = at::kBFloat16});
///
/// Each tensor of the layout is written once, tied ones under the name that is no alias. `dtype` of
/// config.json says the type of the weights; all its other keys are written as they are. The folder
/// is there whole or not at all; write_model_folder() has the rules. In a run of several ranks call
/// it on one of them. Throws c10::Error when it cannot be written.
void save_pretrained(const AnyPretrained& model, const std::string& folder,
                     const SavePretrainedOptions& options = {});

/// What save_pretrained() writes: fills `tensors`, which are the model's own, and returns the rest.
/// Throws c10::Error (ValueError) for a type that weights are not written as.
checkpoint::ModelFolder pretrained_folder(const AnyPretrained& model,
                                          const SavePretrainedOptions& options,
                                          std::vector<checkpoint::NamedTensor>& tensors);

}  // namespace tutti::models

#if TUTTI_BODIES

namespace tutti::models {

TUTTI_INLINE checkpoint::ModelFolder pretrained_folder(
    const AnyPretrained& model, const SavePretrainedOptions& options,
    std::vector<checkpoint::NamedTensor>& tensors) {
  TUTTI_CHECK_VALUE(model, "models: there is no model to save");
  const c10::ScalarType dtype = options.dtype.value_or(c10::ScalarType::Undefined);
  std::string type;  // of the first floating tensor
  for (const DiskTensor& tensor : model.weight_layout().tensors) {
    TUTTI_CHECK_VALUE(tensor.name.find(".base_layer.") == std::string::npos,
                      "models: the model has adapters of LoRA (\"", tensor.name,
                      "\"), which its folder has no names for; save them by "
                      "functional::save_lora(), or call functional::merge_lora() and "
                      "functional::unload_lora() first");
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
