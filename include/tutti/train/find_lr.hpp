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
      TUTTI_CHECK(!state.parameters_replaced,
                  "find_lr: a policy has given the model other parameters, which cannot be taken "
                  "back; remove the policy to look for a rate");
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

namespace tutti::train {

TUTTI_INLINE void check_find_lr(const FindLrOptions& options, const State& state, const Run& run,
                                bool whole) {
  TUTTI_CHECK_VALUE(
      options.min_lr > 0 && options.max_lr > options.min_lr && std::isfinite(options.max_lr),
      "find_lr: the rates go from min_lr ", options.min_lr, " to max_lr ", options.max_lr,
      ", expected more than 0, and max_lr above min_lr");
  TUTTI_CHECK_VALUE(options.num_steps >= 3, "find_lr: num_steps is ", options.num_steps,
                    ", expected 3 or more");
  TUTTI_CHECK_VALUE(options.smoothing >= 0 && options.smoothing < 1, "find_lr: smoothing is ",
                    options.smoothing, ", expected 0 or more, below 1");
  TUTTI_CHECK_VALUE(options.divergence == 0 || options.divergence > 1, "find_lr: divergence is ",
                    options.divergence, ", expected more than 1, or 0 for never");
  TUTTI_CHECK_VALUE(options.skip_begin >= 0 && options.skip_end >= 0, "find_lr: skip_begin is ",
                    options.skip_begin, " and skip_end ", options.skip_end,
                    ", expected 0 or more each");
  TUTTI_CHECK(run.train, "find_lr: there is no training data; set TrainerOptions::train");
  TUTTI_CHECK(whole,
              "find_lr: the model is sharded, and its weights cannot be put back; look for a rate "
              "with sharding.stage = ShardStage::none, on fewer layers if it has to be");
  TUTTI_CHECK(run.turns.empty(),
              "find_lr: the run has several optimizers, whose rates are not to be found by one "
              "loss; look for each in a run of its own, with the others' parameters frozen");
  TUTTI_CHECK(!optim::calls_closure(*state.optimizers.front()), "find_lr: the optimizer ",
              optim::class_name(*state.optimizers.front()),
              " calls a closure and chooses its own steps, so there is no rate to find");
}

TUTTI_INLINE bool take_loss(LrFinding& found, double lr, double loss,
                            const FindLrOptions& options) {
  // The average without its bias towards the 0 that it begins with.
  double average = 0;
  const auto count = static_cast<double>(found.losses.size() + 1);
  if (!found.losses.empty()) {
    average = found.smoothed.back() * (1 - std::pow(options.smoothing, count - 1));
  }
  average = options.smoothing * average + (1 - options.smoothing) * loss;
  found.lrs.push_back(lr);
  found.losses.push_back(loss);
  found.smoothed.push_back(average / (1 - std::pow(options.smoothing, count)));
  if (!std::isfinite(loss)) {
    found.diverged = true;
    return false;
  }
  const double least = *std::min_element(found.smoothed.begin(), found.smoothed.end());
  const double most = least > 0 ? options.divergence * least
                                : least + options.divergence * (found.smoothed.front() - least);
  found.diverged = options.divergence > 0 && found.losses.size() > 2 &&
                   found.smoothed.back() > most && found.smoothed.back() > least;
  return !found.diverged;
}

TUTTI_INLINE double suggest_lr(const LrFinding& found, const FindLrOptions& options) {
  const std::vector<double>& y = found.smoothed;
  const auto begin = static_cast<std::size_t>(options.skip_begin);
  const auto end = y.size() - std::min(y.size(), static_cast<std::size_t>(options.skip_end));
  std::vector<std::size_t> kept;
  for (std::size_t i = begin; i < end; ++i) {
    if (std::isfinite(y[i])) {
      kept.push_back(i);
    }
  }
  if (kept.size() < 2) {
    return 0;
  }
  // Central differences, one-sided at both ends.
  const auto slope = [&](std::size_t k) {
    const std::size_t from = kept[k == 0 ? 0 : k - 1];
    const std::size_t to = kept[std::min(k + 1, kept.size() - 1)];
    return (y[to] - y[from]) / static_cast<double>(k == 0 || k + 1 == kept.size() ? 1 : 2);
  };
  std::size_t best = 0;
  for (std::size_t k = 1; k < kept.size(); ++k) {
    best = slope(k) < slope(best) ? k : best;
  }
  return found.lrs[kept[best]];
}

}  // namespace tutti::train

