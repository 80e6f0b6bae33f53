// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <tutti/algorithms/detail/averages.hpp>
#include <tutti/algorithms/detail/exchange.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/init_tape.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/time.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/optim/averages.hpp>
#include <tutti/optim/fused_step.hpp>

namespace tutti {

namespace functional {

/// A second set of a model's weights, to be averaged over training and exchanged with the model's.
///
/// It holds the parameters that require a gradient and all buffers, under their names; tied tensors
/// once. It keeps handles on the model's tensors; after layers were replaced call link().
class EMAParameters {
 public:
  /// Nothing yet.
  EMAParameters() = default;

  /// Copies of the model's present weights. exclude_buffers: buffers are copied in every update,
  /// not averaged. sharding: of the model; set, its shards stand for the parameters.
  explicit EMAParameters(const torch::nn::Module& model, bool exclude_buffers = false,
                         const dist::Sharding* sharding = nullptr);

  /// Copies of saved tensors, on the device of the model's of the same names. sharding: as above;
  /// set, this rank's parts of them.
  /// Throws c10::Error when the model lacks one or has it in another shape.
  EMAParameters(const torch::nn::Module& model,
                const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                bool exclude_buffers = false, const dist::Sharding* sharding = nullptr);

  /// Looks the model's tensors up anew. sharding: as above.
  /// Throws c10::Error when one that is stored here is gone or has another shape.
  void link(const torch::nn::Module& model, const dist::Sharding* sharding = nullptr);

  /// Keeps this rank's parts of what is stored: the model has been sharded. Linked to the shards.
  void cut(const torch::nn::Module& model, const dist::Sharding& sharding);

  /// stored = smoothing * stored + (1 - smoothing) * model for floating tensors; others are copied.
  ///
  /// smoothing: in [0, 1]. average_integers: average the others too, truncated.
  /// Throws c10::Error (ValueError) when smoothing is out of range.
  void update(double smoothing, bool average_integers = false) const {
    TUTTI_CHECK_VALUE(smoothing >= 0 && smoothing <= 1, "EMA: smoothing is ", smoothing,
                      ", expected a number from 0 to 1");
    lists_.update(smoothing, average_integers);
  }

  /// Lets an optimizer's step update what it can on its way; finish_update(), with the same
  /// smoothing, has to follow.
  void join(optim::FusedStep& fused, double smoothing);

  /// What of update() the step after join() has left; all of it where there was no join().
  void finish_update(double smoothing, bool average_integers = false);

  /// Exchanges what is stored with what the model has. Costs no copying as a rule: memory changes
  /// hands.
  void swap() const {
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      ::tutti::detail::exchange(stored_[i], weights_[i]);
    }
  }

  /// Copies what is stored into the tensors of these names in another model of the kind.
  /// Throws c10::Error when it lacks one or has it in another shape.
  void copy_to(torch::nn::Module& model) const;

  [[nodiscard]] std::size_t size() const { return names_.size(); }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] const std::vector<at::Tensor>& stored() const { return stored_; }
  [[nodiscard]] const std::vector<at::Tensor>& weights() const { return weights_; }

 private:
  std::vector<std::string> names_;
  std::vector<at::Tensor> stored_;
  std::vector<at::Tensor> weights_;  // the model's own tensors
  ::tutti::detail::AverageLists lists_;

  static std::uint64_t next_version() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
  // Keeps this rank's parts of what is stored.
  void keep_parts(const torch::nn::Module& model, const dist::Sharding& sharding);
  // Looks up what is averaged in the model.
  void find_weights(const torch::nn::Module& model, const dist::Sharding* sharding);
  // Which tensors are only copied, as the model is now.
  void note_copied(const torch::nn::Module& model);
  // What the optimizer has not done.
  const ::tutti::detail::AverageLists& rest();

  bool exclude_buffers_ = false;
  std::vector<char> copied_;   // as many as names_
  std::uint64_t version_ = 0;  // of the tensors in the lists
  bool joined_ = false;        // done_ says what the optimizer has updated
  std::vector<char> done_;
  ::tutti::detail::AverageLists rest_;
  std::vector<char> rest_known_;  // done_ when rest_ was made
};

