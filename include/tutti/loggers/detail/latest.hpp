// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/logger.hpp>

namespace tutti::detail {

// The last value of every metric, in the order in which they first came.
//
// The same metrics come in the same order in every step, so the place of the last one tells that of
// the next and a step costs a comparison of names each.
class LatestValues {
 public:
  using value_type = std::pair<std::string, double>;

  void set(std::span<const LoggedMetric> metrics) {
    for (const LoggedMetric& metric : metrics) {
      set(metric.name, metric.value);
    }
  }
  void set(std::string_view name, double value) {
    const std::size_t size = values_.size();
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t at = next_ + i < size ? next_ + i : next_ + i - size;
      if (values_[at].first == name) {
        values_[at].second = value;
        next_ = at + 1 < size ? at + 1 : 0;
        return;
      }
    }
    values_.emplace_back(name, value);
    next_ = 0;
  }

  // Forgets the metrics whose name begins with `prefix`.
  void forget(std::string_view prefix) {
    std::erase_if(values_, [&](const auto& entry) { return entry.first.starts_with(prefix); });
    next_ = 0;
  }
  void clear() {
    values_.clear();
    next_ = 0;
  }
  [[nodiscard]] bool empty() const { return values_.empty(); }
  [[nodiscard]] auto begin() const { return values_.begin(); }
  [[nodiscard]] auto end() const { return values_.end(); }

 private:
  std::vector<value_type> values_;
  std::size_t next_ = 0;
};

}  // namespace tutti::detail
