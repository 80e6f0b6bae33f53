// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/run.hpp>

#include <cmath>

namespace tutti::train {

// The group's own schedule; null: it has none.
TUTTI_INLINE const Schedule* own_schedule(const torch::optim::OptimizerParamGroup& group) {
  const auto* const own = group.has_options()
                              ? dynamic_cast<const optim::InitialLearningRate*>(&group.options())
                              : nullptr;
  return own != nullptr ? own->schedule.get() : nullptr;
}

TUTTI_INLINE bool Run::has_schedule(const State& state) const {
  bool any = static_cast<bool>(schedule);
  for (const Turn& turn : turns) {
    any = any || turn.schedule;
  }
  for (const auto& optimizer : state.optimizers) {
    for (const auto& group : optimizer->param_groups()) {
      any = any || own_schedule(group) != nullptr;
    }
  }
  return any;
}

TUTTI_INLINE void Run::warn_of_schedules(const State& state) const {
  const auto warn = [&](const Schedule* one) {
    const std::string notice = one != nullptr && *one
                                   ? one->notice(state.progress(), scale_schedule_ratio)
                                   : std::string();
    if (!notice.empty()) {
      TORCH_WARN(notice);
    }
  };
  warn(&schedule);
  for (const Turn& turn : turns) {
    warn(&turn.schedule);
  }
  for (const auto& optimizer : state.optimizers) {
    for (const auto& group : optimizer->param_groups()) {
      warn(own_schedule(group));
    }
  }
}

namespace detail {

// What a schedule says for now. Throws c10::ValueError unless learning rates can be multiplied by
// it.
TUTTI_INLINE double multiplier(const Schedule& schedule, const Progress& now, double ratio) {
  const double out = schedule(now, ratio);
  TUTTI_CHECK_VALUE(out >= 0 && std::isfinite(out), "the schedule gives ", out, " at batch ",
                    now.timestamp.batch,
                    ", by which learning rates are multiplied, expected a number of 0 or more; "
                    "correct the schedule");
  return out;
}

}  // namespace detail

TUTTI_INLINE void Run::step_schedule(State& state, const Timestamp& at) {
  scheduled_at = at;
  Progress progress = state.progress();
  progress.timestamp = at;
  if (schedule) {
    set_learning_rates(state, detail::multiplier(schedule, progress, scale_schedule_ratio));
  }
  std::size_t i = 0;  // over all optimizers, as initial_lrs are
  for (std::size_t one = 0; one < state.optimizers.size(); ++one) {
    const Schedule* const turn =
        one < turns.size() && turns[one].schedule ? &turns[one].schedule : nullptr;
    for (auto& group : state.optimizers[one]->param_groups()) {
      const Schedule* const own = own_schedule(group);
      if (const Schedule* const with = own != nullptr ? own : turn; with != nullptr) {
        TUTTI_CHECK(i < state.initial_lrs.size(),
                    "a parameter group was added to an optimizer after its learning rates were "
                    "bound; add groups before fit()");
        group.options().set_lr(state.initial_lrs[i] *
                               detail::multiplier(*with, progress, scale_schedule_ratio));
      }
      ++i;
    }
  }
}

TUTTI_INLINE void Run::set_learning_rates(State& state, double alpha) {
  std::size_t i = 0;
  for (auto& optimizer : state.optimizers) {
    for (auto& group : optimizer->param_groups()) {
      TUTTI_CHECK(i < state.initial_lrs.size(),
                  "a parameter group was added to the optimizer after "
                  "its learning rates were bound; add groups before fit()");
      group.options().set_lr(state.initial_lrs[i++] * alpha);
    }
  }
}

TUTTI_INLINE void Run::bind_schedule(State& state) {
  state.initial_lrs.clear();
  for (auto& optimizer : state.optimizers) {
    for (auto& group : optimizer->param_groups()) {
      state.initial_lrs.push_back(group.options().get_lr());
    }
  }
}

TUTTI_INLINE void zero_gradients(State& state) {
  for (auto& optimizer : state.optimizers) {
    for (auto& group : optimizer->param_groups()) {
      for (auto& parameter : group.params()) {
        parameter.mutable_grad().reset();
      }
    }
  }
}

TUTTI_INLINE Clock::Duration Clock::lap() {
  const auto now = std::chrono::steady_clock::now();
  const auto passed = std::chrono::duration_cast<Duration>(now - last_);
  last_ = now;
  return passed;
}

}  // namespace tutti::train
