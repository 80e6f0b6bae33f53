// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tutti/core/detail/switched.hpp>
#include <tutti/core/recipe.hpp>

namespace tutti {

namespace detail {

// A base per policy. Policies are final, so they are members; empty ones take no room.
template <class P>
struct Slot {
  [[no_unique_address]] P policy;
};

// Two policies of which the first looks at the second; themselves, not the switches around them.
template <class P, class Other>
concept LooksAt = !std::is_same_v<Unswitched<P>, Unswitched<Other>> &&
                  ValidatesWith<Unswitched<P>, Unswitched<Other>>;

}  // namespace detail

/// The policies of a recipe and their dispatch. `fire<E>(state)` is the calls of the policies that
/// act on E, inlined, in the order of the recipe; without such policies it is nothing.
template <class... Policies>
class Engine : private detail::Slot<Policies>... {
 public:
  using recipe = Recipe<Policies...>;
  using policies = types<Policies...>;
  static_assert(recipe::valid);

  /// Takes the policies with their hyperparameters.
  /// Throws what a policy's validate() or validate_with(other) throws.
  explicit Engine(Policies... given)
    requires(sizeof...(Policies) > 0)
      : detail::Slot<Policies>{std::move(given)}... {
    (validate(get<Policies>()), ...);
  }
  Engine()
    requires(std::is_default_constructible_v<Policies> && ...)
  {
    (validate(get<Policies>()), ...);
  }

  /// The policy of type `P`.
  template <class P>
  [[nodiscard]] P& get() {
    return static_cast<detail::Slot<P>&>(*this).policy;
  }
  template <class P>
  [[nodiscard]] const P& get() const {
    return static_cast<const detail::Slot<P>&>(*this).policy;
  }

  /// Calls `f` with every policy, in the order listed.
  template <class F>
  void for_each(F&& f) {
    (f(get<Policies>()), ...);
  }
  template <class F>
  void for_each(F&& f) const {
    (f(get<Policies>()), ...);
  }

  /// Runs every policy that acts on `E`. A policy's match() decides whether it runs; the
  /// algorithms' are all asked before the first of them runs. An exception leaves at once: later
  /// policies do not see the event.
  template <Event E, class S>
  void fire(S& state) {
    if constexpr (recorded) {
      record_fired<E>();
    }
    fire_all<E>(state, typename recipe::template order<E>{});
  }

  /// Runs some of the policies that act on `E`, as fire() would. fired: tell a Trace of the event.
  template <Event E, class S, class... Ps>
  void fire_some(S& state, types<Ps...> some, bool fired) {
    if (fired) {
      record_fired<E>();
    }
    fire_all<E>(state, some);
  }

  /// Tells a Trace of something that the loop does at an event, such as saving a checkpoint.
  void record([[maybe_unused]] std::string_view event, [[maybe_unused]] std::string_view what) {
    (record_policy<Policies>(event, what, Role::algorithm), ...);
  }

  /// Ends the run for every policy that has close(State&): listed order, each once, whatever the
  /// others throw; the first exception is passed on after all are closed. Does nothing when called
  /// again.
  template <class S>
  void close(S& state) {
    if (std::exchange(closed_, true)) {
      return;
    }
    std::exception_ptr first;
    (close_one(get<Policies>(), state, first), ...);
    if (first) {
      std::rethrow_exception(first);
    }
  }

  /// Throws what a policy's validate_model<M>() throws.
  template <class M>
  void validate_model() const {
    (validate_model_of<M>(get<Policies>()), ...);
  }

  /// close() has run.
  [[nodiscard]] bool closed() const { return closed_; }

 protected:  // for an engine that a policy brings, see detail::brought_engine
  // Whether P runs at E now.
  template <class E, class P, class S>
  [[nodiscard]] bool asked(const S& state) const {
    if constexpr (Matches<P, E>) {
      return get<P>().match(E{}, state);
    } else {
      return true;
    }
  }

  // Tells a Trace that E is fired, and that P runs there.
  template <class E>
  void record_fired() {
    if constexpr (recorded) {
      (record_event<Policies>(E::name), ...);
    }
  }
  template <class E, class P>
  void record_run() {
    if constexpr (recorded) {
      (record_policy<Policies>(E::name, name_of<P>(), role_of<P>), ...);
    }
  }

 private:
  static constexpr bool recorded = (Recorder<Policies> || ...);

