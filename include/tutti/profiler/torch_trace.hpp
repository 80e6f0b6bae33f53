// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/profiler/json_trace.hpp>

namespace tutti {

namespace detail {

// An event of Kineto as it stands in a merged trace; null: it is none of the program's.
inline Json torch_event(const Json& event, int rank, double base) {
  const Json* pid = event.find("pid");
  const Json* tid = event.find("tid");
  const Json* phase = event.find("ph");
  const bool numbered = pid != nullptr && tid != nullptr && pid->is_int() && tid->is_int();
  if (!numbered || phase == nullptr || event.find("ts") == nullptr) {
    return {};  // its own book-keeping has texts there
  }
  const bool metadata = phase->string() == "M";
  if (metadata && event["name"].string() != "thread_name") {
    return {};
  }
  Json::Object out;
  for (const auto& [key, value] : event.object()) {
    out.emplace_back(key, key == "pid"               ? Json(rank)
                          : key == "ts" && !metadata ? Json(base + value.number())
                                                     : value);
  }
  return {std::move(out)};
}

}  // namespace detail

/// A file of LibTorch's profiler.
struct TorchTrace {
  std::string path;
  std::int64_t training_thread = 0;  ///< the system's number of it
};

/// Puts files of LibTorch's profiler, which TorchProfiler writes, into a merged trace, beside what
/// is there. Operators stand below the spans of the thread that ran them.
///
/// files: by rank, of this machine, whose clock they have in common. Threads that ran a backward
/// pass come behind the training thread, others at the end; what the profiler says of itself is
/// left out.
/// Throws c10::Error or std::invalid_argument when a file cannot be read or written.
/// Source: MosaicML Composer, `composer.profiler.json_trace_merger`.
inline void merge_torch_traces(const std::map<int, TorchTrace>& files, const std::string& merged) {
  std::string text = detail::begun_trace(merged);
  for (const auto& [rank, file] : files) {
    const auto content = detail::read_whole(file.path);
    TUTTI_CHECK(content, "TorchProfiler: cannot read '", file.path, "'");
    const detail::Json trace = detail::parse_json(*content);
    const detail::Json* start = trace.find("baseTimeNanoseconds");
    const double base = start != nullptr ? start->number() / 1000 : 0;
    std::map<std::int64_t, bool> threads;  // whether it ran a backward pass
    const detail::Json& events = trace["traceEvents"];
    for (std::size_t i = 0; i < events.size(); ++i) {
      const detail::Json event = detail::torch_event(events[i], rank, base);
      if (event.is_null()) {
        continue;
      }
      detail::add_event(text, event);
      const bool backward = event["name"].string().find("Backward0") != std::string::npos;
      bool& known = threads[event["tid"].integer()];
      known = known || backward;
    }
    for (const auto& [tid, backward] : threads) {
      const int place = tid == file.training_thread ? 0 : backward ? 1 : 99999;
      using Object = detail::Json::Object;
      detail::add_event(text, Object{{"name", "thread_sort_index"},
                                     {"ph", "M"},
                                     {"ts", 0},
                                     {"pid", rank},
                                     {"tid", tid},
                                     {"args", Object{{"sort_index", place}}}});
    }
  }
  detail::end_trace(merged, text);
}

}  // namespace tutti
