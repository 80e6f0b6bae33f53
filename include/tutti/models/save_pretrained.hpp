// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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
#include <tutti/models/residual_block.hpp>
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
/// GatedLinearUnits, StochasticDepth in blocks without a ResidualBlock::residual_scale() and the
/// like; and adapters of LoRA, unless `merge_adapters`. A part says itself what it cannot write.
void check_expressible(const AnyPretrained& model, bool merge_adapters);

/// Writes a model as a folder that Transformers' from_pretrained reads.
///
///     tutti::models::save_pretrained(net, "/models/mine", {.dtype = at::kBFloat16});
///
/// Each tensor of the layout is written once, tied ones under the name that is no alias. What
/// StochasticDepth multiplies a residual by in evaluation is written as part of the weights of its
/// last layer; the model keeps it apart. `dtype` of
/// config.json says the type of the weights; all its other keys are written as they are. The folder
/// is there whole or not at all; write_model_folder() has the rules. In a run of several ranks call
/// it on one of them. Throws c10::Error when it cannot be written, and as check_expressible() does.
void save_pretrained(const AnyPretrained& model, const std::string& folder,
                     const SavePretrainedOptions& options = {});

/// What save_pretrained() writes: fills `tensors`, which are the model's own or, where something is
/// merged into them, copies, and returns the rest.
/// Throws c10::Error (ValueError) for a type that weights are not written as.
checkpoint::ModelFolder pretrained_folder(const AnyPretrained& model,
                                          const SavePretrainedOptions& options,
                                          std::vector<checkpoint::NamedTensor>& tensors);

}  // namespace tutti::models

#if TUTTI_BODIES
#include <tutti/models/save_pretrained.inl.hpp>
#endif
