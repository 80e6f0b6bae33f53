// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/profiler/json_trace.hpp>

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
