// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <c10/util/Exception.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint::detail {

/// Names in a folder that are not finished things: being written, and set aside while being
/// replaced.
inline constexpr std::string_view staging_prefix = ".tmp-";
inline constexpr std::string_view aside_prefix = ".old-";

std::string random_suffix();

/// A folder under a temporary name beside its target, which becomes visible whole or not at all.
///
/// It is locked while it lives, so that clean_staging() of another process can tell it from one
/// that a dead process left. Unless publish() was reached, the destructor removes it.
class Staging {
 public:
  /// Makes a new empty folder beside `target`.
  explicit Staging(const std::filesystem::path& target);

  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  const std::filesystem::path& path() const { return path_; }

  /// Gives the folder its final name; durable on return.
  ///
  /// replace: what has that name already is exchanged for it, else its presence is an error.
  void publish(bool replace);

 private:
  // Afterwards path_ names the old one. False where the file system cannot do it.
  bool exchange() const;

  std::filesystem::path target_;
  std::filesystem::path path_;
  std::optional<File> folder_;
};

/// The name that a thing set aside had, empty for other names.
std::string name_before_aside(const std::string& name);

/// Whether the writer of a temporary folder is gone. Where there are no locks, one that has been
/// still for an hour counts as left behind.
bool is_abandoned(const std::filesystem::path& staging);

/// One entry of clean_staging(): true when it was a leftover and is removed or put back.
bool clean_entry(const std::filesystem::directory_entry& entry);

/// Removes from a folder what interrupted writers left, and puts back what one had set aside.
///
/// What a living process is writing stays, and so does what cannot be removed.
/// Returns how many were removed or put back.
int clean_staging(const std::filesystem::path& folder);

}  // namespace tutti::checkpoint::detail

#if TUTTI_BODIES

namespace tutti::checkpoint::detail {

TUTTI_INLINE std::string random_suffix() {
  constexpr char digits[] = "0123456789abcdef";
  std::random_device random;
  std::string out = "-";
  for (int i = 0; i < 12; ++i) {
    out += digits[random() & 15U];
  }
  return out;
}

TUTTI_INLINE Staging::Staging(const std::filesystem::path& target) : target_(target) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    path_ = target.parent_path() /
            (std::string(staging_prefix) + target.filename().string() + random_suffix());
    if (::mkdir(path_.c_str(), 0777) != 0) {
      if (errno == EEXIST) {
        continue;
      }
      fail_with_errno("create the folder", path_);
    }
    folder_.emplace(File::open_folder(path_));
    if (folder_->lock() != File::Lock::held_by_another && path_exists(path_)) {
      return;
    }
    folder_.reset();  // another process cleaned up between the two calls
  }
  TUTTI_CHECK(false, "checkpoint: cannot make a temporary folder beside '", target.string(), "'");
}

TUTTI_INLINE Staging::~Staging() {
  try {
    remove_tree(path_);  // what was replaced, or what was not finished
  } catch (...) {        // NOLINT(bugprone-empty-catch): the next writer cleans up
  }
}

TUTTI_INLINE void Staging::publish(bool replace) {
  folder_->sync();
  if (!replace || !path_exists(target_)) {
    rename_path(path_, target_);
  } else if (!exchange()) {
    const auto aside = target_.parent_path() /
                       (std::string(aside_prefix) + target_.filename().string() + random_suffix());
    rename_path(target_, aside);
    rename_path(path_, target_);
    path_ = aside;
  }
  sync_folder(target_.parent_path());
}

TUTTI_INLINE bool Staging::exchange() const {
#ifdef RENAME_EXCHANGE
  return ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0;
#else
  return false;
#endif
}

TUTTI_INLINE std::string name_before_aside(const std::string& name) {
  constexpr std::size_t suffix = 13;
  if (!name.starts_with(aside_prefix) || name.size() <= aside_prefix.size() + suffix) {
    return {};
  }
  return name.substr(aside_prefix.size(), name.size() - aside_prefix.size() - suffix);
}

TUTTI_INLINE bool is_abandoned(const std::filesystem::path& staging) {
  constexpr double hour = 3600;
  const File folder = File::open_folder(staging);
  const File::Lock lock = folder.lock();
  return lock == File::Lock::acquired || (lock == File::Lock::unsupported && folder.age() > hour);
}

TUTTI_INLINE bool clean_entry(const std::filesystem::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  const std::string original = name_before_aside(name);
  if (original.empty() && !name.starts_with(staging_prefix)) {
    return false;
  }
  const auto target = entry.path().parent_path() / original;
  if (!original.empty() && !path_exists(target)) {
    rename_path(entry.path(), target);
    return true;
  }
  if (std::filesystem::is_directory(entry.symlink_status()) && !is_abandoned(entry.path())) {
    return false;
  }
  remove_tree(entry.path());
  return true;
}

TUTTI_INLINE int clean_staging(const std::filesystem::path& folder) {
  int cleaned = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    try {
      cleaned += clean_entry(entry) ? 1 : 0;
    } catch (const c10::Error& failure) {  // another's leftovers are no reason not to save
      TORCH_WARN(failure.what_without_backtrace());
    }
  }
  return cleaned;
}

}  // namespace tutti::checkpoint::detail

#endif