namespace tutti {

TUTTI_INLINE std::string LrFinding::table() const {
  std::string out = "          lr         loss     smoothed\n";
  for (std::size_t i = 0; i < lrs.size(); ++i) {
    char line[96];
    std::snprintf(line, sizeof line, "%12.4g %12.6g %12.6g%s\n", lrs[i], losses[i], smoothed[i],
                  lrs[i] == suggestion ? "  <- suggestion" : "");
    out += line;
  }
  return out;
}

TUTTI_INLINE std::string LrFinding::svg() const {
  constexpr double width = 640, height = 400, left = 70, right = 20, top = 20, bottom = 50;
  double low = 0, high = 1, x0 = 0, x1 = 1;
  bool any = false;
  for (std::size_t i = 0; i < lrs.size(); ++i) {
    if (std::isfinite(smoothed[i])) {
      const double x = std::log10(lrs[i]);
      low = any ? std::min(low, smoothed[i]) : smoothed[i];
      high = any ? std::max(high, smoothed[i]) : smoothed[i];
      x0 = any ? x0 : x;
      x1 = x;
      any = true;
    }
  }
  high = high > low ? high : low + 1;
  x1 = x1 > x0 ? x1 : x0 + 1;
  const auto at_x = [&](double x) { return left + (x - x0) / (x1 - x0) * (width - left - right); };
  const auto at_y = [&](double y) {
    return height - bottom - (y - low) / (high - low) * (height - top - bottom);
  };
  const auto text = [](const char* format, auto... values) {
    char out[256];
    std::snprintf(out, sizeof out, format, values...);
    return std::string(out);
  };
  std::string out = text(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"%g\" height=\"%g\" fill=\"white\"/>\n",
      width, height, width, height);
  out += text("<path d=\"M%g %gV%gH%g\" fill=\"none\" stroke=\"#444\"/>\n", left, top,
              height - bottom, width - right);
  for (int power = static_cast<int>(std::ceil(x0 - 1e-9)); power <= x1 + 1e-9; ++power) {
    out += text(
        "<path d=\"M%.1f %gv6\" stroke=\"#444\"/><text x=\"%.1f\" y=\"%g\" "
        "text-anchor=\"middle\">1e%d</text>\n",
        at_x(power), height - bottom, at_x(power), height - bottom + 20, power);
  }
  for (int i = 0; i <= 4; ++i) {
    const double value = low + (high - low) * i / 4;
    out += text("<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%.3g</text>\n", left - 8,
                at_y(value) + 4, value);
  }
  out += "<polyline fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"2\" points=\"";
  for (std::size_t i = 0; i < lrs.size(); ++i) {
    if (std::isfinite(smoothed[i])) {
      out += text("%.1f,%.1f ", at_x(std::log10(lrs[i])), at_y(smoothed[i]));
    }
  }
  out += "\"/>\n";
  for (std::size_t i = 0; i < lrs.size(); ++i) {
    if (suggestion > 0 && lrs[i] == suggestion) {
      out += text(
          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"#d62728\"/><text x=\"%.1f\" "
          "y=\"%.1f\" fill=\"#d62728\">%.3g</text>\n",
          at_x(std::log10(suggestion)), at_y(smoothed[i]), at_x(std::log10(suggestion)) + 8,
          at_y(smoothed[i]) - 8, suggestion);
    }
  }
  out += text("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">learning rate</text>\n",
              (left + width - right) / 2, height - 10);
  out += text(
      "<text x=\"16\" y=\"%g\" text-anchor=\"middle\" transform=\"rotate(-90 16 %g)\">loss, "
      "smoothed</text>\n</svg>\n",
      (top + height - bottom) / 2, (top + height - bottom) / 2);
  return out;
}

TUTTI_INLINE void LrFinding::save_svg(const std::string& path) const {
  const std::string text = svg();
  std::FILE* file = std::fopen(path.c_str(), "wbe");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  good = file != nullptr && std::fclose(file) == 0 && good;
  TUTTI_CHECK(good, "find_lr: the picture cannot be written to '", path, "'");
}

}  // namespace tutti

#endif