/// One update of averages: `e = smoothing * e + (1 - smoothing) * w` for every tensor of ema_model.
///
/// smoothing: in [0, 1]. average_integers: tensors that are not floating are averaged as well and
/// truncated; else they are copied.
/// Throws c10::Error (ValueError) when smoothing is out of range, c10::Error when the model lacks a
/// tensor that is averaged.
/// Source: MosaicML Composer, `composer.algorithms.ema.compute_ema`.
void compute_ema(const torch::nn::Module& model, EMAParameters& ema_model, double smoothing = 0.99,
                 bool average_integers = false);

/// The same with the averages in a module of their own, for the parameters and buffers that have a
/// name in both.
void compute_ema(const torch::nn::Module& model, torch::nn::Module& ema_model,
                 double smoothing = 0.99, bool average_integers = false);

/// The smoothing by which what is half_life old counts half, 2^(-update_interval / half_life).
/// Throws c10::Error (ValueError) unless both have one unit and half_life is above 0.
double ema_smoothing(Time half_life, Time update_interval);

/// The smoothing `step` steps after averaging began, which rises from 0 to `decay`:
/// `1 - (1 + step / gamma)^(-power)`, not below min_decay nor above decay; 0 at step 0.
///
/// Throws c10::Error (ValueError) unless gamma and power are above 0.
/// Source: timm, `ModelEmaV3.get_decay`.
double ema_warmup(std::int64_t step, double decay, double min_decay = 0, double gamma = 1,
                  double power = 2.0 / 3.0);

}  // namespace functional
}  // namespace tutti

/// EMA: exponentially averaged weights for evaluation and checkpoints.
namespace tutti {

namespace detail {

struct LoadedAverages {
  NamedTensorList weights;
  bool averages_in_use = false;
};

}  // namespace detail

/// Keeps an exponential average of the weights and evaluates and saves the model with it.
///
/// At BatchEnd or EpochEnd, from ema_start on, the averages follow the weights. During evaluation
/// and prediction, and while a checkpoint is written, the model holds the averages. Nothing else
/// sees them there: training goes on with its own weights, bit for bit.
/// With use_warmup the averages follow closely at first: timm's ModelEmaV3, whose `decay` is
/// smoothing and whose `update_after_step = n` is `ema_start = "(n+1)ba"`.
/// Source: TensorFlow, `tf.train.ExponentialMovingAverage`; MosaicML Composer,
/// `composer.algorithms.EMA`; timm, `ModelEmaV3`.
struct EMA final {
  Time half_life{};  ///< in ba or ep; 1000ba when smoothing is not set either. At most one of both
  Maybe<double> smoothing{};  ///< weight of the average in an update; in (0, 1)
  Time ema_start = "0.0dur";  ///< when averaging begins: dur, ba or ep
  Time update_interval{};  ///< in ba or ep, as half_life; not set: 1 of half_life's unit, else 1ba
  bool average_integers = false;  ///< average integer buffers too, truncated; else they are copied
  bool exclude_buffers = false;   ///< copy all buffers, such as running statistics
  bool use_warmup = false;        ///< smoothing rises from 0; then what is set is its upper end
  double warmup_gamma = 1;        ///< steps in which it rises to 1 - 2^-warmup_power; > 0
  double warmup_power = 2.0 / 3.0;  ///< how fast it rises; > 0
  double min_decay = 0;             ///< the lower end with use_warmup, after the first; in [0, 1)

  /// What it holds while it runs; not an option.
  struct Run {
    Lazy<functional::EMAParameters> store{};  ///< what the model does not hold: averages or, while
                                              ///< the averages are in use, the training weights
    bool started = false;                     ///< averaging has begun
    std::int64_t started_at = 0;              ///< when, in the unit of the interval
    bool averages_in_use = false;             ///< the model holds the averages
    bool in_checkpoint = false;               ///< for a checkpoint alone
    Lazy<detail::LoadedAverages> loaded{};    ///< what load() has read, until AfterLoad
  } run{};

