// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

// First: what a compiler says of a recipe begins with the way to these, which is short then.
#include <tutti/core/check.hpp>
#include <tutti/core/recipe.hpp>

#include <tutti/core/engine.hpp>
#include <tutti/core/switch.hpp>
#include <tutti/loggers/console.hpp>
#include <tutti/loggers/dashboard.hpp>
#include <tutti/loggers/progress_bar.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/engine_adapter.hpp>
#include <tutti/train/evaluation.hpp>
#include <tutti/train/find_lr.hpp>
#include <tutti/train/idle.hpp>
#include <tutti/train/loop.hpp>
#include <tutti/train/options.hpp>
#include <tutti/train/reproducibility.hpp>
#include <tutti/train/session.hpp>
#include <tutti/version.hpp>

namespace tutti {

namespace detail {

template <class P, class... Ps>
using Unless = std::conditional_t<(means<P, Ps> || ...), types<>, types<Switch<P>>>;

template <class... Ps, class... Qs, class... Rs, class... Ss>
Engine<Ps..., Qs..., Rs..., Ss...> join(types<Ps...>, types<Qs...>, types<Rs...>, types<Ss...>);

// The recipe's policies and the loggers that options can turn on.
template <class... Ps>
using Joined = decltype(join(types<Bare<Ps>...>{}, Unless<ProgressBar, Ps...>{},
                             Unless<ConsoleLogger, Ps...>{}, Unless<Dashboard, Ps...>{}));
template <class... Ps>
using EngineFor =
    typename decltype(brought_engine<Joined<Ps...>>(typename Joined<Ps...>::policies{}))::type;

}  // namespace detail

/// Trains, evaluates and predicts with a model and a recipe of policies.
///
///     tutti::Trainer<tutti::MixUp, tutti::BlurPool> trainer{model, {.train = loader, ...}};
///     trainer.fit();
///
/// `Trainer{model, options, MixUp{.alpha = 0.3}, BlurPool{}}` gives hyperparameters. A call that is
/// refused for its arguments changes nothing, and the next may be right. After an exception out of
/// work that has begun, in fit(), eval() or predict(), every policy has been closed and the trainer
/// is of no further use; what was saved stays.
template <class... Policies>
class Trainer {
 public:
  using recipe = Recipe<Policies...>;
  static_assert(sizeof(detail::Checked<0, detail::Bare<Policies>...>) > 0);
  static_assert(((sizeof(detail::EntryCheck<Policies>) > 0) && ...));
  static_assert(recipe::valid);

  /// Sets everything up and fires Init, BeforeLoad and AfterLoad; loads a checkpoint in between
  /// when options say so.
  /// Throws c10::Error or std::invalid_argument, saying what was got and what is expected, when an
  /// option is wrong, a file cannot be loaded or a policy refuses the model.
  template <class M>
  Trainer(M model, TrainerOptions options, Policies... policies)
    requires(sizeof...(Policies) > 0)
      : session_(std::move(options)), engine_(make_engine(std::move(policies)...)) {
    static_assert(((sizeof(CheckFor<Policies, M>) > 0) && ...));
    session_.begin(policies_, [&] { return erase(std::move(model)); });
  }
  template <class M>
    requires(!std::is_same_v<M, Trainer> && (std::is_default_constructible_v<Policies> && ...))
  explicit Trainer(M model, TrainerOptions options = {})
      : session_(std::move(options)), engine_(make_engine(Policies{}...)) {
    static_assert(((sizeof(CheckFor<Policies, M>) > 0) && ...));
    session_.begin(policies_, [&] { return erase(std::move(model)); });
  }

  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Closes every policy; exceptions of theirs are swallowed, call close() to see them.
  ~Trainer() {
    try {
      close();
    } catch (const std::exception& error) {
      TORCH_WARN("closing the trainer failed: ", error.what());
    }
  }

