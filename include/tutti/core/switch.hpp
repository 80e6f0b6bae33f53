// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tutti/core/detail/switched.hpp>
#include <tutti/core/logger.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/policy_traits.hpp>
#include <tutti/core/rule.hpp>
#include <tutti/core/tags.hpp>

namespace tutti {

namespace detail {

// "EarlyStopper.loss"
template <class P, Text Tag>
consteval auto tagged_name() {
  constexpr std::string_view of = name_of<P>();
  constexpr std::string_view tag = Tag;
  std::array<char, of.size() + 1 + tag.size()> out{};
  std::size_t at = 0;
  for (const std::string_view part : {of, std::string_view("."), tag}) {
    for (const char c : part) {
      out[at++] = c;
    }
  }
  return out;
}
template <class P, Text Tag>
inline constexpr auto tagged_name_of = tagged_name<P, Tag>();

template <class P, Text Tag>
consteval std::string_view switch_name() {
  if constexpr (std::string_view(Tag).empty()) {
    return name_of<P>();
  } else {
    return {tagged_name_of<P, Tag>.data(), tagged_name_of<P, Tag>.size()};
  }
}

}  // namespace detail

/// A policy that can be turned on and off at run time; for ablations and optional parts of a
/// program. In a recipe it stands, with all its rules, where `P` would; off, it does nothing.
///
/// Tag: makes it another type with another name, see Named.
template <class P, detail::Text Tag = "">
struct Switch final {
  static constexpr std::string_view name = detail::switch_name<P, Tag>();
  static constexpr Role role = detail::deduce_role<P>();
  template <class Model>
  static constexpr bool supports = Supports<P, Model>;  // also while it is off: it may be turned on

  P policy{};
  bool on = true;

  /// What it holds while it runs; not an option.
  struct Run {
    bool used = false;  ///< it was on at a hook, so it is closed, on or off
  } run{};

  Switch()
    requires std::default_initializable<P>
  = default;
  explicit Switch(P p, bool is_on = true) : policy(std::move(p)), on(is_on) {}

  template <class E>
    requires Handles<P, E>
  void apply(E event, State& state) {
    if (acts()) {
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
    if constexpr (detail::Validates<P>) {
      if (on) {
        policy.validate();
      }
    }
  }

  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step)
    requires detail::ReceivesMetrics<P>
  {
    if (acts()) {
      policy.log_metrics(metrics, step);
    }
  }
  void log_hyperparameters(std::span<const Hyperparameter> values)
    requires detail::ReceivesHyperparameters<P>
  {
    if (acts()) {
      policy.log_hyperparameters(values);
    }
  }
  void log_images(const LoggedImages& images, std::int64_t step)
    requires detail::ReceivesImages<P>
  {
    if (acts()) {
      policy.log_images(images, step);
    }
  }
  void log_table(const LoggedTable& table, std::int64_t step)
    requires detail::ReceivesTable<P>
  {
    if (acts()) {
      policy.log_table(table, step);
    }
  }

  void upload_file(std::string_view remote_file_name, std::string_view path)
    requires detail::ReceivesFiles<P>
  {
    if (acts()) {
      policy.upload_file(remote_file_name, path);
    }
  }
  bool download_file(std::string_view remote_file_name, std::string_view path)
    requires detail::GivesFilesBack<P>
  {
    return acts() && policy.download_file(remote_file_name, path);
  }
  void log_result(const LoggedResult& result)
    requires detail::ReceivesResult<P>
  {
    if (acts()) {
      policy.log_result(result);
    }
  }

  void record_event(std::string_view event)
    requires Recorder<P>
  {
    if (acts()) {
      policy.record_event(event);
    }
  }
  void record_policy(std::string_view event, std::string_view which, Role of)
    requires Recorder<P>
  {
    if (acts()) {
      policy.record_policy(event, which, of);
    }
  }

  // Off, it leaves nothing to the optimizer's pass.
  template <class FusedStep>
  void join(FusedStep& fused, const State& state)
    requires requires(P& p) { p.join(fused, state); }
  {
    if (acts()) {
      policy.join(fused, state);
    }
  }

  template <class A>
  void save(A& archive) const
    requires detail::Saves<P>
  {
    policy.save(archive);
  }
  template <class A>
  void load(const A& archive)
    requires detail::Loads<P>
  {
    policy.load(archive);
  }
  template <class S>
  void close(S& state)
    requires detail::Closes<P>
  {
    if (on || run.used) {
      policy.close(state);
    }
  }
  template <class S>
  void enter_checkpoint(S& state)
    requires detail::EntersCheckpoint<P>
  {
    if (acts()) {
      policy.enter_checkpoint(state);
    }
  }
  template <class S>
  void leave_checkpoint(S& state)
    requires detail::LeavesCheckpoint<P>
  {
    if (on || run.used) {
      policy.leave_checkpoint(state);
    }
  }
  template <class Closure, class Update>
  void step(State& state, Closure&& closure, Update&& update)
    requires detail::TakesStep<P>
  {
    if (acts()) {
      policy.step(state, closure, update);
    } else if (closure(true)) {
      update();
    }
  }

 private:
  bool acts() {
    run.used = run.used || on;
    return on;
  }
};

/// A further policy of a type that the recipe has already, under a name of its own:
/// "EarlyStopper.loss". `trainer.get<Named<"loss", EarlyStopper>>().policy` is the policy.
template <detail::Text Tag, class P>
using Named = Switch<P, Tag>;

/// The same from a policy:
///
///     Trainer trainer{model, options, CheckpointSaver{...}, named<"best">(CheckpointSaver{...})};
template <detail::Text Tag, class P>
Named<Tag, P> named(P policy) {
  static_assert(!std::string_view(Tag).empty(),
                "tutti: the name is empty; write named<\"second\">(policy).");
  return Named<Tag, P>(std::move(policy));
}

}  // namespace tutti
