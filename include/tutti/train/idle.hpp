// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <c10/util/Exception.h>

#include <tutti/core/detail/switched.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/engine.hpp>

/// What can be said of a recipe only where it is used: policies that would wait for ever, pairs
/// that work against each other.
namespace tutti::train {

namespace detail {

using evaluation_events = types<EvalBeforeAll, EvalStart, EvalBatchStart, EvalBeforeForward,
                                EvalAfterForward, EvalBatchEnd, EvalEnd, EvalAfterAll>;
using iteration_events = types<IterationStart, IterationEnd, IterationCheckpoint>;

// Everything that P acts on is in the list.
template <class P, class... Listed, class... Es>
consteval bool acts_only_on(types<Listed...> list, types<Es...>) {
  static_cast<void>(list);
  return (Handles<P, Listed> || ...) &&
         ((!Handles<P, Es> || tutti::detail::contains<Es, types<Listed...>>) && ...);
}

}  // namespace detail

/// Refuses policies that this fit never calls.
/// has_evals: there are evaluation sets. has_iterations: iteration_length is set.
/// Throws c10::Error naming the policy and what to do.
template <class Engine>
void check_idle(const Engine& engine, bool has_evals, bool has_iterations) {
  engine.for_each([&]<class P>(const P& policy) {
    if constexpr (detail::acts_only_on<P>(detail::evaluation_events{}, all_events{})) {
      TUTTI_CHECK(has_evals || !tutti::detail::is_on(policy), "fit: ", name_of<P>(),
                  " acts only on events of evaluation and this fit has no evaluation set, so it "
                  "would do nothing; set TrainerOptions::eval, take it out of the recipe, or set "
                  "TrainerOptions::allow_idle_policies.");
    }
    if constexpr (detail::acts_only_on<P>(detail::iteration_events{}, all_events{})) {
      TUTTI_CHECK(has_iterations || !tutti::detail::is_on(policy), "fit: ", name_of<P>(),
                  " acts only on iterations and none ever ends in this fit, so it would do "
                  "nothing; set TrainerOptions::iteration_length, take it out of the recipe, or "
                  "set TrainerOptions::allow_idle_policies.");
    }
  });
}

namespace detail {

// Pair I of those that a recipe warns of, if it has as many.
template <std::size_t I, class... Ps>
void warn_of_pair() {
  if constexpr (I < ::tutti::detail::warnings<Ps...>.size) {
    constexpr ::tutti::detail::Mistake found = ::tutti::detail::warnings<Ps...>.list[I];
    using A = ::tutti::detail::nth<found.policy, Ps...>;
    using B = ::tutti::detail::nth<found.other, Ps...>;
    constexpr std::string_view why = ::tutti::detail::warning_reason<A, B>();
    TORCH_WARN(name_of<A>(), " and ", name_of<B>(), " work against each other",
               why.empty() ? "" : ": ", why, "; remove one, or put tutti::accept<", name_of<A>(),
               ", ", name_of<B>(), "> into the recipe to say that it is meant");
  }
}

}  // namespace detail

/// Says at run time what the compiler has warned of: pairs of policies that work against each
/// other, with the reason.
template <class... Ps>
void warn_of_pairs() {
  detail::warn_of_pair<0, Ps...>();
  detail::warn_of_pair<1, Ps...>();
  detail::warn_of_pair<2, Ps...>();
}

}  // namespace tutti::train
