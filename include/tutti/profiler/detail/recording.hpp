// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/profiler/schedule.hpp>

namespace tutti::detail {

// Events of the Chrome trace format while they are gathered, a JSON object each. Any thread may add
// some.
class Recording {
 public:
  // Where the run is, for those who record from other threads.
  std::atomic<ProfilerAction> action{ProfilerAction::skip};
  std::atomic<std::int64_t> epoch{0};
  std::atomic<std::int64_t> batch{0};

  void set_rank(int rank) { rank_ = rank; }

  // Microseconds since 1970, by a clock that never goes back.
  [[nodiscard]] std::int64_t now() const;
  static std::int64_t thread() { return std::int64_t{::syscall(SYS_gettid)}; }

  // An event of now. phase: B, E, i. categories: with commas between them.
  [[nodiscard]] std::string line(char phase, std::string_view name,
                                 std::string_view categories) const;
  // values: a JSON object.
  [[nodiscard]] std::string line_with(char phase, std::string_view name,
                                      std::string_view categories, const std::string& values) const;

  void add(char phase, std::string_view name, std::string_view categories) {
    add(line(phase, name, categories));
  }
  // line: of this thread.
  void add(std::string line);

  // line: of no thread in particular, so its thread has no row.
  void add_of_process(std::string line);

  // Takes what has been recorded as the text of a file: an array with an event on each line.
  std::string take(const std::vector<std::pair<std::string, std::string>>& metadata);

  [[nodiscard]] bool empty() const;

 private:
  [[nodiscard]] std::string head(char phase, std::string_view name, std::int64_t tid,
                                 std::int64_t time) const;

  const std::chrono::steady_clock::time_point steady_start_ = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds start_ = std::chrono::system_clock::now().time_since_epoch();
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
  std::vector<std::int64_t> threads_;
  int rank_ = 0;
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::int64_t Recording::now() const {
  const auto passed = std::chrono::steady_clock::now() - steady_start_;
  return std::chrono::duration_cast<std::chrono::microseconds>(start_ + passed).count();
}

TUTTI_INLINE std::string Recording::line(char phase, std::string_view name,
                                         std::string_view categories) const {
  return line_with(phase, name, categories,
                   "{\"epoch\": " + std::to_string(epoch.load()) +
                       ", \"batch\": " + std::to_string(batch.load()) + "}");
}

TUTTI_INLINE std::string Recording::line_with(char phase, std::string_view name,
                                              std::string_view categories,
                                              const std::string& values) const {
  std::string text = head(phase, name, thread(), now());
  text += ", \"cat\": " + json_quoted(categories) + ", \"args\": " + values;
  return text + (phase == 'i' ? ", \"s\": \"p\"}" : "}");
}

TUTTI_INLINE void Recording::add(std::string line) {
  const std::int64_t tid = thread();
  const std::lock_guard lock(mutex_);
  lines_.push_back(std::move(line));
  if (std::find(threads_.begin(), threads_.end(), tid) == threads_.end()) {
    threads_.push_back(tid);
  }
}

TUTTI_INLINE void Recording::add_of_process(std::string line) {
  const std::lock_guard lock(mutex_);
  lines_.push_back(std::move(line));
}

TUTTI_INLINE std::string Recording::take(
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::vector<std::string> lines;
  const std::int64_t own = thread();
  for (const auto& [name, values] : metadata) {
    lines.push_back(head('M', name, own, 0) + ", \"args\": " + values + "}");
  }
  const std::lock_guard lock(mutex_);
  for (const std::int64_t tid : threads_) {
    const bool trains = tid == own;
    lines.push_back(head('M', "thread_name", tid, 0) + ", \"args\": {\"name\": \"" +
                    (trains ? "Training Loop" : "thread " + std::to_string(tid)) + "\"}}");
    lines.push_back(head('M', "thread_sort_index", tid, 0) +
                    ", \"args\": {\"sort_index\": " + (trains ? "0" : "99999") + "}}");
  }
  lines.insert(lines.end(), std::make_move_iterator(lines_.begin()),
               std::make_move_iterator(lines_.end()));
  lines_.clear();
  std::string text = "[\n";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    text += lines[i] + (i + 1 < lines.size() ? ",\n" : "\n");
  }
  return text + "]\n";
}

TUTTI_INLINE bool Recording::empty() const {
  const std::lock_guard lock(mutex_);
  return lines_.empty();
}

TUTTI_INLINE std::string Recording::head(char phase, std::string_view name, std::int64_t tid,
                                         std::int64_t time) const {
  return "{\"name\": " + json_quoted(name) + ", \"ph\": \"" + phase +
         "\", \"ts\": " + std::to_string(time) + ", \"pid\": " + std::to_string(rank_) +
         ", \"tid\": " + std::to_string(tid);
}

}  // namespace tutti::detail

#endif
