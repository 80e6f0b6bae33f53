// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/folder.hpp>

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

TUTTI_INLINE Place place_of(const std::filesystem::path& folder) {
  Place out;
  struct stat facts{};
  if (::stat(folder.c_str(), &facts) == 0) {
    out.inode = std::to_string(facts.st_dev) + ':' + std::to_string(facts.st_ino);
  }
  const std::filesystem::path whole = std::filesystem::absolute(folder).lexically_normal();
  const auto trimmed = whole.has_filename() ? whole : whole.parent_path();
  if (char* real = ::realpath(trimmed.c_str(), nullptr)) {
    out.path = real;
    std::free(real);
  } else if (trimmed.has_relative_path()) {
    out.path =
        (std::filesystem::path(place_of(trimmed.parent_path()).path) / trimmed.filename()).string();
  }
  return out;
}

namespace detail {

// The line of a file that is a pointer; nothing when it is some other file. Weights are not such a
// line: a safetensors file has zeros in its first eight bytes, an index of several files is JSON.
TUTTI_INLINE std::optional<std::string> pointer_text(const std::filesystem::path& path) {
  constexpr std::uint64_t longest = 4096;
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none) ||
      std::filesystem::file_size(path, none) > longest) {
    return std::nullopt;
  }
  const File file = File::open_for_reading(path);
  std::string text(std::min(file.size(), longest), '\0');
  file.read_at(0, text.data(), text.size());
  if (!text.ends_with('\n') || text.starts_with('{')) {
    return std::nullopt;
  }
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  const bool plain = std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
  });
  return plain ? std::optional(text) : std::nullopt;
}

TUTTI_INLINE std::string pickled_shards(const std::filesystem::path& folder) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.path().filename().string().ends_with(".distcp")) {
      return "has .distcp files, which are pickles and are not read; in Python load it into the "
             "model and save that by dcp.save(state_dict, "
             "storage_writer=HuggingFaceStorageWriter(path, save_distributed=True))";
    }
  }
  return {};
}

}  // namespace detail

TUTTI_INLINE void point_latest(const std::filesystem::path& link, const std::string& name) {
  std::error_code none;
  TUTTI_CHECK(!std::filesystem::is_regular_file(std::filesystem::symlink_status(link, none)) ||
                  std::filesystem::file_size(link, none) == 0 || detail::pointer_text(link),
              "checkpoint: '", link.string(),
              "' is a file that is no pointer to a checkpoint; move it, or choose another "
              "save_latest_filename");
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
  std::error_code none;
  if (fs::is_symlink(fs::symlink_status(path, none))) {
    const fs::path name = fs::read_symlink(path, none);
    return links == 0 || !is_plain_name(name.string())
               ? path
               : resolve(path.parent_path() / name, links - 1);
  }
  if (const auto name = detail::pointer_text(path)) {
    TUTTI_CHECK(is_plain_name(*name), "checkpoint: '", path.string(), "' points to '", *name,
                "', expected the name of a checkpoint beside it");
    return links == 0 ? path : resolve(path.parent_path() / *name, links - 1);
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
