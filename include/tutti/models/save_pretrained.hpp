// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

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

/// Writes tensors and a config as a folder that Transformers' from_pretrained reads.
///
/// Each tensor of the layout is written once, tied ones under the name that is no alias. `dtype` of
/// config.json says the type of the weights; all its other keys are written as they are. The folder
/// is there whole or not at all; write_model_folder() has the rules. In a run of several ranks call
/// it on one of them. Throws c10::Error when it cannot be written.
void save_pretrained(const WeightLayout& layout, PretrainedConfig config, const std::string& folder,
                     const SavePretrainedOptions& options = {});

/// Writes a model: `model->weight_layout()` and `model->config()`.
///
///     tutti::models::save_pretrained(net, "/models/mine", {.dtype = at::kBFloat16});
///
/// Throws as above.
template <class M>
  requires requires(const M& model) {
    model->weight_layout();
    model->config();
  }
void save_pretrained(const M& model, const std::string& folder,
                     const SavePretrainedOptions& options = {}) {
  save_pretrained(model->weight_layout(), model->config(), folder, options);
}

}  // namespace tutti::models

#if TUTTI_BODIES

namespace tutti::models {

TUTTI_INLINE void save_pretrained(const WeightLayout& layout, PretrainedConfig config,
                                  const std::string& folder, const SavePretrainedOptions& options) {
  const c10::ScalarType dtype = options.dtype.value_or(c10::ScalarType::Undefined);
  std::vector<checkpoint::NamedTensor> tensors;
  std::optional<std::string> type;  // of the first floating tensor
  for (const DiskTensor& tensor : layout.tensors) {
    tensors.emplace_back(tensor.name, tensor.tensor);
    if (!type && tensor.tensor.is_floating_point()) {
      type = dtype_text(checkpoint::written_type(tensor.tensor, dtype));
    }
  }
  if (type) {
    config.set(config.has("torch_dtype") && !config.has("dtype") ? "torch_dtype" : "dtype", *type);
  }
  checkpoint::write_model_folder(folder, tensors, config.values(),
                                 {.max_shard_size = options.max_shard_size,
                                  .dtype = dtype,
                                  .overwrite = options.overwrite,
                                  .copy_files_from = options.copy_files_from});
}

}  // namespace tutti::models

#endif
