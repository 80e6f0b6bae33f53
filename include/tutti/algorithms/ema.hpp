#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <tutti/algorithms/detail/averages.hpp>
#include <tutti/algorithms/detail/exchange.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/time.hpp>

/// EMA: exponentially averaged weights for evaluation and checkpoints.
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

  /// Copies of the model's present weights.
  explicit EMAParameters(const torch::nn::Module& model) {
    for (auto& [name, weight] : ::tutti::detail::weights_of(model, /*trainable=*/true)) {
      names_.push_back(name);
      stored_.push_back(weight.detach().clone());
      weights_.push_back(weight);
      lists_.add(stored_.back(), weights_.back());
    }
  }

  /// What is saved in `tensors`, by name, beside the model's tensors of these names. The tensors are
  /// copied to where the model's are.
  /// Throws c10::Error when the model lacks one or has another shape.
  EMAParameters(const torch::nn::Module& model,
                const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
    for (const auto& [name, tensor] : tensors) {
      names_.push_back(name);
      stored_.push_back(tensor);
    }
    weights_.resize(names_.size());
    link(model);
    for (std::size_t i = 0; i < names_.size(); ++i) {
      at::Tensor stored = weights_[i].detach().clone();
      stored_[i] = stored.copy_(stored_[i]);
    }
    link(model);
  }

  /// Looks the model's tensors up anew.
  /// Throws c10::Error when one that is stored here is gone or has another shape.
  void link(const torch::nn::Module& model) {
    std::map<std::string, at::Tensor> now;
    for (const auto& items : {model.named_parameters(), model.named_buffers()}) {
      for (const auto& item : items) {
        now.emplace(item.key(), item.value());
      }
    }
    lists_ = {};
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const auto found = now.find(names_[i]);
      TORCH_CHECK(found != now.end(), "EMA: the model has no tensor \"", names_[i], "\", ",
                  "of which there is an average; replace layers before averaging starts, and "
                  "resume with the same model");
      TORCH_CHECK(found->second.sizes() == stored_[i].sizes(), "EMA: \"", names_[i], "\" is ",
                  found->second.sizes(), " in the model, expected ", stored_[i].sizes(),
                  " as its average is; replace layers before averaging starts");
      weights_[i] = found->second;
      lists_.add(stored_[i], weights_[i]);
    }
  }

  /// stored = smoothing * stored + (1 - smoothing) * model, for floating tensors; others are copied.
  /// smoothing: in [0, 1]. average_integers: average the others too, truncated.
  /// Throws c10::Error (ValueError) when smoothing is out of range.
  void update(double smoothing, bool average_integers = false) const {
    TORCH_CHECK_VALUE(smoothing >= 0 && smoothing <= 1, "EMA: smoothing is ", smoothing,
                      ", expected a number from 0 to 1");
    lists_.update(smoothing, average_integers);
  }

  /// Exchanges what is stored with what the model has. Costs no copying as a rule: memory changes
  /// hands.
  void swap() const {
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      ::tutti::detail::exchange(stored_[i], weights_[i]);
    }
  }

  /// Copies what is stored into the tensors of these names in another model of the kind.
  void copy_to(torch::nn::Module& model) const {
    EMAParameters other = *this;
    other.link(model);
    const c10::AutoGradMode no_grad(false);
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      other.weights_[i].copy_(stored_[i]);
    }
  }

  [[nodiscard]] std::size_t size() const { return names_.size(); }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] const std::vector<at::Tensor>& stored() const { return stored_; }
  [[nodiscard]] const std::vector<at::Tensor>& weights() const { return weights_; }

 private:
  std::vector<std::string> names_;
  std::vector<at::Tensor> stored_;   // this side
  std::vector<at::Tensor> weights_;  // the model's own tensors, detached
  ::tutti::detail::AverageLists lists_;
};

/// Moves the averages `smoothing` of the way towards staying: e = smoothing * e + (1 - smoothing) * w
/// for every parameter and buffer that both have. Integers are copied, or averaged and truncated.
///
/// smoothing: in [0, 1]. Throws c10::Error (ValueError) when it is not.
/// Source: MosaicML Composer, `composer.algorithms.ema.compute_ema`.
inline void compute_ema(const torch::nn::Module& model, EMAParameters& ema_model,
                        double smoothing = 0.99, bool average_integers = false) {
  ema_model.link(model);
  ema_model.update(smoothing, average_integers);
}

/// The same with the averages in a module of their own.
inline void compute_ema(const torch::nn::Module& model, torch::nn::Module& ema_model,
                        double smoothing = 0.99, bool average_integers = false) {
  TORCH_CHECK_VALUE(smoothing >= 0 && smoothing <= 1, "EMA: smoothing is ", smoothing,
                    ", expected a number from 0 to 1");
  std::map<std::string, at::Tensor> weights;
  for (auto& [name, weight] : ::tutti::detail::weights_of(model, /*trainable=*/false)) {
    weights.emplace(name, weight.detach());
  }
  ::tutti::detail::AverageLists lists;
  for (auto& [name, average] : ::tutti::detail::weights_of(ema_model, /*trainable=*/false)) {
    if (const auto found = weights.find(name); found != weights.end()) {
      lists.add(average.detach(), found->second);
    }
  }
  lists.update(smoothing, average_integers);
}

