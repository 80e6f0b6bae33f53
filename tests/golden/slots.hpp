// SPDX-License-Identifier: Apache-2.0
#pragma once

// A recipe is a list of types, but a golden case names its algorithms at run time, in any order. So
// the recipe of the golden runs has slots in a row, each of which is one policy for the engine and
// holds whatever algorithm the case puts there: the engine's own order, match and reversal apply.

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/recipe.hpp>
#include <tutti/core/state.hpp>

#include "golden/draws.hpp"
#include "golden/runner.hpp"

namespace golden {

/// One algorithm behind virtual functions; events are counted as in tutti::all_events.
class AnyAlgorithm {
 public:
  virtual ~AnyAlgorithm() = default;
  virtual std::string_view name() const = 0;
  virtual bool runs(std::size_t event, const tutti::State& state) const = 0;
  virtual void run(std::size_t event, tutti::State& state) = 0;
  virtual void close(tutti::State& state) = 0;

  std::size_t place = 0;  ///< in the list of the case
};

namespace detail {

template <class E, class... Es>
constexpr std::size_t index_in(tutti::types<Es...>) {
  std::size_t at = 0;
  static_cast<void>(((!std::is_same_v<E, Es> && ++at != 0) && ...));
  return at;
}
template <class E>
inline constexpr std::size_t event_index = index_in<E>(tutti::all_events{});

template <class A>
class Held final : public AnyAlgorithm {
 public:
  explicit Held(A algorithm) : algorithm_(std::move(algorithm)) {
    if constexpr (requires { algorithm_.validate(); }) {
      algorithm_.validate();
    }
  }

  std::string_view name() const override { return tutti::name_of<A>(); }
  bool runs(std::size_t event, const tutti::State& state) const override {
    return runs(event, state, tutti::all_events{});
  }
  void run(std::size_t event, tutti::State& state) override {
    run(event, state, tutti::all_events{});
  }
  void close(tutti::State& state) override {
    if constexpr (requires { algorithm_.close(state); }) {
      algorithm_.close(state);
    }
  }
  A& algorithm() { return algorithm_; }
  const A& algorithm() const { return algorithm_; }

 private:
  template <class... Es>
  bool runs(std::size_t event, const tutti::State& state, tutti::types<Es...>) const {
    return ((event_index<Es> == event && runs_at<Es>(state)) || ...);
  }
  template <class E>
  bool runs_at(const tutti::State& state) const {
    if constexpr (tutti::Matches<A, E>) {
      return algorithm_.match(E{}, state);
    } else {
      return tutti::Handles<A, E>;
    }
  }
  template <class... Es>
  void run(std::size_t event, tutti::State& state, tutti::types<Es...>) {
    (run_at<Es>(event, state), ...);
  }
  template <class E>
  void run_at(std::size_t event, tutti::State& state) {
    if constexpr (tutti::Handles<A, E>) {
      if (event_index<E> == event) {
        algorithm_.apply(E{}, state);
      }
    }
  }

  A algorithm_;
};

inline constexpr std::array<std::string_view, 12> slot_names{"slot0", "slot1", "slot2",  "slot3",
                                                             "slot4", "slot5", "slot6",  "slot7",
                                                             "slot8", "slot9", "slot10", "slot11"};

}  // namespace detail

/// How many algorithms a case may list.
inline constexpr std::size_t slot_count = detail::slot_names.size();

/// Place `I` of the recipe; empty, it acts on nothing.
template <std::size_t I>
struct Slot final {
  static constexpr std::string_view name = detail::slot_names[I];
  static constexpr tutti::Role role = tutti::Role::algorithm;

  std::shared_ptr<AnyAlgorithm> algorithm{};

  template <tutti::Event E>
  bool match(E, const tutti::State& state) const {
    return algorithm && algorithm->runs(detail::event_index<E>, state);
  }
  template <tutti::Event E>
  void apply(E, tutti::State& state) {
    algorithm->run(detail::event_index<E>, state);
  }
  void close(tutti::State& state) {
    if (algorithm) {
      algorithm->close(state);
    }
  }
};

/// Those of a case.
using Algorithms = std::vector<std::shared_ptr<AnyAlgorithm>>;

/// The algorithm of that name; null when tutti lacks it.
std::shared_ptr<AnyAlgorithm> make_algorithm(const std::string& name, const Json& args,
                                             const std::shared_ptr<tutti::Tape>& tape);

/// Skips the case when tutti lacks one of its algorithms.
void need_algorithms(const Json& list);

/// The algorithms of a case, which draw from the tape, in the order listed, but for the two that
/// the reference moves.
Algorithms make_algorithms(const Json& list, const std::shared_ptr<tutti::Tape>& tape);

}  // namespace golden
