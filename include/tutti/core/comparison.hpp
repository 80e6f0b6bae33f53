// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

/// Which of two values of a metric is the better one.
enum class Comparison : std::uint8_t {
  by_name,  ///< less when the metric's name has loss, error, perplexity or entropy in it, else
            ///< greater
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

/// What a comparison says of the metric of that name: less or greater.
inline Comparison direction(Comparison comparison, std::string_view metric) {
  if (comparison != Comparison::by_name) {
    return comparison;
  }
  std::string name(metric);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  const auto has = [&](std::string_view word) { return name.find(word) != std::string::npos; };
  return has("loss") || has("error") || has("perplexity") || has("entropy") ? Comparison::less
                                                                            : Comparison::greater;
}

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