/// The smoothing with which a weight of half_life ago counts half: 2^(-update_interval / half_life).
/// Throws c10::Error (ValueError) unless both are above 0 and in one unit, ba or ep.
inline double ema_smoothing(Time half_life, Time update_interval) {
  TORCH_CHECK_VALUE(half_life.unit() == update_interval.unit(), "EMA: half_life is ",
                    to_string(half_life), " and update_interval ", to_string(update_interval),
                    ", expected both in ba or both in ep");
  TORCH_CHECK_VALUE(half_life.value() > 0, "EMA: half_life is ", to_string(half_life),
                    ", expected more than 0");
  return std::exp2(-update_interval.value() / half_life.value());
}

}  // namespace functional

/// Keeps an exponential average of the weights and evaluates and saves the model with it.
///
/// At BatchEnd or EpochEnd, from ema_start on, the averages follow the weights. During evaluation and
/// prediction, and while a checkpoint is written, the model holds the averages; training always goes
/// on with its own weights, bit for bit.
/// Source: TensorFlow's `tf.train.ExponentialMovingAverage`; MosaicML Composer,
/// `composer.algorithms.EMA`.
struct EMA final {
  Time half_life{};  ///< in ba or ep; 1000ba when smoothing is not set either. At most one of both
  std::optional<double> smoothing{};  ///< weight of the average in an update; in (0, 1)
  Time ema_start = "0.0dur";          ///< when averaging begins: dur, ba or ep
  Time update_interval{};  ///< in ba or ep, as half_life; not set: 1 of half_life's unit, else 1ba
  bool average_integers = false;  ///< average integer buffers too, truncated; else they are copied

  functional::EMAParameters store{};  ///< what the model does not hold: averages or, while the
                                      ///< averages are in use, the training weights
  bool started = false;               ///< written by the policy: averaging has begun
  bool averages_in_use = false;       ///< written by the policy: the model holds the averages

  /// What load() has read and AfterLoad puts in place.
  struct Loaded {
    std::vector<std::pair<std::string, at::Tensor>> weights;
    bool averages_in_use = false;
  };
  std::optional<Loaded> loaded{};

  static constexpr std::string_view name = "EMA";
  using events = types<Init, AfterLoad, FitStart, BatchStart, BatchEnd, BatchCheckpoint, EpochEnd,
                       EpochCheckpoint, IterationCheckpoint, FitEnd, EvalStart, EvalEnd,
                       PredictStart, PredictEnd>;
  using tags = types<averages_weights>;
  using runs_after = types<changes_model>;
  using conflicts_with = types<averages_weights>;

  /// How often the averages are updated, in ba or ep.
  [[nodiscard]] Time interval() const {
    if (update_interval) {
      return update_interval;
    }
    return {1, given_half_life() ? half_life.unit() : TimeUnit::batch};
  }

  /// The weight of the average in an update.
  [[nodiscard]] double factor() const {
    using namespace literals;
    return smoothing ? *smoothing
                     : functional::ema_smoothing(given_half_life() ? half_life : "1000ba"_t,
                                                 interval());
  }

  /// The averages by name, whichever side holds them. Empty before Init.
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> averages() const {
    return side(averages_in_use);
  }
  /// The weights that training goes on with, by name.
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> training_weights() const {
    return side(!averages_in_use);
  }

  /// Throws c10::ValueError when the options contradict each other or are out of range.
  void validate() const;

  bool match(AfterLoad, const State&) const { return loaded.has_value(); }
  bool match(FitStart, const State&) const { return started; }
  bool match(BatchStart, const State&) const { return started; }
  bool match(BatchEnd, const State& state) const {
    return interval().unit() == TimeUnit::batch && (started || due(state));
  }
  bool match(EpochEnd, const State& state) const {
    return averages_in_use ||
           (interval().unit() == TimeUnit::epoch && (started || due(state)));
  }
  bool match(BatchCheckpoint, const State& state) const { return started && state.checkpoint_due; }
  bool match(EpochCheckpoint, const State& state) const { return started && state.checkpoint_due; }
  bool match(IterationCheckpoint, const State& state) const {
    return started && state.checkpoint_due;
  }
  bool match(FitEnd, const State&) const { return averages_in_use; }
  bool match(EvalStart, const State&) const { return started; }
  bool match(EvalEnd, const State&) const { return started; }
  bool match(PredictStart, const State&) const { return started; }
  bool match(PredictEnd, const State&) const { return started; }

