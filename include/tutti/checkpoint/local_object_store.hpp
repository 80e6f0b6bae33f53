// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <unistd.h>

#include <c10/util/Exception.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/detail/staging.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/object_store.hpp>

namespace tutti {

namespace checkpoint::detail {

/// Copies a file; the copy appears whole or not at all and replaces what has its name.
void copy_file(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace checkpoint::detail

/// An object store in a folder: a mounted share, a second disk, a test.
///
///     tutti::LocalObjectStore{"/mnt/archive"}
///
/// Objects appear whole or not at all.
struct LocalObjectStore final {
  std::string root;  ///< made when something is put into it

  /// "file:///mnt/archive/name".
  [[nodiscard]] std::string get_uri(const std::string& name) const {
    return "file://" + (std::filesystem::absolute(root) / name).lexically_normal().string();
  }

  /// Throws c10::Error when the file cannot be read or the folder written.
  void upload_object(const std::string& name, const std::string& file) const;

  /// Throws ObjectNotFound, or c10::Error when `file` is there already or cannot be written.
  void download_object(const std::string& name, const std::string& file) const;

  /// Bytes. Throws ObjectNotFound.
  [[nodiscard]] std::int64_t get_object_size(const std::string& name) const;

  /// The names that begin with `prefix`, in alphabetical order.
  [[nodiscard]] std::vector<std::string> list_objects(const std::string& prefix = "") const;

 private:
  [[nodiscard]] std::filesystem::path path_of(const std::string& name) const {
    const std::filesystem::path relative(name);
    bool inside = !name.empty() && relative.is_relative();
    for (const auto& part : relative) {
      inside = inside && !part.empty() && part != ".." && part != ".";
    }
    TUTTI_CHECK_VALUE(inside, "LocalObjectStore: the object's name is \"", name,
                      "\", expected a relative path without dots, \"runs/a/latest\"");
    return std::filesystem::absolute(root) / relative;
  }

  [[nodiscard]] std::filesystem::path existing(const std::string& name) const {
    auto path = path_of(name);
    if (std::error_code error; !std::filesystem::is_regular_file(path, error)) {
      throw ObjectNotFound("LocalObjectStore: there is no object '" + name + "' in '" + root + "'");
    }
    return path;
  }

  static void add_names(const std::filesystem::path& folder, const std::string& prefix,
                        std::vector<std::string>& out);
};

static_assert(ObjectStore<LocalObjectStore>);

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/checkpoint/local_object_store.inl.hpp>
#endif
