// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tutti/core/policy.hpp>

namespace tutti {

namespace detail {

// "on_epoch_end", or "on_batch_end_epoch_end".
template <class... Events>
consteval auto name_of_on() {
  std::array<char, 2 + (0 + ... + (Events::name.size() + 1))> text{'o', 'n'};
  std::size_t at = 2;
  const auto add = [&](std::string_view name) {
    text[at++] = '_';
    for (const char letter : name) {
      text[at++] = letter;
    }
  };
  (add(Events::name), ...);
  return text;
}

}  // namespace detail

/// Refuses functions that on() cannot call.
template <class F>
struct OnCheck {
  /// Looking is enough for it: it takes a const State.
  static constexpr bool observes = std::is_invocable_v<F&, const State&>;
  static constexpr bool is_called = observes || std::is_invocable_v<F&, State&>;
  static constexpr bool returns_nothing = [] {
    if constexpr (is_called) {
      return std::is_void_v<std::invoke_result_t<F&, State&>>;
    }
    return true;
  }();
  static_assert(is_called,
                "tutti: the function of on<Event> takes a tutti::State&, or a const tutti::State& "
                "if it only looks; this one cannot be called so.");
  static_assert(returns_nothing,
                "tutti: the function of on<Event> returns a value that nobody reads; return "
                "nothing, and change the tutti::State& instead.");
};

/// A policy that is one function; made by on().
template <class F, class... Events>
class On final {
  static constexpr bool observes = OnCheck<F>::observes;
  static constexpr auto text = detail::name_of_on<Events...>();

 public:
  static constexpr std::string_view name{text.data(), text.size()};
  using events = types<Events...>;

  explicit constexpr On(F function) : function_(std::move(function)) {}

  template <class E>
    requires(detail::contains<E, events> && !observes)
  void apply(E, State& state) {
    function_(state);
  }
  template <class E>
    requires(detail::contains<E, events> && observes)
  void apply(E, const State& state) {
    function_(state);
  }

 private:
  F function_;
};

/// A small policy without a struct: a function that is called at one event, or at each of several.
///
///     tutti::Trainer trainer{model, options,
///                            tutti::on<tutti::EpochEnd>([](const tutti::State& state) {
///                              std::cout << state.timestamp.epoch << '\n';
///                            })};
///
/// function: takes `tutti::State&` and is an algorithm, or `const tutti::State&` and is a callback,
/// which runs behind them; returns nothing. A type is named in a lambda's parameter, not `auto&`.
/// What it captures is not saved in checkpoints. Like any policy it is checked: an event that does
/// not exist, or a function that cannot be called, does not compile.
/// returns a policy, `on_epoch_end` in traces; named<"...">() gives it another name.
/// Source: MosaicML Composer's `Callback.run_event`, PyTorch Lightning's `LambdaCallback`.
template <Event... Events, class F>
  requires(sizeof...(Events) > 0)
[[nodiscard]] constexpr auto on(F&& function) {
  using Check = OnCheck<std::remove_cvref_t<F>>;
  if constexpr (Check::is_called && Check::returns_nothing) {
    return On<std::remove_cvref_t<F>, Events...>(std::forward<F>(function));
  }
}

}  // namespace tutti
