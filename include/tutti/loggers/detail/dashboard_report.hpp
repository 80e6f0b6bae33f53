// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/loggers/detail/dashboard_page.hpp>
#include <tutti/loggers/detail/run_record.hpp>
#include <tutti/loggers/detail/run_summary.hpp>

namespace tutti::detail {

// The page of one run with all its data in it: curves of at most 1000 buckets, fewer where there
// are many, and the newest images, 8 MB of them at most.
std::string report_page(const RunRecord& run);

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

}  // namespace tutti::detail

#endif
