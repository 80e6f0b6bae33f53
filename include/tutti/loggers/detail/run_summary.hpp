// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/utf8.hpp>
#include <tutti/loggers/detail/run_record.hpp>
#include <tutti/loggers/detail/run_series.hpp>

// What the page is told of a run.

namespace tutti::detail {

// All but the curves, as one JSON object; curves are named, in the order of their numbers.
std::string summary_json(const RunRecord& run);

// Curves by their numbers, as the members of one JSON object; unknown numbers are left out.
std::string curves_json(const RunRecord& run, std::span<const std::size_t> which, std::int64_t from,
                        std::int64_t to, std::size_t count);

// The bytes of a picture that the run has told of; nothing when it is not there or is none.
std::string image_bytes(const RunRecord& run, std::int64_t file);

// [{"name", "time", "bytes"}, ...], the oldest first: what stands in a folder of checkpoints.
std::string checkpoints_json(const std::filesystem::path& folder);

std::string base64(std::string_view bytes);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::string checkpoints_json(const std::filesystem::path& folder) {
  struct Found {
    std::string name;
    double time = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Found> found;
  std::error_code error;
  const auto file_facts = [&](const std::filesystem::path& path, const std::string& name) {
    struct stat facts{};
    if (::lstat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode)) {
      const auto same = std::find_if(found.begin(), found.end(),
                                     [&](const Found& one) { return one.name == name; });
      Found& one = same != found.end() ? *same : found.emplace_back(Found{name});
      one.time = std::max(one.time, static_cast<double>(facts.st_mtime));
      one.bytes += static_cast<std::uint64_t>(facts.st_size);
    }
  };
  for (std::filesystem::directory_iterator at(folder, error), end;
       !error && at != end && found.size() < 1000; at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code inner;
    if (at->is_symlink(inner)) {
      continue;
    }
    if (!at->is_directory(inner)) {
      file_facts(at->path(), name);
    } else {
      for (std::filesystem::directory_iterator file(at->path(), inner), last;
           !inner && file != last; file.increment(inner)) {
        file_facts(file->path(), name);
      }
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.time < b.time; });
  std::string text;
  for (const Found& one : found) {
    text += (text.empty() ? "" : ",") + ("{\"name\":" + json_quoted(utf8(one.name)));
    text += ",\"time\":" + std::to_string(static_cast<std::int64_t>(one.time)) +
            ",\"bytes\":" + std::to_string(one.bytes) + "}";
  }
  return "[" + text + "]";
}

TUTTI_INLINE std::string summary_json(const RunRecord& run) {
  const RunFacts& facts = run.facts();
  const auto number = [](double value) {
    std::string text;
    append_short(text, value);
    return text;
  };
  const auto seconds = [](double value) {
    return std::to_string(static_cast<std::int64_t>(value));
  };
  std::string text =
      "{\"name\":" +
      json_quoted(facts.name.empty() ? utf8(run.folder().filename().string()) : facts.name);
  text += ",\"status\":" + json_quoted(run.status()) + ",\"error\":" + json_quoted(facts.error);
  text += ",\"step\":" + std::to_string(facts.step) + ",\"start\":" + seconds(facts.start) +
          ",\"time\":" + seconds(facts.time) + ",\"plan\":" + json_quoted(facts.plan);
  text += ",\"broken\":" + std::to_string(facts.broken) +
          ",\"left_out\":" + std::to_string(facts.left_out);
  struct statvfs disk{};
  if (::statvfs(run.folder().c_str(), &disk) == 0) {
    text += ",\"disk_free\":" +
            std::to_string(std::uint64_t{disk.f_bavail} * std::uint64_t{disk.f_frsize});
  }
  text += ",\"series\":[";
  for (std::size_t i = 0; i < facts.series.size(); ++i) {
    const RunFacts::Curve& one = facts.series[i];
    text += (i > 0 ? ",[" : "[") + json_quoted(one.name) + "," + std::to_string(one.rank) + "," +
            number(one.series.latest()) + "," + std::to_string(one.series.last_step()) + "," +
            std::to_string(one.series.points()) + "]";
  }
  text += "],\"hyperparameters\":{";
  for (std::size_t i = 0; i < facts.hyperparameters.size(); ++i) {
    text += (i > 0 ? "," : "") + json_quoted(facts.hyperparameters[i].first) + ":" +
            facts.hyperparameters[i].second;
  }
  text += "},\"tables\":{";
  bool first = true;
  for (const auto& [name, tables] : facts.tables) {
    text += (std::exchange(first, false) ? "" : ",") + json_quoted(name) + ":[";
    for (std::size_t i = 0; i < tables.size(); ++i) {
      text += (i > 0 ? "," : "") + tables[i].json;
    }
    text += "]";
  }
  text += "},\"images\":[";
  for (std::size_t i = 0; i < facts.images.size(); ++i) {
    text += (i > 0 ? "," : "") + ("{\"name\":" + json_quoted(facts.images[i].name)) +
            ",\"step\":" + std::to_string(facts.images[i].step) +
            ",\"file\":" + std::to_string(facts.images[i].file) + "}";
  }
  text += "],\"events\":[";
  for (std::size_t i = 0; i < facts.events.size(); ++i) {
    text += (i > 0 ? ",[" : "[") + std::to_string(facts.events[i].step) + "," +
            seconds(facts.events[i].time) + "," + json_quoted(facts.events[i].text) + "]";
  }
  return text + "],\"checkpoints\":" + checkpoints_json(run.folder() / "checkpoints") + "}";
}

TUTTI_INLINE std::string curves_json(const RunRecord& run, std::span<const std::size_t> which,
                                     std::int64_t from, std::int64_t to, std::size_t count) {
  const RunFacts& facts = run.facts();
  std::string text;
  for (const std::size_t number : which) {
    if (number < facts.series.size()) {
      text += (text.empty() ? "\"" : ",\"") + std::to_string(number) + "\":" +
              series_json(facts.series[number].series.between(from, to, count), facts.start);
    }
  }
  return "{" + text + "}";
}

TUTTI_INLINE std::string image_bytes(const RunRecord& run, std::int64_t file) {
  const auto& images = run.facts().images;
  const bool told = std::any_of(images.begin(), images.end(),
                                [&](const RunFacts::Image& one) { return one.file == file; });
  if (!told) {
    return {};
  }
  const auto path = run.folder() / "dashboard" / (std::to_string(file) + ".png");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat facts{};
  std::string bytes;
  if (fd >= 0 && ::fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) &&
      facts.st_size <= (off_t{64} << 20)) {
    bytes.resize(static_cast<std::size_t>(facts.st_size));
    const ssize_t got = ::read(fd, bytes.data(), bytes.size());
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  }
  if (fd >= 0) {
    ::close(fd);
  }
  return bytes.starts_with("\x89PNG") ? bytes : std::string();
}

TUTTI_INLINE std::string base64(std::string_view bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      word = word << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      text += at + i > bytes.size() ? '=' : digits[word >> (18 - 6 * i) & 63];
    }
  }
  return text;
}

}  // namespace tutti::detail

#endif
