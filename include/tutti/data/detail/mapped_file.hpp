#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include <tutti/core/detail/throw.hpp>

namespace tutti::data::detail {

// A file's bytes as memory, read only; nothing is read before it is looked at. The file must not
// be made shorter meanwhile.
class MappedFile {
 public:
  explicit MappedFile(std::string path) : path_(std::move(path)) {
    const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    TUTTI_CHECK(descriptor >= 0, "'", path_, "' cannot be opened: ", std::strerror(errno));
    struct stat about {};
    const bool plain = ::fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode);
    if (plain && about.st_size > 0) {
      size_ = static_cast<std::uint64_t>(about.st_size);
      bytes_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
    }
    const int reason = errno;
    ::close(descriptor);
    TUTTI_CHECK(plain, "'", path_, "' is a folder or a device, expected a file");
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
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* bytes_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace tutti::data::detail
