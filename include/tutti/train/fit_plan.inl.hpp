// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/fit_plan.hpp>

namespace tutti::train {

TUTTI_INLINE std::int64_t subset_of(const Run& run, const FitOptions& options) {
  return run.same_epoch ? run.train_subset  // overfit_batches
                        : options.train_subset_num_batches.value_or(run.train_subset);
}

TUTTI_INLINE FitPlan plan_fit(const State& state, const Run& run, const FitOptions& options) {
  const DataSpec& data = options.train ? options.train : run.train;
  TUTTI_CHECK(data,
              "fit: there is no training data; set TrainerOptions::train or FitOptions::train");
  TUTTI_CHECK_VALUE(options.scale_schedule_ratio == 1 || options.schedule,
                    "fit: scale_schedule_ratio is ", options.scale_schedule_ratio,
                    " but no schedule was given to fit() for it to scale");
  TUTTI_CHECK_VALUE(!options.step_schedule_every_batch || options.schedule,
                    "fit: step_schedule_every_batch is ",
                    *options.step_schedule_every_batch ? "true" : "false",
                    " but no schedule was given to fit() that takes its steps so");
  const std::int64_t subset = subset_of(run, options);
  TUTTI_CHECK_VALUE(subset == -1 || subset >= 1, "fit: train_subset_num_batches is ", subset,
                    ", expected -1 (all) or a number of batches");
  const Timestamp now = options.reset_time ? Timestamp{} : state.timestamp;
  const Time length = fit_until(now, state.max_duration, options.duration);
  TUTTI_CHECK(length,
              "fit: max_duration is not set; set TrainerOptions::max_duration or "
              "FitOptions::duration");
  FitPlan plan;
  plan.max_duration = scaled_length(run, length, options.scale_schedule_ratio);
  plan.dataloader_len = length_of(data, subset);
  plan.complete = now >= plan.max_duration;
  // In several processes the loop asks all ranks, so that none waits for one that has refused.
  TUTTI_CHECK(plan.dataloader_len != 0 || state.world_size > 1,
              "fit: the training loader has no batch, so nothing can be trained; give it data "
              "(drop_last leaves out a batch that is not full)");
  if (options.schedule || (run.schedule && !is_same(plan.max_duration, state.max_duration))) {
    const bool given = static_cast<bool>(options.schedule);
    Progress progress = state.progress();
    progress.timestamp = options.reset_time ? Timestamp{}
                         : given            ? state.timestamp
                                            : run.scheduled_at;
    progress.max_duration = plan.max_duration;
    progress.dataloader_len = plan.dataloader_len;
    static_cast<void>((given ? options.schedule : run.schedule)(
        progress, given ? options.scale_schedule_ratio : run.scale_schedule_ratio));
  }
  return plan;
}

TUTTI_INLINE void check_steps(const State& state, const FitOptions& options) {
  if (const auto& size = options.device_train_microbatch_size) {
    TUTTI_CHECK_VALUE(size->count >= 0, "fit: device_train_microbatch_size is ", size->count,
                      ", expected 0 (the whole batch), a number of examples, or \"auto\"");
    TUTTI_CHECK_VALUE(size->automatic == state.auto_microbatching || state.world_size == 1,
                      "fit: device_train_microbatch_size ",
                      size->automatic ? "becomes \"auto\"" : "was \"auto\"", ", and ",
                      state.world_size,
                      " ranks average gradients in another way with it; make a new trainer");
  }
  if (!options.precision) {
    return;
  }
  const Precision now = state.precision;
  const Precision next = *options.precision;
  check_precision(next, state.device);
  TUTTI_CHECK_VALUE(now == next || (now != Precision::bf16_true && next != Precision::bf16_true),
                    "fit: precision is ", to_string(next), ", and the trainer's is ",
                    to_string(now),
                    "; bf16_true is the type of the weights, which is set when a trainer is made");
  for (const auto& optimizer : state.optimizers) {
    check_closure_precision(*optimizer, next);
  }
}

TUTTI_INLINE void check_best(const Run& run, const std::vector<EvalSet>& sets) {
  if (!run.best) {
    return;
  }
  const std::string& label = run.best->options().dataloader_label;
  std::string labels;
  const EvalSet* found = nullptr;
  for (const EvalSet& set : sets) {
    found = set.label == label ? &set : found;
    labels += (labels.empty() ? "" : ", ") + set.label;
  }
  TUTTI_CHECK_VALUE(found != nullptr, "fit: restore_best watches the evaluation set \"", label,
                    "\", and there is ",
                    labels.empty() ? "no evaluation set; give it one in TrainerOptions::eval"
                                   : "none of that name, but: " + labels);
  TUTTI_CHECK_VALUE(found->when, "fit: restore_best watches the evaluation set \"", label,
                    "\", whose interval is 0, so that it is never evaluated during fit; give it "
                    "an interval, 1ep for one");
}

TUTTI_INLINE void restore_best(State& state, const Run& run) {
  if (!run.best || run.stop_signal != 0) {
    return;
  }
  if (run.best->best()) {
    run.best->restore(state);
  } else if (state.rank == 0) {
    TORCH_WARN("restore_best: the set \"", run.best->options().dataloader_label,
               "\" was not evaluated during this fit, so the model keeps its last weights");
  }
}

TUTTI_INLINE void check_whole(const State& state, const char* what) {
  TUTTI_CHECK(state.sharding == nullptr, what,
              ": the model is sharded, and no rank has all of its weights; make a new trainer with "
              "load_path set to the checkpoint");
}

TUTTI_INLINE void check_something_is_left(const State& state, const FitPlan& plan) {
  TUTTI_CHECK_VALUE(!plan.complete, "fit: nothing is left to train, the run is at ",
                    to_string(state.timestamp.get(plan.max_duration.unit())), " of ",
                    to_string(plan.max_duration),
                    "; set FitOptions::duration to train for longer, or reset_time to begin anew");
}

TUTTI_INLINE void take_over(State& state, Run& run, FitOptions& options, std::vector<EvalSet> evals,
                            const FitPlan& plan) {
  run.stop_signal = 0;
  if (options.train) {
    run.train = std::move(options.train);
    state.train_transforms = nullptr;  // those of the loader that is gone
  }
  if (!evals.empty()) {
    run.evals = std::move(evals);
  }
  run.train_subset = subset_of(run, options);
  run.step_schedule_every_batch =
      options.step_schedule_every_batch.value_or(run.step_schedule_every_batch);
  if (const auto& size = options.device_train_microbatch_size) {
    state.auto_microbatching = size->automatic;
    state.device_train_microbatch_size = size->count;
    run.grad_accum = 0;
  }
  if (options.precision) {
    set_precision(state, run, *options.precision);
  }
  if (options.reset_time) {
    state.timestamp = state.previous_timestamp = run.scheduled_at = {};
    if (run.checkpoints) {
      run.checkpoints->restart();
    }
  }
  state.max_duration = plan.max_duration;
  state.train_dataloader_len = plan.dataloader_len;
  state.eval_labels.clear();
  for (const EvalSet& set : run.evals) {
    state.eval_labels.push_back(set.label);
  }
}

TUTTI_INLINE void check_eval_sets(const State& state, const std::vector<EvalSet>& sets) {
  TUTTI_CHECK_VALUE(!sets.empty(),
                    "eval: there is no evaluation set; set TrainerOptions::eval or pass one");
  for (const EvalSet& set : sets) {
    TUTTI_CHECK(state.world_size > 1 || length_of(set.data, set.subset) != 0,
                "eval: the evaluation set \"", set.label,
                "\" has no batch, so there is nothing to measure; give it data (drop_last leaves "
                "out a batch that is not full)");
  }
}

}  // namespace tutti::train