  void apply(Init, State& state) { store = functional::EMAParameters(*state.model); }
  void apply(AfterLoad, State& state) { restore(state); }
  void apply(FitStart, State& state) {
    use_averages(false);
    store.link(*state.model);
  }
  void apply(BatchStart, State&) { use_averages(false); }
  void apply(BatchEnd, State& state) { average(state, state.timestamp.batch); }
  void apply(EpochEnd, State& state) {
    use_averages(false);
    if (interval().unit() == TimeUnit::epoch) {
      average(state, state.timestamp.epoch);
    }
  }
  void apply(BatchCheckpoint, State&) { use_averages(true); }
  void apply(EpochCheckpoint, State&) { use_averages(true); }
  void apply(IterationCheckpoint, State&) { use_averages(true); }
  void apply(FitEnd, State&) { use_averages(false); }
  void apply(EvalStart, State&) { use_averages(true); }
  void apply(EvalEnd, State&) { use_averages(false); }
  void apply(PredictStart, State&) { use_averages(true); }
  void apply(PredictEnd, State&) { use_averages(false); }

  /// The model keeps its training weights, whatever happened.
  void close(State&) { use_averages(false); }

  /// Saves the side that the model does not hold, and which one that is.
  void save(Archive& archive) const;
  /// Reads what save() wrote; it takes effect at AfterLoad, once the model's weights are loaded.
  void load(const Archive& archive);

 private:
  [[nodiscard]] bool given_half_life() const {
    return half_life || half_life.unit() != TimeUnit::epoch;
  }
  [[nodiscard]] bool due(const State& state) const;
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> side(bool in_model) const;
  void use_averages(bool yes);
  void average(State& state, std::int64_t count);
  void restore(State& state);
};

inline void EMA::validate() const {
  const Time every = interval();
  TORCH_CHECK_VALUE(!smoothing || !given_half_life(), "EMA: half_life is ", to_string(half_life),
                    " and smoothing ", smoothing.value_or(0), ", expected one of them only; "
                    "smoothing follows from half_life.");
  TORCH_CHECK_VALUE(!smoothing || (*smoothing > 0 && *smoothing < 1), "EMA: smoothing is ",
                    smoothing.value_or(0), ", expected a number between 0 and 1.");
  for (const auto& [what, time] : {std::pair("half_life", half_life),
                                   std::pair("update_interval", every)}) {
    TORCH_CHECK_VALUE(time.unit() == TimeUnit::batch || time.unit() == TimeUnit::epoch, "EMA: ",
                      what, " is ", to_string(time), ", expected a time in ba or ep.");
  }
  TORCH_CHECK_VALUE(every.value() > 0, "EMA: update_interval is ", to_string(every),
                    ", expected more than 0.");
  TORCH_CHECK_VALUE(ema_start.value() >= 0 && (ema_start.is_fraction() ||
                                               ema_start.unit() == TimeUnit::batch ||
                                               ema_start.unit() == TimeUnit::epoch),
                    "EMA: ema_start is ", to_string(ema_start),
                    ", expected 0 or more in dur, ba or ep.");
  static_cast<void>(factor());
}

inline bool EMA::due(const State& state) const {
  if (!ema_start.is_fraction()) {
    return state.timestamp >= ema_start;
  }
  return state.progress().elapsed_fraction().value_or(0) >= ema_start.value();
}

inline std::vector<std::pair<std::string, at::Tensor>> EMA::side(bool in_model) const {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (std::size_t i = 0; i < store.size(); ++i) {
    out.emplace_back(store.names()[i], in_model ? store.weights()[i].detach() : store.stored()[i]);
  }
  return out;
}

inline void EMA::use_averages(bool yes) {
  if (averages_in_use != yes) {
    store.swap();
    averages_in_use = yes;
  }
}

inline void EMA::average(State& state, std::int64_t count) {
  use_averages(false);
  if (!started) {
    store = functional::EMAParameters(*state.model);
    started = true;
  } else if (count % interval().count() == 0) {
    store.update(factor(), average_integers);
  }
}

inline void EMA::save(Archive& archive) const {
  archive.put("started", started);
  archive.put("averages_in_use", averages_in_use);
  Archive& weights = archive.child("weights");
  for (std::size_t i = 0; i < store.size(); ++i) {
    weights.put(store.names()[i], store.stored()[i]);
  }
}

inline void EMA::load(const Archive& archive) {
  started = archive.get<bool>("started");
  loaded.emplace();
  loaded->averages_in_use = archive.get<bool>("averages_in_use");
  if (archive.contains("weights")) {
    const Archive& weights = archive.child("weights");
    for (const std::string& key : weights.names()) {
      loaded->weights.emplace_back(key, weights.tensor(key));
    }
  }
}

inline void EMA::restore(State& state) {
  store = functional::EMAParameters(*state.model, loaded->weights);
  averages_in_use = loaded->averages_in_use;
  loaded.reset();
  use_averages(false);
}

}  // namespace tutti
