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
#include <tutti/profiler/json_trace.inl.hpp>
#endif
