// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include <tutti/core/detail/regular_file.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::data::detail {

// A file's bytes as memory; nothing is read before it is looked at. The file must not be made
// shorter meanwhile.
class MappedFile {
 public:
  // writable: what is written into the memory is seen here alone; the file stays as it is.
  explicit MappedFile(std::string path, bool writable = false) : path_(std::move(path)) {
    const auto file = ::tutti::detail::open_regular_file(path_);
    TUTTI_CHECK(file.descriptor >= 0, "'", path_, "' cannot be opened: ", file.problem);
    size_ = file.size;
    if (size_ > 0) {
      bytes_ = writable ? ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_NORESERVE, file.descriptor, 0)
                        : ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.descriptor, 0);
    }
    const int reason = errno;
    ::close(file.descriptor);
    TUTTI_CHECK(bytes_ != MAP_FAILED, "'", path_, "' cannot be mapped: ", std::strerror(reason));
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (bytes_ != nullptr) {
      ::munmap(bytes_, size_);
    }
  }

  // Null when the file is empty.
  [[nodiscard]] const void* bytes() const { return bytes_; }
  [[nodiscard]] std::string_view text() const {
    return {static_cast<const char*>(bytes_), static_cast<std::size_t>(size_)};
  }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* bytes_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace tutti::data::detail
