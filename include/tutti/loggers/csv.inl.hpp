// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/loggers/csv.hpp>
#include <tutti/loggers/detail/bring_back.hpp>
#include <tutti/loggers/detail/log_file.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tutti::detail {

TUTTI_INLINE CsvTable& CsvTable::operator=(CsvTable&& other) noexcept {
  close();
  who_ = std::move(other.who_);
  path_ = std::move(other.path_);
  columns_ = std::move(other.columns_);
  written_columns_ = other.written_columns_;
  row_ = std::exchange(other.row_, {});
  waiting_ = std::exchange(other.waiting_, {});
  waiting_text_ = std::exchange(other.waiting_text_, {});
  is_stale_ = std::exchange(other.is_stale_, false);
  cells_waiting_ = std::exchange(other.cells_waiting_, 0);
  lost_ = std::exchange(other.lost_, 0);
  row_at_ = other.row_at_;
  fd_ = std::exchange(other.fd_, -1);
  begun_ = std::exchange(other.begun_, false);
  failing_ = other.failing_;
  return *this;
}

TUTTI_INLINE void CsvTable::open(std::string who, const std::string& path) {
  close();
  who_ = std::move(who);
  path_ = path;
  fd_ = open_log(who_, path, 0, "filename");
}

TUTTI_INLINE std::vector<std::string> CsvTable::split(std::string_view line) {
  std::vector<std::string> cells(1);
  bool inside = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && inside && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += line[i++];
    } else if (line[i] == '"') {
      inside = !inside;
    } else if (line[i] == ',' && !inside) {
      cells.emplace_back();
    } else {
      cells.back() += line[i];
    }
  }
  return cells;
}

TUTTI_INLINE std::string CsvTable::quoted(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
    return std::string(text);
  }
  std::string out = "\"";
  for (const char c : text) {
    out += c == '"' ? "\"\"" : std::string(1, c == '\n' || c == '\r' ? ' ' : c);
  }
  return out + '"';
}

TUTTI_INLINE void CsvTable::append(std::string& text, double value) {
  if (std::isnan(value)) {
    text += "nan";
  } else if (std::isinf(value)) {
    text += value > 0 ? "inf" : "-inf";
  } else {
    std::array<char, 32> digits{};
    text.append(digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr);
  }
}

TUTTI_INLINE std::string CsvTable::header() const {
  std::string out = "step";
  for (const std::string& column : columns_) {
    out += ',' + quoted(column);
  }
  return out + '\n';
}

TUTTI_INLINE std::string CsvTable::line(const Row& row) const {
  std::string out = std::to_string(row.step);
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    out += ',';
    if (i < row.cells.size() && row.cells[i]) {
      append(out, *row.cells[i]);
    }
  }
  return out + '\n';
}

TUTTI_INLINE std::string CsvTable::content() const {
  std::string out;
  char piece[65536];
  for (ssize_t got = 0;
       (got = ::pread(fd_, piece, sizeof piece, static_cast<off_t>(out.size()))) > 0;) {
    out.append(piece, static_cast<std::size_t>(got));
  }
  return out;
}

