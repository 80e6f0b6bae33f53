// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/detail/csv_cell.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/sweep/space.hpp>

namespace tutti::sweep {

/// One run of a trial that has ended by itself: of a rung where trials are halved, else the only
/// one.
struct TrialRun {
  std::int64_t rung = 0;   ///< 0: the first
  std::string resource{};  ///< that it was given; empty: none
  double seconds = 0;      ///< that it took
  std::string failure{};   ///< why it failed: its exit status, the time limit; empty: it ended well
  std::optional<double> value{};  ///< of the metric
  std::int64_t step = 0;          ///< of that value
};

/// Values of the flags that are tried, and how that went.
struct Trial {
  enum class Status { waiting, finished, failed, interrupted };

  std::int64_t number = 0;
  Flags flags{};
  std::vector<TrialRun> runs{};  ///< in the order of the rungs
  Status status = Status::waiting;
  std::string reason{};  ///< of what failed

  /// The metric's after the last run.
  [[nodiscard]] std::optional<double> value() const {
    return runs.empty() ? std::nullopt : runs.back().value;
  }
  [[nodiscard]] std::int64_t rung() const { return runs.empty() ? -1 : runs.back().rung; }
  [[nodiscard]] double seconds() const {
    double sum = 0;
    for (const TrialRun& run : runs) {
      sum += run.seconds;
    }
    return sum;
  }
};

/// "waiting", "finished", "failed" or "interrupted".
inline std::string_view to_string(Trial::Status status) {
  constexpr std::array<std::string_view, 4> names{"waiting", "finished", "failed", "interrupted"};
  return names.at(static_cast<std::size_t>(status));
}

/// Whether `a` stands above `b`: finished before the others, then by rung, by value, by number.
inline bool is_better(const Trial& a, const Trial& b, bool maximize) {
  const bool a_good = a.status == Trial::Status::finished;
  const bool b_good = b.status == Trial::Status::finished;
  if (a_good != b_good) {
    return a_good;
  }
  if (a_good && a.rung() != b.rung()) {
    return a.rung() > b.rung();
  }
  if (a_good && *a.value() != *b.value()) {
    return maximize ? *a.value() > *b.value() : *a.value() < *b.value();
  }
  return a.number < b.number;
}

/// Those that have begun, the best first.
inline std::vector<const Trial*> ranked(const std::vector<Trial>& trials, bool maximize) {
  std::vector<const Trial*> out;
  for (const Trial& trial : trials) {
    if (trial.status != Trial::Status::waiting) {
      out.push_back(&trial);
    }
  }
  std::sort(out.begin(), out.end(),
            [maximize](const Trial* a, const Trial* b) { return is_better(*a, *b, maximize); });
  return out;
}

/// The trial's folder in that of the sweep.
inline std::string trial_name(std::int64_t number) {
  std::string digits = std::to_string(number);
  digits.insert(0, 4 - std::min<std::size_t>(4, digits.size()), '0');
  return "trial-" + digits;
}

namespace detail {

// Nobody needs more of a metric in a table of a terminal.
inline std::string short_number(double value) {
  std::array<char, 32> text{};
  const int size = std::snprintf(text.data(), text.size(), "%.6g", value);
  return {text.data(), static_cast<std::size_t>(size)};
}

// One column of a table: a head, and the cell of a trial.
struct Column {
  std::string head;
  std::vector<std::string> cells{};
};

inline std::vector<Column> columns_of(const std::vector<const Trial*>& trials,
                                      const std::string& metric, bool for_people) {
  const bool halves = std::any_of(trials.begin(), trials.end(), [](const Trial* trial) {
    return !trial->runs.empty() && !trial->runs.back().resource.empty();
  });
  std::vector<Column> columns{{"trial"}, {"status"}, {metric}, {"step"}, {"seconds"}};
  if (halves) {
    columns.push_back({"resource"});
  }
  const std::size_t first_flag = columns.size();
  for (const auto& flag : trials.empty() ? Flags() : trials.front()->flags) {
    columns.push_back({flag.first});
  }
  columns.push_back({"reason"});
  for (const Trial* trial : trials) {
    const auto number = [for_people](double value) {
      return for_people ? short_number(value) : flag_text(value);
    };
    std::vector<std::string> cells{
        std::to_string(trial->number), std::string(to_string(trial->status)),
        trial->value() ? number(*trial->value()) : std::string(),
        trial->value() ? std::to_string(trial->runs.back().step) : std::string(),
        short_number(trial->seconds())};
    if (halves) {
      cells.push_back(trial->runs.empty() ? std::string() : trial->runs.back().resource);
    }
    cells.resize(first_flag);
    for (const auto& flag : trial->flags) {
      cells.push_back(flag_text(flag.second));
    }
    cells.push_back(trial->reason);
    for (std::size_t i = 0; i < columns.size(); ++i) {
      columns[i].cells.push_back(cells.at(i));
    }
  }
  return columns;
}

}  // namespace detail

/// The table for people, with a head; of all trials at most `most`.
inline std::string console_table(const std::vector<const Trial*>& trials, const std::string& metric,
                                 std::size_t most) {
  const std::vector<const Trial*> shown(
      trials.begin(), trials.begin() + static_cast<std::ptrdiff_t>(std::min(most, trials.size())));
  std::vector<detail::Column> columns = detail::columns_of(shown, metric, true);
  const auto is_empty = [](const detail::Column& column) {
    return std::all_of(column.cells.begin(), column.cells.end(),
                       [](const std::string& cell) { return cell.empty(); });
  };
  std::erase_if(columns, is_empty);
  std::string out;
  for (std::size_t row = 0; row <= shown.size(); ++row) {
    std::string line;
    for (const detail::Column& column : columns) {
      std::size_t width = column.head.size();
      for (const std::string& cell : column.cells) {
        width = std::max(width, cell.size());
      }
      const std::string& cell = row == 0 ? column.head : column.cells[row - 1];
      line += cell + std::string(width + 2 - cell.size(), ' ');
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  if (trials.size() > shown.size()) {
    out += "... and " + std::to_string(trials.size() - shown.size()) + " more\n";
  }
  return out;
}

/// The same as CSV, whole and with every digit.
inline std::string csv_table(const std::vector<const Trial*>& trials, const std::string& metric) {
  const std::vector<detail::Column> columns = detail::columns_of(trials, metric, false);
  std::string out;
  for (std::size_t row = 0; row <= trials.size(); ++row) {
    std::string line;
    for (const detail::Column& column : columns) {
      line += (line.empty() ? "" : ",") +
              tutti::detail::csv_cell(row == 0 ? column.head : column.cells[row - 1]);
    }
    out += line + '\n';
  }
  return out;
}

/// The same as JSON Lines, an object a trial; read_trials() reads them.
inline std::string json_table(const std::vector<const Trial*>& trials, const std::string& metric) {
  using tutti::detail::Json;
  std::string out;
  for (const Trial* trial : trials) {
    Json::Array runs;
    for (const TrialRun& run : trial->runs) {
      runs.push_back(Json::Object{{"rung", run.rung},
                                  {"resource", run.resource},
                                  {"seconds", run.seconds},
                                  {"failure", run.failure},
                                  {"value", run.value ? Json(*run.value) : Json()},
                                  {"step", run.step}});
    }
    const Json::Object line{{"trial", trial->number},
                            {"status", to_string(trial->status)},
                            {"metric", metric},
                            {"value", trial->value() ? Json(*trial->value()) : Json()},
                            {"reason", trial->reason},
                            {"flags", trial->flags},
                            {"runs", runs}};
    out += tutti::detail::to_text(line) + '\n';
  }
  return out;
}

/// The trials that a file of json_table() has, by their numbers; none without a file. Their status
/// is left to who looks for the metric.
/// Throws std::invalid_argument when it is no such file.
inline std::vector<Trial> read_trials(const std::filesystem::path& path) {
  detail::refuse_unless(
      !std::filesystem::exists(path) || std::filesystem::is_regular_file(path),
      "'" + path.string() + "' is no regular file, so it is no table of tutti-sweep's");
  std::ifstream file(path);
  std::vector<Trial> trials;
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);) {
    ++count;
    try {
      const tutti::detail::Json read = tutti::detail::parse_json(line);
      Trial trial{.number = read["trial"].integer(), .flags = read["flags"].object()};
      detail::refuse_unless(trial.number >= 0 && trial.number < 100'000,
                            "the number of a trial is not 0 to 99999");
      for (const tutti::detail::Json& run : read["runs"].array()) {
        const tutti::detail::Json& value = run["value"];
        trial.runs.push_back(
            {.rung = run["rung"].integer(),
             .resource = run["resource"].string(),
             .seconds = run["seconds"].number(),
             .failure = run["failure"].string(),
             .value = value.is_null() ? std::nullopt : std::optional(value.number()),
             .step = run["step"].integer()});
      }
      trials.push_back(std::move(trial));
    } catch (const std::invalid_argument& error) {
      detail::refuse_unless(false, "'" + path.string() + "', line " + std::to_string(count) + ": " +
                                       error.what() + "; it is no table of tutti-sweep's");
    }
  }
  std::sort(trials.begin(), trials.end(),
            [](const Trial& a, const Trial& b) { return a.number < b.number; });
  return trials;
}

}  // namespace tutti::sweep
