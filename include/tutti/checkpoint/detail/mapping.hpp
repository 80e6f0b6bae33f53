// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>

#include <sys/mman.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/config.hpp>

namespace tutti::checkpoint::detail {

/// The bytes of a whole file in memory, read from disk where they are looked at. Private: writing
/// into them changes nothing on disk.
class Mapping {
 public:
  /// Maps an open file, which may be closed afterwards. Throws c10::Error when the system cannot.
  explicit Mapping(const File& file);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data_ != nullptr) {
      ::munmap(data_, size_);
    }
  }

  [[nodiscard]] unsigned char* data() const { return data_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  unsigned char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tutti::checkpoint::detail

#if TUTTI_BODIES

namespace tutti::checkpoint::detail {

TUTTI_INLINE Mapping::Mapping(const File& file) : path_(file.path()), size_(file.size()) {
  if (size_ == 0) {
    return;  // an empty file has no pages
  }
  void* const mapped = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                              file.descriptor(), 0);
  if (mapped == MAP_FAILED) {
    fail_with_errno("map", path_);
  }
  data_ = static_cast<unsigned char*>(mapped);
  ::madvise(mapped, size_, MADV_WILLNEED);  // a hint; a system that ignores it reads later
}

}  // namespace tutti::checkpoint::detail

#endif
