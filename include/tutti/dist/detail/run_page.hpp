// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/config.hpp>

// Memory that tutti-run shares with the ranks of its machine: they write where they are, and it
// writes why the run ends. What a rank wrote last is still there when it is dead or stopped.

namespace tutti::dist::detail {

/// The variable with the number of the open file that is the page.
inline constexpr const char* page_variable = "TUTTI_HEARTBEAT_FD";

/// The variable with the address of this machine at which the others reach it; Gloo listens there.
inline constexpr const char* address_variable = "TUTTI_ADDRESS";

/// Text that several processes read and write, cut where it does not fit.
template <std::size_t n>
class SharedText {
 public:
  void set(std::string_view text) {
    const std::size_t count = text.size() < n ? text.size() : n - 1;
    for (std::size_t i = 0; i < count; ++i) {
      letters_[i].store(text[i], std::memory_order_relaxed);
    }
    letters_[count].store('\0', std::memory_order_relaxed);
  }
  [[nodiscard]] std::string get() const {
    std::string text;
    for (std::size_t i = 0; i < n; ++i) {
      const char letter = letters_[i].load(std::memory_order_relaxed);
      if (letter == '\0') {
        break;
      }
      text += letter;
    }
    return text;
  }

 private:
  std::array<std::atomic<char>, n> letters_;
};

/// Where one rank of this machine is. All zero: it has not said anything. Times are of
/// CLOCK_MONOTONIC, in nanoseconds.
struct alignas(64) RankSlot {
  std::atomic<std::uint64_t> tick;        ///< counts up every 100 ms
  std::atomic<std::int64_t> pid;          ///< of the process that ticks
  std::atomic<std::int64_t> batches;      ///< begun so far, by this process
  std::atomic<std::int64_t> batch;        ///< number of the one in work, or the last
  std::atomic<std::int64_t> batch_since;  ///< when it began; 0: none is in work
  std::atomic<std::int64_t> phase_since;  ///< what it does between batches began; 0: nothing
  std::atomic<std::uint32_t> phase;       ///< a Phase; of phase_since
  std::atomic<std::uint64_t> call;        ///< number of the collective in work, or the last
  std::atomic<std::int64_t> call_since;   ///< when it began; 0: none is in work
  std::atomic<std::uint32_t> follows;     ///< it failed since another rank did
  std::atomic<std::uint32_t> wants_dump;  ///< the launcher asks for the flight recorder's file
  std::atomic<std::uint32_t> dumps;       ///< files written
  SharedText<64> call_name;               ///< of the collective
  SharedText<64> call_purpose;            ///< what it is for
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

/// What all ranks of this machine share.
struct alignas(64) RunHeader {
  std::array<char, 8> magic;
  std::uint32_t ranks;               ///< of this machine
  SharedText<64> mark;               ///< the launcher's, see launch_variable
  std::atomic<std::uint32_t> fault;  ///< 0: none; 1: it is being written; 2: it is there
  SharedText<1024> fault_text;       ///< a sentence: which rank failed first, and where it was
};

inline constexpr std::array<char, 8> page_magic{'t', 'u', 't', 't', 'i', 'p', '0', '4'};

inline std::int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// The page itself, mapped.
class RunPage {
 public:
  /// For a launcher: all zero. Throws std::runtime_error when there is no memory.
  RunPage(int ranks, std::string_view mark);
  RunPage(const RunPage&) = delete;
  RunPage& operator=(const RunPage&) = delete;
  ~RunPage();

  /// For a rank: the page of the launcher that started it; null when there is none, or the variable
  /// is one of a launcher further out.
  static std::unique_ptr<RunPage> of_launcher();

  [[nodiscard]] int file() const noexcept { return file_; }
  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(header().ranks); }
  [[nodiscard]] RankSlot& slot(int local_rank) const noexcept {
    return *std::launder(reinterpret_cast<RankSlot*>(
        memory_ + sizeof(RunHeader) + static_cast<std::size_t>(local_rank) * sizeof(RankSlot)));
  }

  /// Says why the run ends. Returns false when it has been said before.
  bool tell(std::string_view fault) const;

  /// Why the run ends; empty: nobody has said so.
  [[nodiscard]] std::string fault() const {
    return header().fault.load(std::memory_order_acquire) == 2 ? header().fault_text.get() : "";
  }

 private:
  RunPage(int file, std::size_t size, std::byte* memory)
      : file_(file), size_(size), memory_(memory) {}

  [[nodiscard]] RunHeader& header() const noexcept {
    return *std::launder(reinterpret_cast<RunHeader*>(memory_));
  }

  int file_ = -1;
  std::size_t size_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE RunPage::RunPage(int ranks, std::string_view mark)
    : size_(sizeof(RunHeader) + static_cast<std::size_t>(ranks) * sizeof(RankSlot)) {
  file_ = ::memfd_create("tutti-run", MFD_CLOEXEC);
  const bool sized = file_ >= 0 && ::ftruncate(file_, static_cast<off_t>(size_)) == 0;
  void* const memory =
      sized ? ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0) : MAP_FAILED;
  if (memory == MAP_FAILED) {
    const int reason = errno;
    if (file_ >= 0) {
      ::close(file_);
    }
    throw std::runtime_error(std::string("cannot share memory with the ranks: ") +
                             std::strerror(reason));
  }
  memory_ = static_cast<std::byte*>(memory);
  header().ranks = static_cast<std::uint32_t>(ranks);
  header().mark.set(mark);
  header().magic = page_magic;
}

TUTTI_INLINE RunPage::~RunPage() {
  ::munmap(memory_, size_);
  ::close(file_);
}

TUTTI_INLINE std::unique_ptr<RunPage> RunPage::of_launcher() {
  const char* const number = std::getenv(page_variable);
  const char* const mark = std::getenv("TUTTI_LAUNCH");
  if (number == nullptr || *number == 0 || mark == nullptr) {
    return nullptr;
  }
  const int file = ::fcntl(std::atoi(number), F_DUPFD_CLOEXEC, 3);
  struct stat about{};
  const bool is_there = file >= 0 && ::fstat(file, &about) == 0 && S_ISREG(about.st_mode) &&
                        about.st_size >= static_cast<off_t>(sizeof(RunHeader));
  const auto size = is_there ? static_cast<std::size_t>(about.st_size) : 0;
  void* const memory =
      is_there ? ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  if (memory == MAP_FAILED) {
    if (file >= 0) {
      ::close(file);
    }
    return nullptr;
  }
  std::unique_ptr<RunPage> page(new RunPage(file, size, static_cast<std::byte*>(memory)));
  const RunHeader& header = page->header();
  const bool fits = header.magic == page_magic && header.mark.get() == mark &&
                    size == sizeof(RunHeader) + header.ranks * sizeof(RankSlot);
  return fits ? std::move(page) : nullptr;
}

TUTTI_INLINE bool RunPage::tell(std::string_view fault) const {
  std::uint32_t none = 0;
  if (!header().fault.compare_exchange_strong(none, 1)) {
    return false;
  }
  header().fault_text.set(fault);
  header().fault.store(2, std::memory_order_release);
  return true;
}

}  // namespace tutti::dist::detail

#endif
