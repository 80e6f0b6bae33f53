// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/proc.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/loggers/run_path.hpp>
#include <tutti/profiler/detail/recording.hpp>
#include <tutti/profiler/json_trace.hpp>
#include <tutti/profiler/marker.hpp>
#include <tutti/profiler/schedule.hpp>

namespace tutti::detail {

// Which numbers of the machine are sampled, and how often.
struct SystemStatsOptions {
  bool cpu = true;
  bool memory = false;
  bool disk = false;
  bool net = false;
  double interval = 0.5;  // seconds

  [[nodiscard]] bool any() const { return cpu || memory || disk || net; }
};

// /proc/diskstats, summed over whole disks, since the machine started. is_disk: by name; else it is
// a part of one.
template <class F>
NamedNumbers disk_traffic(const std::string& proc_diskstats, F&& is_disk) {
  constexpr double sector = 512;  // bytes, whatever the disk's own
  NamedNumbers out{{"read_count", 0}, {"write_count", 0}, {"read_bytes", 0}, {"write_bytes", 0}};
  std::istringstream lines(proc_diskstats);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string name;
    double skip = 0;
    std::array<double, 7> values{};  // reads, merged, sectors, ms, and the same of writes
    fields >> skip >> skip >> name;
    for (double& value : values) {
      fields >> value;
    }
    if (fields && is_disk(name)) {
      out[0].second += values[0];
      out[1].second += values[4];
      out[2].second += values[2] * sector;
      out[3].second += values[6] * sector;
    }
  }
  return out;
}

// Adds counters "cpu", "memory", "disk" and "network" to a recording from a thread of its own,
// while batches are picked.
class SystemStats {
 public:
  SystemStats(std::shared_ptr<Recording> recording, const SystemStatsOptions& options)
      : recording_(std::move(recording)), options_(options) {
    thread_ = std::thread([this] { run(); });
  }
  SystemStats(const SystemStats&) = delete;
  SystemStats& operator=(const SystemStats&) = delete;
  ~SystemStats() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

 private:
  void run();

  void sample(double cpu) const;

  static NamedNumbers picked(const NamedNumbers& numbers, std::string_view prefix,
                             std::initializer_list<std::string_view> names);

  void add(std::string_view name, const NamedNumbers& values) const;

  const std::shared_ptr<Recording> recording_;
  const SystemStatsOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::thread thread_;  // last, so that it begins when all else is there
};

}  // namespace tutti::detail

namespace tutti::detail {

// The spans of the training loop that have begun, the outermost first.
//
// In every file each begin has its end, and they nest: what is closed with others inside it is
// closed from the inside out, and a file's end closes all. Those that began while nothing was
// recorded wait for the next recording; so do those of a file that ends, from there on.
class Spans {
 public:
  struct Span {
    std::string name;
    std::string_view category;
    bool survives = false;  // goes on when a span around it ends before it
    std::string line{};     // its begin, while it waits
  };

  // recorded: now, else with the next recording.
  void begin(Recording& to, Span span, bool recorded) {
    std::string line = to.line('B', span.name, span.category);
    if (recorded) {
      to.add(std::move(line));
      open_.push_back(std::move(span));
    } else {
      span.line = std::move(line);
      waiting_.push_back(std::move(span));
    }
  }

  // Does nothing when there is no such span.
  void end(Recording& to, std::string_view name) {
    std::erase_if(waiting_, [&](const Span& span) { return span.name == name; });
    std::size_t at = open_.size();
    while (at > 0 && open_[at - 1].name != name) {
      --at;
    }
    if (at == 0) {
      return;
    }
    std::vector<Span> inside(open_.begin() + static_cast<std::ptrdiff_t>(at), open_.end());
    close_from(to, at - 1);
    for (Span& span : inside) {
      if (span.survives) {
        begin(to, std::move(span), /*recorded=*/true);
      }
    }
  }

  // A recording begins: so do those that wait.
  void resume(Recording& to) {
    for (Span& span : std::exchange(waiting_, {})) {
      to.add(std::exchange(span.line, {}));
      open_.push_back(std::move(span));
    }
  }

  // A recording ends; what is open waits for the next.
  void suspend(Recording& to) {
    std::vector<Span> open = open_;
    close_from(to, 0);
    for (Span& span : open) {
      begin(to, std::move(span), /*recorded=*/false);
    }
  }

 private:
  void close_from(Recording& to, std::size_t first) {
    while (open_.size() > first) {
      to.add('E', open_.back().name, open_.back().category);
      open_.pop_back();
    }
  }

  std::vector<Span> open_;
  std::vector<Span> waiting_;
};

}  // namespace tutti::detail

