#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include <unistd.h>

#include <c10/util/Exception.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/detail/staging.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint {

/// Makes a folder and its missing parents; durable on return. Throws c10::Error when it cannot.
void make_folder(const std::filesystem::path& folder);

/// Lets `link` name a checkpoint beside it, atomically: a relative symbolic link, or where the file
/// system has none, a file of one line.
///
/// link: such as "run/checkpoints/latest". name: the checkpoint's name in the same folder.
/// Throws c10::Error when it cannot be written or `link` is a folder.
void point_latest(const std::filesystem::path& link, const std::string& name);

/// The checkpoint that a path means: itself, or what it points to when point_latest() made it, or
/// the old one while a writer that died had set it aside to replace it. links: how many pointers it
/// follows at most, for they may go round.
std::filesystem::path resolve(const std::filesystem::path& path, int links = 40);

/// Removes a checkpoint; a reader sees it whole or not at all. Does nothing when there is none.
void remove_snapshot(const std::filesystem::path& path);

/// A checkpoint that is needed for a while, in TMPDIR or else in /tmp: a new name of which nothing
/// is left at the end of its life.
class TemporaryCheckpoint {
 public:
  /// path: from new_path(). owned: it is this object that removes it.
  explicit TemporaryCheckpoint(std::string path, bool owned = true)
      : path_(std::move(path)), owned_(owned) {}
  TemporaryCheckpoint(const TemporaryCheckpoint&) = delete;
  TemporaryCheckpoint& operator=(const TemporaryCheckpoint&) = delete;
  ~TemporaryCheckpoint();

  static std::string new_path() {
    const char* folder = std::getenv("TMPDIR");
    return std::string(folder != nullptr && *folder != 0 ? folder : "/tmp") + "/tutti-fetched" +
           detail::random_suffix();
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  /// The folder that it is in.
  [[nodiscard]] std::string place() const { return path_.substr(0, path_.rfind('/')); }

 private:
  std::string path_;
  bool owned_;
};

/// What `work` returns, which reads in `folder` what was brought from `address`. An error of its
/// names the address in the folder's place, which is gone when somebody reads it.
template <class F>
decltype(auto) speaking_of(const std::string& address, const std::string& folder, F&& work) {
  try {
    return work();
  } catch (const c10::Error& error) {
    std::string text = error.what_without_backtrace();
    std::size_t found = text.find(folder);
    if (found == std::string::npos || address == folder) {
      throw;
    }
    for (; found != std::string::npos; found = text.find(folder, found + address.size())) {
      text.replace(found, folder.size(), address);
    }
    throw ::tutti::detail::make_error<c10::Error>({__func__, __FILE__, __LINE__}, text);
  }
}

}  // namespace tutti::checkpoint

#if TUTTI_BODIES

namespace tutti::checkpoint {

TUTTI_INLINE void make_folder(const std::filesystem::path& folder) {
  if (folder.empty() || detail::is_folder(folder)) {
    return;
  }
  make_folder(folder.parent_path());
  std::error_code error;
  std::filesystem::create_directory(folder, error);
  TUTTI_CHECK(
      !error || detail::is_folder(folder), "checkpoint: cannot create the folder '",
      folder.string(), "': ",
      detail::path_exists(folder) ? "a file has that name; choose another" : error.message());
  detail::sync_folder(folder.parent_path());
}

TUTTI_INLINE void point_latest(const std::filesystem::path& link, const std::string& name) {
  const auto temporary = link.parent_path() / (std::string(detail::staging_prefix) +
                                               link.filename().string() + detail::random_suffix());
  if (::symlink(name.c_str(), temporary.c_str()) != 0) {
    detail::File file = detail::File::create(temporary);
    file.write((name + '\n').data(), name.size() + 1);
    file.sync();
    file.close();
  }
  try {
    detail::rename_path(temporary, link);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  detail::sync_folder(link.parent_path());
}

TUTTI_INLINE std::filesystem::path resolve(const std::filesystem::path& path, int links) {
  namespace fs = std::filesystem;
  constexpr std::uint64_t longest_name = 4096;
  std::error_code none;
  if (fs::is_symlink(fs::symlink_status(path, none))) {
    const fs::path name = fs::read_symlink(path, none);
    return links == 0 || name.empty() || name.is_absolute() || name.has_parent_path()
               ? path
               : resolve(path.parent_path() / name, links - 1);
  }
  if (fs::is_regular_file(path, none) && fs::file_size(path, none) <= longest_name) {
    const detail::File file = detail::File::open_for_reading(path);
    std::string name(file.size(), '\0');
    file.read_at(0, name.data(), name.size());
    if (!name.empty() && name.back() == '\n') {
      name.pop_back();
      return path.parent_path() / name;
    }
  }
  if (!detail::path_exists(path)) {
    std::error_code error;
    const auto parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
    for (const auto& entry : fs::directory_iterator(parent, error)) {
      if (detail::name_before_aside(entry.path().filename().string()) == path.filename()) {
        return entry.path();
      }
    }
  }
  return path;
}

TUTTI_INLINE void remove_snapshot(const std::filesystem::path& path) {
  if (!detail::path_exists(path)) {
    return;
  }
  const auto gone = path.parent_path() / (std::string(detail::staging_prefix) +
                                          path.filename().string() + detail::random_suffix());
  detail::rename_path(path, gone);
  detail::sync_folder(gone.parent_path());  // else a crash could bring the name back, half emptied
  detail::remove_tree(gone);
}

TUTTI_INLINE TemporaryCheckpoint::~TemporaryCheckpoint() {
  try {
    if (owned_) {
      remove_snapshot(path_);
    }
  } catch (const c10::Error& error) {
    TORCH_WARN(error.what_without_backtrace());
  }
}

}  // namespace tutti::checkpoint

#endif
