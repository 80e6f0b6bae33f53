// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/engine.hpp>
#include <tutti/core/state.hpp>
#include <tutti/optim/class_name.hpp>
#include <tutti/optim/closure.hpp>
#include <tutti/train/policy_states.hpp>
#include <tutti/train/rewind.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/step.hpp>

namespace tutti {

/// How Trainer::find_lr() tries learning rates; the defaults are Lightning's.
struct FindLrOptions {
  double min_lr = 1e-8;          ///< the first one; > 0
  double max_lr = 1.0;           ///< the last one; > min_lr
  std::int64_t num_steps = 100;  ///< batches, one rate each, evenly spaced by ratio; >= 3
  double smoothing = 0.98;       ///< weight of the past in the loss's moving average; in [0, 1)
  double divergence = 4.0;       ///< ends when the average exceeds its least value by this factor
                                 ///< (of its rise from there to the first one where the loss can
                                 ///< be below 0); 0: never
  std::int64_t skip_begin = 10;  ///< steps at the begin that are not suggested; >= 0
  std::int64_t skip_end = 1;     ///< steps at the end that are not suggested; >= 0
};

/// What Trainer::find_lr() has found.
struct LrFinding {
  std::vector<double> lrs;       ///< of the first parameter group, step by step
  std::vector<double> losses;    ///< of the batch trained with it, before the step
  std::vector<double> smoothed;  ///< their moving average
  bool diverged = false;         ///< it ended before max_lr
  double suggestion = 0;         ///< where the average falls most steeply; 0: it was too short

  /// "lr, loss, smoothed" line by line, the suggestion marked.
  [[nodiscard]] std::string table() const;

  /// A picture: the moving average over the rates, the suggestion marked. The text of an SVG file.
  [[nodiscard]] std::string svg() const;

  /// Writes that file. Throws c10::Error when it cannot.
  void save_svg(const std::string& path) const;
};

namespace train {

/// Refuses options that make no sense, c10::ValueError, and runs that have no rate to find or
/// cannot be put back, c10::Error. whole: each rank has all of the model.
void check_find_lr(const FindLrOptions& options, const State& state, const Run& run, bool whole);

/// The rate with which the moving average falls most steeply, step by step; 0 when too few steps
/// are left to choose from.
/// Source: PyTorch Lightning, `_LRFinder.suggestion`.
double suggest_lr(const LrFinding& found, const FindLrOptions& options);

/// Takes a loss in. Returns whether the next rate is to be tried.
bool take_loss(LrFinding& found, double lr, double loss, const FindLrOptions& options);

/// The algorithms of an engine: callbacks and loggers see nothing of it.
template <class Base>
class AlgorithmsOf {
 public:
  using recipe = typename Base::recipe;
  using policies = typename Base::policies;

  explicit AlgorithmsOf(Base& base) : base_(base) {}

  template <Event E>
  void fire(State& state) {
    base_.template fire_some<E>(state, chosen(typename recipe::template order<E>{}), false);
  }
  template <Event E, class... Ps>
  void fire_some(State& state, types<Ps...> some, bool) {
    base_.template fire_some<E>(state, chosen(some), false);
  }
  template <class P>
  [[nodiscard]] P& get() {
    return base_.template get<P>();
  }
  template <class P>
  [[nodiscard]] const P& get() const {
    return std::as_const(base_).template get<P>();
  }
  template <class F>
  void for_each(F&& f) {
    base_.for_each(std::forward<F>(f));
  }
  template <class F>
  void for_each(F&& f) const {
    std::as_const(base_).for_each(std::forward<F>(f));
  }

 private:
  template <class P>
  static auto one() {
    if constexpr (role_of<P> == Role::algorithm) {
      return types<P>{};
    } else {
      return types<>{};
    }
  }
  template <class... As, class... Bs>
  static types<As..., Bs...> joined(types<As...>, types<Bs...>);
  static types<> chosen(types<>) { return {}; }
  template <class P, class... Ps>
  static auto chosen(types<P, Ps...>) {
    return decltype(joined(one<P>(), chosen(types<Ps...>{}))){};
  }

