// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/time.hpp>

#include <cstddef>
#include <initializer_list>
#include <span>
#include <stdexcept>

namespace tutti {

/// A short list of times that needs no heap, so that a schedule holding one can be a constant or a
/// template argument: `.milestones = {"10ba", "0.5dur"}`.
class TimeList {
 public:
  static constexpr std::size_t capacity = 32;

  constexpr TimeList() = default;
  /// Throws std::length_error beyond `capacity` times.
  constexpr TimeList(std::initializer_list<Time> times) {
    for (const Time time : times) {
      push_back(time);
    }
  }
  constexpr explicit TimeList(std::span<const Time> times) {
    for (const Time time : times) {
      push_back(time);
    }
  }

  constexpr void push_back(Time time) {
    if (size_ == capacity) {
      throw std::length_error("TimeList: it holds at most 32 times.");
    }
    times_[size_++] = time;
  }

  constexpr std::size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr const Time* begin() const { return times_; }
  constexpr const Time* end() const { return times_ + size_; }
  constexpr Time operator[](std::size_t i) const { return times_[i]; }

  // Public only because a template argument needs it.
  Time times_[capacity]{};
  std::size_t size_ = 0;
};

}  // namespace tutti
