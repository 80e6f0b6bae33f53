// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/classifier.hpp>

namespace tutti::detail {

TUTTI_INLINE void complete(ClassifierOptions& options, std::int64_t own) {
  if (own != 0) {
    if (options.num_classes != 0 && options.num_classes != own) {
      TORCH_WARN("Classifier: num_classes is ", options.num_classes, ", but the network says ", own,
                 ", which is used");
    }
    options.num_classes = own;
  }
  TUTTI_CHECK_VALUE(options.num_classes >= 0, "Classifier: num_classes is ", options.num_classes,
                    ", expected 1 or more, or 0 when it is not known");
  const MulticlassAccuracy accuracy{{.num_classes = options.num_classes}};
  if (!options.train_metrics) {
    options.train_metrics = make_metrics(accuracy);
  }
  if (!options.eval_metrics) {
    options.eval_metrics = make_metrics(CrossEntropy{}, accuracy);
  }
}

// Says whose doing dense targets are, for a loss that cannot take them.
TUTTI_INLINE at::Tensor loss_of(const ClassifierOptions& options, const at::Tensor& outputs,
                                const at::Tensor& targets) {
  if (!options.loss) {
    return functional::soft_cross_entropy(outputs, targets);
  }
  try {
    return options.loss(outputs, targets);
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

TUTTI_INLINE at::Tensor sample_losses_of(const ClassifierOptions& options,
                                         const at::Tensor& outputs, const at::Tensor& targets) {
  TUTTI_CHECK(options.sample_losses || !options.loss,
              "Classifier: a loss of your own was given but no sample_losses beside it; set "
              "ClassifierOptions::sample_losses");
  return options.sample_losses
             ? options.sample_losses(outputs, targets)
             : functional::soft_cross_entropy(outputs, targets, {}, -100, Reduction::none);
}

}  // namespace tutti::detail