  /// Trains up to max_duration, or for `options.duration` more. May be called again.
  /// SIGTERM and SIGINT end it after the batch, saved: it returns, and stop_signal() is not 0. See
  /// TrainerOptions::on_signal.
  /// Throws c10::Error when data or duration are missing, nothing is left to train or a checkpoint
  /// cannot be written, and whatever the model and the policies throw.
  void fit(FitOptions options = {}) {
    end_fit();
    session_.fit(std::move(options));
  }

  /// fit({.duration = duration}): `fit("2ep")`.
  void fit(Time duration) { fit(FitOptions{.duration = duration}); }

  /// Trains on one batch that comes from outside, for online and reinforcement learning:
  ///
  ///     for (;;) { trainer.step(collect()); }
  ///     trainer.end_fit();
  ///
  /// A batch as in fit(), from AfterDataloader to BatchCheckpoint, with microbatches, schedule,
  /// policies, evaluations and checkpoints that are due in ba, sp, tok or sec. The first call fires
  /// FitStart and what starts there. No loader is asked and no epoch ends. It goes on beyond
  /// max_duration: `state().timestamp >= state().max_duration` says that the run is over, as after
  /// stop_training(). All ranks call it alike.
  ///
  /// batch: on the host, as a loader gives it. Returns the batch's loss, a detached scalar, the
  /// mean over ranks; its parts are in state().total_loss. Throws c10::Error inside fit(), and
  /// whatever the model and the policies throw.
  at::Tensor step(Batch batch) {
    if (!steps_) {
      session_.begin_steps([&](State& state, train::Run& run) {
        steps_ = std::make_shared<StepLoop>(step_engine(), state, run);
        end_steps_ = [](Trainer& self) {
          const auto steps = std::exchange(self.steps_, nullptr);
          self.session_.end_steps([&] { steps->end(); });
        };
        steps_->begin();
      });
    }
    session_.step([&] { steps_->train_on(std::move(batch)); });
    return session_.state().total_loss.at("total");
  }

  /// Ends what step() has begun: FitEnd, with evaluations and checkpoints that are due there. fit()
  /// and close() do it as well. Does nothing when no step was made.
  void end_fit() {
    if (end_steps_ != nullptr && !engine_.closed()) {
      std::exchange(end_steps_, nullptr)(*this);
    }
  }

  /// Evaluates one batch that comes from outside, with the events of eval(): its metrics by name,
  /// also in `state().metric("eval_step", name)`. For outputs call predict().
  ///
  /// batch: on the host. Throws as eval() does.
  MetricValues eval_step(Batch batch) {
    session_.eval({{"eval_step", std::vector<Batch>{std::move(batch)}}});
    return session_.state().eval_metric_values["eval_step"];
  }

  /// Evaluates the options' sets, or the given ones: see State::metric.
  /// Throws c10::Error when there is no set, or one is empty.
  void eval() { session_.eval(); }
  void eval(std::vector<Evaluator> evaluators) { session_.eval(std::move(evaluators)); }

  /// The same with other weights, after which the model has its own again, bit for bit:
  /// `trainer.eval({{"test", loader}}, "best")`, `trainer.eval({}, "runs/a/ep3-ba90")`.
  ///
  /// evaluators: {}: the options' sets. weights: "best", those of load_best(); else a checkpoint's
  /// path. Throws c10::Error, besides, when there are no such weights, they do not fit, or the
  /// model is sharded.
  void eval(std::vector<Evaluator> evaluators, const std::string& weights) {
    session_.eval(std::move(evaluators), weights);
  }

