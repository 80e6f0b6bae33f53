// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <tutti/config.hpp>

// How numbers of a forward pass follow from the sizes of its inputs.
namespace tutti::models::detail {

// A size that may differ: where it is, and what it was in each trace.
struct OnnxSymbol {
  std::string name;
  std::string input;
  std::int64_t axis = 0;
  std::vector<std::int64_t> sizes;
};

// A number as it was in each trace.
using Numbers = std::vector<std::int64_t>;

// offset + factor * (the product of the symbols) / divisor.
struct SizeRule {
  std::int64_t offset = 0, factor = 0, divisor = 1;
  std::vector<std::size_t> symbols;

  [[nodiscard]] std::string text(const std::vector<OnnxSymbol>& all) const;
};

// The rule by which a number of these traces comes from the symbols; none: another one. Trace 0 has
// the example's sizes, trace i that of symbol i - 1 changed, and the last one all of them.
std::optional<SizeRule> size_rule(const Numbers& numbers, const std::vector<OnnxSymbol>& symbols);

inline bool all_equal(const Numbers& numbers) {
  return std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to<>()) == numbers.end();
}

}  // namespace tutti::models::detail

#if TUTTI_BODIES

#include <numeric>

namespace tutti::models::detail {

TUTTI_INLINE std::string SizeRule::text(const std::vector<OnnxSymbol>& all) const {
  std::string out = factor == 1 ? "" : std::to_string(factor);
  for (const std::size_t i : symbols) {
    out += (out.empty() ? "" : "*") + all[i].name;
  }
  out += divisor == 1 ? "" : "/" + std::to_string(divisor);
  return out + (offset == 0 ? "" : (offset > 0 ? "+" : "") + std::to_string(offset));
}

TUTTI_INLINE std::optional<SizeRule> size_rule(const Numbers& numbers,
                                               const std::vector<OnnxSymbol>& symbols) {
  if (all_equal(numbers)) {
    return SizeRule{.offset = numbers[0], .symbols = {}};
  }
  SizeRule rule{.symbols = {}};
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    if (numbers[i + 1] != numbers[0]) {
      rule.symbols.push_back(i);
    }
  }
  const auto product = [&](std::size_t trace) {
    std::int64_t out = 1;
    for (const std::size_t i : rule.symbols) {
      out *= symbols[i].sizes[trace];
    }
    return out;
  };
  if (rule.symbols.empty()) {
    return std::nullopt;
  }
  const std::size_t other = rule.symbols[0] + 1;
  rule.factor = numbers[other] - numbers[0];
  rule.divisor = product(other) - product(0);
  const std::int64_t common = std::gcd(rule.factor, rule.divisor) * (rule.divisor < 0 ? -1 : 1);
  rule.factor /= common;
  rule.divisor /= common;
  rule.offset = numbers[0] - rule.factor * product(0) / rule.divisor;
  for (std::size_t trace = 0; trace < numbers.size(); ++trace) {
    const std::int64_t times = rule.factor * product(trace);
    if (times % rule.divisor != 0 || rule.offset + times / rule.divisor != numbers[trace]) {
      return std::nullopt;
    }
  }
  return rule;
}

}  // namespace tutti::models::detail

#endif
