// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_quoted.hpp>

namespace tutti::sweep {

/// Which value of a metric a trial is judged by.
struct MetricQuery {
  std::string metric{};   ///< its name
  bool maximize = false;  ///< the largest is the best
  bool best = false;      ///< the best of all steps counts; false: that of the last step
};

/// What a trial's file has of a metric.
struct MetricReading {
  std::string problem{};   ///< why there is no value; empty: there is one
  bool has_metric = true;  ///< false: there is no such file, or no such metric in it
  double value = 0;        ///< finite
  std::int64_t step = 0;   ///< of that value
};

namespace detail {

using tutti::detail::Json;

// A number, or "NaN", "Infinity", "-Infinity" as JSONLinesLogger writes them; else throws.
inline double metric_number(const Json& value) {
  if (value.is_number()) {
    return value.number();
  }
  const std::string& word = value.string();
  const double infinity = std::numeric_limits<double>::infinity();
  return word == "Infinity"    ? infinity
         : word == "-Infinity" ? -infinity
                               : std::numeric_limits<double>::quiet_NaN();
}

// Calls visit(line's JSON) for every line that is whole and has one of the words. What is no JSON
// is skipped: the end of a run that was killed, a line of somebody else.
template <class Visit>
void each_line(const std::filesystem::path& path, std::initializer_list<std::string_view> words,
               Visit&& visit) {
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line);) {
    bool has_one = words.size() == 0;
    for (const std::string_view word : words) {
      has_one = has_one || line.find(word) != std::string::npos;
    }
    if (!has_one) {
      continue;
    }
    try {
      visit(tutti::detail::parse_json(line));
    } catch (const std::invalid_argument&) {  // no line of a logger
    }
  }
}

// The names of all metrics, for those who have written another one; up to twenty.
inline std::string metrics_in(const std::filesystem::path& path) {
  std::set<std::string> names;
  each_line(path, {}, [&](const Json& line) {
    if (line["type"].string() == "metrics") {
      for (const auto& member : line["values"].object()) {
        names.insert(member.first);
      }
    }
  });
  std::string text;
  std::size_t count = 0;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + (++count > 20 ? "..." : name);
    if (count > 20) {
      break;
    }
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace detail

/// Reads a metric out of the file of a JSONLinesLogger or a Dashboard: lines of type "metrics", of
/// which a line of type "start" takes back those from its step on. A metric that ends in NaN or an
/// infinity has no value; the best one is the best of the finite ones.
inline MetricReading read_metric(const std::filesystem::path& path, const MetricQuery& query) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return {.problem = "it wrote no " + path.filename().string() +
                       "; put JSONLinesLogger into its recipe, or name its file with metrics_file",
            .has_metric = false};
  }
  std::vector<std::pair<std::int64_t, double>> values;
  const auto take = [&](const detail::Json& line) {
    const std::string& type = line["type"].string();
    if (type != "start" && type != "metrics") {
      return;
    }
    const std::int64_t step = line["step"].integer();
    if (type == "start") {
      std::erase_if(values, [step](const auto& one) { return one.first >= step; });
    } else if (const detail::Json* found = line["values"].find(query.metric); found != nullptr) {
      values.emplace_back(step, detail::metric_number(*found));
    }
  };
  const std::string quoted = tutti::detail::json_quoted(query.metric);
  detail::each_line(path, {"\"start\"", quoted}, take);
  if (values.empty()) {
    return {.problem =
                "it wrote no metric \"" + query.metric + "\"; it wrote " + detail::metrics_in(path),
            .has_metric = false};
  }
  const std::pair<std::int64_t, double>* chosen = nullptr;
  for (const auto& one : values) {
    const bool better =
        chosen == nullptr || !query.best ||
        (query.maximize ? one.second > chosen->second : one.second < chosen->second);
    chosen = (!query.best || std::isfinite(one.second)) && better ? &one : chosen;
  }
  if (chosen == nullptr || !std::isfinite(chosen->second)) {
    return {.problem = query.metric + (chosen == nullptr ? " is never a finite number"
                                                         : " is no finite number at step " +
                                                               std::to_string(chosen->first))};
  }
  return {.value = chosen->second, .step = chosen->first};
}

}  // namespace tutti::sweep
