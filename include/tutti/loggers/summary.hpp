// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/hyperparameter.hpp>
#include <tutti/core/state.hpp>
#include <tutti/loggers/detail/columns.hpp>
#include <tutti/loggers/detail/terminal.hpp>
#include <tutti/loggers/detail/text.hpp>

namespace tutti {

namespace detail {

// `key        text`, folded to the look's width; nothing without a text.
std::string fact_text(std::string_view key, std::string_view text, const Look& look);

// 1234567 as "1,234,567".
std::string grouped(std::int64_t number);

std::string summary_text(const State& state, const Config& constants, const Look& look);

}  // namespace detail

/// What a run is, in eight lines: its name and length, the model with its parameters, the recipe in
/// order, optimizer, schedule, data, device with precision and seed, and the folder of its files.
///
///     model      ResNet, 77,754 parameters (0.3 MB)
///     recipe     MixUp, BlurPool, LabelSmoothing, EMA
///
/// The ProgressBar and the ConsoleLogger begin with it; `tutti::summary(trainer)` is the same of a
/// trainer.
///
/// state: of a trainer; its length is known from FitStart on. constants: what has been logged as
/// hyperparameters, by name. Options that are 0, false or not set are left out. width: columns, to
/// which longer lines are folded; 0: no limit. Returns lines, each with its end.
std::string run_summary(const State& state,
                        const std::vector<std::pair<std::string, HyperparameterValue>>& constants,
                        int width = 0);

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/loggers/summary.inl.hpp>
#endif
