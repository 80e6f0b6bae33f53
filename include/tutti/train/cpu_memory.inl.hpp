// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/cpu_memory.hpp>

namespace tutti::cpu::detail {

TUTTI_INLINE PageArena& arena() {
  static auto* const made = [] {
    const auto unlock = [] {
      arena().unlock();
      scopes().mutex.unlock();
    };
    ::pthread_atfork(
        [] {
          scopes().mutex.lock();
          arena().lock();
        },
        unlock, unlock);
    return new PageArena(PageArena::default_capacity());  // outlives all tensors
  }();
  return *made;
}

TUTTI_INLINE Scopes& scopes() {
  static auto* const made = new Scopes;  // threads may outlive everything
  return *made;
}

TUTTI_INLINE CachingAllocator& allocator() {
  static auto* const made = new CachingAllocator(*c10::GetDefaultCPUAllocator());
  return *made;  // tensors remember it
}

TUTTI_INLINE c10::DataPtr CachingAllocator::allocate(std::size_t bytes) {
  if (bytes >= least && ::tutti::detail::keeping_memory > 0) {
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

TUTTI_INLINE bool Cache::install() {
  if (detail::sees_blocks || !detail::arena().usable()) {
    return false;
  }
  const std::scoped_lock lock(detail::scopes().mutex);
  if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) {
    c10::SetCPUAllocator(&detail::allocator());
  }
  const bool ours = c10::GetCPUAllocator() == &detail::allocator();
  detail::scopes().count += ours ? 1 : 0;
  return ours;
}

TUTTI_INLINE void Cache::remove() {
  const std::scoped_lock lock(detail::scopes().mutex);
  if (--detail::scopes().count == 0 && c10::GetCPUAllocator() == &detail::allocator()) {
    c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
  }
}

}  // namespace tutti::cpu
