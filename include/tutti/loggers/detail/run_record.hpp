// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/loggers/detail/run_series.hpp>

namespace tutti::detail {

// What is known of a run. Nothing in it is trusted: the files may be anybody's.
struct RunFacts {
  struct Curve {
    std::string name;
    std::int64_t rank = 0;
    Series series{};
    bool odd = false;  // an event has told of its first NaN or infinity
  };
  struct Table {
    std::int64_t step = 0;
    std::string json;
  };
  struct Image {
    std::string name;
    std::int64_t step = 0;
    std::int64_t file = 0;  // its number in the folder dashboard/
  };
  struct Event {
    std::int64_t step = 0;
    double time = 0;
    std::string text;
  };

  std::string name;
  std::string plan;
  std::string error;  // that ended it
  double start = 0;   // seconds since 1970, as all times
  double time = 0;    // of the newest line
  std::int64_t step = 0;
  std::deque<Curve> series;
  std::map<std::string, std::deque<Table>, std::less<>> tables;
  std::deque<Image> images;
  std::deque<Event> events;
  std::vector<std::pair<std::string, std::string>> hyperparameters;  // values as JSON
  std::uint64_t broken = 0;                                          // lines
  std::uint64_t left_out = 0;  // values of curves beyond those
};

// Reads the files of a run that a Dashboard or a JSONLinesLogger writes, also while they grow. A
// line that is none is counted and skipped. Needs no LibTorch.
class RunRecord {
 public:
  // What is kept of things that a run may have any number of.
  static constexpr std::size_t most_series = 10000;
  static constexpr std::size_t most_tables = 8;  // of one name, the newest
  static constexpr std::size_t most_images = 64;
  static constexpr std::size_t most_events = 500;
  static constexpr std::size_t longest_line = std::size_t{32} << 20;

  // folder: the run's, with its files.
  explicit RunRecord(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // The files of a run in a folder: dashboard*.jsonl, else metrics*.jsonl; sorted.
  static std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder);

  // Reads what the files have grown by. Returns whether that is anything, or the run has ended.
  bool poll();

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] const RunFacts& facts() const { return facts_; }
  // "running", "finished", "stopped", "failed", "died", "quiet" (nobody knows) or "empty".
  [[nodiscard]] std::string status() const;

 private:
  struct File {
    std::filesystem::path path;
    std::uint64_t inode = 0;
    std::uint64_t offset = 0;
    std::string rest{};  // a line's beginning
    std::int64_t rank = 0;
    std::string status{};  // of its last line of type "end"
    bool locked = false;   // its writer lives
  };
  using Curve = RunFacts::Curve;

  bool read(File& file);
  void take(File& file, std::string_view line);
  bool take_metrics(File& file, std::string_view line);
  void take_value(File& file, std::string_view name, std::int64_t step, double time, double value);
  void take_rate(File& file, std::int64_t step, double time);
  void take_start(File& file, const Json& line, std::int64_t step, double time);
  void take_table(const Json& line, std::int64_t step);
  void tell(std::int64_t step, double time, std::string text);
  Curve* curve(std::string_view name, std::int64_t rank);

  std::filesystem::path folder_;
  std::vector<File> files_;
  std::map<std::pair<std::string, std::int64_t>, std::size_t> places_;  // of curves
  RunFacts facts_;
  std::int64_t rate_step_ = -1;
  double rate_time_ = 0;
};

// A number as JSONLinesLogger writes it. text: begins with it; what was read is taken away.
std::optional<double> take_number(std::string_view& text);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::vector<std::filesystem::path> RunRecord::files_in(
    const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> own;
  std::vector<std::filesystem::path> others;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code unknown;
    if (name.ends_with(".jsonl") && at->is_regular_file(unknown)) {
      if (name.starts_with("dashboard")) {
        own.push_back(at->path());
      } else if (name.starts_with("metrics")) {
        others.push_back(at->path());
      }
    }
  }
  std::vector<std::filesystem::path>& all = own.empty() ? others : own;
  std::sort(all.begin(), all.end());
  return all;
}

TUTTI_INLINE bool RunRecord::poll() {
  bool news = false;
  for (std::filesystem::path& path : files_in(folder_)) {
    const auto known = std::find_if(files_.begin(), files_.end(),
                                    [&](const File& file) { return file.path == path; });
    File& file = known != files_.end() ? *known : files_.emplace_back(File{std::move(path)});
    news = read(file) || news;
  }
  return news;
}

