#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include <tutti/core/logger.hpp>
#include <tutti/core/policy.hpp>

namespace tutti {

namespace detail {

// The rules that P declares, and P itself as a tag so that others' rules still find it.
template <class P, class Tags>
struct WithTag;
template <class P, class... Tags>
struct WithTag<P, types<Tags...>> {
  using type = types<P, Tags...>;
};
template <class P>
consteval auto own_tags() {
  if constexpr (requires { typename P::tags; }) {
    return typename WithTag<P, typename P::tags>::type{};
  } else {
    return types<P>{};
  }
}
template <class P>
consteval bool says_that_it_reads_gradients() {
  if constexpr (requires { P::reads_gradients; }) {
    return P::reads_gradients;
  } else {
    return true;
  }
}
#define TUTTI_FORWARD_RULE(rule)   \
  template <class P>               \
  struct Forward_##rule {};        \
  template <class P>               \
    requires requires {            \
      typename P::rule;            \
    }                              \
  struct Forward_##rule<P> {       \
    using rule = typename P::rule; \
  }
TUTTI_FORWARD_RULE(runs_before);
TUTTI_FORWARD_RULE(runs_after);
TUTTI_FORWARD_RULE(conflicts_with);
TUTTI_FORWARD_RULE(requires_policy);
#undef TUTTI_FORWARD_RULE

}  // namespace detail

/// A policy that can be turned on and off at run time; for ablations and optional parts of a
/// program. In a recipe it stands, with all its rules, where `P` would; off, it does nothing.
template <class P>
struct Switch final : detail::Forward_runs_before<P>,
                      detail::Forward_runs_after<P>,
                      detail::Forward_conflicts_with<P>,
                      detail::Forward_requires_policy<P> {
  static constexpr std::string_view name = name_of<P>();
  static constexpr Role role = detail::deduce_role<P>();
  using tags = decltype(detail::own_tags<P>());
  static constexpr bool reads_gradients = detail::says_that_it_reads_gradients<P>();

  P policy{};
  bool on = true;

  Switch() = default;
  explicit Switch(P p, bool is_on = true) : policy(std::move(p)), on(is_on) {}

  template <class E>
    requires Handles<P, E>
  void apply(E event, State& state) {
    if (on) {
      policy.apply(event, state);
    }
  }

  template <class E>
    requires Handles<P, E>
  [[nodiscard]] bool match(E event, const State& state) const {
    if constexpr (Matches<P, E>) {
      return on && policy.match(event, state);
    } else {
      return on;
    }
  }

  void validate() const {
    if constexpr (requires { policy.validate(); }) {
      if (on) {
        policy.validate();
      }
    }
  }

  void log_metrics(std::span<const LoggedMetric> metrics,
                   std::int64_t step) requires detail::ReceivesMetrics<P> {
    if (on) {
      policy.log_metrics(metrics, step);
    }
  }
  void log_hyperparameters(
      std::span<const Hyperparameter> values) requires detail::ReceivesHyperparameters<P> {
    if (on) {
      policy.log_hyperparameters(values);
    }
  }
  void log_images(const LoggedImages& images,
                  std::int64_t step) requires detail::ReceivesImages<P> {
    if (on) {
      policy.log_images(images, step);
    }
  }
  void log_table(const LoggedTable& table, std::int64_t step) requires detail::ReceivesTable<P> {
    if (on) {
      policy.log_table(table, step);
    }
  }

  template <class A>
  void save(A& archive) const requires requires(const P& p) {
    p.save(archive);
  }
  { policy.save(archive); }
  template <class A>
  void load(const A& archive) requires requires(P& p) {
    p.load(archive);
  }
  { policy.load(archive); }
  template <class S>
  void close(S& state) requires requires(P& p) {
    p.close(state);
  }
  {
    if (on) {
      policy.close(state);
    }
  }
  template <class Closure, class Update>
  void step(State& state, Closure&& closure, Update&& update) requires requires(P& p) {
    p.step(state, closure, update);
  }
  {
    if (on) {
      policy.step(state, closure, update);
    } else if (closure(true)) {
      update();
    }
  }
};

}  // namespace tutti
