// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/file_reader.hpp>
#include <tutti/data/detail/tar.hpp>

/// Tar files whose neighbouring members make samples.
/// Source: webdataset 1.0.2, `webdataset/tariterators.py`.
namespace tutti::data::detail {

// Key and field of a member: its last part is split at the first dot.
struct WebName {
  std::string key;
  std::string field;
};

inline std::string lower_ascii(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return text;
}

// A name that has notes of the data set, not samples: __x__ at the top.
inline bool is_web_note(std::string_view name) {
  const std::string_view first = name.substr(0, name.find('/'));
  return first.size() >= 4 && first.starts_with("__") && first.ends_with("__");
}

// Nothing for a member that belongs to no sample.
inline std::optional<WebName> web_name(const std::string& name) {
  if (is_web_note(name)) {
    return std::nullopt;
  }
  const std::size_t last = name.rfind('/') + 1;  // npos + 1 is 0
  const std::size_t dot = name.find('.', last);
  if (dot == std::string::npos) {
    return std::nullopt;
  }
  if (dot == last) {  // the folder is the key, unless it has a dot itself
    const std::size_t before = last < 2 ? std::string::npos : name.rfind('/', last - 2);
    const std::size_t folder = before == std::string::npos ? 0 : before + 1;
    if (last == 0 || name.substr(folder, last - folder).find('.') != std::string::npos) {
      return std::nullopt;
    }
  }
  return WebName{name.substr(0, dot), lower_ascii(name.substr(dot + 1))};
}

// A name that leads out of the folder that a tar file would be unpacked in.
inline bool leaves(std::string_view name) {
  bool up = name.starts_with('/');
  while (!name.empty()) {
    const std::string_view part = name.substr(0, name.find('/'));
    up = up || part == "..";
    name.remove_prefix(std::min(name.size(), part.size() + 1));
  }
  return up;
}

// Calls see(WebName, TarEntry) for every member that belongs to a sample.
template <class File, class See>
void read_web_members(const File& file, const See& see) {
  read_tar(file, [&](const TarEntry& entry) {
    if (entry.is_folder) {
      return;
    }
    TUTTI_CHECK(!leaves(entry.whole), "'", file.path(), "' has a member '", entry.whole,
                "' at byte ", entry.begin, ", expected names inside the tar file");
    if (std::optional<WebName> name = web_name(entry.whole)) {
      see(std::move(*name), entry);
    }
  });
}

// Where a sample lies in its tar file, headers and all.
struct WebRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The samples of a tar file, by its headers alone.
inline std::vector<WebRange> web_samples(const std::string& path) {
  const FileReader file(path);
  std::vector<WebRange> out;
  std::string key;
  std::vector<std::string> fields;
  read_web_members(file, [&](WebName name, const TarEntry& entry) {
    if (out.empty() || name.key != key) {
      out.push_back({entry.begin, entry.end});
      key = std::move(name.key);
      fields.clear();
    }
    TUTTI_CHECK(std::find(fields.begin(), fields.end(), name.field) == fields.end(), "'", path,
                "': the sample '", key, "' has a duplicate field '", name.field, "', the second '",
                entry.whole, "' at byte ", entry.begin);
    fields.push_back(std::move(name.field));
    out.back().end = entry.end;
  });
  return out;
}

// Files that are open, the ones used last.
class OpenFiles {
 public:
  std::shared_ptr<const FileReader> get(const std::string& path) {
    constexpr std::size_t most = 32;
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(files_.begin(), files_.end(),
                                    [&](const auto& file) { return file->path() == path; });
    if (found != files_.end()) {
      std::rotate(files_.begin(), found, found + 1);
    } else {
      files_.insert(files_.begin(), std::make_shared<const FileReader>(path));
      files_.resize(std::min(files_.size(), most));
    }
    return files_.front();
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<const FileReader>> files_;
};

// Every `count`-th of a list, from number `first` on.
template <class T>
std::vector<T> dealt(const std::vector<T>& list, std::int64_t first, std::int64_t count) {
  std::vector<T> out;
  for (std::int64_t i = first; i < std::ssize(list); i += count) {
    out.push_back(list[static_cast<std::size_t>(i)]);
  }
  return out;
}

}  // namespace tutti::data::detail