  Base& base_;
};

/// Trains batch after batch of the run's data with rising rates, and takes it all back.
///
/// policies: policy_states() of the engine. Throws c10::Error when the loader gives no batch.
template <class Engine>
LrFinding find_lr(Engine& engine, PolicyStates policies, State& state, Run& run,
                  const FindLrOptions& options) {
  using Plain = AlgorithmsOf<Engine>;
  LrFinding found;
  Rewind before(std::move(policies), state, run);
  auto graphs = std::exchange(run.graphs, nullptr);
  const Logger logger = std::exchange(state.logger, {});
  Plain plain(engine);
  {
    Step<Plain> step(plain, state, run);
    state.dataloader_label = "train";
    state.dataloader_len = length_of(run.train, run.train_subset);
    state.train_transforms = run.train.loader.transforms();
    plain.template fire<FitStart>(state);
    state.model->train();
    std::vector<double> rates;
    for (auto& optimizer : state.optimizers) {
      for (auto& group : optimizer->param_groups()) {
        rates.push_back(group.options().get_lr());
      }
    }
    const double first = !rates.empty() && rates.front() > 0 ? rates.front() : 0;
    const auto set_rates = [&](double lr) {
      std::size_t i = 0;
      for (auto& optimizer : state.optimizers) {
        for (auto& group : optimizer->param_groups()) {
          group.options().set_lr(first > 0 ? lr * (rates[i] / first) : lr);
          ++i;
        }
      }
    };
    const auto next_batch = [&] {
      std::optional<Batch> next = run.train.loader.next();
      const bool over = run.train_subset >= 0 && state.timestamp.batch_in_epoch >= run.train_subset;
      if (over || state.communicator->all_reduce_value(std::int64_t{next.has_value()},
                                                       dist::ReduceOp::minimum) == 0) {
        TUTTI_CHECK(state.timestamp.batch_in_epoch > 0,
                    "find_lr: the training loader gave no batch; give it data");
        state.timestamp = state.timestamp.to_next_epoch();
        start_epoch(run.train, state, run.same_epoch ? 0 : state.timestamp.epoch);
        next = run.train.loader.next();
        TUTTI_CHECK(state.communicator->all_reduce_value(std::int64_t{next.has_value()},
                                                         dist::ReduceOp::minimum) > 0,
                    "find_lr: the training loader gave no batch; give it data");
      }
      return run.train.transform(std::move(*next));
    };
    start_epoch(run.train, state, run.same_epoch ? 0 : state.timestamp.epoch,
                state.timestamp.batch_in_epoch);
    const double ratio = options.max_lr / options.min_lr;
    for (std::int64_t i = 0; i < options.num_steps; ++i) {
      const double lr =
          options.min_lr *
          std::pow(ratio, static_cast<double>(i) / static_cast<double>(options.num_steps - 1));
      state.batch = next_batch();
      const std::int64_t samples = run.train.num_samples(state.batch);
      const std::int64_t tokens = run.train.num_tokens(state.batch).total;
      plain.template fire<AfterDataloader>(state);
      plain.template fire<BatchStart>(state);
      set_rates(lr);
      step();
      const double loss =
          detail::mean_over_ranks(state.total_loss.at("total"), state).template item<double>();
      state.previous_timestamp = state.timestamp;
      state.timestamp = state.timestamp.to_next_batch(samples, tokens);
      plain.template fire<BatchEnd>(state);
      TUTTI_CHECK(!state.parameters_replaced, "find_lr: after ", i + 1,
                  " of its batches a policy has given frozen layers back to training (Unfreeze, "
                  "BackboneFinetuning) or other parameters to the model (Factorize), which cannot "
                  "be taken back; ",
                  i >= 3 ? "set num_steps to " + std::to_string(i) + " or less, " : "",
                  "have the policy act later, or remove it to look for a rate");
      if (!take_loss(found, lr, loss, options)) {
        break;
      }
    }
  }
  found.suggestion = suggest_lr(found, options);
  state.logger = logger;
  before.rewind();
  run.graphs = std::move(graphs);
  return found;
}

}  // namespace train

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/train/find_lr.inl.hpp>
#endif
