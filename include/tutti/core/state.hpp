// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/autocast.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/logger.hpp>
#include <tutti/core/model.hpp>
#include <tutti/core/time.hpp>
#include <tutti/fwd.hpp>

namespace tutti {

/// Arithmetic of forward and loss; parameters and optimizer state stay fp32, but for bf16_true.
enum class Precision : std::uint8_t {
  fp32,       ///< everything in 32 bits
  amp_fp16,   ///< autocast to half, with a gradient scaler
  amp_bf16,   ///< autocast to bfloat16
  bf16_true,  ///< everything in bfloat16: parameters, optimizer state, gradients, inputs
};

/// "fp32", "amp_fp16", "amp_bf16", "bf16_true".
constexpr std::string_view to_string(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return "fp32";
    case Precision::amp_fp16:
      return "amp_fp16";
    case Precision::amp_bf16:
      return "amp_bf16";
    case Precision::bf16_true:
      return "bf16_true";
  }
  return "unknown";
}

/// Values of a set's metrics by name, in alphabetical order.
using MetricValues = std::map<std::string, double, std::less<>>;

/// All that the loop and the policies share. Each field says from which event on it is valid.
struct State {
  State() = default;
  State(State&&) = default;
  State& operator=(State&&) = default;
  explicit State(const State&) = default;  // no hook takes a copy, in which its work would be lost
  State& operator=(const State&) = default;
  ~State() = default;

  // ---- The run: valid from Init -------------------------------------------------------------
  std::string run_name;
  std::string run_folder;      ///< of all its files; empty: there is none
  bool autoresume = false;     ///< goes on in the files of an earlier start of the same run
  std::string scratch_folder;  ///< of a dry run: stands before all paths that are written, and is
                               ///< removed with the trainer; empty: no dry run
  std::uint64_t rank_zero_seed = 0;                  ///< the run's seed, the same on every rank
  std::uint64_t seed = 0;                            ///< rank_zero_seed + rank; of a model that is
                                                     ///< spread, + copy of the model
  int rank = 0;                                      ///< this process among all
  int world_size = 1;                                ///< how many processes train together
  std::shared_ptr<dist::Communicator> communicator;  ///< speaks for one process when alone

  // ---- The model: valid from Init ------------------------------------------------------------
  std::shared_ptr<torch::nn::Module> model;  ///< the parameters; never the distributed wrapper
  AnyModel task;                             ///< forward and loss, for policies that call them
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers;  ///< one; of several that take
                                                                     ///< turns, from
                                                                     ///< BeforeTrainBatch to
                                                                     ///< AfterTrainBatch the one
                                                                     ///< that is due
  std::vector<std::string> optimizer_names;  ///< where there are several: theirs, in order
  std::vector<double> initial_lrs;     ///< by parameter group: learning rates that the schedule
                                       ///< multiplies; empty: none has been bound
  dist::Sharding* sharding = nullptr;  ///< from FitStart: the optimizers have shards; null: they
                                       ///< have the model's own parameters
  const dist::SpreadModel* spread = nullptr;  ///< the model is spread over ranks, see
                                              ///< models/tensor_parallel.hpp; null: every rank
                                              ///< has all of it
  at::Device device{at::kCPU};
  Precision precision = Precision::fp32;

  // ---- Data: dataloader_* valid from FitStart, EvalStart, PredictStart -------------------------
  std::string dataloader_label;            ///< "train", an evaluation set's label, or "predict"
  std::int64_t dataloader_len = -1;        ///< batches in the active loader; -1: unknown
  std::int64_t train_dataloader_len = -1;  ///< batches of a training epoch; -1: unknown
  std::vector<std::string> eval_labels;  ///< from FitStart: labels of the evaluation sets of fit()
  std::int64_t device_train_microbatch_size = 0;  ///< examples; 0: the whole batch
  bool auto_microbatching = false;                ///< that size is found by trial
  data::Transforms* train_transforms = nullptr;   ///< from FitStart: what the training loader does
                                                  ///< to each image; null when it has no such list

  // ---- Time: valid from FitStart; max_duration from BeforeLoad when given to the constructor ---
  Time max_duration;             ///< 0ep: not set
  Time min_duration;             ///< before it stop_training() does nothing; 0ep: not set
  Timestamp timestamp;           ///< advances just before BatchEnd and EpochEnd
  Timestamp previous_timestamp;  ///< before that last advance
  Timestamp eval_timestamp;      ///< counts batches of the running evaluation
  int eval_retries = 0;  ///< from EvalBatchStart: attempts at this batch without enough memory
  Timestamp predict_timestamp;  ///< counts batches of the running prediction

  // ---- The step ------------------------------------------------------------------------------
  // Hooks put new tensors into batch; they do not write into the ones they find there.
  Batch batch;      ///< AfterDataloader to BeforeTrainBatch, AfterTrainBatch to BatchEnd: the whole
                    ///< batch on the host; BeforeForward to AfterBackward: the microbatch on device
  Outputs outputs;  ///< from AfterForward, EvalAfterForward, PredictAfterForward
  at::Tensor loss;  ///< from AfterLoss: what backward() starts from, a scalar, unscaled
  Loss loss_parts;  ///< from AfterLoss: as the model returned it, for reports
  NamedTensors total_loss;  ///< from BatchEnd: mean over the batch and all ranks, detached scalars,
                            ///< by part; always "total"
  bool is_last_microbatch = true;  ///< from BeforeForward: gradients are complete after this one

