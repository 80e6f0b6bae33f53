// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/nn/module.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/metric.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/models/detail/compiled_checks.hpp>
#include <tutti/models/detail/compiled_graph.hpp>
#include <tutti/models/detail/compiled_package.hpp>
#include <tutti/models/detail/compiled_part.hpp>

/// Models of Python that were exported once, by tutti_export.py, and are trained without Python.
namespace tutti {

/// Options of load_compiled() and CompiledModel.
struct CompiledOptions {
  /// Other weights than the package's: a file or folder as checkpoint::read_weights() takes it,
  /// with the names of Python's state_dict. Empty: those of the package.
  std::string weights{};
  /// The SHA-256 of compiled.json, which has those of the programs: sixty-four hexadecimal digits
  /// that tutti_export.py prints. Other folders are refused before a program is loaded. Empty: any.
  std::string expect_sha256{};
};

/// An exported network as a torch::nn::Module: parameters and buffers have their names in Python.
///
/// In training it runs the program of Python's train mode, whose gradients a program of its own
/// computes; in evaluation the program of the eval mode, without gradients. Each call checks types,
/// sizes and memory order of inputs and weights. Gradients are those of parameters, once for each
/// forward: there is no second backward and no gradient of an input.
class CompiledNet final : public detail::ExportedPart {
 public:
  /// There are no layers to replace; what the inputs are is known when the package is read.
  using model_features = types<is_compiled>;

  /// Loads the folder that tutti_export.py wrote.
  ///
  /// A folder with compiled programs is a program: loading it runs what its .so files have in them,
  /// with the rights of this process, so take it from where you take programs. One that was
  /// exported with --data-only is read as data and runs no code of its own.
  /// Before a program is loaded, its hash, the version of LibTorch and the processor's instructions
  /// are compared. Throws c10::Error that names the folder and what is wrong with it.
  explicit CompiledNet(const std::string& folder, const CompiledOptions& options = {});

  /// The output of a network with one input and one output.
  at::Tensor forward(const at::Tensor& input);

  /// All outputs, in the order of output_names(), for inputs in the order of input_names().
  /// Throws c10::Error with both sides when an input or a weight is not what was exported.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);

  /// The outputs and the cross entropy of the only one (or of "logits") against class indices, by
  /// one program, which computes the gradients too, for networks whose steps are mostly calls.
  /// The loss has the gradients, the outputs have none.
  ///
  /// Empty, and nothing was computed: the package was exported without `--loss cross_entropy`; not
  /// in training, or without gradients; or the targets are not int64 indices that fit the inputs
  /// (those of LabelSmoothing and MixUp are not). Throws as forward().
  std::optional<std::pair<std::vector<at::Tensor>, at::Tensor>> forward_and_loss(
      const std::vector<at::Tensor>& inputs, const at::Tensor& targets);

  /// That of a network with one input and one output; empty for others.
  std::optional<std::pair<at::Tensor, at::Tensor>> forward_and_loss(const at::Tensor& input,
                                                                    const at::Tensor& targets);

  /// The names of forward's arguments in Python.
  [[nodiscard]] const std::vector<std::string>& input_names() const { return input_names_; }

  /// The names of what forward returns in Python; "outputs" where it is one tensor.
  [[nodiscard]] const std::vector<std::string>& output_names() const { return output_names_; }

  /// fp32 or amp_bf16: how it was exported.
  [[nodiscard]] const std::string& precision() const { return programs_->package.precision; }

  /// Writes a new safetensors file with the names of Python's state_dict, tied ones under each of
  /// their names: `model.load_state_dict(load_file(path), strict=True)` reads it.
  void save_weights(const std::string& path);

 private:
  struct Slot {
    detail::ExportedPart* owner;  // kept alive by this module
    std::size_t place;
  };

