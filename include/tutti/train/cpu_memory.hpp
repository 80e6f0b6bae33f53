// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <mutex>

#include <pthread.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/kept_memory.hpp>
#include <tutti/core/detail/page_arena.hpp>

/// A caching allocator for CPU tensors, as LibTorch has one for CUDA.
///
/// A training step allocates and frees the same gigabytes again and again. The C library gives much
/// of them back to the system each time, which then clears every page of 4 KiB anew. Here freed
/// memory is kept, in pages of 2 MiB where there are any.
///
/// LibTorch has one CPU allocator for the whole process. Ours stands in its place while a scope
/// lives, gives kept memory to the threads that have a scope, and passes on what others ask for.
namespace tutti::cpu {

namespace detail {

using ::tutti::detail::PageArena;

PageArena& arena();

// The scopes of all threads.
struct Scopes {
  std::mutex mutex{};
  int count = 0;
};
Scopes& scopes();

// LibTorch's own allocator for small tensors, for threads without a scope, and for large tensors
// when the arena has no more.
class CachingAllocator final : public c10::Allocator {
 public:
  static constexpr std::size_t least = 1 << 16;  // bytes; below it the C library keeps them itself

  explicit CachingAllocator(c10::Allocator& other) : other_(other) {}

  c10::DataPtr allocate(std::size_t bytes) override;

  c10::DeleterFnPtr raw_deleter() const override { return &give; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void give(void* block);

  c10::Allocator& other_;
};

// AddressSanitizer would not see what happens inside of the arena.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool sees_blocks = true;
#elif defined(__has_feature)
inline constexpr bool sees_blocks = __has_feature(address_sanitizer);
#else
inline constexpr bool sees_blocks = false;
#endif

}  // namespace detail

/// Gives the kept memory that no tensor uses back to the system, in whole pages of 2 MiB.
inline void empty_cache() {
  detail::arena().release();
}

/// Bytes of the tensors whose memory is of this kind, in whole pages of 4 KiB.
inline std::size_t memory_allocated() {
  return detail::arena().in_use();
}

/// While it lives, large CPU tensors (64 KiB and more) that this thread makes take memory that is
/// kept when they are freed, by whomever and whenever that is. So do those of data loaders of the
/// library that this thread takes batches from. A Trainer on a CPU has one in each of its calls.
///
///     const tutti::cpu::Cache cache;  // a loop of one's own
///     for (...) { ... }
///
/// Scopes may be nested, and in several threads. After the last one LibTorch has the allocator
/// again that it had, unless the program has set another meanwhile. It has to be destroyed by its
/// own thread. What is kept stays kept: empty_cache() gives it back.
class Cache {
 public:
  /// wanted: false makes a scope that does nothing.
  explicit Cache(bool wanted = true) : on_(wanted && install()), memory_(on_) {}
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache() {
    if (on_) {
      remove();
    }
  }

  /// Memory is kept. Not where the program has set an allocator of its own, its memory is limited
  /// (`ulimit -v` or `-d`), or it is built with AddressSanitizer.
  [[nodiscard]] bool on() const { return on_; }

 private:
  static bool install();
  static void remove();

  bool on_;
  ::tutti::detail::KeptMemory memory_;
};

/// Empties the cache at its end, if it was used.
struct EmptiesCache {
  bool used = false;

  ~EmptiesCache() {
    if (used) {
      empty_cache();
    }
  }
};

}  // namespace tutti::cpu

#if TUTTI_BODIES
#include <tutti/train/cpu_memory.inl.hpp>
#endif
