// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>

/// What Linux says of the machine, with the names and definitions of Python's psutil.
namespace tutti::detail {

using NamedNumbers = std::vector<std::pair<std::string, double>>;

inline double one_decimal(double value) {
  return std::round(value * 10) / 10;
}

std::string file_text(const char* path);

/// Time that the processors have spent, in the kernel's ticks.
struct CpuTimes {
  double busy = 0;
  double total = 0;
};

/// The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, guest...;
/// guests are part of user.
CpuTimes cpu_times(const std::string& proc_stat);

/// Per cent of the time since `before` in which the processors were busy; 0 when no time passed.
double cpu_percentage(const CpuTimes& before, const CpuTimes& now);

/// /proc/meminfo as `cpu_memory_<field>`, in bytes.
NamedNumbers memory_numbers(const std::string& proc_meminfo);

/// The file system of `/` as `disk_memory_<field>`, in bytes; free is what users may take.
NamedNumbers disk_numbers();

/// /proc/net/dev as `network_<field>`, summed over all interfaces, since the machine started.
NamedNumbers network_numbers(const std::string& proc_net_dev);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::string file_text(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TUTTI_INLINE CpuTimes cpu_times(const std::string& proc_stat) {
  std::istringstream line(proc_stat);
  std::string cpu;
  line >> cpu;
  std::array<double, 8> ticks{};
  CpuTimes out;
  for (std::size_t i = 0; i < ticks.size() && line >> ticks[i]; ++i) {
    out.total += ticks[i];
  }
  out.busy = out.total - ticks[3] - ticks[4];
  return out;
}

TUTTI_INLINE double cpu_percentage(const CpuTimes& before, const CpuTimes& now) {
  const double passed = now.total - before.total;
  return passed > 0 ? one_decimal(std::clamp(100 * (now.busy - before.busy) / passed, 0.0, 100.0))
                    : 0.0;
}

TUTTI_INLINE NamedNumbers memory_numbers(const std::string& proc_meminfo) {
  std::map<std::string, double> kib;
  std::istringstream lines(proc_meminfo);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string name;
    double value = 0;
    if (fields >> name >> value) {
      kib[name] = value;
    }
  }
  const auto bytes = [&](const char* name) { return kib[name] * 1024; };
  const double total = bytes("MemTotal:");
  const double available = bytes("MemAvailable:");
  const double cached = bytes("Cached:") + bytes("SReclaimable:");
  double used = total - bytes("MemFree:") - cached - bytes("Buffers:");
  used = used < 0 ? total - bytes("MemFree:") : used;
  return {{"cpu_memory_total", total},
          {"cpu_memory_available", available},
          {"cpu_memory_percent", total > 0 ? one_decimal(100 * (total - available) / total) : 0},
          {"cpu_memory_used", used},
          {"cpu_memory_free", bytes("MemFree:")},
          {"cpu_memory_active", bytes("Active:")},
          {"cpu_memory_inactive", bytes("Inactive:")},
          {"cpu_memory_buffers", bytes("Buffers:")},
          {"cpu_memory_cached", cached},
          {"cpu_memory_shared", bytes("Shmem:")},
          {"cpu_memory_slab", bytes("Slab:")}};
}

TUTTI_INLINE NamedNumbers disk_numbers() {
  struct statvfs facts{};
  if (::statvfs("/", &facts) != 0) {
    return {};
  }
  const auto unit = static_cast<double>(facts.f_frsize);
  const double used = static_cast<double>(facts.f_blocks - facts.f_bfree) * unit;
  const double free = static_cast<double>(facts.f_bavail) * unit;
  return {{"disk_memory_total", static_cast<double>(facts.f_blocks) * unit},
          {"disk_memory_used", used},
          {"disk_memory_free", free},
          {"disk_memory_percent", used + free > 0 ? one_decimal(100 * used / (used + free)) : 0}};
}

TUTTI_INLINE NamedNumbers network_numbers(const std::string& proc_net_dev) {
  NamedNumbers out{{"network_bytes_sent", 0},   {"network_bytes_recv", 0},
                   {"network_packets_sent", 0}, {"network_packets_recv", 0},
                   {"network_errin", 0},        {"network_errout", 0},
                   {"network_dropin", 0},       {"network_dropout", 0}};
  constexpr std::array<std::size_t, 8> columns{8, 0, 9, 1, 2, 10, 3, 11};
  std::istringstream lines(proc_net_dev);
  std::string line;
  while (std::getline(lines, line)) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) {
      continue;  // the two lines of heads
    }
    std::istringstream fields(line.substr(colon + 1));
    std::array<double, 12> values{};
    for (double& value : values) {
      fields >> value;
    }
    for (std::size_t i = 0; i < columns.size(); ++i) {
      out[i].second += values[columns[i]];
    }
  }
  return out;
}

}  // namespace tutti::detail

#endif
