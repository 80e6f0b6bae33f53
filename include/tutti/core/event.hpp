// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <type_traits>

#include <tutti/fwd.hpp>

/// The events of a run, each a type. The training loop fires them here:
///
///     Init;  BeforeLoad;  load a checkpoint;  AfterLoad                           (constructor)
///     FitStart                                                                    (fit)
///     while timestamp < max_duration:
///       IterationStart (when one begins);  EpochStart (when one begins)
///       loop:
///         BeforeDataloader;  next batch, or leave the loop;  AfterDataloader
///         BatchStart
///         a step; an algorithm that takes closures (SAM) may run the bracket several times:
///           [ BeforeTrainBatch
///             for each microbatch:
///               BeforeForward;   outputs = forward(batch);      AfterForward
///               BeforeLoss;      loss = loss(outputs, batch);   AfterLoss
///               BeforeBackward;  loss.backward();               AfterBackward
///             unscale gradients
///             AfterTrainBatch ]
///           optimizer.step()
///         schedule;  timestamp += 1 batch
///         BatchEnd;  evaluations that are due;  BatchCheckpoint
///       timestamp += 1 epoch
///       EpochEnd;  evaluations that are due;  EpochCheckpoint
///       IterationEnd;  IterationCheckpoint (when one ends)
///     FitEnd
///
///     evaluation:
///       EvalBeforeAll                  (eval(): EvalStandaloneStart)
///       for each set:
///         EvalStart
///         for each batch:
///           EvalBatchStart
///             for each microbatch:
///               EvalBeforeForward;  outputs = forward(batch);  EvalAfterForward
///           EvalBatchEnd
///         EvalEnd
///       EvalAfterAll                   (eval(): EvalStandaloneEnd)
///
///     predict():
///       PredictStart
///         for each batch:
///           PredictBatchStart
///           PredictBeforeForward;  outputs = forward(batch);  PredictAfterForward
///           PredictBatchEnd
///       PredictEnd
///
/// Source: MosaicML Composer, `composer.core.Event`.
namespace tutti {

#define TUTTI_EVENT(Type, text)                    \
  struct Type {                                    \
    static constexpr std::string_view name = text; \
  }
TUTTI_EVENT(Init, "init");
TUTTI_EVENT(BeforeLoad, "before_load");
TUTTI_EVENT(AfterLoad, "after_load");
TUTTI_EVENT(FitStart, "fit_start");
TUTTI_EVENT(IterationStart, "iteration_start");
TUTTI_EVENT(EpochStart, "epoch_start");
TUTTI_EVENT(BeforeDataloader, "before_dataloader");
TUTTI_EVENT(AfterDataloader, "after_dataloader");
TUTTI_EVENT(BatchStart, "batch_start");
TUTTI_EVENT(BeforeTrainBatch, "before_train_batch");
TUTTI_EVENT(BeforeForward, "before_forward");
TUTTI_EVENT(AfterForward, "after_forward");
TUTTI_EVENT(BeforeLoss, "before_loss");
TUTTI_EVENT(AfterLoss, "after_loss");
TUTTI_EVENT(BeforeBackward, "before_backward");
TUTTI_EVENT(AfterBackward, "after_backward");
TUTTI_EVENT(AfterTrainBatch, "after_train_batch");
TUTTI_EVENT(BatchEnd, "batch_end");
TUTTI_EVENT(BatchCheckpoint, "batch_checkpoint");
TUTTI_EVENT(EpochEnd, "epoch_end");
TUTTI_EVENT(EpochCheckpoint, "epoch_checkpoint");
TUTTI_EVENT(IterationEnd, "iteration_end");
TUTTI_EVENT(IterationCheckpoint, "iteration_checkpoint");
TUTTI_EVENT(FitEnd, "fit_end");
TUTTI_EVENT(EvalBeforeAll, "eval_before_all");
TUTTI_EVENT(EvalStart, "eval_start");
TUTTI_EVENT(EvalBatchStart, "eval_batch_start");
TUTTI_EVENT(EvalBeforeForward, "eval_before_forward");
TUTTI_EVENT(EvalAfterForward, "eval_after_forward");
TUTTI_EVENT(EvalBatchEnd, "eval_batch_end");
TUTTI_EVENT(EvalEnd, "eval_end");
TUTTI_EVENT(EvalAfterAll, "eval_after_all");
TUTTI_EVENT(EvalStandaloneStart, "eval_standalone_start");
TUTTI_EVENT(EvalStandaloneEnd, "eval_standalone_end");
TUTTI_EVENT(PredictStart, "predict_start");
TUTTI_EVENT(PredictBatchStart, "predict_batch_start");
TUTTI_EVENT(PredictBeforeForward, "predict_before_forward");
TUTTI_EVENT(PredictAfterForward, "predict_after_forward");
TUTTI_EVENT(PredictBatchEnd, "predict_batch_end");
TUTTI_EVENT(PredictEnd, "predict_end");
#undef TUTTI_EVENT

/// Composer's names before its version 0.7.
using TrainingStart = FitStart;
using TrainingEnd = FitEnd;

/// Every event, in the order above.
using all_events =
    types<Init, BeforeLoad, AfterLoad, FitStart, IterationStart, EpochStart, BeforeDataloader,
          AfterDataloader, BatchStart, BeforeTrainBatch, BeforeForward, AfterForward, BeforeLoss,
          AfterLoss, BeforeBackward, AfterBackward, AfterTrainBatch, BatchEnd, BatchCheckpoint,
          EpochEnd, EpochCheckpoint, IterationEnd, IterationCheckpoint, FitEnd, EvalBeforeAll,
          EvalStart, EvalBatchStart, EvalBeforeForward, EvalAfterForward, EvalBatchEnd, EvalEnd,
          EvalAfterAll, EvalStandaloneStart, EvalStandaloneEnd, PredictStart, PredictBatchStart,
          PredictBeforeForward, PredictAfterForward, PredictBatchEnd, PredictEnd>;

namespace detail {
template <class E, class List>
inline constexpr bool contains = false;
template <class E, class... Es>
inline constexpr bool contains<E, types<Es...>> = (std::is_same_v<E, Es> || ...);
}  // namespace detail

/// `E` is one of the events above.
template <class E>
concept Event = detail::contains<E, all_events>;

namespace detail {
constexpr bool is_checkpoint(std::string_view name) {
  return name.ends_with("_checkpoint");
}
constexpr bool opens(std::string_view name) {
  return name.starts_with("before_") || name.ends_with("_start") ||
         name.find("_before_") != std::string_view::npos;
}
}  // namespace detail

/// `E` opens a pair: BeforeForward, BatchStart, EvalBeforeAll, ...
template <Event E>
inline constexpr bool is_before = detail::opens(E::name);

/// `E` closes a pair: AfterForward, BatchEnd, EvalAfterAll, ... Init and the three *Checkpoint
/// events stand alone and are neither before nor after.
template <Event E>
inline constexpr bool is_after =
    !is_before<E> && !std::is_same_v<E, Init> && !detail::is_checkpoint(E::name);

/// `E` belongs to evaluation (its name begins with "eval").
template <Event E>
inline constexpr bool is_eval = E::name.starts_with("eval");

/// `E` belongs to prediction (its name begins with "predict").
template <Event E>
inline constexpr bool is_predict = E::name.starts_with("predict");

namespace detail {
struct ShortName {
  char text[32]{};
  std::size_t size = 0;
};
// The name without the word that tells the two halves of a pair apart.
constexpr ShortName canonical(std::string_view name) {
  ShortName out;
  while (!name.empty()) {
    std::size_t skip = 0;
    for (std::string_view word : {"before_", "after_", "_start", "_end"}) {
      skip = name.starts_with(word) ? word.size() : skip;
    }
    if (skip == 0) {
      out.text[out.size++] = name.front();
      skip = 1;
    }
    name.remove_prefix(skip);
  }
  return out;
}
template <class E>
inline constexpr ShortName canonical_of = canonical(E::name);
}  // namespace detail

/// What both halves of a pair share: "forward" for BeforeForward and AfterForward, "eval_batch" for
/// EvalBatchStart and EvalBatchEnd; the name itself where there is no partner.
template <Event E>
inline constexpr std::string_view canonical_name{detail::canonical_of<E>.text,
                                                 detail::canonical_of<E>.size};

/// `A` opens the pair that `B` closes: BatchStart and BatchEnd, EvalBeforeAll and EvalAfterAll.
template <Event A, Event B>
inline constexpr bool are_partners =
    is_before<A> && is_after<B> && canonical_name<A> == canonical_name<B>;

}  // namespace tutti
