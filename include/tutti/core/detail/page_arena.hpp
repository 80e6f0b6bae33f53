// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <tutti/config.hpp>

namespace tutti::detail {

/// Large blocks of memory, kept when they are given back, in pages of 2 MiB where the system has
/// them. Blocks are whole pages of one range of addresses; the smallest free run of pages that is
/// large enough is taken, and neighbours that are free become one.
class PageArena {
 public:
  static constexpr std::size_t page = 4096;      ///< blocks begin at and consist of these
  static constexpr std::size_t step = 32 << 20;  ///< what the range grows by, at least

  /// capacity: bytes of addresses, of which none is memory before it is used. 0 where programs may
  /// have few addresses; see usable().
  explicit PageArena(std::size_t capacity);
  PageArena(const PageArena&) = delete;
  PageArena& operator=(const PageArena&) = delete;
  ~PageArena() = default;  // the range is never given up: tensors may outlive everything

  /// As many addresses as the machine has memory, so that larger tensors are refused as usual; 0
  /// where the program's addresses or data are limited (`ulimit -v`, `ulimit -d`).
  static std::size_t default_capacity();

  /// The system gave the range of addresses.
  [[nodiscard]] bool usable() const { return capacity_ != 0; }

  [[nodiscard]] bool has(const void* block) const {
    return reinterpret_cast<std::uintptr_t>(block) - reinterpret_cast<std::uintptr_t>(begin_) <
           capacity_;
  }

  /// A block of at least `bytes`, uninitialised, at the start of a page; null when there is no room
  /// or no memory.
  void* take(std::size_t bytes);

  /// Takes a block back that take() gave.
  void give(void* block) noexcept;

  /// Lets the system have the memory of all 2 MiB pages that nobody uses.
  void release();

  /// Other threads wait with their blocks until unlock(): around a fork, whose child has none of
  /// them to finish what it was at.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  /// Bytes of the blocks that are out.
  [[nodiscard]] std::size_t in_use() const {
    const std::scoped_lock lock(mutex_);
    return in_use_;
  }
  /// Bytes that are in blocks or kept for them.
  [[nodiscard]] std::size_t held() const {
    const std::scoped_lock lock(mutex_);
    return held_;
  }

 private:
  static constexpr std::size_t huge = 2 << 20;

  struct Run {
    std::size_t at = 0, size = 0;
  };
  using Runs = std::vector<Run>;

  static std::size_t rounded(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
  }

  // Free pages at the end of the range, `size` of them at least; the end of free_ when there are
  // none.
  Runs::iterator grow(std::size_t size);

  void add(std::size_t at, std::size_t size);

  mutable std::mutex mutex_;
  char* begin_ = nullptr;
  std::size_t capacity_ = 0;
  std::uint32_t* counts_ = nullptr;  // pages of the block that begins at a page
  std::size_t held_ = 0;             // of the range, may be read and written
  std::size_t in_use_ = 0;
  std::size_t blocks_ = 0;  // that are out
  Runs free_;               // by address
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE PageArena::PageArena(std::size_t capacity) {
  const std::size_t counts = rounded(capacity / page * sizeof(std::uint32_t), huge);
  void* range = capacity == 0 ? MAP_FAILED
                              : ::mmap(nullptr, capacity + counts + huge, PROT_NONE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    return;
  }
  char* aligned = static_cast<char*>(range);
  aligned += rounded(reinterpret_cast<std::uintptr_t>(range), huge) -
             reinterpret_cast<std::uintptr_t>(range);
  if (::mprotect(aligned, counts, PROT_READ | PROT_WRITE) == 0) {
    counts_ = reinterpret_cast<std::uint32_t*>(aligned);
    begin_ = aligned + counts;
    capacity_ = capacity / page * page;
  }
}

TUTTI_INLINE std::size_t PageArena::default_capacity() {
  const auto limited = [](auto resource) {
    rlimit limit{};
    return ::getrlimit(resource, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
  };
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  return limited(RLIMIT_AS) || limited(RLIMIT_DATA) || pages <= 0
             ? 0
             : page * static_cast<std::size_t>(pages);
}

TUTTI_INLINE void* PageArena::take(std::size_t bytes) {
  if (bytes == 0 || bytes > capacity_) {
    return nullptr;
  }
  const std::size_t size = rounded(bytes, page);
  const std::scoped_lock lock(mutex_);
  if (free_.capacity() < blocks_ + 2) {  // there is a free run behind each block at most
    free_.reserve(2 * blocks_ + 16);     // so give() needs no memory
  }
  auto found = free_.end();
  for (auto run = free_.begin(); run != free_.end(); ++run) {
    if (run->size >= size && (found == free_.end() || run->size < found->size)) {
      found = run;
    }
  }
  if (found == free_.end()) {
    found = grow(size);
  }
  if (found == free_.end()) {
    return nullptr;
  }
  const std::size_t at = found->at;
  found->at += size;
  found->size -= size;
  if (found->size == 0) {
    free_.erase(found);
  }
  counts_[at / page] = static_cast<std::uint32_t>(size / page);
  in_use_ += size;
  ++blocks_;
  return begin_ + at;
}

TUTTI_INLINE void PageArena::give(void* block) noexcept {
  const std::scoped_lock lock(mutex_);
  const auto at = static_cast<std::size_t>(static_cast<char*>(block) - begin_);
  const std::size_t size = counts_[at / page] * page;
  in_use_ -= size;
  --blocks_;
  add(at, size);
}

TUTTI_INLINE void PageArena::release() {
  const std::scoped_lock lock(mutex_);
  for (const Run& run : free_) {
    const std::size_t first = rounded(run.at, huge);
    const std::size_t last = (run.at + run.size) / huge * huge;
    if (first < last) {
      static_cast<void>(::madvise(begin_ + first, last - first, MADV_DONTNEED));
    }
  }
}

TUTTI_INLINE PageArena::Runs::iterator PageArena::grow(std::size_t size) {
  const bool last_is_free = !free_.empty() && free_.back().at + free_.back().size == held_;
  const std::size_t more = rounded(size - (last_is_free ? free_.back().size : 0), step);
  const std::size_t to = std::min(held_ + more, capacity_);
  if (to - held_ < size - (last_is_free ? free_.back().size : 0) ||
      ::mprotect(begin_ + held_, to - held_, PROT_READ | PROT_WRITE) != 0) {
    return free_.end();
  }
#ifdef MADV_HUGEPAGE
  static_cast<void>(::madvise(begin_ + held_, to - held_, MADV_HUGEPAGE));  // a hint
#endif
  const std::size_t before = std::exchange(held_, to);
  add(before, to - before);
  return std::prev(free_.end());
}

TUTTI_INLINE void PageArena::add(std::size_t at, std::size_t size) {
  auto next = std::upper_bound(free_.begin(), free_.end(), at,
                               [](std::size_t a, const Run& run) { return a < run.at; });
  const bool joins_next = next != free_.end() && next->at == at + size;
  if (next != free_.begin() && std::prev(next)->at + std::prev(next)->size == at) {
    std::prev(next)->size += size + (joins_next ? next->size : 0);
    if (joins_next) {
      free_.erase(next);
    }
  } else if (joins_next) {
    *next = {at, size + next->size};
  } else {
    free_.insert(next, {at, size});
  }
}

}  // namespace tutti::detail

#endif