TUTTI_INLINE void CsvTable::begin(std::int64_t step, bool overwrite) {
  if (fd_ < 0 || begun_) {
    return;
  }
  const std::string old = content();
  begun_ = true;
  if (old.empty() || step == 0) {
    TUTTI_CHECK(old.empty() || overwrite, who_, ": '", path_,
                "' is from an earlier run and this one begins anew; give it another run_name, set "
                "autoresume to go on with that run, or set overwrite to replace the file");
    return;  // the first flush makes it anew
  }
  std::size_t at = std::min(old.find('\n'), old.size());
  columns_ = split(std::string_view(old).substr(0, at));
  TUTTI_CHECK(columns_.front() == "step", who_, ": '", path_, "' begins with the column \"",
              columns_.front(), "\", expected \"step\"; give filename the name of another file");
  columns_.erase(columns_.begin());
  written_columns_ = columns_.size();
  row_at_ = static_cast<std::int64_t>(std::min(at + 1, old.size()));
  while (++at < old.size()) {
    const std::size_t end = old.find('\n', at);
    const std::vector<std::string> cells =
        split(std::string_view(old).substr(at, std::min(end, old.size()) - at));
    std::int64_t number = 0;
    const char* last = cells[0].data() + cells[0].size();
    const bool whole = end != std::string::npos && cells.size() == columns_.size() + 1 &&
                       std::from_chars(cells[0].data(), last, number).ptr == last;
    if (!whole || number > step) {  // what a crash left of it, or what is computed again
      break;
    }
    row_ = {.step = number, .cells = {}, .changed = false};
    for (std::size_t i = 1; i < cells.size(); ++i) {
      double value = 0;
      const char* stop = cells[i].data() + cells[i].size();
      const bool there =
          !cells[i].empty() && std::from_chars(cells[i].data(), stop, value).ec == std::errc();
      row_.cells.push_back(there ? std::optional(value) : std::nullopt);
    }
    row_at_ = static_cast<std::int64_t>(at);
    at = end;
  }
  row_.changed = true;  // so that the first flush cuts off what follows
}

TUTTI_INLINE void CsvTable::set(std::int64_t step, std::string_view column, double value) {
  if (step != row_.step && !row_.cells.empty()) {
    flush();
    if (row_.changed && begun_) {
      wait_with(std::exchange(row_, {}));
    } else {
      row_at_ += static_cast<std::int64_t>(line(row_).size());
      row_.cells.clear();
    }
  }
  row_.step = step;
  std::string plain;  // as it is in the file
  if (column.find_first_of("\r\n") != std::string_view::npos) {
    plain = column;
    std::replace(plain.begin(), plain.end(), '\n', ' ');
    std::replace(plain.begin(), plain.end(), '\r', ' ');
    column = plain;
  }
  const auto found = std::find(columns_.begin(), columns_.end(), column);
  const auto place = static_cast<std::size_t>(found - columns_.begin());
  if (found == columns_.end()) {
    columns_.emplace_back(column);
    is_stale_ = !waiting_.empty();
  }
  row_.cells.resize(std::max(row_.cells.size(), place + 1));
  row_.cells[place] = value;
  row_.changed = true;
}

TUTTI_INLINE void CsvTable::flush() {
  if (!begun_ || !row_.changed) {
    return;
  }
  if (written_columns_ != columns_.size()) {
    remake();
  }
  if (written_columns_ == columns_.size()) {
    if (std::exchange(is_stale_, false)) {
      waiting_text_.clear();
      for (const Row& row : waiting_) {
        waiting_text_ += line(row);
      }
    }
    const std::int64_t at = row_at_ + static_cast<std::int64_t>(waiting_text_.size());
    const std::string text = row_.cells.empty() ? "" : line(row_);
    if (put(fd_, waiting_text_, row_at_) && put(fd_, text, at) &&
        ::ftruncate(fd_, at + static_cast<std::int64_t>(text.size())) == 0) {
      row_at_ = at;
      forget_waiting();
      row_.changed = false;
      failing_ = false;
    }
  }
}

TUTTI_INLINE void CsvTable::wait_with(Row&& row) {
  constexpr std::size_t most = 1'000'000;  // cells, 16 MiB
  cells_waiting_ += row.cells.size();
  waiting_text_ += line(row);
  waiting_.push_back(std::move(row));
  if (cells_waiting_ <= most) {
    return;
  }
  for (; cells_waiting_ > most / 2; ++lost_) {  // many at once, since the text is made anew
    cells_waiting_ -= waiting_.front().cells.size();
    waiting_.pop_front();
  }
  is_stale_ = true;
}

TUTTI_INLINE void CsvTable::forget_waiting() {
  waiting_.clear();
  waiting_text_.clear();
  is_stale_ = false;
  cells_waiting_ = 0;
}

