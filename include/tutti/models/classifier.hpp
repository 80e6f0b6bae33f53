// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <torch/nn/pimpl.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/model.hpp>
#include <tutti/losses/soft_cross_entropy.hpp>
#include <tutti/metrics/accuracy.hpp>
#include <tutti/metrics/cross_entropy.hpp>
#include <tutti/metrics/make_metrics.hpp>

namespace tutti {

/// Options of Classifier.
struct ClassifierOptions {
  std::int64_t num_classes = 0;  ///< 0: the network's member num_classes, else that of the outputs
  /// Empty: MulticlassAccuracy.
  std::optional<Metrics> train_metrics{};
  /// Empty: CrossEntropy and MulticlassAccuracy.
  std::optional<Metrics> eval_metrics{};
  /// Outputs and targets to a scalar. Empty: functional::soft_cross_entropy.
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> loss{};
  /// Outputs and targets to a loss for each example, [N, ...]. Empty: that of the default loss, and
  /// none beside a loss of one's own.
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> sample_losses{};
};

namespace detail {

// What of a Classifier does not know its network.

// own: the network's number of classes; 0: it has none. Sets it, and the metrics that were not
// given.
void complete(ClassifierOptions& options, std::int64_t own);
at::Tensor loss_of(const ClassifierOptions& options, const at::Tensor& outputs,
                   const at::Tensor& targets);
at::Tensor sample_losses_of(const ClassifierOptions& options, const at::Tensor& outputs,
                            const at::Tensor& targets);

}  // namespace detail

/// Makes a Model of a network that classifies: batches of inputs and targets, cross entropy and
/// accuracy.
///
///     tutti::Classifier model{net, {.num_classes = 10}};  // net: a torch::nn holder or shared_ptr
///
/// `Net` has `at::Tensor forward(at::Tensor)` giving logits [N, C, ...]; targets are indices or
/// dense. Copies share the network.
/// Source: MosaicML Composer, `composer.models.ComposerClassifier`.
template <class Net>
class Classifier {
 public:
  /// Whose `model_features`, where it lists them, are this model's.
  using network_type = Net;

  /// Throws c10::Error (ValueError) when there is no network.
  explicit Classifier(std::shared_ptr<Net> net, ClassifierOptions options = {})
      : net_(std::move(net)), options_(std::move(options)) {
    TUTTI_CHECK_VALUE(net_ != nullptr, "Classifier: the network is empty; construct it first");
    detail::complete(options_, own_classes());
  }
  explicit Classifier(const torch::nn::ModuleHolder<Net>& net, ClassifierOptions options = {})
      : Classifier(net.is_empty() ? nullptr : net.ptr(), std::move(options)) {}

  /// The logits of a batch's inputs.
  [[nodiscard]] Outputs forward(const Batch& batch) const { return net_->forward(batch.inputs()); }

  /// The loss of logits against the batch's targets.
  [[nodiscard]] Loss loss(const Outputs& outputs, const Batch& batch) const {
    return detail::loss_of(options_, outputs.tensor(), batch.targets());
  }

  /// Both at once, where the network has them so (CompiledNet) and the loss is the default one.
  [[nodiscard]] std::optional<std::pair<Outputs, Loss>> forward_and_loss(const Batch& batch) const
    requires requires(Net& net, const at::Tensor& tensor) { net.forward_and_loss(tensor, tensor); }
  {
    if (options_.loss) {
      return std::nullopt;
    }
    auto both = net_->forward_and_loss(batch.inputs(), batch.targets());
    return both ? std::optional<std::pair<Outputs, Loss>>(std::move(*both)) : std::nullopt;
  }

  /// The loss is the default one.
  [[nodiscard]] bool has_cross_entropy() const { return !options_.loss; }

  /// There is a loss for each example.
  [[nodiscard]] bool has_sample_losses() const { return options_.sample_losses || !options_.loss; }

  /// The losses of each example of logits against the batch's targets, [N, ...].
  /// Throws c10::Error when only the loss of all was given.
  [[nodiscard]] at::Tensor sample_losses(const Outputs& outputs, const Batch& batch) const {
    return detail::sample_losses_of(options_, outputs.tensor(), batch.targets());
  }

  /// The metrics of training or of evaluation.
  [[nodiscard]] Metrics metrics(bool train) const {
    return train ? *options_.train_metrics : *options_.eval_metrics;
  }

  /// The network.
  [[nodiscard]] std::shared_ptr<Net> module() const { return net_; }

  /// Classes, 0 when nobody said.
  [[nodiscard]] std::int64_t num_classes() const { return options_.num_classes; }

 private:
  [[nodiscard]] std::int64_t own_classes() const {
    if constexpr (requires(const Net& net) {
                    { net.num_classes } -> std::convertible_to<std::int64_t>;
                  }) {
      return static_cast<std::int64_t>(net_->num_classes);
    } else {
      return 0;
    }
  }

  std::shared_ptr<Net> net_;
  ClassifierOptions options_;
};

template <class Net>
Classifier(std::shared_ptr<Net>) -> Classifier<Net>;
template <class Net>
Classifier(std::shared_ptr<Net>, ClassifierOptions) -> Classifier<Net>;
template <class Net>
Classifier(const torch::nn::ModuleHolder<Net>&) -> Classifier<Net>;
template <class Net>
Classifier(const torch::nn::ModuleHolder<Net>&, ClassifierOptions) -> Classifier<Net>;

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/models/classifier.inl.hpp>
#endif
