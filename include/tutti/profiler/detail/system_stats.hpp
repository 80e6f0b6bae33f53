// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/proc.hpp>
#include <tutti/profiler/detail/recording.hpp>

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

#if TUTTI_BODIES

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

#endif
