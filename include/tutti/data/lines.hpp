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
#include <tutti/data/lines.inl.hpp>
#endif
