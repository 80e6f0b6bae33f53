// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/local_object_store.hpp>

namespace tutti::checkpoint::detail {

TUTTI_INLINE void copy_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  constexpr std::uint64_t step = 1U << 20U;
  const File source = File::open_for_reading(from);
  const auto temporary =
      to.parent_path() / (std::string(staging_prefix) + to.filename().string() + random_suffix());
  try {
    File copy = File::create(temporary);
    std::string buffer(step, '\0');
    const std::uint64_t size = source.size();
    for (std::uint64_t at = 0; at < size; at += step) {
      const auto count = static_cast<std::size_t>(std::min(step, size - at));
      source.read_at(at, buffer.data(), count);
      copy.write(buffer.data(), count);
    }
    copy.sync();
    copy.close();
    rename_path(temporary, to);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(to.parent_path());
}

}  // namespace tutti::checkpoint::detail

namespace tutti {

TUTTI_INLINE void LocalObjectStore::upload_object(const std::string& name,
                                                  const std::string& file) const {
  const auto target = path_of(name);
  checkpoint::make_folder(target.parent_path());
  checkpoint::detail::copy_file(file, target);
}

TUTTI_INLINE void LocalObjectStore::download_object(const std::string& name,
                                                    const std::string& file) const {
  const auto source = existing(name);
  TUTTI_CHECK(!checkpoint::detail::path_exists(file), "LocalObjectStore: '", file,
              "' is there already");
  checkpoint::detail::copy_file(source, std::filesystem::absolute(file));
}

TUTTI_INLINE std::int64_t LocalObjectStore::get_object_size(const std::string& name) const {
  using checkpoint::detail::File;
  return static_cast<std::int64_t>(File::open_for_reading(existing(name)).size());
}

TUTTI_INLINE std::vector<std::string> LocalObjectStore::list_objects(
    const std::string& prefix) const {
  std::vector<std::string> out;
  add_names(root, "", out);
  std::erase_if(out, [&](const std::string& name) { return !name.starts_with(prefix); });
  std::sort(out.begin(), out.end());
  return out;
}

TUTTI_INLINE void LocalObjectStore::add_names(const std::filesystem::path& folder,
                                              const std::string& prefix,
                                              std::vector<std::string>& out) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory(error)) {
      add_names(entry.path(), prefix + name + '/', out);
    } else if (!name.starts_with(checkpoint::detail::staging_prefix)) {
      out.push_back(prefix + name);
    }
  }
}

}  // namespace tutti
