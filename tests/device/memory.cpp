#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include <sys/mman.h>
#include <unistd.h>

#include "device/runtime.hpp"
#include "device/stand_in.hpp"

// The device's memory, pinned memory of the host, and copies.
namespace stand_in {
namespace {

// Addresses that nobody may touch, and others of the same memory for its own work.
class Memory {
 public:
  static constexpr std::size_t capacity = std::size_t{8} << 30;

  static Memory& get() {
    static auto* const made = new Memory;  // tensors may outlive everything
    return *made;
  }

  // Null: there is no room.
  void* take(std::size_t bytes) {
    bytes = (bytes + 511) / 512 * 512;
    const auto free = std::find_if(free_.begin(), free_.end(),
                                   [&](const auto& each) { return each.second >= bytes; });
    if (in_use + bytes > most || free == free_.end()) {
      return nullptr;
    }
    const auto [at, room] = *free;
    free_.erase(free);
    if (room > bytes) {
      free_[at + bytes] = room - bytes;
    }
    taken_[at] = bytes;
    in_use += bytes;
    return begin_ + at;
  }

  // Whether there was such a block.
  bool drop(void* block) {
    const auto found = taken_.find(static_cast<std::size_t>(static_cast<char*>(block) - begin_));
    if (found == taken_.end()) {
      return false;
    }
    auto [at, bytes] = *found;
    taken_.erase(found);
    in_use -= bytes;
    ::madvise(own_ + at, bytes, MADV_REMOVE);
    auto next = free_.lower_bound(at);
    if (next != free_.end() && next->first == at + bytes) {
      bytes += next->second;
      next = free_.erase(next);
    }
    const auto before = next == free_.begin() ? free_.end() : std::prev(next);
    if (before != free_.end() && before->first + before->second == at) {
      before->second += bytes;
    } else {
      free_[at] = bytes;
    }
    return true;
  }

  [[nodiscard]] bool has(const void* p) const { return p >= begin_ && p < begin_ + capacity; }

  // Where the device itself finds it.
  [[nodiscard]] char* own(const void* p) const {
    return own_ + (static_cast<const char*>(p) - begin_);
  }

  std::size_t in_use = 0, most = capacity;

 private:
  [[nodiscard]] char* map(int rights) const {
    return static_cast<char*>(
        ::mmap(nullptr, capacity, rights, MAP_SHARED | MAP_NORESERVE, file_, 0));
  }

  int file_ = [] {
    const int file = ::memfd_create("stand_in", MFD_CLOEXEC);
    return ::ftruncate(file, capacity) == 0 ? file : -1;
  }();
  char* begin_ = map(PROT_NONE);
  char* own_ = map(PROT_READ | PROT_WRITE);
  std::map<std::size_t, std::size_t> free_{{0, capacity}}, taken_;  // sizes by address
};

std::map<const char*, std::size_t>& pinned() {
  static auto* const made = new std::map<const char*, std::size_t>;
  return *made;
}

bool is_pinned(const void* p) {
  const auto* const address = static_cast<const char*>(p);
  const auto after = pinned().upper_bound(address);
  return after != pinned().begin() && address < std::prev(after)->first + std::prev(after)->second;
}

cudaError_t unpin(void* block) {
  finish_all();
  return say(pinned().erase(static_cast<char*>(block)) == 1 ? cudaSuccess : cudaErrorInvalidValue);
}

}  // namespace

bool is_there() {
  return true;
}

void limit_memory(std::size_t bytes) {
  Memory::get().most = bytes;
}
std::size_t memory_in_use() {
  return Memory::get().in_use;
}
MemoryLimit::~MemoryLimit() {
  limit_memory(Memory::capacity);
}

void* own_address(const void* p) {
  return Memory::get().has(p) ? Memory::get().own(p) : const_cast<void*>(p);
}

}  // namespace stand_in

using namespace stand_in;

extern "C" {

cudaError_t cudaMalloc(void** out, std::size_t bytes) {
  const Lock lock;
  if (const auto error = forbidden(); error != cudaSuccess) {
    return error;
  }
  *out = Memory::get().take(bytes);
  return say(*out == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFree(void* block) {
  const Lock lock;
  if (const auto error = block == nullptr ? cudaSuccess : forbidden(); error != cudaSuccess) {
    return error;
  }
  finish_all();
  return say(block == nullptr || Memory::get().drop(block) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** out, std::size_t bytes, unsigned /*flags*/) {
  const Lock lock;
  if (const auto error = forbidden(); error != cudaSuccess) {
    return error;
  }
  *out = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  pinned()[static_cast<char*>(*out)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* block) {
  const Lock lock;
  if (const auto error = forbidden(); error != cudaSuccess) {
    return error;
  }
  const auto error = unpin(block);
  std::free(block);
  return error;
}

cudaError_t cudaHostRegister(void* block, std::size_t bytes, unsigned /*flags*/) {
  const Lock lock;
  pinned()[static_cast<char*>(block)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* block) {
  const Lock lock;
  return unpin(block);
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const Lock lock;
  *total = Memory::get().most;
  *free = Memory::get().most - Memory::get().in_use;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* p) {
  const Lock lock;
  *out = {};
  out->type = Memory::get().has(p) ? cudaMemoryTypeDevice
              : is_pinned(p)       ? cudaMemoryTypeHost
                                   : cudaMemoryTypeUnregistered;
  const bool known = out->type != cudaMemoryTypeUnregistered;
  out->devicePointer = known ? const_cast<void*>(p) : nullptr;
  out->hostPointer = out->type == cudaMemoryTypeHost ? const_cast<void*>(p) : nullptr;
  out->device = known ? 0 : cudaInvalidDeviceId;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Lock lock;
  const bool from_device = Memory::get().has(from);
  const bool to_device = Memory::get().has(to);
  const cudaMemcpyKind is = from_device
                                ? (to_device ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost)
                                : (to_device ? cudaMemcpyHostToDevice : cudaMemcpyHostToHost);
  if (kind != is && kind != cudaMemcpyDefault) {
    return say(cudaErrorInvalidMemcpyDirection);
  }
  const auto now = [bytes](void* target, const void* source) {
    std::memmove(own_address(target), own_address(source), bytes);
  };
  if ((from_device || is_pinned(from)) && (to_device || is_pinned(to))) {
    return give(stream, [=] { now(to, from); });
  }
  // Other memory of the host goes through CUDA's own: it has been read when this returns, and has
  // been written.
  if (const auto error = recorded(stream_of(stream)); error != cudaSuccess) {
    return error;
  }
  if (to_device) {
    const auto* const begin = static_cast<const char*>(from);
    return give(stream,
                [=, held = std::vector<char>(begin, begin + bytes)] { now(to, held.data()); });
  }
  give(stream, [=] { now(to, from); });
  stream_of(stream).finish();
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const Lock lock;
  if (const auto error = forbidden(); error != cudaSuccess) {
    return error;
  }
  const auto error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  stream_of(nullptr).finish();
  return error;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  const Lock lock;
  return give(stream, [=] { std::memset(own_address(to), value, bytes); });
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

}  // extern "C"
