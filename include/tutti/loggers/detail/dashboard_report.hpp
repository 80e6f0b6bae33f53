// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <tutti/config.hpp>
#include <tutti/loggers/detail/dashboard_page.hpp>
#include <tutti/loggers/detail/run_record.hpp>
#include <tutti/loggers/detail/run_summary.hpp>

namespace tutti::detail {

// The page of one run with all its data in it: curves of at most 1000 buckets, fewer where there
// are many, and the newest images, 8 MB of them at most.
std::string report_page(const RunRecord& run);

// Writes a file whole or not at all. Returns why not; empty: it is there.
std::string write_whole_file(const std::filesystem::path& path, const std::string& bytes);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::string report_page(const RunRecord& run) {
  constexpr std::size_t most_buckets = 200000;
  constexpr std::size_t most_bytes = std::size_t{8} << 20;
  std::vector<std::size_t> all(run.facts().series.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const std::size_t count =
      std::clamp<std::size_t>(most_buckets / std::max<std::size_t>(1, all.size()), 20, 1000);
  using Limits = std::numeric_limits<std::int64_t>;
  std::string data = summary_json(run);
  data.back() = ',';
  data += "\"curves\":" + curves_json(run, all, Limits::min(), Limits::max(), count);
  std::string pictures;
  for (auto image = run.facts().images.rbegin(); image != run.facts().images.rend(); ++image) {
    const std::string bytes = image_bytes(run, image->file);
    if (!bytes.empty() && pictures.size() + bytes.size() / 3 * 4 < most_bytes) {
      pictures += (pictures.empty() ? "\"" : ",\"") + std::to_string(image->file) +
                  "\":\"data:image/png;base64," + base64(bytes) + "\"";
    }
  }
  return dashboard_page("{\"runs\":[" + data + ",\"pictures\":{" + pictures + "}}]}");
}

TUTTI_INLINE std::string write_whole_file(const std::filesystem::path& path,
                                          const std::string& bytes) {
  const std::string part = path.string() + ".part";
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  bool good = fd >= 0;
  int reason = errno;
  for (std::size_t done = 0; good && done < bytes.size();) {
    const ssize_t put = ::write(fd, bytes.data() + done, bytes.size() - done);
    reason = errno;
    good = put > 0 || (put < 0 && reason == EINTR);
    done += put > 0 ? static_cast<std::size_t>(put) : 0;
  }
  if (fd >= 0) {
    const bool closed = ::close(fd) == 0;
    reason = good && !closed ? errno : reason;
    good = good && closed;
  }
  if (good && std::rename(part.c_str(), path.c_str()) == 0) {
    return {};
  }
  reason = good ? errno : reason;
  ::unlink(part.c_str());
  return std::strerror(reason);
}

}  // namespace tutti::detail

#endif
