// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_linear1d.h>
#include <ATen/ops/upsample_trilinear3d.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <tutti/algorithms/detail/elapsed.hpp>
#include <tutti/algorithms/detail/loss_targets.hpp>
#include <tutti/algorithms/detail/perturbed_weights.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>

/// SelectiveBackprop: training on the harder part of each batch.
namespace tutti {

namespace functional {

/// Whether a batch is one of those from which examples are chosen.
///
/// elapsed: the part of the run that is done. batch_in_epoch: 0-based. start, end: chosen from
/// start on, no more from end on. interrupt: every interrupt-th batch of an epoch stays whole; 0:
/// none.
/// Source: MosaicML Composer, `composer.functional.should_selective_backprop`.
constexpr bool should_selective_backprop(double elapsed, std::int64_t batch_in_epoch,
                                         double start = 0.5, double end = 0.9,
                                         std::int64_t interrupt = 2) {
  return elapsed >= start && elapsed < end &&
         (interrupt == 0 || (batch_in_epoch + 1) % interrupt != 0);
}

/// Draws examples, the more likely the larger their losses.
///
/// losses: [N, ...]; the mean of an example counts. keep: part of them to draw, in (0, 1]; rounded
/// down, one at least.
/// Ranked by loss from 0, the smallest, to N - 1, an example of rank r has the weight
/// `((r + 1/2) / N)^(1 / keep - 1)`; drawing is without replacement.
/// Returns int64 [n] on the CPU, in the order drawn.
/// Throws c10::Error (ValueError) when keep is out of range or there is no loss.
/// Source: Jiang et al., "Accelerating Deep Learning by Focusing on the Biggest Losers", 2019.
at::Tensor draw_by_loss(const at::Tensor& losses, Rng& rng, double keep = 0.5);

}  // namespace functional

namespace detail {

// Inputs [N, C, ...] with sides `scale` times as long, linearly interpolated.
at::Tensor shrink_inputs(const at::Tensor& x, double scale);

}  // namespace detail

namespace functional {

/// What select_using_loss gives.
struct SelectedBatch {
  at::Tensor input;    ///< [n, ...], in the order drawn
  at::Tensor target;   ///< [n, ...]
  at::Tensor indices;  ///< int64 [n], on the CPU: which examples they are
};

/// Chooses the examples of a batch to train on by the losses that they have now.
///
/// model: outputs of inputs. loss: of outputs and targets, for each example, [N, ...]. keep: see
/// draw_by_loss. scale_factor: sides of what `model` sees, for speed, as a part of the inputs'; in
/// (0, 1]; other than 1 for inputs [N, C, ...] with 1 to 3 sides.
/// The model is called without gradients, in the mode that it is in.
/// Throws c10::Error (ValueError) when something is out of range or the losses are not N.
/// Source: MosaicML Composer, `composer.functional.select_using_loss`.
template <class Model, class LossFunction>
SelectedBatch select_using_loss(const at::Tensor& input, const at::Tensor& target, Model&& model,
                                LossFunction&& loss, Rng& rng, double keep = 0.5,
                                double scale_factor = 1) {
  const at::Tensor losses = [&]() -> at::Tensor {
    const c10::AutoGradMode no_grad(false);
    return loss(model(::tutti::detail::shrink_inputs(input, scale_factor)), target);
  }();
  TUTTI_CHECK_VALUE(losses.dim() >= 1 && losses.size(0) == input.size(0),
                    "select_using_loss: the losses are ", losses.sizes(),
                    ", expected one for each of ", input.size(0),
                    " examples; let the loss not reduce");
  const at::Tensor indices = draw_by_loss(losses, rng, keep);
  return {input.index_select(0, indices.to(input.device())),
          target.index_select(0, indices.to(target.device())), indices};
}

}  // namespace functional

/// Trains on the harder part of each batch, chosen by an extra forward pass.
///
/// Source: Jiang et al., "Accelerating Deep Learning by Focusing on the Biggest Losers", 2019.
struct SelectiveBackprop final {
  double start = 0.5;          ///< part of the run after which to choose; in [0, 1]
  double end = 0.9;            ///< part of the run after which to train on all again; start or more
  double keep = 0.5;           ///< part of a batch to train on; in (0, 1], 1 leaves batches alone
  double scale_factor = 1;     ///< sides of the images that choosing looks at; in (0, 1]
  std::int64_t interrupt = 2;  ///< every interrupt-th batch stays whole; 0: none; not 1
  bool freeze_statistics = true;  ///< running statistics (buffers) do not learn from choosing
  bool whole_units = false;  ///< start and end only when a whole unit of max_duration is done, an
                             ///< epoch of "10ep"; else at any batch
  bool whole_batch = false;  ///< choosing passes a batch at once, which costs memory; else its
                             ///< microbatches
  Key input_key{};           ///< the tensor that scale_factor is about; empty: batch.inputs()
  Rng rng{};

  /// What it holds while it runs; not an option.
  struct Run {
    Lazy<detail::Copies> statistics{};  ///< room for a copy of the buffers
  } run{};

  static constexpr std::string_view name = "SelectiveBackprop";
  using events = types<Init, AfterDataloader>;
  static constexpr Rules rules{
      .tags = {id<selects_examples>},
      .runs_first = {id<AfterDataloader>},
      .conflicts_with =
          {{id<ALiBi>,
            "examples would be chosen by sequences longer than those that are trained on, "
            "before ALiBi cuts them up"}},
      .works_with = {{id<uses_batch_statistics>, "running statistics do not learn from choosing"}},
  };

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(start >= 0 && start <= end, "SelectiveBackprop: start", start, "0 or more, up to end");
    expect(end <= 1, "SelectiveBackprop: end", end, "at most 1");
    expect(keep > 0 && keep <= 1, "SelectiveBackprop: keep", keep, "more than 0 and at most 1");
    expect(scale_factor > 0 && scale_factor <= 1, "SelectiveBackprop: scale_factor", scale_factor,
           "more than 0 and at most 1");
    expect(interrupt >= 0 && interrupt != 1, "SelectiveBackprop: interrupt", interrupt,
           "0, or 2 or more (1 would leave every batch whole)");
  }

  bool match(AfterDataloader, const State& state) const;

  /// Throws c10::Error when the model does not say what each example loses.
  void apply(Init, State& state) const;

  /// Keeps some examples of the batch, in all of its tensors.
  void apply(AfterDataloader, State& state);

 private:
  // In the mode and precision of training. [N] or [N, ...].
  [[nodiscard]] at::Tensor losses_of(State& state);
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/selective_backprop.inl.hpp>
#endif
