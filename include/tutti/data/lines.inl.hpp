// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/lines.hpp>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <utility>

#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/json_tensor.hpp>
#include <tutti/data/detail/thrown.hpp>

namespace tutti::data {

TUTTI_INLINE TextLines::TextLines(const std::vector<std::string>& paths, TextLinesOptions options)
    : options_(std::move(options)) {
  TUTTI_CHECK_VALUE(!paths.empty(), "TextLines: there is no file, expected one or more");
  auto files = std::make_shared<std::vector<std::unique_ptr<File>>>();
  for (const std::string& path : paths) {
    auto file = std::make_unique<File>(path);
    file->before = size_;
    look_through(*file);
    TUTTI_CHECK(!file->starts.empty(), "'", path, "' has no line, expected one or more");
    size_ += std::ssize(file->starts);
    files->push_back(std::move(file));
  }
  files_ = std::move(files);
}

TUTTI_INLINE std::string_view TextLines::line_at(const File& file, std::uint64_t start) {
  const std::string_view rest = file.bytes.text().substr(start);
  std::string_view out = rest.substr(0, rest.find('\n'));
  if (out.ends_with('\r')) {
    out.remove_suffix(1);
  }
  return out;
}

TUTTI_INLINE void TextLines::look_through(File& file) const {
  const std::string_view text = file.bytes.text();
  const std::string& path = file.bytes.path();
  TUTTI_CHECK(!text.starts_with("\x1f\x8b"), "'", path,
              "' is compressed with gzip; decompress it first (gunzip)");
  TUTTI_CHECK(!text.starts_with("\x28\xb5\x2f\xfd"), "'", path,
              "' is compressed with zstd; decompress it first (unzstd)");
  TUTTI_CHECK(!text.starts_with("\xff\xfe") && !text.starts_with("\xfe\xff"), "'", path,
              "' is text in UTF-16; save it as UTF-8");
  std::int64_t number = 0;
  for (std::uint64_t at = text.starts_with("\xef\xbb\xbf") ? 3 : 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    ++number;
    // Most lines begin with something else than a blank.
    const bool empty =
        text.substr(at, end - at).find_first_not_of(" \t\r") == std::string_view::npos;
    TUTTI_CHECK(!empty || options_.empty_lines == EmptyLines::skip, "'", path, "', line ", number,
                " is empty; remove it, or pass over such lines with .empty_lines = "
                "EmptyLines::skip");
    if (empty) {
      file.skipped.push_back(std::ssize(file.starts));
    } else {
      file.starts.push_back(at);
    }
    at = end + 1;
  }
}

TUTTI_INLINE const TextLines::File& TextLines::file_of(std::int64_t index) const {
  TUTTI_CHECK_INDEX(index >= 0 && index < size_, "TextLines: index is ", index, ", expected 0 to ",
                    size_ - 1);
  const auto after =
      std::upper_bound(files_->begin(), files_->end(), index,
                       [](std::int64_t i, const auto& file) { return i < file->before; });
  return **std::prev(after);
}

TUTTI_INLINE std::string_view TextLines::line(std::int64_t index) const {
  const File& file = file_of(index);
  const std::string_view out =
      line_at(file, file.starts[static_cast<std::size_t>(index - file.before)]);
  const std::size_t bad = detail::first_not_utf8(out);
  TUTTI_CHECK(bad == std::string_view::npos, place(index), " is not UTF-8 at its byte ", bad);
  return out;
}

TUTTI_INLINE std::string TextLines::place(std::int64_t index) const {
  const File& file = file_of(index);
  const std::int64_t line = index - file.before;
  const auto skipped = std::upper_bound(file.skipped.begin(), file.skipped.end(), line);
  return "'" + file.bytes.path() + "', line " +
         std::to_string(1 + line + (skipped - file.skipped.begin()));
}

TUTTI_INLINE Batch TextLines::get(std::int64_t index) const {
  const std::string_view text = line(index);
  if (!options_.example) {
    return Batch{{"inputs", detail::byte_tensor(text)}};
  }
  try {
    return options_.example(text);
  } catch (...) {
    detail::throw_over(place(index) + ": ");
  }
}

namespace detail {

// What the first line of a file that is no JSON lines tells of the file.
TUTTI_INLINE const char* json_lines_hint(std::string_view first) {
  const std::size_t at = first.find_first_not_of(" \t");
  const std::string_view text = at == std::string_view::npos ? "" : first.substr(at);
  if (text.starts_with('[')) {
    return "; the file seems to be one array over several lines, expected one object per line "
           "(jq -c '.[]' writes it so)";
  }
  return text.find_first_not_of("{ \t") == std::string_view::npos && !text.empty()
             ? "; the file seems to have an object over several lines, expected one object per "
               "line (jq -c . writes it so)"
             : "";
}

}  // namespace detail

TUTTI_INLINE JsonLines::JsonLines(const std::vector<std::string>& paths, JsonLinesOptions options)
    : lines_(paths, {.empty_lines = options.empty_lines}), example_(std::move(options.example)) {}

TUTTI_INLINE Json JsonLines::value(std::int64_t index) const {
  try {
    return tutti::detail::parse_json(lines_.line(index));
  } catch (const std::invalid_argument& error) {
    TUTTI_CHECK(false, place(index), ": ", error.what(), detail::json_lines_hint(lines_.line(0)));
  }
}

TUTTI_INLINE Batch JsonLines::get(std::int64_t index) const {
  const Json line = value(index);
  if (example_) {
    try {
      return example_(line);
    } catch (...) {
      detail::throw_over(place(index) + ": ");
    }
  }
  TUTTI_CHECK(line.is_object(), place(index), " is ", line.kind(),
              ", expected an object whose members are numbers or lists of numbers; make an "
              "example of another value with .example");
  Batch out;
  for (const auto& [name, member] : line.object()) {
    try {
      out[name] = detail::json_tensor(member, "\"" + name + "\"");
    } catch (const c10::Error& error) {
      TUTTI_CHECK(false, place(index), ", ", error.what_without_backtrace(),
                  "; make the example yourself with .example");
    }
  }
  return out;
}

}  // namespace tutti::data