  template <class P>
  void validate(const P& policy) const {
    if constexpr (detail::Validates<P>) {
      policy.validate();
    }
    if constexpr ((detail::LooksAt<P, Policies> || ...)) {
      (validate_pair(policy, get<Policies>()), ...);
    }
  }
  // Pairs are of the policies themselves, of which a Switch may have turned one off.
  template <class P, class Other>
  static void validate_pair(const P& policy, const Other& other) {
    if constexpr (detail::LooksAt<P, Other>) {
      if (detail::is_on(policy) && detail::is_on(other)) {
        detail::unswitched(policy).validate_with(detail::unswitched(other));
      }
    }
  }

  template <class M, class P>
  static void validate_model_of(const P& policy) {
    if constexpr (detail::ValidatesModel<detail::Unswitched<P>, M>) {
      if (detail::is_on(policy)) {
        detail::unswitched(policy).template validate_model<M>();
      }
    }
  }

  template <class P, class S>
  static void close_one(P& policy, S& state, std::exception_ptr& first) {
    if constexpr (detail::Closes<P>) {
      try {
        policy.close(state);
      } catch (...) {
        first = first ? first : std::current_exception();
      }
    }
  }

  template <class E, class S, class... Ps>
  void fire_all(S& state, types<Ps...>) {
    // Only algorithms with a match() are asked beforehand; the rest cost nothing here.
    constexpr bool ask_first = ((Matches<Ps, E> && role_of<Ps> == Role::algorithm) || ...);
    if constexpr (!recorded && !(Matches<Ps, E> || ...)) {
      (get<Ps>().apply(E{}, state), ...);
    } else if constexpr (ask_first) {
      const std::array<bool, sizeof...(Ps)> runs{
          (role_of<Ps> == Role::algorithm ? asked<E, Ps>(state) : true)...};
      std::size_t i = 0;
      (run_if<E, Ps>(runs[i++], state), ...);
    } else {
      (run_if<E, Ps>(true, state), ...);
    }
  }

  template <class E, class P, class S>
  void run_if(bool runs, S& state) {
    if constexpr (Matches<P, E>) {
      if constexpr (role_of<P> != Role::algorithm) {
        runs = get<P>().match(E{}, state);
      }
      if (!runs) {
        return;
      }
    }
    if constexpr (recorded) {
      record_run<E, P>();
    }
    get<P>().apply(E{}, state);
  }

  template <class P>
  void record_event(std::string_view event) {
    if constexpr (Recorder<P>) {
      get<P>().record_event(event);
    }
  }
  template <class P>
  void record_policy(std::string_view event, std::string_view policy, Role role) {
    if constexpr (Recorder<P>) {
      get<P>().record_policy(event, policy, role);
    }
  }

  bool closed_ = false;
};

/// An engine of what the entries stand for: With's policy with its values.
template <class... Entries>
  requires(detail::mistakes<detail::Bare<Entries>...>.size == 0 &&
           (!detail::BareEntry<Entries>::plain || ...))
class Engine<Entries...> : public Engine<detail::Bare<Entries>...> {
 public:
  static_assert(Recipe<Entries...>::valid);
  explicit Engine(Entries... entries) : Engine<detail::Bare<Entries>...>(std::move(entries)...) {}
  Engine()
    requires(std::is_default_constructible_v<Entries> && ...)
      : Engine(Entries{}...) {}
};

/// Stands in where the recipe is wrong, so that Recipe's one error is not followed by others.
template <class... Policies>
  requires(detail::mistakes<detail::Bare<Policies>...>.size > 0)
class Engine<Policies...> {
 public:
  using recipe = Recipe<Policies...>;
  using policies = types<>;
  // The first mistake not by way of Recipe, which would make a compiler's message longer.
  static_assert(sizeof(detail::Checked<0, detail::Bare<Policies>...>) > 0);
  static_assert(sizeof(recipe) > 0);

  explicit Engine(auto&&...) {}
  template <class P>
  P& get() const;
  void for_each(auto&&) const {}
  template <Event E>
  void fire(auto&) {}
  template <Event E>
  void fire_some(auto&&...) {}
  void record(auto&&...) {}
  void close(auto&) {}
  [[nodiscard]] bool closed() const { return false; }
};

namespace detail {

// The engine that runs Base's policies: the one that a policy brings, which derives from Base and
// has it in `template <class Base> using engine`, else Base.
template <class Base, class... Ps>
consteval auto brought_engine(types<Ps...>) {
  constexpr std::array<bool, sizeof...(Ps)> brings{BringsEngine<Ps, Base>...};
  constexpr auto found = std::find(brings.begin(), brings.end(), true) - brings.begin();
  if constexpr (found < std::ssize(brings)) {
    return std::type_identity<
        typename nth<static_cast<std::size_t>(found), Ps...>::template engine<Base>>{};
  } else {
    return std::type_identity<Base>{};
  }
}

}  // namespace detail

}  // namespace tutti