  /// Looks for a learning rate: trains batches of the training data with rates that rise from
  /// min_lr to max_lr, until the loss diverges, and takes everything back, bit for bit: weights,
  /// optimizer, schedule, policies, generators, time. fit() then begins as if nothing had been.
  ///
  ///     const tutti::LrFinding found = trainer.find_lr();
  ///     std::puts(found.table().c_str());
  ///     found.save_svg("lr.svg");
  ///
  /// The algorithms of the recipe take part, callbacks and loggers do not. Groups keep the ratio of
  /// their rates; `lrs` and `suggestion` are of the first. All ranks call it, and find the same.
  /// Throws c10::Error when there is no training data, during fit(), when the model is sharded, the
  /// optimizer calls a closure or a policy replaces parameters; c10::ValueError for wrong options.
  LrFinding find_lr(FindLrOptions options = {}) {
    LrFinding found;
    session_.apart(options, [&](State& state, train::Run& run) {
      found = train::find_lr(engine_, policies_.states(), state, run, options);
    });
    return found;
  }

  /// Gives the model the weights of its best evaluation during fit(): those that
  /// TrainerOptions::restore_best keeps in memory, else those of the best checkpoint that a
  /// CheckpointSaver with a monitor has written. Where EMA's averages were evaluated it is these,
  /// and EMA goes on from them. Time, optimizers and all else stay.
  ///
  /// Returns the checkpoint's path; empty: they were in memory.
  /// Throws c10::Error when there are none, or the model is sharded.
  std::string load_best() { return session_.load_best(); }

  /// Value and time of the evaluation whose weights restore_best keeps; nothing before the first.
  [[nodiscard]] std::optional<BestValue> best() const { return session_.best(); }

  /// The best checkpoint of the first CheckpointSaver with a monitor; empty: none.
  [[nodiscard]] std::string best_checkpoint() const { return session_.best_checkpoint(); }

  /// Runs the model over a loader in evaluation mode.
  ///
  /// subset_num_batches: how many batches at most; -1: all.
  /// Returns the outputs of each batch on the host; nothing when return_outputs is false.
  /// Throws c10::ValueError for data that is none, and whatever the model and the policies throw.
  std::vector<Outputs> predict(DataSpec data, std::int64_t subset_num_batches = -1,
                               bool return_outputs = true) {
    return session_.predict(data, subset_num_batches, return_outputs);
  }

  /// The same with the outputs of all batches as one: each named tensor is joined along dimension
  /// 0, so that row i is what the model said of the loader's example i. `.tensor()` of it is the
  /// only tensor, or the logits. A tensor without dimensions gives one element a batch.
  ///
  ///     at::Tensor logits = trainer.predict_tensors(loader).tensor();   // [examples, classes]
  ///
  /// Throws c10::ValueError, besides, when the loader gives no batch, or when batches differ in a
  /// dimension behind the first, as texts of several lengths do, or in the names of their outputs;
  /// predict() takes those.
  Outputs predict_tensors(DataSpec data, std::int64_t subset_num_batches = -1) {
    return train::joined(predict(std::move(data), subset_num_batches));
  }

  /// Writes a checkpoint at `path` now. All ranks call it; rank 0 writes, or each its part, see
  /// TrainerOptions::checkpoint_layout.
  /// weights_only: the model alone. Returns the path.
  std::string save_checkpoint(const std::string& path, bool weights_only = false) {
    session_.save_checkpoint(path, weights_only);
    return path;
  }

  /// What was taken of the checkpoint that was loaded, and what not; `path` is empty when none was.
  [[nodiscard]] const RunLoadReport& load_report() const { return session_.load_report(); }

  /// The newest checkpoint in save_folder that is this run's; empty: none.
  [[nodiscard]] std::string last_checkpoint() const { return session_.last_checkpoint(); }

  /// The signal that ended the last fit() before its time; 0: none.
  [[nodiscard]] int stop_signal() const { return session_.stop_signal(); }

  /// Ends the run for every policy; nothing can be trained afterwards. Does nothing when called
  /// again. Throws the first exception of a policy's close(), after all have been closed.
  void close() {
    if (std::uncaught_exceptions() == 0) {
      end_fit();
    }
    steps_.reset();
    session_.close();
  }

  /// What the loop and the policies share.
  [[nodiscard]] State& state() { return session_.state(); }
  [[nodiscard]] const State& state() const { return session_.state(); }

