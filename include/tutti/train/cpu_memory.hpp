#pragma once

#include <cstddef>

#include <pthread.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/page_arena.hpp>

/// A caching allocator for CPU tensors, as LibTorch has one for CUDA.
///
/// A training step allocates and frees the same gigabytes again and again. The C library gives much
/// of them back to the system each time, which then clears every page of 4 KiB anew. Here freed
/// memory is kept, in pages of 2 MiB where there are any.
namespace tutti::cpu {

namespace detail {

using ::tutti::detail::PageArena;

PageArena& arena();

// LibTorch's own allocator for small tensors, and for large ones when the arena has no more.
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

/// From now on CPU tensors of 64 KiB and more take memory that is kept when they are freed.
///
/// For the whole program, and safe to call again; a Trainer on a CPU does it. Call it where no
/// other thread makes tensors. Returns whether it is so: not where the program has set an allocator
/// of its own, its memory is limited (`ulimit -v` or `-d`), or it is built with AddressSanitizer.
bool cache_memory();

/// Gives the kept memory that no tensor uses back to the system, in whole pages of 2 MiB.
inline void empty_cache() {
  detail::arena().release();
}

/// Bytes of the tensors whose memory is of this kind, in whole pages of 4 KiB.
inline std::size_t memory_allocated() {
  return detail::arena().in_use();
}

/// Keeps memory for as long as it lives; then what no tensor uses goes back to the system.
class Cache {
 public:
  Cache() { cache_memory(); }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache() { empty_cache(); }
};

}  // namespace tutti::cpu

#if TUTTI_BODIES

namespace tutti::cpu::detail {

TUTTI_INLINE PageArena& arena() {
  static auto* const made = [] {
    const auto unlock = [] { arena().unlock(); };
    ::pthread_atfork([] { arena().lock(); }, unlock, unlock);
    return new PageArena(PageArena::default_capacity());  // outlives all tensors
  }();
  return *made;
}

TUTTI_INLINE c10::DataPtr CachingAllocator::allocate(std::size_t bytes) {
  if (bytes >= least) {
    if (void* block = arena().take(bytes)) {
      c10::profiledCPUMemoryReporter().New(block, bytes);
      return {block, block, &give, c10::Device(c10::kCPU)};
    }
    arena().release();  // what it keeps may be what the system lacks
  }
  return other_.allocate(bytes);
}

TUTTI_INLINE void CachingAllocator::give(void* block) {
  if (arena().has(block)) {
    c10::profiledCPUMemoryReporter().Delete(block);
    arena().give(block);
  } else {
    c10::GetDefaultCPUAllocator()->raw_deleter()(block);
  }
}

}  // namespace tutti::cpu::detail

namespace tutti::cpu {

TUTTI_INLINE bool cache_memory() {
  static auto* const allocator = new detail::CachingAllocator(*c10::GetDefaultCPUAllocator());
  if (detail::sees_blocks || !detail::arena().usable()) {
    return false;
  }
  if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) {
    c10::SetCPUAllocator(allocator);
  }
  return c10::GetCPUAllocator() == allocator;
}

}  // namespace tutti::cpu

#endif
