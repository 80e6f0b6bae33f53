// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <c10/util/FunctionRef.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/constants.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/data/data_spec.hpp>
#include <tutti/optim/fused_step.hpp>
#include <tutti/train/policy_states.hpp>

namespace tutti::train {

struct EvalSet;
struct Run;

namespace detail {

template <class E, class... Es>
consteval std::size_t place_of(types<Es...>) {
  std::size_t place = 0;
  static_cast<void>(((std::is_same_v<E, Es> || (++place, false)) || ...));
  return place;
}

/// The place of `E` among all_events.
template <Event E>
inline constexpr std::size_t event_index = place_of<E>(all_events{});

}  // namespace detail

/// What a recipe leaves to the optimizer's pass over memory.
struct FoldPlan {
  bool gradients = false;       ///< what a policy does to gradients at AfterTrainBatch
  bool averages = false;        ///< an average of the weights at BatchEnd
  bool keep_gradients = false;  ///< a policy reads gradients after the step

  constexpr explicit operator bool() const { return gradients || averages; }
};

/// The engine of any recipe behind one type.
///
/// What a run does once, it does with this class. Its batches are trained by a Loop of the
/// recipe's own engine, into which the hooks are inlined. Where functions are compiled apart
/// (TUTTI_SEPARATE_COMPILATION), the Loop is that of this class and compiled once for all recipes:
/// an event then costs a call through a pointer where a policy acts on it, and a comparison where
/// none does.
class AnyEngine {
 public:
  using Fire = void (*)(AnyEngine&, State&);

  AnyEngine(const AnyEngine&) = delete;
  AnyEngine& operator=(const AnyEngine&) = delete;
  virtual ~AnyEngine() = default;

  /// Runs every policy that acts on `E`.
  template <Event E>
  void fire(State& state) {
    if (const Fire call = fires_[detail::event_index<E>]) {
      call(*this, state);
    }
  }

  /// A policy acts on `E`.
  template <Event E>
  [[nodiscard]] bool acts_on() const {
    return fires_[detail::event_index<E>] != nullptr;
  }

  // ---- A run's beginning and end --------------------------------------------------------------

  /// Seeds the policies and adds those that take logs to the logger.
  virtual void prepare(State& state) = 0;
  /// policy_constants() of the engine.
  [[nodiscard]] virtual tutti::detail::Constants constants(bool algorithms) const = 0;
  /// policy_states() of the engine.
  [[nodiscard]] virtual PolicyStates states() = 0;
  /// Some policy brings a saver of its own.
  [[nodiscard]] virtual bool has_savers() const = 0;
  /// Refuses policies that this fit never calls, as check_idle() does.
  virtual void check_idle(bool has_evals, bool has_iterations) const = 0;
  /// A policy says that some parameters may get no gradient.
  [[nodiscard]] virtual bool leaves_parameters_unused() const = 0;
  [[nodiscard]] virtual bool averages_ranks() const = 0;
  /// Why the recipe cannot have CUDA graphs; empty when it can.
  [[nodiscard]] virtual std::string why_no_graphs() const = 0;
  /// Why the recipe cannot train a sharded model, with the policy's name; empty when it can.
  /// whole: the model's parameters are always whole, in their own type. spread: instead of being
  /// sharded, it is spread over ranks by tensor_parallel().
  [[nodiscard]] virtual std::string why_no_sharding(bool whole, bool spread) const = 0;
  /// Closes every policy.
  virtual void close(State& state) = 0;
  [[nodiscard]] virtual bool closed() const = 0;

#if !defined(TUTTI_SEPARATE_COMPILATION)
  // ---- The loop of the recipe's own engine ----------------------------------------------------

  virtual void train(State& state, Run& run) = 0;
  virtual void evaluate(State& state, Run& run, std::vector<EvalSet>& sets) = 0;
  virtual std::vector<Outputs> predict(State& state, DataSpec& data, std::int64_t subset,
                                       bool return_outputs) = 0;
#else
  // ---- What the loop of this class asks -------------------------------------------------------

  /// Tells a Trace of something that the loop does at an event.
  virtual void record(std::string_view event, std::string_view what) = 0;
  /// Batches may be changed later than their event: only policies look at them.
  virtual void allow_deferred(bool yes) = 0;
  /// The loss of the microbatch.
  [[nodiscard]] virtual Loss loss(State& state) = 0;
  /// The random streams of the policies that have one.
  [[nodiscard]] virtual std::vector<Rng*> rngs() = 0;
  /// Lets step_taker() make the step. pass: forward and backward of the batch; returns whether the
  /// gradients are finite.
  virtual void take_step(State& state, c10::function_ref<bool(bool sync)> pass,
                         c10::function_ref<void()> update) = 0;
  /// Leaves averages to the optimizer's pass.
  virtual void join(optim::FusedStep& fused, const State& state) = 0;

  // GraphHooks of the engine. event: its place among all_events.
  [[nodiscard]] virtual bool left_out_of_graph(State& state) = 0;
  virtual void ahead_of_graph(State& state) = 0;
  virtual void in_graph(std::size_t event, State& state) = 0;
  virtual void behind_graph(State& state) = 0;
#endif

  /// The policy that takes the optimizer's step into its own hands; empty: none does.
  [[nodiscard]] std::string_view step_taker() const { return step_taker_; }
  /// What is left to the optimizer's pass over memory.
  [[nodiscard]] const FoldPlan& fold_plan() const { return fold_plan_; }

 protected:
  /// fires: for each of all_events what runs its policies; null where none acts.
  AnyEngine(const Fire* fires, std::string_view step_taker, FoldPlan fold_plan)
      : fires_(fires), step_taker_(step_taker), fold_plan_(fold_plan) {}

 private:
  const Fire* fires_;
  std::string_view step_taker_;
  FoldPlan fold_plan_;
};

/// `Engine` is an AnyEngine, which is asked when the program runs.
template <class Engine>
inline constexpr bool is_erased = std::is_same_v<Engine, AnyEngine>;

}  // namespace tutti::train

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class std::vector<tutti::Rng*>;
#endif
