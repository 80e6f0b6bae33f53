// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/model.hpp>
#include <tutti/nn/slot.hpp>

/// Models to files of ONNX, which onnxruntime and others run without LibTorch.
namespace tutti {

/// Options of export_onnx().
struct OnnxOptions {
  /// What the inputs are called in the file, in the order of the example. Empty: as the example
  /// calls them, "inputs" for a single tensor.
  std::vector<std::string> input_names{};
  /// What the outputs are called, in order. Empty: as the model calls them, "outputs" for a single
  /// tensor.
  std::vector<std::string> output_names{};
  /// Dimension 0 of every input is "batch" and of any size.
  bool dynamic_batch = true;
  /// Further dimensions of any size: input, dimension from 0, name. Dimensions of one name have one
  /// size, and a name for dimension 0 takes the place of "batch".
  std::map<std::string, std::map<std::int64_t, std::string>> dynamic_axes{};
  /// Write weights of 1 KiB and more to `<path>.data` beside the file. A model of more than 2 GiB,
  /// which no file of ONNX can have, is written so in any case.
  bool external_data = false;
  /// Replace files that are there.
  bool overwrite = false;
};

/// A model of any class that export_onnx() takes; shares it.
///
/// A Model (a Classifier, a language model), or a module with `at::Tensor forward(at::Tensor)`, as
/// a torch::nn holder, a shared_ptr, or a copy that shares its network.
class OnnxModel {
 public:
  template <class M>
  OnnxModel(std::shared_ptr<M> model);  // NOLINT: converts by design
  template <class Net>
  OnnxModel(const torch::nn::ModuleHolder<Net>& net)  // NOLINT: converts by design
      : OnnxModel(net.is_empty() ? nullptr : net.ptr()) {}
  template <Model M>
  OnnxModel(M model)  // NOLINT: converts by design
      : OnnxModel(::tutti::detail::make<M>(std::move(model))) {}

  /// A forward of one's own: of a network with several inputs, or of a part of one.
  ///
  /// module: holds the parameters. forward: the outputs for a batch of the example's names.
  OnnxModel(std::shared_ptr<torch::nn::Module> module, std::function<Outputs(const Batch&)> forward)
      : module_(std::move(module)), forward_(std::move(forward)) {}

  /// The module that holds the parameters; null: there is no model.
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& module() const { return module_; }

  /// What the forward pass reads of a batch: all of it but the targets, or the inputs alone.
  [[nodiscard]] Batch inputs(const Batch& example) const;

  [[nodiscard]] Outputs forward(const Batch& batch) const { return forward_(batch); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::function<Outputs(const Batch&)> forward_;
  bool one_input_ = false;
};

/// Writes a model as a file of ONNX, opset 18, whose results are the model's in evaluation.
///
///     tutti::export_onnx(net, torch::randn({1, 3, 224, 224}), "resnet.onnx");
///
/// The forward pass runs for the example and for batches of other sizes that are made of it, and
/// what it calls of ATen is written down; a number that follows a size becomes a computation.
/// Inputs and outputs have the names of the batch's tensors, weights those of named_parameters()
/// and named_buffers(), and dimension 0 is of any size. Targets in the example are left out. The
/// model keeps its mode, its gradients and its device; weights are copied to the CPU.
///
/// The file is there whole or not at all. Throws c10::Error that says what cannot be written: an
/// operator by its name and the layer that calls it (NotImplementedError), calls or numbers that
/// depend on the values or sizes of the inputs in a way that a file cannot have, an input that the
/// outputs do not depend on, a weight that forward changes; ValueError for options that do not fit
/// the example; and when the file cannot be written.
/// Source: ONNX, "Operators"; PyTorch, `torch.onnx.export`.
void export_onnx(const OnnxModel& model, const Batch& example, const std::string& path,
                 const OnnxOptions& options = {});

template <class M>
OnnxModel::OnnxModel(std::shared_ptr<M> model) {
  constexpr bool is_model = Model<M>;
  constexpr bool is_net = nn::TensorModule<M>;
  static_assert(is_model || is_net,
                "tutti: export_onnx() takes a Model or a module with at::Tensor "
                "forward(at::Tensor); for others write OnnxModel(module, function of a Batch that "
                "returns Outputs).");
  if (model == nullptr) {
    return;
  }
  if constexpr (is_model) {
    const AnyModel any(model);
    module_ = any.module();
    forward_ = [any](const Batch& batch) { return any.eval_forward(batch); };
  } else if constexpr (is_net) {
    module_ = model;
    forward_ = [model](const Batch& batch) { return Outputs(model->forward(batch.inputs())); };
    one_input_ = true;
  }
}

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/models/export_onnx.inl.hpp>
#endif