  void load_programs(bool by_sha256);
  void add_weights(const std::string& folder);
  void load_weights(const std::string& path);
  at::Tensor& parameter(std::size_t i);
  at::Tensor& buffer(std::size_t i);
  at::Device check(const std::vector<at::Tensor>& inputs,
                   std::vector<models::detail::KnownSize>& known);
  void check_inputs(const std::vector<at::Tensor>& inputs, at::Device device,
                    std::vector<models::detail::KnownSize>& known) const;
  void check_weights(at::Device device);
  std::vector<at::Tensor> gather(const std::vector<models::detail::Word>& words,
                                 const std::vector<at::Tensor>& inputs);
  std::size_t update_buffers(const std::vector<models::detail::Word>& words,
                             const std::vector<at::Tensor>& results);
  bool gradient_edges(std::vector<torch::autograd::Edge>& edges);
  std::vector<at::Tensor> evaluate(const std::vector<at::Tensor>& inputs, at::Device device);
  std::vector<at::Tensor> train_forward(const std::vector<at::Tensor>& inputs, at::Device device);
  void record(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>&& saved,
              const std::vector<at::Tensor>& inputs, at::Device device);

  std::shared_ptr<models::detail::ExportedPrograms> programs_;
  std::vector<Slot> parameter_slots_, buffer_slots_;
  std::vector<bool> has_gradient_;
  std::vector<std::string> input_names_, output_names_;
  std::string folder_;
};

/// Loads an exported network; for Classifier and for loops of one's own. Throws as CompiledNet.
///
///     auto net = tutti::load_compiled("resnet18.tutti");
///     tutti::Classifier model{net, {.num_classes = 10}};
inline std::shared_ptr<CompiledNet> load_compiled(const std::string& folder,
                                                  const CompiledOptions& options = {}) {
  return std::make_shared<CompiledNet>(folder, options);
}

/// Options of CompiledModel.
struct CompiledModelOptions {
  std::string weights{};        ///< as CompiledOptions::weights
  std::string expect_sha256{};  ///< as CompiledOptions::expect_sha256
  /// Outputs and batch to the loss. Empty: functional::soft_cross_entropy of Outputs::tensor() and
  /// Batch::targets().
  std::function<Loss(const Outputs&, const Batch&)> loss{};
  Metrics train_metrics{};
  Metrics eval_metrics{};
};

/// The mean cross entropy of logits [N, T, V] against the tokens that follow, for
/// CompiledModelOptions::loss: the batch's targets [N, T] are the tokens themselves, -100 where
/// none counts, as `labels` of Transformers.
Loss next_token_loss(const Outputs& outputs, const Batch& batch);

/// An exported network as a Model: it takes the batch's tensors by the names of its inputs, and
/// gives its outputs under their names.
///
/// A network with one input takes Batch::inputs() where the batch has no tensor of that name.
class CompiledModel {
 public:
  /// Whose `model_features` are this model's.
  using network_type = CompiledNet;

  /// Throws as CompiledNet.
  explicit CompiledModel(const std::string& folder, CompiledModelOptions options = {})
      : net_(load_compiled(folder, {options.weights, options.expect_sha256})),
        options_(std::move(options)) {}

  [[nodiscard]] Outputs forward(const Batch& batch) const;
  [[nodiscard]] Loss loss(const Outputs& outputs, const Batch& batch) const;
  /// Both by one program, as CompiledNet::forward_and_loss(); empty with a loss of one's own.
  [[nodiscard]] std::optional<std::pair<Outputs, Loss>> forward_and_loss(const Batch& batch) const;
  [[nodiscard]] bool has_cross_entropy() const { return !options_.loss; }
  [[nodiscard]] const Metrics& metrics(bool train) const {
    return train ? options_.train_metrics : options_.eval_metrics;
  }
  [[nodiscard]] std::shared_ptr<CompiledNet> module() const { return net_; }

 private:
  std::vector<at::Tensor> inputs_of(const Batch& batch) const;
  Outputs named(const std::vector<at::Tensor>& tensors) const;

  std::shared_ptr<CompiledNet> net_;
  CompiledModelOptions options_;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/models/compiled.inl.hpp>
#endif