TUTTI_INLINE bool RunRecord::read(File& file) {
  const int fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat facts{};
  if (fd < 0 || ::fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    if (fd >= 0) {
      ::close(fd);
    }
    return false;
  }
  // The writer holds a lock as long as it lives; see DashboardFile.
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool locked = ::fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  bool news = locked != file.locked;
  file.locked = locked;
  const auto size = static_cast<std::uint64_t>(facts.st_size);
  if ((file.inode != 0 && file.inode != facts.st_ino) || size < file.offset) {
    const std::filesystem::path folder = folder_;  // another run took the name: begin anew
    *this = RunRecord(folder);
    ::close(fd);
    return true;
  }
  file.inode = facts.st_ino;
  std::string piece(std::size_t{1} << 20, '\0');
  while (file.offset < size) {
    const ssize_t got = ::pread(fd, piece.data(), piece.size(), static_cast<off_t>(file.offset));
    if (got <= 0) {
      break;
    }
    news = true;
    file.offset += static_cast<std::uint64_t>(got);
    std::string_view text(piece.data(), static_cast<std::size_t>(got));
    for (auto end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
      if (file.rest.empty()) {
        take(file, text.substr(0, end));
      } else {
        file.rest += text.substr(0, end);
        take(file, file.rest);
        file.rest.clear();
      }
      text.remove_prefix(end + 1);
    }
    if (file.rest.size() + text.size() <= longest_line) {
      file.rest += text;
    } else {
      file.rest = "?";  // no line of ours is so long
    }
  }
  ::close(fd);
  return news;
}

