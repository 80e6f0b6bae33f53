#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include <sys/mman.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

// The memory of the stand-in, and pinned memory of the host.
namespace stand_in {

inline const at::Device cuda(at::kCUDA, 0);

// Addresses that may be touched only while somebody has them open.
class Memory {
 public:
  static constexpr std::size_t capacity = std::size_t{4} << 30;

  static Memory& get() {
    static auto* const made = new Memory;  // tensors may outlive everything
    return *made;
  }

  void* take(std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    bytes = (bytes + 63) / 64 * 64;
    TORCH_CHECK_WITH(OutOfMemoryError, in_use + bytes <= most, "CUDA out of memory: ", bytes,
                     " bytes beside ", in_use.load(), " of ", most.load());
    std::vector<std::size_t>& free = free_[bytes];
    std::size_t at = top_;
    if (free.empty()) {
      top_ += bytes;
      TORCH_CHECK(top_ <= capacity, "the stand-in's addresses are used up");
    } else {
      at = free.back();
      free.pop_back();
    }
    sizes_[at] = bytes;
    in_use += bytes;
    return begin_ + at;
  }

  void give(void* block) {
    const std::scoped_lock lock(mutex_);
    const auto at = static_cast<std::size_t>(static_cast<char*>(block) - begin_);
    free_[sizes_[at]].push_back(at);
    in_use -= sizes_[at];
  }

  void open() {
    const std::scoped_lock lock(mutex_);
    if (open_++ == 0) {
      ::mprotect(begin_, capacity, PROT_READ | PROT_WRITE);
    }
  }
  void close() {
    const std::scoped_lock lock(mutex_);
    if (--open_ == 0) {
      ::mprotect(begin_, capacity, PROT_NONE);
    }
  }

  std::atomic<std::size_t> in_use = 0, most = capacity;

 private:
  std::mutex mutex_;
  char* begin_ = static_cast<char*>(
      ::mmap(nullptr, capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  std::size_t top_ = 0;
  int open_ = 0;
  std::map<std::size_t, std::vector<std::size_t>> free_;  // by size
  std::map<std::size_t, std::size_t> sizes_;              // by address
};

struct Open {
  Open() { Memory::get().open(); }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
  ~Open() { Memory::get().close(); }
};

inline void give(void* block) {
  if (block != nullptr) {
    Memory::get().give(block);
  }
}

struct DeviceMemory final : c10::DeviceAllocator {
  at::DataPtr allocate(std::size_t bytes) override {
    void* const block = bytes == 0 ? nullptr : Memory::get().take(bytes);
    return {block, block, &give, cuda};
  }
  at::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    const Open open;
    std::memcpy(to, from, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const at::DataPtr& /*block*/, c10::Stream /*stream*/) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*device*/) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = static_cast<std::int64_t>(Memory::get().in_use);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex /*device*/) override {}
};
inline DeviceMemory device_memory;

// Memory of the host that says it is pinned.
class PinnedMemory final : public c10::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    void* const block = std::malloc(bytes + 1);
    const std::scoped_lock lock(mutex_);
    blocks_.insert(block);
    return {block, block, &drop, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool has(const void* block) {
    const std::scoped_lock lock(mutex_);
    return blocks_.contains(block);
  }

 private:
  static void drop(void* block);
  std::mutex mutex_;
  std::set<const void*> blocks_;
};
inline PinnedMemory& pinned_memory() {
  static auto* const made = new PinnedMemory;
  return *made;
}
inline void PinnedMemory::drop(void* block) {
  const std::scoped_lock lock(pinned_memory().mutex_);
  pinned_memory().blocks_.erase(block);
  std::free(block);
}

}  // namespace stand_in
