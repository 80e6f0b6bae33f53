// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <c10/core/CPUAllocator.h>

namespace tutti_test {

/// LibTorch's allocator, with what is in use and the most of it counted, while it lives.
class CountedMemory final : public c10::Allocator {
 public:
  CountedMemory() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 1); }
  ~CountedMemory() override { c10::SetCPUAllocator(before_, 1); }

  c10::DataPtr allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex);
    c10::DataPtr block = before_->allocate(bytes);
    void* const data = block.get();
    now += static_cast<std::int64_t>(bytes);
    most = std::max(most, now);
    blocks.insert_or_assign(data, Block{std::move(block), bytes});
    return {data, data, &give, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  static inline std::int64_t now = 0;
  static inline std::int64_t most = 0;

 private:
  struct Block {
    c10::DataPtr data;
    std::size_t bytes;
  };
  static void give(void* data) {
    const std::lock_guard lock(mutex);
    const auto block = blocks.find(data);
    now -= static_cast<std::int64_t>(block->second.bytes);
    blocks.erase(block);
  }

  static inline std::mutex mutex;
  static inline std::unordered_map<void*, Block> blocks;
  c10::Allocator* before_;
};

}  // namespace tutti_test
