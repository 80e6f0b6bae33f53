// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <torch/nn/pimpl.h>

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
    settle_classes();
    const MulticlassAccuracy accuracy{{.num_classes = options_.num_classes}};
    if (!options_.train_metrics) {
      options_.train_metrics = make_metrics(accuracy);
    }
    if (!options_.eval_metrics) {
      options_.eval_metrics = make_metrics(CrossEntropy{}, accuracy);
    }
  }
  explicit Classifier(const torch::nn::ModuleHolder<Net>& net, ClassifierOptions options = {})
      : Classifier(net.is_empty() ? nullptr : net.ptr(), std::move(options)) {}

  /// The logits of a batch's inputs.
  [[nodiscard]] Outputs forward(const Batch& batch) const { return net_->forward(batch.inputs()); }

  /// The loss of logits against the batch's targets.
  [[nodiscard]] Loss loss(const Outputs& outputs, const Batch& batch) const {
    return options_.loss ? own_loss(outputs.tensor(), batch.targets())
                         : functional::soft_cross_entropy(outputs.tensor(), batch.targets());
  }

  /// The loss is the default one.
  [[nodiscard]] bool has_cross_entropy() const { return !options_.loss; }

  /// There is a loss for each example.
  [[nodiscard]] bool has_sample_losses() const { return options_.sample_losses || !options_.loss; }

  /// The losses of each example of logits against the batch's targets, [N, ...].
  /// Throws c10::Error when only the loss of all was given.
  [[nodiscard]] at::Tensor sample_losses(const Outputs& outputs, const Batch& batch) const {
    TUTTI_CHECK(has_sample_losses(),
                "Classifier: a loss of your own was given but no sample_losses beside it; set "
                "ClassifierOptions::sample_losses");
    return options_.sample_losses
               ? options_.sample_losses(outputs.tensor(), batch.targets())
               : functional::soft_cross_entropy(outputs.tensor(), batch.targets(), {}, -100,
                                                Reduction::none);
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
  // Says whose doing dense targets are, for a loss that cannot take them.
  at::Tensor own_loss(const at::Tensor& outputs, const at::Tensor& targets) const {
    try {
      return options_.loss(outputs, targets);
    } catch (const c10::Error& error) {
      TUTTI_CHECK(!targets.is_floating_point() || targets.sizes() != outputs.sizes(),
                  "Classifier: the loss of your own does not take targets that are class "
                  "probabilities ",
                  targets.sizes(),
                  ", as LabelSmoothing, MixUp and CutMix make "
                  "them; take these out, set MixUp's and CutMix's interpolate_loss, or use a loss "
                  "that does, as functional::soft_cross_entropy. It said: ",
                  error.what_without_backtrace());
      throw;
    }
  }

  void settle_classes() {
    if constexpr (requires(const Net& net) {
                    { net.num_classes } -> std::convertible_to<std::int64_t>;
                  }) {
      const auto own = static_cast<std::int64_t>(net_->num_classes);
      if (options_.num_classes != 0 && options_.num_classes != own) {
        TORCH_WARN("Classifier: num_classes is ", options_.num_classes, ", but the network says ",
                   own, ", which is used");
      }
      options_.num_classes = own;
    }
    TUTTI_CHECK_VALUE(options_.num_classes >= 0, "Classifier: num_classes is ",
                      options_.num_classes, ", expected 1 or more, or 0 when it is not known");
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
