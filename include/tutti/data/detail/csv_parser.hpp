// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::data::detail {

// The records of a CSV text, one after the other.
class CsvParser {
 public:
  CsvParser(std::string path, std::string_view text, char separator)
      : path_(std::move(path)),
        text_(text),
        separator_(separator),
        stops_{separator, '\n', '\r'},
        blanks_(separator == '\t' ? " " : " \t") {}

  // The next record that is no empty line; false when there is none.
  bool next(std::vector<std::string>& fields);

  // The line on which that record began, from 1.
  [[nodiscard]] std::int64_t line() const { return line_; }

 private:
  bool field(std::string& out);
  void quoted(std::string& out);
  [[nodiscard]] std::size_t skip_blanks(std::size_t at) const {
    return std::min(text_.find_first_not_of(blanks_, at), text_.size());
  }

  std::string path_;
  std::string_view text_;
  char separator_;
  std::array<char, 3> stops_;
  std::string_view blanks_;
  std::size_t at_ = 0;
  std::int64_t line_ = 0;
  std::int64_t next_line_ = 1;
};

// A value is missing.
bool is_missing(std::string_view value);

// A whole text as a finite number that a float can hold.
std::optional<double> csv_number(std::string_view text);

// Refuses bytes that are no text in UTF-8, and says what they are where that is known.
void refuse_other_formats(const std::string& path, std::string_view text);

}  // namespace tutti::data::detail

#if TUTTI_BODIES

namespace tutti::data::detail {

TUTTI_INLINE bool CsvParser::next(std::vector<std::string>& fields) {
  while (at_ < text_.size()) {
    line_ = next_line_;
    std::size_t count = 0;
    bool more = true;
    while (more) {
      if (count == fields.size()) {
        fields.emplace_back();
      }
      more = field(fields[count++]);
    }
    fields.resize(count);
    if (count > 1 || !fields.front().empty()) {
      return true;
    }
  }
  return false;
}

// Reads one value and what ends it; true when another one follows on the line.
TUTTI_INLINE bool CsvParser::field(std::string& out) {
  out.clear();
  at_ = skip_blanks(at_);
  if (at_ < text_.size() && text_[at_] == '"') {
    quoted(out);
  } else {
    const std::size_t end =
        std::min(text_.find_first_of(stops_.data(), at_, stops_.size()), text_.size());
    const std::string_view value = text_.substr(at_, end - at_);
    out = value.substr(0, value.find_last_not_of(blanks_) + 1);
    at_ = end;
  }
  if (at_ == text_.size()) {
    return false;
  }
  if (text_[at_] == separator_) {
    ++at_;
    return true;
  }
  at_ += text_.substr(at_, 2) == "\r\n" ? 2U : 1U;
  ++next_line_;
  return false;
}

TUTTI_INLINE void CsvParser::quoted(std::string& out) {
  const std::int64_t begin = next_line_;
  for (bool open = true; open;) {
    const std::size_t quote = text_.find('"', ++at_);
    TUTTI_CHECK(quote != std::string_view::npos, "'", path_, "', line ", begin,
                ": a quote begins there that never ends; double the quotes inside a value");
    out.append(text_, at_, quote - at_);
    at_ = quote + 1;
    open = at_ < text_.size() && text_[at_] == '"';
    if (open) {
      out += '"';
    }
  }
  next_line_ += std::count(out.begin(), out.end(), '\n');
  at_ = skip_blanks(at_);
  TUTTI_CHECK(
      at_ == text_.size() || std::find(stops_.begin(), stops_.end(), text_[at_]) != stops_.end(),
      "'", path_, "', line ", next_line_, ": text follows a closing quote, expected '", separator_,
      "' or the end of the line; double the quotes inside a value");
}

TUTTI_INLINE bool is_missing(std::string_view value) {
  constexpr std::array<std::string_view, 10> texts{"NA",  "N/A", "n/a",  "#N/A", "<NA>",
                                                   "NaN", "nan", "NULL", "null", "None"};
  return value.empty() || std::find(texts.begin(), texts.end(), value) != texts.end();
}

TUTTI_INLINE std::optional<double> csv_number(std::string_view text) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') {
    text.remove_prefix(1);
  }
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::abs(value) <= static_cast<double>(std::numeric_limits<float>::max())
             ? std::optional(value)
             : std::nullopt;
}

TUTTI_INLINE void refuse_other_formats(const std::string& path, std::string_view text) {
  TUTTI_CHECK(!text.starts_with("\x1f\x8b"), "'", path,
              "' is compressed with gzip; decompress it first (gunzip)");
  TUTTI_CHECK(!text.starts_with("PK\x03\x04"), "'", path,
              "' is a zip archive or an Excel workbook, expected text; save it as CSV");
  TUTTI_CHECK(!text.starts_with("\xff\xfe") && !text.starts_with("\xfe\xff"), "'", path,
              "' is text in UTF-16; save it as UTF-8");
  const std::size_t zero = text.find('\0');
  TUTTI_CHECK(zero == std::string_view::npos, "'", path,
              "' is no text: it has a zero byte at offset ", zero);
}

}  // namespace tutti::data::detail

#endif