TUTTI_INLINE std::optional<double> take_number(std::string_view& text) {
  for (const auto& [word, value] :
       {std::pair<std::string_view, double>{"\"NaN\"", std::numeric_limits<double>::quiet_NaN()},
        {"\"Infinity\"", std::numeric_limits<double>::infinity()},
        {"\"-Infinity\"", -std::numeric_limits<double>::infinity()}}) {
    if (text.starts_with(word)) {
      text.remove_prefix(word.size());
      return value;
    }
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

TUTTI_INLINE void RunRecord::take(File& file, std::string_view text) {
  if (text.empty() || take_metrics(file, text)) {
    return;
  }
  try {
    const Json line = parse_json(text, {.depth = 8, .values = 1 << 20});
    const std::string& type = line["type"].string();
    const double time = line["time"].number();
    const Json* step_member = line.find("step");
    const std::int64_t step = step_member != nullptr ? step_member->integer() : facts_.step;
    facts_.time = std::max(facts_.time, time);
    if (type == "start") {
      take_start(file, line, step, time);
    } else if (type == "metrics") {
      for (const auto& [name, value] : line["values"].object()) {
        std::string_view word = value.is_string() ? value.string() : std::string_view();
        const std::string quoted = "\"" + std::string(word) + "\"";
        std::string_view rest = quoted;
        const std::optional<double> number = value.is_number() ? value.number() : take_number(rest);
        if (number) {
          take_value(file, name, step, time, *number);
        }
      }
    } else if (type == "hyperparameters" && file.rank == 0) {
      auto& all = facts_.hyperparameters;
      for (const Json::Member& member : line["values"].object()) {
        const auto known = std::find_if(all.begin(), all.end(),
                                        [&](const auto& one) { return one.first == member.first; });
        auto& place = known != all.end() ? *known : all.emplace_back(member.first, std::string());
        place.second = to_text(member.second);
      }
    } else if (type == "table") {
      take_table(line, step);
    } else if (type == "image") {
      facts_.images.push_back({line["name"].string(), step, line["file"].integer()});
      if (facts_.images.size() > most_images) {
        facts_.images.pop_front();
      }
    } else if (type == "plan") {
      facts_.plan = line["text"].string();
    } else if (type == "event") {
      tell(step, time, line["text"].string());
    } else if (type == "end") {
      file.status = line["status"].string();
      const Json* error = line.find("error");
      if (error != nullptr) {
        facts_.error = error->string();
      }
      facts_.step = std::max(facts_.step, step);
      tell(step, time,
           "the run " + std::string(file.status == "failed" ? "failed" : "ended") +
               (error != nullptr ? ": " + facts_.error : "") +
               (file.rank > 0 ? " (rank " + std::to_string(file.rank) + ")" : ""));
    }
  } catch (const std::exception&) {
    ++facts_.broken;
  }
}

// The form that JSONLinesLogger gives a step's metrics, without making objects of it.
TUTTI_INLINE bool RunRecord::take_metrics(File& file, std::string_view text) {
  const auto skip = [&](std::string_view word) {
    const bool there = text.starts_with(word);
    text.remove_prefix(there ? word.size() : 0);
    return there;
  };
  if (!skip("{\"type\": \"metrics\", \"step\": ")) {
    return false;
  }
  const std::string_view whole = text;
  // Twice: first to see that it is all there, so that the slow way begins with nothing taken.
  for (const bool taking : {false, true}) {
    text = whole;
    const auto step = take_number(text);
    if (!step || std::abs(*step) > 9e15 || !skip(", \"time\": ")) {
      return false;
    }
    const auto time = take_number(text);
    if (!time || !skip(", \"values\": {")) {
      return false;
    }
    if (taking) {
      facts_.time = std::max(facts_.time, *time);
      take_rate(file, static_cast<std::int64_t>(*step), *time);
    }
    do {
      const auto end = text.find('"', 1);
      if (text.empty() || text[0] != '"' || end == std::string_view::npos) {
        return false;
      }
      const std::string_view name = text.substr(1, end - 1);
      text.remove_prefix(end + 1);
      if (name.find('\\') != std::string_view::npos || !skip(": ")) {
        return false;
      }
      const auto value = take_number(text);
      if (!value) {
        return false;
      }
      if (taking) {
        take_value(file, name, static_cast<std::int64_t>(*step), *time, *value);
      }
    } while (skip(", "));
    if (text != "}}") {
      return false;
    }
  }
  return true;
}

TUTTI_INLINE void RunRecord::take_value(File& file, std::string_view name, std::int64_t step,
                                        double time, double value) {
  Curve* of = curve(name, file.rank);
  if (of == nullptr) {
    return;
  }
  if (!std::isfinite(value) && !std::exchange(of->odd, true)) {
    tell(step, time,
         of->name + " is " +
             (std::isnan(value) ? "NaN"
              : value > 0       ? "infinite"
                                : "negative infinite") +
             (file.rank > 0 ? " at rank " + std::to_string(file.rank) : ""));
  }
  of->series.add(step, time, value);
  facts_.step = std::max(facts_.step, step);
}

// Batches a second, seen from the lines' times; for runs without a SpeedMonitor, too.
TUTTI_INLINE void RunRecord::take_rate(File& file, std::int64_t step, double time) {
  if (file.rank != 0) {
    return;
  }
  if (rate_step_ < 0 || step < rate_step_) {
    rate_step_ = step;
    rate_time_ = time;
  } else if (step > rate_step_ && time - rate_time_ >= 1) {
    const double rate = static_cast<double>(step - rate_step_) / (time - rate_time_);
    take_value(file, "throughput/batches_per_sec_seen", step, time, rate);
    rate_step_ = step;
    rate_time_ = time;
  }
}

TUTTI_INLINE void RunRecord::take_start(File& file, const Json& line, std::int64_t step,
                                        double time) {
  file.rank = line["rank"].integer();
  file.status.clear();
  facts_.name = line["run_name"].string();
  facts_.start = facts_.start == 0 ? time : std::min(facts_.start, time);
  for (Curve& one : facts_.series) {
    if (one.rank == file.rank) {
      one.series.cut(step);
    }
  }
  if (file.rank == 0) {
    facts_.error.clear();
    rate_step_ = -1;
    facts_.step = step;
    const std::int64_t ranks = line["world_size"].integer();
    tell(step, time,
         (step > 0 ? "resumed" : "started") +
             (ranks > 1 ? " with " + std::to_string(ranks) + " ranks" : std::string()));
  }
}

TUTTI_INLINE void RunRecord::take_table(const Json& line, std::int64_t step) {
  std::deque<RunFacts::Table>& of = facts_.tables[line["name"].string()];
  of.push_back({step, "{\"step\":" + std::to_string(step) + ",\"columns\":" +
                          to_text(line["columns"]) + ",\"rows\":" + to_text(line["rows"]) + "}"});
  if (of.size() > most_tables) {
    of.pop_front();
  }
}

TUTTI_INLINE void RunRecord::tell(std::int64_t step, double time, std::string text) {
  facts_.events.push_back({step, time, std::move(text)});
  if (facts_.events.size() > most_events) {
    facts_.events.pop_front();
  }
}

TUTTI_INLINE RunRecord::Curve* RunRecord::curve(std::string_view name, std::int64_t rank) {
  const auto found = places_.find(std::pair<std::string, std::int64_t>(name, rank));
  if (found != places_.end()) {
    return &facts_.series[found->second];
  }
  if (facts_.series.size() == most_series) {
    ++facts_.left_out;
    return nullptr;
  }
  places_.emplace(std::pair<std::string, std::int64_t>(name, rank), facts_.series.size());
  facts_.series.push_back({std::string(name), rank});
  return &facts_.series.back();
}

TUTTI_INLINE std::string RunRecord::status() const {
  if (files_.empty() || facts_.start == 0) {
    return "empty";
  }
  bool running = false;
  bool ended = true;
  std::string worst = "finished";
  for (const File& file : files_) {
    running = running || (file.locked && file.status.empty());
    ended = ended && !file.status.empty();
    if (file.status == "failed" || (file.status == "stopped" && worst != "failed")) {
      worst = file.status;
    }
  }
  // A JSONLinesLogger holds no lock, so nobody knows whether its run still lives.
  const bool tells = files_.front().path.filename().string().starts_with("dashboard");
  return ended ? worst : running ? "running" : tells ? "died" : "quiet";
}

}  // namespace tutti::detail

#endif
