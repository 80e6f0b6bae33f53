// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/loggers/run_path.hpp>
#include <tutti/profiler/detail/recording.hpp>
#include <tutti/profiler/detail/spans.hpp>
#include <tutti/profiler/detail/system_stats.hpp>
#include <tutti/profiler/json_trace.hpp>
#include <tutti/profiler/marker.hpp>
#include <tutti/profiler/schedule.hpp>

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

namespace tutti {

TUTTI_INLINE void Profiler::validate() const {
  schedule.validate();
  expect(!trace_handler.folder.empty() && !trace_handler.filename.empty(),
         "Profiler: trace_handler has an empty folder or filename; name them.");
  expect(trace_handler.num_traces_to_keep >= -1, "Profiler: trace_handler.num_traces_to_keep",
         trace_handler.num_traces_to_keep, "-1 (all) or more");
  expect(sys_prof_stats_thread_interval_seconds > 0,
         "Profiler: sys_prof_stats_thread_interval_seconds", sys_prof_stats_thread_interval_seconds,
         "more than 0 s");
}

TUTTI_INLINE void Profiler::close(const State& state) {
  end_policy();
  if (run.records) {
    save(state, /*together=*/false);
  }
  run.stats.reset();
}

TUTTI_INLINE void Profiler::record_event(std::string_view event) {
  end_policy();
  if (!detail::opens(event)) {
    end_span(event);
  }
}

TUTTI_INLINE void Profiler::record_policy(std::string_view event, std::string_view policy,
                                          Role of) {
  end_policy();
  if (run.records && policy != name) {
    run.policy_role = to_string(of);
    run.policy.append(run.policy_role).append("/").append(policy);
    run.policy.append("/event/").append(event);
    run.recording->add('B', run.policy, run.policy_role);
  }
}

TUTTI_INLINE bool Profiler::frames(std::string_view event) {
  return event.starts_with("epoch_") || event.starts_with("fit_") ||
         event.starts_with("iteration_");
}

TUTTI_INLINE std::string Profiler::span_of(std::string_view event) {
  const detail::ShortName pair = detail::canonical(event);
  return std::string("event/").append(pair.text, pair.size);
}

TUTTI_INLINE void Profiler::begin_span(std::string_view event) {
  if (run.records || frames(event)) {
    std::string span = span_of(event);
    run.spans.end(*run.recording, span);  // an epoch's last look at the loader has no end
    run.spans.begin(
        *run.recording,
        {.name = std::move(span), .category = "event", .survives = event.starts_with("epoch_")},
        run.records);
  }
}

TUTTI_INLINE void Profiler::end_span(std::string_view event) {
  if (run.records || frames(event)) {
    run.spans.end(*run.recording, span_of(event));
  }
}

TUTTI_INLINE void Profiler::end_policy() {
  if (!run.policy.empty()) {
    run.recording->add('E', run.policy, run.policy_role);
    run.policy.clear();
  }
}

TUTTI_INLINE void Profiler::begin_run(const State& state) {
  run.recording->set_rank(state.rank);
  detail::check_one_file_per_rank("Profiler: trace_handler.filename", trace_handler.filename,
                                  state);
  const detail::SystemStatsOptions stats{.cpu = sys_prof_cpu,
                                         .memory = sys_prof_memory,
                                         .disk = sys_prof_disk,
                                         .net = sys_prof_net,
                                         .interval = sys_prof_stats_thread_interval_seconds};
  if (stats.any()) {
    run.stats = std::make_shared<detail::SystemStats>(run.recording, stats);
  }
}

TUTTI_INLINE void Profiler::check_folder(const State& state) const {
  const std::string folder = state.output_path(run_path(trace_handler.folder, state));
  std::error_code error;
  const bool used =
      std::filesystem::exists(folder, error) && !std::filesystem::is_empty(folder, error) && !error;
  TUTTI_CHECK(!used || trace_handler.overwrite || state.timestamp.batch > 0,
              "Profiler: the folder '", folder,
              "' has files from an earlier run; give this one another run_name or "
              "trace_handler.folder, or set trace_handler.overwrite");
  if (used && state.timestamp.batch == 0 && is_first_of_node(state)) {
    std::remove((folder + "/" + run_path(trace_handler.merged_trace_filename, state)).c_str());
  }
}

TUTTI_INLINE void Profiler::choose_action(const State& state) {
  const Timestamp& now = state.timestamp;
  if (state.dataloader_len >= 0 && now.batch_in_epoch >= state.dataloader_len) {
    return;  // only finds out that the epoch is over
  }
  const bool resumed_here = now.epoch == run.resumed.epoch;
  run.recording->epoch = now.epoch;
  run.recording->batch = now.batch;
  run.recording->action = custom_schedule
                              ? custom_schedule(state)
                              : schedule.at(now.batch_in_epoch, state.dataloader_len,
                                            resumed_here ? run.resumed.batch_in_epoch : 0);
  if (run.recording->action != ProfilerAction::skip && !run.records) {
    run.records = true;
    run.spans.resume(*run.recording);
  }
}

TUTTI_INLINE void Profiler::synchronise(const State& state) {
  if (!run.records || run.synchronised) {
    return;
  }
  run.synchronised = true;
  const auto meet = [&] {
    if (state.communicator) {
      state.communicator->barrier();
    }
    return run.recording->now();
  };
  const std::int64_t before = run.recording->now();
  run.sync = meet();
  run.sync_error = meet() - before;
}

TUTTI_INLINE void Profiler::save(const State& state, bool together) {
  run.spans.suspend(*run.recording);
  run.records = run.synchronised = false;
  run.recording->action = ProfilerAction::skip;
  const std::string folder = state.output_path(run_path(trace_handler.folder, state)) + "/";
  std::string path = folder + run_path(trace_handler.filename, state);
  try {
    detail::write_whole(path, run.recording->take(metadata(state)));
    run.saved.push_back(path);
    detail::upload_file(trace_handler.remote_file_name, path, state);
  } catch (const c10::Error& error) {
    if (!std::exchange(run.warned, true)) {
      TORCH_WARN(error.what_without_backtrace(), "; training goes on without traces");
    }
    path.clear();
  }
  if (together && !trace_handler.merged_trace_filename.empty()) {
    merge(state, path, folder + run_path(trace_handler.merged_trace_filename, state));
  }
  while (trace_handler.num_traces_to_keep >= 0 &&
         std::cmp_greater(run.saved.size(), trace_handler.num_traces_to_keep)) {
    std::remove(run.saved.front().c_str());
    run.saved.erase(run.saved.begin());
  }
}

TUTTI_INLINE void Profiler::merge(const State& state, const std::string& path,
                                  const std::string& merged) const {
  std::map<int, std::string> files;
  if (!state.communicator || state.communicator->size() == 1) {
    files[state.rank] = path;
  } else {
    const std::string node = std::to_string(state.communicator->environment().node_rank) + ":";
    const auto all = state.communicator->all_gather_bytes(node + path);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].starts_with(node)) {
        files[static_cast<int>(rank)] = all[rank].substr(node.size());
      }
    }
  }
  std::erase_if(files, [](const auto& file) { return file.second.empty(); });
  if (is_first_of_node(state)) {
    try {
      merge_traces(files, merged);
      detail::upload_file(trace_handler.merged_trace_remote_file_name, merged, state);
    } catch (const std::exception& error) {
      TORCH_WARN("Profiler: the traces of this node's ranks are not merged: ", error.what());
    }
  }
  if (state.communicator && trace_handler.num_traces_to_keep >= 0) {
    state.communicator->barrier();  // before anybody removes a file
  }
}

}  // namespace tutti

#endif
