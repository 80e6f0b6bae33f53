// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include <tutti/core/detail/regular_file.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::data::detail {

inline bool is_folder(const std::string& path) {
  struct stat about{};
  return ::stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode);
}

// Which folder a path leads to, by whatever links.
struct FolderId {
  ::dev_t device{};
  ::ino_t number{};
  friend bool operator==(const FolderId&, const FolderId&) = default;
};

inline FolderId folder_id(const std::string& path) {
  struct stat about{};
  TUTTI_CHECK(::stat(path.c_str(), &about) == 0, "'", path,
              "' cannot be opened: ", std::strerror(errno));
  return {about.st_dev, about.st_ino};
}

// A file open for reading, by several threads at once.
class FileReader {
 public:
  explicit FileReader(std::string path) : path_(std::move(path)) {
    const auto file = ::tutti::detail::open_regular_file(path_);
    TUTTI_CHECK(file.descriptor >= 0, "'", path_, "' cannot be opened: ", file.problem);
    descriptor_ = file.descriptor;
    size_ = file.size;
  }
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;
  ~FileReader() { ::close(descriptor_); }

  // Throws c10::Error when the file ends before.
  void read(std::uint64_t offset, void* to, std::uint64_t bytes) const {
    auto* next = static_cast<char*>(to);
    while (bytes > 0) {
      const ::ssize_t got = ::pread(descriptor_, next, bytes, static_cast<::off_t>(offset));
      if (got < 0 && errno == EINTR) {
        continue;
      }
      TUTTI_CHECK(got > 0, "'", path_, "' could be read only in part: ",
                  got < 0 ? std::strerror(errno) : "it ends too soon");
      next += got;
      offset += static_cast<std::uint64_t>(got);
      bytes -= static_cast<std::uint64_t>(got);
    }
  }

  [[nodiscard]] std::string read(std::uint64_t offset, std::uint64_t bytes) const {
    std::string out(bytes, '\0');
    read(offset, out.data(), bytes);
    return out;
  }

  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

struct FolderEntry {
  std::string name;
  bool is_folder = false;
};

// What a folder holds, sorted by name, without what begins with a dot.
inline std::vector<FolderEntry> list_folder(const std::string& path) {
  ::DIR* folder = ::opendir(path.c_str());
  TUTTI_CHECK(folder != nullptr, "'", path, "' cannot be opened: ", std::strerror(errno));
  std::vector<FolderEntry> out;
  while (const ::dirent* entry = ::readdir(folder)) {
    std::string name = entry->d_name;
    if (!name.starts_with('.')) {
      const bool plain = entry->d_type == DT_REG;
      const bool inner = entry->d_type == DT_DIR || (!plain && is_folder(path + "/" + name));
      out.push_back({std::move(name), inner});
    }
  }
  ::closedir(folder);
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return out;
}

}  // namespace tutti::data::detail