namespace tutti {

/// Writes a trace of what the loop does: a span for every pair of events (`event/forward` from
/// BeforeForward to AfterForward), one for every policy that runs at an event, and one's own
/// markers; of the batches that the schedule picks.
///
///     tutti::Profiler{.schedule = {.skip_first = 10, .wait = 0, .warmup = 1, .active = 4}}
///
/// A span of events leaves out the policies that run at its two ends. Every rank writes a file per
/// cycle; one rank of each node merges them. A batch that is not picked costs some nanoseconds an
/// event. All ranks must have the same schedule, since they meet in it.
/// Source: MosaicML Composer, `composer.profiler.Profiler` and `composer.core.Engine`.
struct Profiler final {
  static constexpr std::string_view name = "Profiler";
  static constexpr Role role = Role::logger;  // so that it sees an event's end
  using events = all_events;
  static constexpr Rules rules{.runs_last = ids<all_events>};

  CyclicSchedule schedule{};
  std::function<ProfilerAction(const State&)> custom_schedule{};  ///< asked instead, if set
  JSONTraceHandler trace_handler{};
  bool sys_prof_cpu = true;      ///< counter `cpu`: how busy the processors are, per cent
  bool sys_prof_memory = false;  ///< counter `memory`: used, available, cached, bytes
  bool sys_prof_disk = false;    ///< counter `disk`: reads and writes of all disks, bytes of both
  bool sys_prof_net = false;     ///< counter `network`: sent and received, bytes
  double sys_prof_stats_thread_interval_seconds = 0.5;  ///< between two samples; > 0

  /// What it holds while it runs; not an option.
  struct Run {
    std::shared_ptr<detail::Recording> recording = std::make_shared<detail::Recording>();
    detail::Spans spans{};
    std::shared_ptr<detail::SystemStats> stats{};
    std::string policy{};  // the span of the policy that runs
    std::string_view policy_role{};
    std::int64_t sync = 0;        // when all ranks met, microseconds since 1970
    std::int64_t sync_error = 0;  // how long that took
    Timestamp resumed{};
    std::vector<std::string> saved{};
    bool records = false;
    bool synchronised = false;
    bool warned = false;
  } run{};

  void validate() const;

  /// A marker that records into this profiler's trace.
  [[nodiscard]] Marker marker(std::string of, MarkerOptions options = {}) const {
    return {run.recording, std::move(of), std::move(options)};
  }

  template <Event E>
  void apply(E, const State& state) {
    end_policy();
    if constexpr (is_after<E>) {
      end_span(E::name);
    }
    if constexpr (std::is_same_v<E, Init>) {
      begin_run(state);
    } else if constexpr (std::is_same_v<E, AfterLoad>) {
      run.resumed = state.timestamp;
      check_folder(state);
    } else if constexpr (std::is_same_v<E, BeforeDataloader>) {
      choose_action(state);
    } else if constexpr (std::is_same_v<E, BatchStart>) {
      synchronise(state);
    }
    if constexpr (is_before<E>) {
      begin_span(E::name);
    }
    if constexpr (std::is_same_v<E, BatchEnd>) {
      if (run.recording->action == ProfilerAction::active_and_save) {
        save(state, /*together=*/true);
      }
    } else if constexpr (std::is_same_v<E, FitEnd>) {
      if (run.records) {  // the run ended within a cycle
        save(state, /*together=*/true);
      } else if (run.saved.empty() && trace_handler.num_traces_to_keep != 0 && !run.warned) {
        TORCH_WARN(
            "Profiler: no batch was recorded, so there is no trace; its schedule is in "
            "batches of every epoch, lower skip_first and wait, or make epochs longer");
      }
    }
  }

  /// Writes what an exception kept from being saved; not merged.
  void close(const State& state);

  /// Called by the engine before the policies of an event: the end of a span leaves them out.
  void record_event(std::string_view event);

  /// Called by the engine when a policy runs at an event.
  void record_policy(std::string_view event, std::string_view policy, Role of);

 private:
  // They begin and end also while nothing is recorded.
  static bool frames(std::string_view event);
  static std::string span_of(std::string_view event);
  void begin_span(std::string_view event);
  void end_span(std::string_view event);

  void end_policy();

  void begin_run(const State& state);

  void check_folder(const State& state) const;

  static bool is_first_of_node(const State& state) {
    return !state.communicator || state.communicator->environment().local_rank == 0;
  }

  void choose_action(const State& state);

  void synchronise(const State& state);

  // together: all ranks are here.
  void save(const State& state, bool together);

  void merge(const State& state, const std::string& path, const std::string& merged) const;

  [[nodiscard]] std::vector<std::pair<std::string, std::string>> metadata(
      const State& state) const {
    const std::string rank = std::to_string(state.rank);
    const auto value = [](std::int64_t number) {
      return "{\"value\": " + std::to_string(number) + "}";
    };
    return {{"process_name", "{\"name\": \"Rank " + rank + " training loop process\"}"},
            {"process_sort_index", "{\"sort_index\": " + rank + "}"},
            {"global_rank", value(state.rank)},
            {"clock_sync_timestamp_us", value(run.sync)},
            {"clock_sync_error_bound", value(run.sync_error)}};
  }
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/profiler/profiler.inl.hpp>
#endif