  std::string due_optimizer;  ///< BeforeTrainBatch to AfterTrainBatch: the name of the one whose
                              ///< turn it is; empty: the run has one optimizer

  optim::FusedStep* fused_step =
      nullptr;             ///< AfterTrainBatch: a policy that folds there leaves its work
                           ///< on the gradients to the optimizer; null: does it itself
  bool is_ascent = false;  ///< BeforeTrainBatch to AfterTrainBatch: this pass only finds where SAM
                           ///< climbs to, its gradients make no step
  bool skip_step = false;  ///< set by a policy with `skips_steps` at AfterTrainBatch, alike on all
                           ///< ranks: the optimizer does not step along these gradients
  std::int64_t go_back = -1;  ///< set by such a policy at BatchEnd, alike on all ranks: weights,
                              ///< optimizers and policies become those of the newest checkpoint of
                              ///< at most so many batches
  bool parameters_replaced =
      false;  ///< set by a policy at BatchEnd, EpochEnd or IterationEnd, on every
              ///< rank, that gave the model other parameters than it trained so far

  // ---- Metrics -------------------------------------------------------------------------------
  MetricValues train_metric_values;                        ///< from BatchEnd: of that batch
  std::map<std::string, MetricValues> eval_metric_values;  ///< by label, from that set's EvalEnd

  /// The latest value of a metric: `state.metric("test", "MulticlassAccuracy")`.
  ///
  /// label: an evaluation set's, or "train" for the last batch. name: the metric's, as logged
  /// behind `metrics/<label>/`.
  /// Throws c10::ValueError with the sets, or the metrics of the set, that have values; a set has
  /// none before its first evaluation.
  [[nodiscard]] double metric(std::string_view label, std::string_view name) const;

  // ---- Output --------------------------------------------------------------------------------
  Logger logger;

  /// The scope in which forward and loss compute in the run's precision.
  [[nodiscard]] Autocast autocast() const {
    switch (precision) {
      case Precision::amp_fp16:
        return {device.type(), at::kHalf};
      case Precision::amp_bf16:
        return {device.type(), at::kBFloat16};
      case Precision::fp32:
      case Precision::bf16_true:
        break;
    }
    return {};
  }

  /// Position in the run, for schedules and intervals.
  [[nodiscard]] Progress progress() const {
    Progress now{.timestamp = timestamp,
                 .max_duration = max_duration,
                 .dataloader_len = train_dataloader_len};
    if (timestamp.batch > 0) {
      now.previous_timestamp = previous_timestamp;
    }
    return now;
  }

  /// Where a policy writes a file or a folder of that name: there, and in a dry run below the
  /// scratch folder.
  [[nodiscard]] std::string output_path(const std::string& path) const {
    return scratch_folder.empty() || path.starts_with(scratch_folder + "/")
               ? path
               : scratch_folder + "/" + path;
  }

  /// Whether the run is still shorter than min_duration.
  [[nodiscard]] bool before_min_duration() const {
    return min_duration.is_fraction()
               ? progress().elapsed_fraction().value_or(1) < min_duration.value()
               : min_duration && timestamp < min_duration;
  }

  /// Ends the run: every policy still sees the current event, and the loop stops after this batch.
  /// max_duration becomes the current count in its own unit, or in batches when that is epochs.
  /// Does nothing before min_duration; who still wants it then asks again.
  void stop_training() {
    if (before_min_duration()) {
      return;
    }
    const TimeUnit unit =
        max_duration.unit() == TimeUnit::epoch ? TimeUnit::batch : max_duration.unit();
    max_duration = timestamp.get(unit);
  }

  /// Sends numbers at the current step (batches trained).
  void log_metrics(std::initializer_list<LoggedMetric> metrics) const {
    logger.log_metrics(metrics, timestamp.batch);
  }
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

namespace detail {

template <class Map>
std::string keys_of(const Map& map) {
  std::string keys;
  for (const auto& [key, value] : map) {
    keys += (keys.empty() ? "" : ", ") + key;
  }
  return keys.empty() ? "(none)" : keys;
}

}  // namespace detail

TUTTI_INLINE double State::metric(std::string_view label, std::string_view name) const {
  const auto set = eval_metric_values.find(std::string(label));
  const bool is_train = label == "train";
  TUTTI_CHECK_VALUE(is_train || set != eval_metric_values.end(), "no metric of the set \"", label,
                    "\" has a value; those with values are: ", detail::keys_of(eval_metric_values),
                    ". fit() evaluates a set when its interval is due (0: never), eval() at once");
  const MetricValues& values = is_train ? train_metric_values : set->second;
  const auto found = values.find(name);
  TUTTI_CHECK_VALUE(found != values.end(), "the set \"", label, "\" has no metric \"", name,
                    "\"; there are: ", detail::keys_of(values));
  return found->second;
}

}  // namespace tutti

#endif