  static constexpr std::string_view name = "EMA";
  static constexpr About about{
      .reads_batch = false,
      .reads_gradients = false,
      .fuses_into_step = {id<BatchEnd>},
      .no_tensor_parallel = "it averages whole weights on every rank",
      .parts = "weights",
  };
  using events = types<Init, AfterLoad, FitStart, BatchEnd, EpochEnd, EvalStart, EvalEnd,
                       PredictStart, PredictEnd>;
  static constexpr Rules rules{
      .tags = {id<averages_weights>},
      .runs_after = {{id<changes_model>, "the averages copy names and shapes"}},
      .conflicts_with = {{id<averages_weights>,
                          "one would average, or load, what the other has swapped in"}},
      .warns_with = {{id<freezes_parameters>,
                      "the averages of frozen weights go on drifting towards "
                      "their last value"}},
  };

  /// How often the averages are updated, in ba or ep.
  [[nodiscard]] constexpr Time interval() const {
    if (update_interval) {
      return update_interval;
    }
    return {1, given_half_life() ? half_life.unit() : TimeUnit::batch};
  }

  /// The weight of the average in an update.
  [[nodiscard]] double factor() const {
    using namespace literals;
    return smoothing
               ? *smoothing
               : functional::ema_smoothing(given_half_life() ? half_life : "1000ba"_t, interval());
  }

  /// The weight of the average in the update at the end of the `count`-th batch or epoch, by the
  /// unit of the interval.
  [[nodiscard]] double factor_at(std::int64_t count) const {
    return use_warmup ? functional::ema_warmup(count - run.started_at, factor(), min_decay,
                                               warmup_gamma, warmup_power)
                      : factor();
  }

  /// The averages by name, whichever side holds them. Empty before Init. Of a model whose
  /// parameters are sharded this rank's rows.
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> averages() const {
    return side(run.averages_in_use);
  }
  /// The weights that training goes on with, by name.
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> training_weights() const {
    return side(!run.averages_in_use);
  }

  /// Throws c10::ValueError when the options contradict each other or are out of range.
  constexpr void validate() const;

  bool match(AfterLoad, const State&) const { return static_cast<bool>(run.loaded); }
  bool match(FitStart, const State&) const { return run.started; }
  bool match(BatchEnd, const State& state) const {
    return averages_at(TimeUnit::batch, state, state.timestamp.batch);
  }
  bool match(EpochEnd, const State& state) const {
    return averages_at(TimeUnit::epoch, state, state.timestamp.epoch);
  }
  bool match(EvalStart, const State&) const { return run.started; }
  bool match(EvalEnd, const State&) const { return run.started; }
  bool match(PredictStart, const State&) const { return run.started; }
  bool match(PredictEnd, const State&) const { return run.started; }

  void apply(Init, State& state) {
    optim::refuse_averages(state.optimizers, name);
    fill_in();
    *run.store = functional::EMAParameters(*state.model, exclude_buffers, detail::parts_of(state));
  }
  void apply(AfterLoad, State& state) {
    if (detail::tensors_without_memory(*state.model).empty()) {  // else in take_shards()
      restore(state);
    }
  }
  void apply(FitStart, State& state) { run.store->link(*state.model, detail::parts_of(state)); }
  void apply(BatchEnd, State& state) { average(state, state.timestamp.batch); }
  void apply(EpochEnd, State& state) { average(state, state.timestamp.epoch); }
  void apply(EvalStart, State& state) { use_averages(state, true); }
  void apply(EvalEnd, State& state) { use_averages(state, false); }
  void apply(PredictStart, State& state) { use_averages(state, true); }
  void apply(PredictEnd, State& state) { use_averages(state, false); }

  /// Lets the optimizer update the averages on its way, when an update is due at the next BatchEnd.
  void join(optim::FusedStep& fused, const State& state) {
    if (run.started && !run.averages_in_use && interval().unit() == TimeUnit::batch &&
        (state.timestamp.batch + 1) % interval().count() == 0) {
      run.store->join(fused, factor_at(state.timestamp.batch + 1));
    }
  }

