// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/time.hpp>

namespace tutti::train {

namespace detail {

// Every field with the name under which checkpoints keep it.
template <class T, class Counter, class Clock>
void each_field(T& now, Counter&& counter, Clock&& clock) {
  counter("iteration", now.iteration);
  counter("epoch", now.epoch);
  counter("batch", now.batch);
  counter("sample", now.sample);
  counter("token", now.token);
  counter("epoch_in_iteration", now.epoch_in_iteration);
  counter("token_in_iteration", now.token_in_iteration);
  counter("batch_in_epoch", now.batch_in_epoch);
  counter("sample_in_epoch", now.sample_in_epoch);
  counter("token_in_epoch", now.token_in_epoch);
  clock("total_wct", now.total_wct);
  clock("iteration_wct", now.iteration_wct);
  clock("epoch_wct", now.epoch_wct);
  clock("batch_wct", now.batch_wct);
}

}  // namespace detail

/// Saves a timestamp; clocks in nanoseconds.
inline void save_timestamp(const Timestamp& now, Archive& archive) {
  detail::each_field(
      now, [&](const char* name, std::int64_t value) { archive.put(name, value); },
      [&](const char* name, Timestamp::Duration value) { archive.put(name, value.count()); });
}

/// The timestamp that save_timestamp() saved. Throws c10::Error when a number is negative.
inline Timestamp load_timestamp(const Archive& archive) {
  Timestamp now;
  const auto number = [&](const char* name) {
    const auto value = archive.get<std::int64_t>(name);
    TUTTI_CHECK(value >= 0, "checkpoint: '", archive.path(), '/', name, "' is ", value,
                ", expected 0 or more");
    return value;
  };
  detail::each_field(
      now, [&](const char* name, std::int64_t& value) { value = number(name); },
      [&](const char* name, Timestamp::Duration& value) {
        value = Timestamp::Duration(number(name));
      });
  return now;
}

}  // namespace tutti::train
