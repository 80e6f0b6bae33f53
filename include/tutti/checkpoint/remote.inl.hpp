// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/remote.hpp>

namespace tutti::checkpoint::detail {

TUTTI_INLINE void check_plain_name(const std::string& name, const std::string& where) {
  TUTTI_CHECK(is_plain_name(name), "checkpoint: '", where, "' names \"", name,
              "\", which is no plain name");
}

TUTTI_INLINE void upload_checked(const AnyObjectStore& store, const std::string& name,
                                 const std::filesystem::path& file) {
  store.upload_object(name, file.string());
  const std::int64_t there = store.get_object_size(name);
  const auto size = static_cast<std::int64_t>(File::open_for_reading(file).size());
  TUTTI_CHECK(there < 0 || there == size, "checkpoint: '", store.get_uri(name), "' has ", there,
              " bytes after its upload, the file has ", size);
}

}  // namespace tutti::checkpoint::detail

namespace tutti::checkpoint {

TUTTI_INLINE void upload_snapshot(const AnyObjectStore& store, const std::filesystem::path& folder,
                                  const std::string& name) {
  for (const std::string config : {"config.json", "adapter_config.json"}) {
    if (!detail::path_exists(folder / config) || detail::path_exists(folder / "manifest.json")) {
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string file = entry.path().filename().string();
      if (entry.is_regular_file() && file != config) {
        detail::upload_checked(store, name + '/' + file, entry.path());
      }
    }
    detail::upload_checked(store, name + '/' + config, folder / config);
    return;
  }
  const Manifest manifest = detail::read_manifest(folder);
  for (const auto& [file, facts] : manifest.files) {
    detail::upload_checked(store, name + '/' + file, folder / file);
  }
  detail::upload_checked(store, name + "/manifest.json", folder / "manifest.json");
}

TUTTI_INLINE void download_snapshot(const AnyObjectStore& store, const std::string& name,
                                    const std::filesystem::path& target) {
  const auto absolute = std::filesystem::absolute(target).lexically_normal();
  make_folder(absolute.parent_path());
  detail::Staging staging(absolute);
  store.download_object(name + "/manifest.json", (staging.path() / "manifest.json").string());
  const Manifest manifest = speaking_of(store.get_uri(name), staging.path().string(),
                                        [&] { return detail::read_manifest(staging.path()); });
  for (const auto& [file, facts] : manifest.files) {
    const auto slash = manifest.sharded.is_null() ? file.npos : file.find('/');
    if (slash != file.npos) {  // of a sharded checkpoint, which has folders
      detail::check_plain_name(file.substr(0, slash), store.get_uri(name + "/manifest.json"));
      make_folder(staging.path() / file.substr(0, slash));
    }
    detail::check_plain_name(file.substr(slash == file.npos ? 0 : slash + 1),
                             store.get_uri(name + "/manifest.json"));
    const auto path = staging.path() / file;
    try {
      store.download_object(name + '/' + file, path.string());
    } catch (const ObjectNotFound&) {
      TUTTI_CHECK(false, "checkpoint: '", store.get_uri(name + '/' + file),
                  "' is missing, which the manifest lists");
    }
    const std::uint64_t size = speaking_of(store.get_uri(name), staging.path().string(), [&] {
      return detail::File::open_for_reading(path).size();
    });
    TUTTI_CHECK(size == facts.size, "checkpoint: '", store.get_uri(name + '/' + file), "' has ",
                size, " bytes, the manifest says ", facts.size);
  }
  staging.publish(/*replace=*/true);
}

TUTTI_INLINE void upload_pointer(const AnyObjectStore& store, const std::string& link,
                                 const std::string& name, const std::filesystem::path& scratch) {
  const auto file = scratch / ("pointer" + detail::random_suffix());
  detail::write_text(file, name + '\n');
  try {
    detail::upload_checked(store, link + detail::pointer_suffix, file);
  } catch (...) {
    ::unlink(file.c_str());
    throw;
  }
  ::unlink(file.c_str());
}

TUTTI_INLINE std::string download_pointer(const AnyObjectStore& store, const std::string& link,
                                          const std::filesystem::path& scratch) {
  constexpr std::uint64_t longest = 4096;
  const auto path = scratch / ("pointer" + detail::random_suffix());
  store.download_object(link + detail::pointer_suffix, path.string());
  std::string name;
  speaking_of(store.get_uri(link + detail::pointer_suffix), path.string(), [&] {
    const detail::File file = detail::File::open_for_reading(path);
    name.resize(static_cast<std::size_t>(std::min(file.size(), longest)));
    file.read_at(0, name.data(), name.size());
  });
  ::unlink(path.c_str());
  name.erase(name.find_last_not_of(" \t\r\n") + 1);
  detail::check_plain_name(name, store.get_uri(link + detail::pointer_suffix));
  return name;
}

TUTTI_INLINE std::string object_name(const AnyObjectStore& store, const std::string& uri) {
  const std::string start = store.get_uri("x");
  const std::string_view base = std::string_view(start).substr(0, start.size() - 1);
  return uri.starts_with(base) ? uri.substr(base.size()) : std::string();
}

TUTTI_INLINE void download_resolved(const AnyObjectStore& store, const std::string& name,
                                    const std::filesystem::path& target) {
  try {
    download_snapshot(store, name, target);
    return;
  } catch (const ObjectNotFound&) {  // a pointer, then
  }
  const auto absolute = std::filesystem::absolute(target).lexically_normal();
  const detail::Staging scratch(absolute);
  std::string pointed;
  try {
    pointed = download_pointer(store, name, scratch.path());
  } catch (const ObjectNotFound&) {
    TUTTI_CHECK(false, "checkpoint: '", store.get_uri(name),
                "' is neither a checkpoint nor a pointer to one");
  }
  download_snapshot(store, name.substr(0, name.rfind('/') + 1) + pointed, target);
}

}  // namespace tutti::checkpoint
