// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/regular_file.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti {

/// Where and how a profiler writes: Chrome's trace format, which chrome://tracing and
/// ui.perfetto.dev show. Names may have the placeholders of checkpoint names.
///
/// Source: MosaicML Composer, `composer.profiler.JSONTraceHandler`.
struct JSONTraceHandler {
  std::string folder = "{run_folder}/traces";
  std::string filename = "ep{epoch}-ba{batch}-rank{rank}.json";  ///< needs {rank} in several ranks
  std::string merged_trace_filename = "merged_trace.json";  ///< all ranks of a node; empty: none
  /// Where both go in a RemoteUploader's store; empty: nowhere.
  std::string remote_file_name = "{run_name}/traces/ep{epoch}-ba{batch}-rank{rank}.json";
  std::string merged_trace_remote_file_name = "{run_name}/traces/merged_trace.json";
  bool overwrite = false;                ///< a run that begins at 0 may use a folder that has files
  std::int64_t num_traces_to_keep = -1;  ///< newest files of each rank; -1: all
};

namespace detail {

// Replaces a file as a whole. Throws c10::Error when that fails; the file is then as it was.
void write_whole(const std::string& path, const std::string& text);

// None: it cannot be read.
std::optional<std::string> read_whole(const std::string& path);

// What a merged trace has so far, without its end; empty: no events.
std::string begun_trace(const std::string& merged);

// One more event of it.
inline void add_event(std::string& text, const Json& event) {
  text += (text.empty() ? "[\n" : ",\n") + to_text(event);
}

// Replaces it by what it has now.
inline void end_trace(const std::string& merged, const std::string& text) {
  write_whole(merged, (text.empty() ? "[" : text) + "\n]\n");
}

// The events of a file with one on each line.
std::vector<Json> trace_events(const std::string& text);

}  // namespace detail

/// Puts the traces of several ranks into one file, beside what is there from earlier cycles.
///
/// files: by rank, written by profilers in the same cycle. Times become those of the lowest rank's
/// clock, by the moment at which all ranks met.
/// Throws c10::Error or std::invalid_argument when a file cannot be read or written.
void merge_traces(const std::map<int, std::string>& files, const std::string& merged);

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE void write_whole(const std::string& path, const std::string& text) {
  const std::string unfinished = path + ".tmp";
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file.fail() || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    std::remove(unfinished.c_str());
    TUTTI_CHECK(false, "Profiler: cannot write '", path, "'");
  }
}

TUTTI_INLINE std::optional<std::string> read_whole(const std::string& path) {
  std::string problem;
  return read_regular_file(path, problem);
}

TUTTI_INLINE std::string begun_trace(const std::string& merged) {
  std::string text = read_whole(merged).value_or("");
  text.resize(std::min(text.rfind("\n]"), text.size()));
  return text == "[" ? std::string() : text;
}

TUTTI_INLINE std::vector<Json> trace_events(const std::string& text) {
  std::vector<Json> events;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, end - at);
    line.remove_suffix(line.ends_with(',') ? 1 : 0);
    if (line.starts_with('{')) {
      events.push_back(parse_json(line));
    }
    at = end + 1;
  }
  return events;
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE void merge_traces(const std::map<int, std::string>& files, const std::string& merged) {
  std::string text = detail::begun_trace(merged);
  std::optional<std::int64_t> base;
  for (const auto& [rank, path] : files) {
    const auto content = detail::read_whole(path);
    TUTTI_CHECK(content, "Profiler: cannot read '", path, "'");
    const std::vector<detail::Json> events = detail::trace_events(*content);
    std::int64_t sync = 0;
    for (const detail::Json& event : events) {
      if (event["name"].string() == "clock_sync_timestamp_us") {
        sync = event["args"]["value"].integer();
      }
    }
    base = base ? base : sync;
    for (const detail::Json& event : events) {
      detail::Json::Object out;
      for (const auto& [key, value] : event.object()) {
        const bool shifts = key == "ts" && event["ph"].string() != "M";
        out.emplace_back(key, shifts         ? detail::Json(value.integer() + *base - sync)
                              : key == "pid" ? detail::Json(rank)
                                             : value);
      }
      detail::add_event(text, std::move(out));
    }
  }
  detail::end_trace(merged, text);
}

}  // namespace tutti

#endif
