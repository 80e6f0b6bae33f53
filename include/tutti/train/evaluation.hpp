// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/engine.hpp>
#include <tutti/dist/flight_recorder.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/nn/eval_mode.hpp>
#include <tutti/optim/averages.hpp>
#include <tutti/train/forward.hpp>
#include <tutti/train/microbatching.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/transfer.hpp>

namespace tutti::train {

/// Puts the active loader, every module's training flag and the training weights of an optimizer
/// that keeps averages back at scope exit.
class EvalScope {
 public:
  explicit EvalScope(State& state)
      : state_(state),
        label_(state.dataloader_label),
        length_(state.dataloader_len),
        batch_(std::move(state.batch)),
        outputs_(std::move(state.outputs)),
        eval_(*state.model),
        averages_(state.optimizers) {}
  ~EvalScope() {
    state_.dataloader_label = label_;
    state_.dataloader_len = length_;
    state_.batch = std::move(batch_);
    state_.outputs = std::move(outputs_);
  }
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  State& state_;
  std::string label_;
  std::int64_t length_;
  Batch batch_;
  Outputs outputs_;
  nn::EvalMode eval_;
  optim::AveragesInUse averages_;
  c10::AutoGradMode no_grad_{false};
};

/// One microbatch of an evaluation; its last `extra` examples, which other ranks evaluate too, do
/// not count. They are cut off unless nothing would be left for the forward pass, which every rank
/// makes.
template <class Engine>
void evaluate_part(Engine& engine, State& state, EvalSet& set, Transfer& transfer,
                   const Batch& part, std::int64_t extra, StepThreads* threads) {
  Batch batch = set.data.transform_microbatch(transfer(part));
  const std::int64_t size = extra > 0 ? batch.num_samples() : 0;
  const bool counts = extra == 0 || size > extra;
  state.batch = extra > 0 && counts ? batch.split(size - extra).front() : std::move(batch);
  engine.template fire<EvalBeforeForward>(state);
  cast_inputs(state);
  {
    const auto low = state.autocast();
    state.outputs = threads != nullptr
                        ? threads->evaluate(state, [&state] { return eval_forward(state); })
                        : eval_forward(state);
  }
  engine.template fire<EvalAfterForward>(state);
  const auto low = state.autocast();
  if (counts && threads != nullptr) {
    threads->update_metrics(state, set.metrics);
  } else if (counts) {
    set.metrics.update(state.task, state.batch, state.outputs);
  }
}

/// Whether ranks gather parameters in each forward pass, so that all of them need as many.
inline bool meets_in_forward(const State& state) {
  return state.sharding != nullptr && state.sharding->meets_in_forward();
}

/// All microbatches of state.batch, whose last `extra` examples do not count. Where ranks meet in
/// forward passes, one with fewer microbatches than another runs its last one again, uncounted.
template <class Engine>
void evaluate_parts(Engine& engine, State& state, EvalSet& set, Transfer& transfer,
                    std::int64_t extra, StepThreads* threads) {
  const std::int64_t size = set.microbatch.count;
  const bool whole =
      size <= 0 || (set.microbatch.automatic && size >= set.data.num_samples(state.batch));
  const std::vector<Batch> parts =
      whole ? std::vector<Batch>{state.batch} : set.data.split(state.batch, size);
  std::vector<std::int64_t> extras(parts.size(), 0);
  for (std::size_t i = parts.size(); extra > 0 && i > 0; --i) {
    extras[i - 1] = std::min(extra, set.data.num_samples(parts[i - 1]));
    extra -= extras[i - 1];
  }
  auto passes = static_cast<std::int64_t>(parts.size());
  if (size > 0 && meets_in_forward(state)) {
    passes = state.communicator->all_reduce_value(passes, dist::ReduceOp::maximum);
  }
  extras.resize(static_cast<std::size_t>(passes), std::numeric_limits<std::int64_t>::max());
  for (std::size_t i = 0; i < extras.size(); ++i) {
    evaluate_part(engine, state, set, transfer, i < parts.size() ? parts[i] : parts.back(),
                  extras[i], threads);
  }
}

/// The same in microbatches that are halved until every rank has room; what a failed attempt has
/// counted is taken back. Logs their size as `trainer/<label>/device_eval_microbatch_size`.
template <class Engine>
void evaluate_what_fits(Engine& engine, State& state, EvalSet& set, Transfer& transfer,
                        std::int64_t extra, StepThreads* threads) {
  std::int64_t& size = set.microbatch.count;
  if (size == 0) {
    size = state.communicator->all_reduce_value(set.data.num_samples(state.batch),
                                                dist::ReduceOp::maximum);
  }
  const Batch whole = state.batch;
  const auto counts = set.metrics.counts();
  while (!all_agree(fits([&] { evaluate_parts(engine, state, set, transfer, extra, threads); }),
                    *state.communicator)) {
    state.batch = whole;
    state.outputs = {};
    transfer.forget();
    ++state.eval_retries;
    set.metrics.set_counts(counts);
    release_memory(state.device);
    size = smaller_microbatch(size, state, "evaluating \"" + set.label + "\"");
  }
  const std::string key = "trainer/" + set.label + "/device_eval_microbatch_size";
  state.log_metrics({{key, static_cast<double>(size)}});
}

/// Evaluates one set: its metrics over all of its examples, each counted once.
///
/// Fires EvalStart to EvalEnd; logs `metrics/<label>/<name>` at the training batch count and keeps
/// the values in state.eval_metric_values. All ranks evaluate rank 0's buffers, those of averages
/// that a policy has put in place included.
template <class Engine>
void evaluate(Engine& engine, State& state, Run& run, EvalSet& set) {
  try {
    StepThreads* const threads = run.threads.get();
    const EvalScope scope(state);
    Transfer transfer(state.device);
    dist::Communicator& world = *state.communicator;
    state.dataloader_label = set.label;
    state.dataloader_len = length_of(set.data, set.subset);
    state.eval_timestamp = {};
    fire_watched<EvalStart>(engine, state);
    if (run.parallel) {
      run.parallel->broadcast_buffers();
    }
    set.metrics.reset();
    start_epoch(set.data, state, state.timestamp.batch);  // shuffled sets: anew each time
    std::int64_t done = 0;
    Clock clock;
    const dist::CallPurpose evaluating("evaluation");
    std::optional<Batch> next = set.data.loader.next();
    while (world.size() == 1 ? next.has_value()
                             : world.all_reduce_value(std::int64_t{next.has_value()},
                                                      dist::ReduceOp::minimum) > 0) {
      if (set.subset >= 0 && done == set.subset) {
        break;
      }
      const std::int64_t extra = set.data.loader.repeated();
      state.batch = set.data.transform(std::move(*next));
      std::int64_t counts[2] = {set.data.num_samples(state.batch) - extra,
                                set.data.num_tokens(state.batch).total};
      dist::data_group(state)->all_reduce(std::span<std::int64_t>(counts), dist::ReduceOp::sum);
      state.eval_retries = 0;
      fire_watched<EvalBatchStart>(engine, state);
      {
        const dist::PhaseScope batch(dist::Phase::evaluate);
        if (set.microbatch.automatic) {
          evaluate_what_fits(engine, state, set, transfer, extra, threads);
        } else {
          evaluate_parts(engine, state, set, transfer, extra, threads);
        }
      }
      state.eval_timestamp = state.eval_timestamp.to_next_batch(counts[0], counts[1], clock.lap());
      ++done;
      fire_watched<EvalBatchEnd>(engine, state);
      next = next_watched(set.data.loader);
    }
    TUTTI_CHECK(
        done > 0, "the evaluation set \"", set.label,
        "\" gave no batch, so there is nothing to measure; give it data (drop_last leaves out "
        "a batch that is not full) and let it begin anew at every start(epoch, first_batch)");
    set.metrics.compute(*dist::data_group(state), state, state.eval_metric_values[set.label]);
    set.evaluated_at = state.timestamp.batch;
    fire_watched<EvalEnd>(engine, state);
  } catch (c10::Error& error) {
    add_place(error, state, set.label);
    throw;
  }
}

/// The sets that are due at `E`, which happens inside fit.
template <Event E>
std::vector<EvalSet*> due_sets(const State& state, Run& run) {
  std::vector<EvalSet*> due;
  for (auto& set : run.evals) {
    const TimeOrFunction::Function* const function = set.when.function();
    if (function != nullptr ? (*function)(state, E::name) : set.interval(E{}, state.progress())) {
      due.push_back(&set);
    }
  }
  return due;
}

/// Evaluates these sets between EvalBeforeAll and EvalAfterAll; does nothing when there is none.
template <class Engine>
void evaluate_sets(Engine& engine, State& state, Run& run, const std::vector<EvalSet*>& due) {
  if (due.empty()) {
    return;
  }
  fire_watched<EvalBeforeAll>(engine, state);
  for (EvalSet* set : due) {
    evaluate(engine, state, run, *set);
  }
  fire_watched<EvalAfterAll>(engine, state);
  if (run.best) {
    run.best->look(state);
  }
}

/// Evaluates these sets outside of fit().
template <class Engine>
void evaluate_standalone(Engine& engine, State& state, Run& run, std::vector<EvalSet>& sets) {
  fire_watched<EvalStandaloneStart>(engine, state);
  for (EvalSet& set : sets) {
    evaluate(engine, state, run, set);
  }
  fire_watched<EvalStandaloneEnd>(engine, state);
}

/// Whether predicting goes on: this rank has a batch, or another has one where ranks meet in
/// forward passes.
/// Throws c10::ValueError on all ranks when one of those has had none so far, with which it could
/// join in.
bool predicts_on(const State& state, bool has_batch, bool had_batch);

/// Runs the model over a loader and returns its outputs on the host, batch by batch. Where ranks
/// meet in forward passes, one that has no batch left runs its last one again, without events, as
/// long as others have some.
template <class Engine>
std::vector<Outputs> predict(Engine& engine, State& state, DataSpec& data, std::int64_t subset,
                             bool return_outputs) {
  const EvalScope scope(state);
  Transfer transfer(state.device);
  state.dataloader_label = "predict";
  state.dataloader_len = length_of(data, subset);
  state.predict_timestamp = {};
  engine.template fire<PredictStart>(state);
  start_epoch(data, state);
  std::vector<Outputs> all;
  Clock clock;
  for (std::int64_t done = 0; subset < 0 || done < subset; ++done) {
    std::optional<Batch> next = data.loader.next();
    if (!predicts_on(state, next.has_value(), done > 0)) {
      break;
    }
    if (!next) {
      const auto low = state.autocast();
      forward(state);
      continue;
    }
    const Batch host = data.transform(std::move(*next));
    state.batch = data.transform_microbatch(transfer(host));
    engine.template fire<PredictBatchStart>(state);
    engine.template fire<PredictBeforeForward>(state);
    cast_inputs(state);
    {
      const auto low = state.autocast();
      state.outputs = forward(state);
    }
    engine.template fire<PredictAfterForward>(state);
    if (return_outputs) {
      Outputs& kept = all.emplace_back(state.outputs);
      for (auto& [name, tensor] : kept) {
        tensor = tensor.cpu();
      }
    }
    state.predict_timestamp = state.predict_timestamp.to_next_batch(
        data.num_samples(host), data.num_tokens(host).total, clock.lap());
    engine.template fire<PredictBatchEnd>(state);
  }
  engine.template fire<PredictEnd>(state);
  return all;
}

/// Outputs of several batches as those of one: each tensor joined along dimension 0; those without
/// dimensions are stacked.
/// Throws c10::ValueError when there is no batch, or when names or other dimensions differ.
Outputs joined(const std::vector<Outputs>& batches);

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/evaluation.inl.hpp>
#endif
