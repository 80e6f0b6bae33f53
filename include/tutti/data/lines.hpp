// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/data/detail/mapped_file.hpp>

/// Files of lines, plain text and JSON lines: mapped, indexed once, any line at once.
namespace tutti::data {

/// A value of JSON (RFC 8259): `value["name"].string()`, `.integer()`, `.number()`, `.array()`.
using Json = tutti::detail::Json;

/// What is done with lines that are empty or have nothing but blanks.
enum class EmptyLines : std::uint8_t {
  refuse,  ///< an error that names the line
  skip,    ///< they are no examples
};

/// Options of TextLines.
struct TextLinesOptions {
  EmptyLines empty_lines = EmptyLines::refuse;
  std::function<Batch(std::string_view line)> example{};  ///< makes an example of a line; empty:
                                                          ///< "inputs", its bytes, uint8 [n]
};

/// Options of JsonLines.
struct JsonLinesOptions {
  EmptyLines empty_lines = EmptyLines::refuse;
  std::function<Batch(const Json& line)> example{};  ///< makes an example of a line; empty: each
                                                     ///< member, a number or lists of numbers, is
                                                     ///< a tensor by its name
};

/// The lines of text files, one file behind the other: a data set for DataLoader.
///
///     tutti::data::TextLines lines{"train.txt", {.example = [&](std::string_view line) {
///       return tutti::Batch{{"input_ids", at::tensor(tokenizer.encode(line).ids)}};
///     }}};
///     tutti::DataLoader train{lines, {.batch_size = 8, .shuffle = true, .collate =
///     PadSequences{}}};
///
/// A line ends with "\n" or "\r\n", which do not belong to it; the last one may end with the file.
/// A byte order mark in front does not count. Files are mapped and may be larger than memory; the
/// index has 8 bytes for each line. They must not be made shorter meanwhile. Copies share all.
class TextLines {
 public:
  /// Looks through the files once.
  /// Throws c10::Error, naming the file and the line: a file cannot be opened or is compressed, has
  /// no line, or has an empty one, unless these are skipped.
  explicit TextLines(const std::string& path, TextLinesOptions options = {})
      : TextLines(std::vector{path}, std::move(options)) {}
  explicit TextLines(const std::vector<std::string>& paths, TextLinesOptions options = {});

  /// Lines, of all files.
  [[nodiscard]] std::int64_t size() const { return size_; }

  /// Line `index`, 0 .. size() - 1, as long as this or a copy lives.
  /// Throws c10::IndexError out of range, and c10::Error that names the place when the line is not
  /// UTF-8.
  [[nodiscard]] std::string_view line(std::int64_t index) const;

  /// Example `index`. Throws as line() does, and what options.example throws, with the file and
  /// line in front of it.
  [[nodiscard]] Batch get(std::int64_t index) const;

  /// Where line `index` stands, for messages: "'train.txt', line 3".
  [[nodiscard]] std::string place(std::int64_t index) const;

 private:
  struct File {
    explicit File(const std::string& path) : bytes(path) {}
    detail::MappedFile bytes;
    std::vector<std::uint64_t> starts{};  // of lines
    std::vector<std::int64_t> skipped{};  // for each empty line, how many lines stand before it
    std::int64_t before = 0;              // lines of the files before
  };

  void look_through(File& file) const;
  const File& file_of(std::int64_t index) const;
  static std::string_view line_at(const File& file, std::uint64_t start);

  TextLinesOptions options_;
  std::shared_ptr<const std::vector<std::unique_ptr<File>>> files_;
  std::int64_t size_ = 0;
};

/// The values of files of JSON lines: a data set for DataLoader.
///
///     tutti::data::JsonLines lines{"train.jsonl", {.example = [](const auto& line) {
///       return tutti::Batch{at::tensor(line["x"].number()), at::tensor(line["label"].integer())};
///     }}};
///     tutti::DataLoader train{lines, {.batch_size = 32, .shuffle = true}};
///
/// Files are read as those of TextLines. A line is parsed when it is asked for: strictly, with
/// nothing nested deeper than 64 and no key twice.
class JsonLines {
 public:
  /// Throws as TextLines does; lines are not parsed yet.
  explicit JsonLines(const std::string& path, JsonLinesOptions options = {})
      : JsonLines(std::vector{path}, std::move(options)) {}
  explicit JsonLines(const std::vector<std::string>& paths, JsonLinesOptions options = {});

  /// Lines, of all files.
  [[nodiscard]] std::int64_t size() const { return lines_.size(); }

  /// The value of line `index`, 0 .. size() - 1.
  /// Throws c10::IndexError out of range, and c10::Error that names the file and the line when it
  /// is no JSON.
  [[nodiscard]] Json value(std::int64_t index) const;

  /// Example `index`. Throws as value() does; also when the line cannot be made tensors, and what
  /// options.example throws, with the file and line in front of it.
  [[nodiscard]] Batch get(std::int64_t index) const;

  /// Where line `index` stands, for messages: "'train.jsonl', line 3".
  [[nodiscard]] std::string place(std::int64_t index) const { return lines_.place(index); }

 private:
  TextLines lines_;
  std::function<Batch(const Json&)> example_;
};

}  // namespace tutti::data

#if TUTTI_BODIES

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

TUTTI_INLINE JsonLines::JsonLines(const std::vector<std::string>& paths, JsonLinesOptions options)
    : lines_(paths, {.empty_lines = options.empty_lines}), example_(std::move(options.example)) {}

TUTTI_INLINE Json JsonLines::value(std::int64_t index) const {
  try {
    return tutti::detail::parse_json(lines_.line(index));
  } catch (const std::invalid_argument& error) {
    TUTTI_CHECK(false, place(index), ": ", error.what());
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

#endif
