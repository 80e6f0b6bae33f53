// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::detail {

// Opens or creates a file of logs, and the folder that it is in, for reading and writing and as
// `flags` say. Throws c10::Error that names `who`, the reason, and the option to change.
int open_log(const std::string& who, const std::string& path, int flags, std::string_view option);

// A file that grows by whole lines and outlives what goes wrong while it does.
//
// Lines wait in memory until open() and begin() have been called, and then leave it in one write()
// of several lines, so readers and other writers of the file never see half of one. A write that
// fails (a full disk, a lost share) warns once; its rest stays in memory and is tried again, and
// what exceeds `most` bytes is counted and dropped. No function throws but open() and begin().
class LogFile {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t most = std::size_t{16} << 20;  // bytes that wait

  LogFile() = default;
  LogFile(LogFile&& other) noexcept { *this = std::move(other); }
  LogFile& operator=(LogFile&& other) noexcept {
    close();
    who_ = std::move(other.who_);
    path_ = std::move(other.path_);
    waiting_ = std::move(other.waiting_);
    fd_ = std::exchange(other.fd_, -1);
    begun_ = std::exchange(other.begun_, false);
    next_sync_ = other.next_sync_;
    unsynced_ = other.unsynced_;
    lost_ = other.lost_;
    failing_ = other.failing_;
    return *this;
  }
  ~LogFile() { close(); }

  // Opens or makes the file and the folders above it. who: named in messages, "FileLogger", as is
  // the option that says where the file is.
  // Throws c10::Error with the system's reason and what to do.
  void open(std::string who, const std::string& path, std::string_view option);

  // Lets the waiting lines go, `first` before them.
  //
  // A resumed run goes on at the end of the file, after what a crash may have left of a line has
  // been ended, or removed with `cut`. A new one empties the file with `overwrite`, else throws
  // c10::Error when there is something in it.
  void begin(bool resumed, bool overwrite, std::string_view first = {}, bool cut = false);

  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  [[nodiscard]] bool has_begun() const { return begun_; }
  [[nodiscard]] int descriptor() const { return fd_; }
  [[nodiscard]] const std::string& path() const { return path_; }

  // Adds whole lines; they wait for flush().
  void add(std::string_view lines);

  // Hands what waits to the system: it survives this process, however that ends.
  void flush();

  // flush(), and to the disk, so that it survives the machine. Waits for the disk, so one that is
  // not `forced` is left out while it would take more than a hundredth of the time.
  void sync(bool forced = false);

  void close();

 private:
  // What stands after the last line's end is from a crash.
  void end_last_line(off_t size, bool cut);

  void complain(int reason);

  std::string who_;
  std::string path_;
  std::string waiting_;
  int fd_ = -1;
  bool begun_ = false;
  bool unsynced_ = false;
  bool failing_ = false;
  std::size_t lost_ = 0;
  Clock::time_point next_sync_{};
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE int open_log(const std::string& who, const std::string& path, int flags,
                          std::string_view option) {
  std::error_code error;
  const auto folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) {
    std::filesystem::create_directories(folder, error);
  }
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | flags, 0666);
  const int reason = errno;
  TUTTI_CHECK(file >= 0, who, ": cannot write '", path,
              "': ", error ? error.message() : std::string(std::strerror(reason)), "; set ", option,
              " to a place that can be written");
  return file;
}

TUTTI_INLINE void LogFile::open(std::string who, const std::string& path, std::string_view option) {
  close();
  who_ = std::move(who);
  path_ = path;
  fd_ = open_log(who_, path, O_APPEND, option);
}

TUTTI_INLINE void LogFile::begin(bool resumed, bool overwrite, std::string_view first, bool cut) {
  if (fd_ < 0) {
    return;
  }
  struct stat facts{};
  const bool known = ::fstat(fd_, &facts) == 0 && S_ISREG(facts.st_mode);
  const bool used = known && facts.st_size > 0 && !begun_;
  TUTTI_CHECK(!used || resumed || overwrite, who_, ": '", path_,
              "' is from an earlier run and this one begins anew; give it another run_name, "
              "set autoresume to go on with that run, or set overwrite to replace the file");
  waiting_.insert(0, first);
  if (used && !resumed) {
    waiting_.insert(0, ::ftruncate(fd_, 0) == 0 ? "" : "\n");
  } else if (used) {
    end_last_line(facts.st_size, cut);
  }
  begun_ = true;
  flush();
}

TUTTI_INLINE void LogFile::add(std::string_view lines) {
  if (waiting_.size() + lines.size() > most) {
    flush();
  }
  if (waiting_.size() + lines.size() > most) {
    lost_ += lines.size();
    return;
  }
  waiting_ += lines;
}

TUTTI_INLINE void LogFile::flush() {
  std::size_t done = 0;
  while (begun_ && done < waiting_.size()) {
    const ssize_t put = ::write(fd_, waiting_.data() + done, waiting_.size() - done);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      complain(errno);
      break;
    }
    done += static_cast<std::size_t>(put);
  }
  if (done > 0) {
    unsynced_ = true;
    failing_ = failing_ && done < waiting_.size();
    waiting_.erase(0, done);
  }
}

TUTTI_INLINE void LogFile::sync(bool forced) {
  flush();
  const auto start = Clock::now();
  if (fd_ >= 0 && unsynced_ && (forced || start >= next_sync_)) {
    ::fdatasync(fd_);  // pipes and some shares know none, which is as good as they get
    unsynced_ = false;
    const auto end = Clock::now();
    next_sync_ = end + std::max<Clock::duration>(std::chrono::seconds(1), 100 * (end - start));
  }
}

TUTTI_INLINE void LogFile::close() {
  if (fd_ < 0) {
    return;
  }
  sync(/*forced=*/true);
  if (const std::size_t lost = lost_ + (begun_ ? waiting_.size() : 0); lost > 0) {
    TORCH_WARN(who_, ": ", lost, " bytes could not be written to '", path_, "'");
  }
  ::close(std::exchange(fd_, -1));
  waiting_.clear();
  begun_ = false;
  lost_ = 0;
}

TUTTI_INLINE void LogFile::end_last_line(off_t size, bool cut) {
  char piece[4096];
  off_t end = size;
  while (end > 0) {
    const off_t from = std::max<off_t>(0, end - static_cast<off_t>(sizeof piece));
    const ssize_t got = ::pread(fd_, piece, static_cast<std::size_t>(end - from), from);
    if (got != end - from) {
      return;
    }
    const std::string_view text(piece, static_cast<std::size_t>(got));
    if (const auto at = text.rfind('\n'); at != std::string_view::npos) {
      end = from + static_cast<off_t>(at) + 1;
      break;
    }
    end = from;
  }
  if (end < size && !(cut && ::ftruncate(fd_, end) == 0)) {
    waiting_.insert(0, "\n");
  }
}

TUTTI_INLINE void LogFile::complain(int reason) {
  if (!std::exchange(failing_, true)) {
    TORCH_WARN(who_, ": cannot write to '", path_, "': ", std::strerror(reason),
               "; training goes on, and ", most >> 20, " MiB of lines are kept to try again");
  }
}

}  // namespace tutti::detail

#endif