  /// The policy of type `P`, with its state.
  template <class P>
  [[nodiscard]] P& get() {
    return engine_.template get<P>();
  }

  /// Calls `f` with every policy.
  template <class F>
  void for_each_policy(F&& f) const {
    engine_.for_each(std::forward<F>(f));
  }

  /// What has been logged as a constant of the run, in order; a name's latest value.
  [[nodiscard]] const std::vector<std::pair<std::string, HyperparameterValue>>& hyperparameters()
      const {
    return session_.hyperparameters();
  }

 private:
  using EngineType = detail::EngineFor<Policies...>;

  template <class M>
  static constexpr bool is_model = std::is_convertible_v<M, AnyModel>;
  static constexpr bool has_mistakes = detail::mistakes<detail::Bare<Policies>...>.size > 0;

  // Named in the constructors: every call in between lengthens a compiler's message.
  template <class Policy, class M>
  using CheckFor = std::conditional_t<is_model<M> && !has_mistakes,
                                      ModelCheck<detail::Bare<Policy>, M>, types<>>;

  // The model behind one type, once the recipe's policies have seen what it is.
  template <class M>
  AnyModel erase(M model) const {
    static_assert(is_model<M>,
                  "tutti: this is no model; give it Outputs forward(const Batch&) and "
                  "Loss loss(const Outputs&, const Batch&), or wrap a network that classifies in "
                  "tutti::Classifier.");
    if constexpr (is_model<M> && !has_mistakes) {
      engine_.template validate_model<M>();
      train::warn_of_pairs<detail::Bare<Policies>...>();
      return AnyModel(std::move(model));
    } else {
      return {};
    }
  }

  EngineType make_engine(Policies... policies) {
    if constexpr (EngineType::recipe::size == 0) {
      return EngineType{};
    } else {
      return make_engine_from(typename EngineType::policies{}, policies...);
    }
  }

  // Each policy of the engine is either one of the recipe's or a logger that options turn on.
  template <class... All>
  EngineType make_engine_from(types<All...>, Policies&... policies) {
    return EngineType(pick<All>(policies...)...);
  }
  template <class P>
  P pick(Policies&... policies) {
    if constexpr (std::is_same_v<P, Switch<ProgressBar>>) {
      return P(ProgressBar{},
               session_.options().progress_bar && !recipe::template has<ConsoleLogger>);
    } else if constexpr (std::is_same_v<P, Switch<ConsoleLogger>>) {
      return P(ConsoleLogger{.log_interval = session_.options().console_log_interval},
               session_.options().log_to_console);
    } else if constexpr (std::is_same_v<P, Switch<Dashboard>>) {
      return P(with_plan(Dashboard{}), session_.options().dashboard);
    } else if constexpr (std::is_same_v<P, Dashboard>) {
      return with_plan(take<P>(policies...));
    } else {
      return take<P>(policies...);
    }
  }
  // A policy that shows the recipe is given its plan.
  template <class P>
  static P with_plan(P policy) {
    policy.show_plan(recipe::describe());
    return policy;
  }
  template <class P, class Q, class... Qs>
  static P take(Q& first, Qs&... others) {
    if constexpr (std::is_same_v<P, detail::Bare<Q>>) {
      return P(std::move(first));
    } else {
      return take<P>(others...);
    }
  }

#if defined(TUTTI_SEPARATE_COMPILATION)
  using StepLoop = train::Loop<train::AnyEngine>;
  train::AnyEngine& step_engine() { return policies_; }
#else
  using StepLoop = train::Loop<EngineType>;
  EngineType& step_engine() { return engine_; }
#endif

  train::Session session_;
  EngineType engine_;
  train::EngineAdapter<EngineType> policies_{engine_};
  // Between the first step() and end_fit(). Only step() names what they are of, so that no other
  // program compiles it.
  std::shared_ptr<StepLoop> steps_;
  void (*end_steps_)(Trainer&) = nullptr;
};

}  // namespace tutti
