// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/profiler/profiler.hpp>

namespace tutti::detail {

TUTTI_INLINE void SystemStats::run() {
  CpuTimes before = cpu_times(file_text("/proc/stat"));
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::duration<double>(options_.interval),
                         [&] { return ending_; })) {
    lock.unlock();
    const CpuTimes now = cpu_times(file_text("/proc/stat"));
    if (recording_->action != ProfilerAction::skip) {
      sample(cpu_percentage(before, now));
    }
    before = now;
    lock.lock();
  }
}

TUTTI_INLINE void SystemStats::sample(double cpu) const {
  if (options_.cpu) {
    add("cpu", {{"cpu_percent", cpu}});
  }
  if (options_.memory) {
    add("memory", picked(memory_numbers(file_text("/proc/meminfo")), "cpu_memory_",
                         {"used", "available", "cached"}));
  }
  if (options_.disk) {
    add("disk", disk_traffic(file_text("/proc/diskstats"), [](const std::string& name) {
          std::error_code error;
          return std::filesystem::exists("/sys/block/" + name, error);
        }));
  }
  if (options_.net) {
    add("network", picked(network_numbers(file_text("/proc/net/dev")), "network_",
                          {"bytes_sent", "bytes_recv"}));
  }
}

TUTTI_INLINE NamedNumbers SystemStats::picked(const NamedNumbers& numbers, std::string_view prefix,
                                              std::initializer_list<std::string_view> names) {
  NamedNumbers out;
  for (const auto& [key, value] : numbers) {
    for (const std::string_view name : names) {
      if (key == std::string(prefix).append(name)) {
        out.emplace_back(name, value);
      }
    }
  }
  return out;
}

TUTTI_INLINE void SystemStats::add(std::string_view name, const NamedNumbers& values) const {
  std::string text;
  for (const auto& [key, value] : values) {
    text += (text.empty() ? "" : ", ") + json_quoted(key) + ": " + json_number(value);
  }
  recording_->add_of_process(recording_->line_with('C', name, name, "{" + text + "}"));
}

}  // namespace tutti::detail

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
  TUTTI_CHECK(!used || trace_handler.overwrite || state.autoresume || state.timestamp.batch > 0,
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