// The same rows under a header with all columns.
TUTTI_INLINE void CsvTable::remake() {
  const std::string old = written_columns_ == 0 ? std::string() : content();
  std::string text = header();
  const std::string empty(columns_.size() - written_columns_, ',');
  const auto end = static_cast<std::size_t>(row_at_);
  for (std::size_t at = std::min(old.find('\n'), old.size() - 1) + 1;
       at < std::min(end, old.size());) {
    const std::size_t next = std::min(old.find('\n', at), end);
    text.append(old, at, next - at).append(empty).append("\n");
    at = next + 1;
  }
  const std::string second = path_ + ".new";
  const int fd = ::open(second.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) {
    complain(errno);
    return;
  }
  if (put(fd, text, 0) && ::rename(second.c_str(), path_.c_str()) == 0) {
    ::close(std::exchange(fd_, fd));
    written_columns_ = columns_.size();
    row_at_ = static_cast<std::int64_t>(text.size());
  } else {
    complain(errno);
    ::close(fd);
    ::unlink(second.c_str());
  }
}

TUTTI_INLINE bool CsvTable::put(int fd, std::string_view text, std::int64_t at) {
  while (!text.empty()) {
    const ssize_t done = ::pwrite(fd, text.data(), text.size(), at);
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done <= 0) {
      complain(errno);
      return false;
    }
    at += done;
    text.remove_prefix(static_cast<std::size_t>(done));
  }
  return true;
}

TUTTI_INLINE void CsvTable::sync() {
  flush();
  if (fd_ >= 0) {
    ::fdatasync(fd_);
  }
}

TUTTI_INLINE void CsvTable::close() {
  if (fd_ >= 0) {
    sync();
    const auto unwritten = static_cast<std::int64_t>(waiting_.size() + (row_.changed ? 1 : 0));
    if (begun_ && lost_ + unwritten > 0) {
      TORCH_WARN(who_, ": ", lost_ + unwritten, " rows could not be written to '", path_, "'");
    }
    ::close(std::exchange(fd_, -1));
    forget_waiting();
    lost_ = 0;
    columns_.clear();
    written_columns_ = 0;
    row_ = {};
    row_at_ = 0;
    begun_ = false;
  }
}

TUTTI_INLINE void CsvTable::complain(int reason) {
  if (!std::exchange(failing_, true)) {
    TORCH_WARN(who_, ": cannot write to '", path_, "': ", std::strerror(reason),
               "; training goes on, and it is tried again");
  }
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE void CSVLogger::validate() const {
  expect(!filename.empty(), "CSVLogger: filename is empty; name the file.");
  expect(metrics_interval >= 1, "CSVLogger: metrics_interval", metrics_interval, "1 or more");
  expect(flush_interval >= 1, "CSVLogger: flush_interval", flush_interval, "1 or more");
}

TUTTI_INLINE void CSVLogger::apply(Init, const State& state) {
  run.speaks = state.rank == 0;
  if (run.speaks) {
    run.table.open(std::string(name), run_path(filename, state));
  }
}

TUTTI_INLINE void CSVLogger::apply(AfterLoad, const State& state) {
  if (run.speaks) {
    detail::bring_back(remote_file_name, run.table.path(), state);
  }
  run.table.begin(state.timestamp.batch, overwrite || state.autoresume);
}

TUTTI_INLINE void CSVLogger::apply(BatchEnd, const State& state) {
  if (state.timestamp.batch % flush_interval == 0) {
    sync(state);
  }
}

TUTTI_INLINE void CSVLogger::close(const State& state) {
  if (run.table.is_open()) {
    const bool written = run.table.has_begun();
    run.table.close();
    if (written) {
      detail::upload_file(remote_file_name, run.table.path(), state);
    }
  }
}

TUTTI_INLINE void CSVLogger::log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step) {
  if (run.speaks) {
    for (const LoggedMetric& metric : metrics) {
      run.table.set(step, metric.name, metric.value);
    }
  }
}

TUTTI_INLINE void CSVLogger::sync(const State& state) {
  if (run.table.is_open()) {
    run.table.sync();
    detail::upload_file(remote_file_name, run.table.path(), state);
  }
}

}  // namespace tutti
