// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Device.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <tutti/checkpoint/glob.hpp>
#include <tutti/checkpoint/weight_files.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/recorded_init.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/models/detail/edited_config.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/models/weight_layout.hpp>

/// Models from folders of weights, as Hugging Face's `from_pretrained` reads them.
namespace tutti::models {

/// What load_pretrained() did with each tensor of the model and of the file.
struct PretrainedReport {
  std::string path;   ///< the file, or the index of several
  std::string model;  ///< WeightLayout::model

  std::vector<std::string> taken;  ///< names of the layout
  /// Of those taken, the ones that the file calls otherwise: its name, and the layout's.
  std::vector<std::pair<std::string, std::string>> renamed;
  std::vector<std::string> adapted;   ///< of those taken, the ones that had another shape
  std::vector<std::string> left_out;  ///< in the file; parts that this model lacks
  std::vector<std::string> ignored;   ///< in the file; constants that old versions wrote
  /// In the model, and new: the file lacks them or has them in another size.
  std::vector<std::string> initialised;
  std::vector<std::string> resized;  ///< of those initialised, the ones of another size in the file
  std::vector<std::string> zeroed;  ///< `num_batches_tracked` that the file lacks: 0, as in PyTorch

  /// One line, and a list of each kind but `taken` and `ignored`, the first `shown` of it.
  [[nodiscard]] std::string text(std::size_t shown = 10) const;
};

/// Options of from_pretrained() and load_pretrained().
struct FromPretrainedOptions {
  /// The file may lack the tensors of `WeightLayout::may_be_missing`, a classifier say: they are
  /// freshly initialised and reported.
  bool allow_new_heads = false;
  /// The same for those whose shape differs, as with another number of labels; and a first
  /// convolution is fitted to images of other channels, as timm does it with `in_chans`.
  bool ignore_mismatched_sizes = false;
  /// The type of the parameters. Empty: float32, whatever the file has.
  std::optional<c10::ScalarType> dtype{};
  /// Where the model is. Empty: the CPU.
  std::optional<c10::Device> device{};
  /// Changes the config before the model is made: the number of labels (`num_labels` or
  /// `num_classes`, whichever library wrote it), a dropout. A key that the class does not read is
  /// an error.
  std::function<void(PretrainedConfig&)> edit_config{};
  /// Receives the report. Null: what was freshly initialised is a warning.
  PretrainedReport* report = nullptr;
};

/// Copies the tensors of opened files into a model.
///
/// Names may be those of today, of older versions, of the base model or of a model with more heads
/// (docs/pretrained.md has the rules); floating types are converted to the model's. All is compared
/// before the first tensor is copied, each straight from the file to its place: after an exception
/// the model is as it was. Throws c10::Error that lists every tensor that is missing, unexpected or
/// different, with what the file and what the model has. Returns what was done.
PretrainedReport load_pretrained(const WeightLayout& layout, const checkpoint::WeightFiles& files,
                                 const FromPretrainedOptions& options = {});

/// load_pretrained() of a folder, an index, a safetensors file or one of torch.save().
/// Throws as that and as checkpoint::WeightFiles::open() do.
inline PretrainedReport load_pretrained(const WeightLayout& layout, const std::string& path,
                                        const FromPretrainedOptions& options = {}) {
  return load_pretrained(layout, checkpoint::WeightFiles::open(path), options);
}

namespace detail {

/// What goes where, once everything fits.
struct LoadPlan {
  struct Copy {
    at::Tensor own;
    const checkpoint::StoredTensor* stored = nullptr;
    at::Tensor adapted{};  // where it had another shape: what is copied in its place
  };

  PretrainedReport report;
  std::vector<Copy> copies;
};

/// Compares; throws as load_pretrained() does.
LoadPlan plan_load(const WeightLayout& layout, const checkpoint::WeightFiles& files,
                   const FromPretrainedOptions& options);

/// Copies.
void run_load(const LoadPlan& plan);

/// Throws when a parameter of the model is in no tensor of its layout: it would keep its values.
void check_covers(const WeightLayout& layout, const torch::nn::Module& model);

/// Converts the parameters and moves everything.
void place_model(torch::nn::Module& model, const FromPretrainedOptions& options);

/// The same exception, or one that says whose sizes they are where the memory did not suffice.
[[noreturn]] void rethrow_for(const PretrainedConfig& config, const c10::Error& error);

/// Hands the report to whom the options say.
void deliver(const PretrainedReport& report, const FromPretrainedOptions& options);

/// A model by its config. `M::Impl` has options_from(config), or from_config(config) where options
/// are not all that it needs.
template <class M>
M model_from(const PretrainedConfig& config, const FromPretrainedOptions& options) {
  using Impl = typename M::ContainedType;
  M model{nullptr};
  if constexpr (requires { Impl::from_config(config); }) {
    model = M(Impl::from_config(config));
  } else {
    model = M(std::make_shared<Impl>(Impl::options_from(config)));
  }
  model->source_config = config;
  place_model(*model, options);
  return model;
}

/// from_pretrained() with a config that was read already.
template <class M>
M load_model(const PretrainedConfig& config, const std::string& folder,
             const FromPretrainedOptions& options) {
  const auto files = checkpoint::WeightFiles::open(folder);
  M model{nullptr};
  try {
    const ::tutti::detail::WithoutDraws raw;  // ten times as long as reading the weights
    model = model_from<M>(config, options);
  } catch (const c10::Error& error) {
    rethrow_for(config, error);
  }
  check_edits(config, model->weight_layout().model);
  LoadPlan plan = plan_load(model->weight_layout(), files, options);
  if (!plan.report.initialised.empty()) {  // something keeps what it is made with
    model = model_from<M>(config, options);
    plan = plan_load(model->weight_layout(), files, options);
  }
  check_covers(model->weight_layout(), *model);
  run_load(plan);
  deliver(plan.report, options);
  return model;
}

}  // namespace detail

/// The model of a folder, by its type.
///
///     auto net = tutti::models::from_pretrained<tutti::models::GPT2LMHeadModel>("/models/gpt2");
///     tutti::Trainer trainer{net.ptr(), ...};
///
/// Its sizes are those of `config.json`, its weights those of the folder (see load_pretrained()),
/// in training mode. `config.json` is kept, unknown keys too, for save_pretrained().
/// Throws c10::Error for a folder without a config or weights, for a config that the class does not
/// support (by key and value), and as load_pretrained() does.
template <class M>
M from_pretrained(const std::string& folder, const FromPretrainedOptions& options = {}) {
  return detail::load_model<M>(detail::edited_config(folder, options.edit_config), folder, options);
}

}  // namespace tutti::models

#if TUTTI_BODIES
#include <tutti/models/from_pretrained.inl.hpp>
#endif
