// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/config.hpp>

namespace tutti {

/// Which of two values of a metric is the better one.
enum class Comparison : std::uint8_t {
  by_name,  ///< less when the metric's name has loss, error, perplexity or entropy in it, or a word
            ///< such as MAE, RMSE, NLL, FID or distance; else greater
  less,
  greater,
};

/// "by_name", "less", "greater".
constexpr std::string_view to_string(Comparison comparison) {
  return comparison == Comparison::by_name   ? "by_name"
         : comparison == Comparison::less    ? "less"
         : comparison == Comparison::greater ? "greater"
                                             : "unknown";
}

namespace detail {

/// What the metric's name says: less or greater, or by_name where it is not known.
Comparison named_direction(std::string_view metric);

/// What a comparison says of the metric of that name: less or greater.
inline Comparison direction(Comparison comparison, std::string_view metric) {
  if (comparison != Comparison::by_name) {
    return comparison;
  }
  return named_direction(metric) == Comparison::less ? Comparison::less : Comparison::greater;
}

/// What to warn of where neither the user nor the metric's name says which value is better; empty:
/// nothing. who: the policy's name. option: as "comparison = Comparison"; its values are those of
/// `less` and `greater`.
std::string unknown_direction(std::string_view who, std::string_view option, Comparison comparison,
                              std::string_view metric, std::string_view less = "less",
                              std::string_view greater = "greater");

/// `value` is better than `other`.
inline bool is_better(Comparison comparison, std::string_view metric, double value, double other) {
  return direction(comparison, metric) == Comparison::less ? value < other : value > other;
}

/// `value` replaces `best`, the best so far: it is better, or a number where that is none.
inline bool is_new_best(Comparison comparison, std::string_view metric, double value, double best) {
  return (std::isnan(best) && !std::isnan(value)) || is_better(comparison, metric, value, best);
}

}  // namespace detail

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/core/comparison.inl.hpp>
#endif