  /// A checkpoint holds the averages, also one that is written in the middle of an evaluation.
  void enter_checkpoint(State& state) {
    run.in_checkpoint = run.started && !run.averages_in_use;
    use_averages(state, run.started);
  }
  void leave_checkpoint(State& state) {
    if (std::exchange(run.in_checkpoint, false)) {
      use_averages(state, false);
    }
  }

  /// From now on this rank averages its shards.
  void take_shards(State& state) {
    if (run.loaded) {
      restore(state);
    } else {
      run.store->cut(*state.model, *state.sharding);
    }
  }

  /// What load() has read takes effect in a run that has begun.
  void take_loaded(State& state) {
    if (run.loaded) {
      restore(state);
      run.store->link(*state.model, detail::parts_of(state));
    }
  }

  /// The model keeps its training weights, whatever happened.
  void close(State&) { exchange(false); }  // of a sharded one its shards: others may be gone

  /// Saves the side that the model does not hold, and which one that is.
  void save(Archive& archive) const;
  /// Reads what save() wrote; it takes effect at AfterLoad, once the model's weights are loaded.
  void load(const Archive& archive);

 private:
  [[nodiscard]] constexpr bool given_half_life() const {
    return half_life.value() != 0 || half_life.unit() != TimeUnit::epoch;
  }
  // Options that are not set become what is used, so that whoever reads them sees it.
  void fill_in() {
    update_interval = interval();
    if (!smoothing && !given_half_life()) {
      half_life = "1000ba";
    }
  }
  static constexpr bool counts(Time time) {
    return time.unit() == TimeUnit::batch || time.unit() == TimeUnit::epoch;
  }
  [[nodiscard]] bool due(const State& state) const;
  // Whether to begin, or to average, at the end of the `count`-th `unit`.
  [[nodiscard]] bool averages_at(TimeUnit unit, const State& state, std::int64_t count) const {
    return interval().unit() == unit &&
           (run.started ? count % interval().count() == 0 : due(state));
  }
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> side(bool in_model) const;
  bool exchange(bool averages_in_use);
  void use_averages(State& state, bool yes);
  void average(State& state, std::int64_t count);
  void restore(State& state);
};

constexpr void EMA::validate() const {
  expect(!smoothing || !given_half_life(),
         "EMA: half_life and smoothing are both set; set one of them only, since smoothing follows "
         "from half_life.");
  expect(!smoothing || (*smoothing > 0 && *smoothing < 1), "EMA: smoothing", *smoothing,
         "a number between 0 and 1");
  const Time every = interval();
  expect(counts(half_life), "EMA: half_life", half_life, "a time in ba or ep");
  expect(half_life.value() > 0 || !given_half_life(), "EMA: half_life", half_life, "more than 0");
  expect(counts(every), "EMA: update_interval", every, "a time in ba or ep");
  expect(every.value() > 0, "EMA: update_interval", every, "more than 0");
  expect(smoothing || every.unit() == (given_half_life() ? half_life.unit() : TimeUnit::batch),
         "EMA: update_interval", every, "a time in the unit of half_life");
  expect(!exclude_buffers || !average_integers,
         "EMA: exclude_buffers and average_integers are both set; set one of them only, since the "
         "first copies all buffers.");
  expect(use_warmup || (warmup_gamma == 1 && warmup_power == 2.0 / 3.0 && min_decay == 0),
         "EMA: warmup_gamma, warmup_power or min_decay is set without use_warmup; set use_warmup, "
         "since they say how it rises.");
  expect(warmup_gamma > 0, "EMA: warmup_gamma", warmup_gamma, "more than 0");
  expect(warmup_power > 0, "EMA: warmup_power", warmup_power, "more than 0");
  expect(min_decay >= 0 && min_decay < 1, "EMA: min_decay", min_decay,
         "a number from 0 to below 1");
  expect(!smoothing || min_decay <= *smoothing, "EMA: min_decay", min_decay,
         "at most smoothing, the upper end");
  expect(ema_start.value() >= 0 && (ema_start.is_fraction() || counts(ema_start)), "EMA: ema_start",
         ema_start, "0 or more in dur, ba or ep");
}

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/ema.inl.hpp>
#endif
