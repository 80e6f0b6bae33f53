// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/csv.hpp>

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

// A number that float32 cannot hold, "1e39" or "inf".
bool is_beyond_float(std::string_view text);

// Refuses bytes that are no text in UTF-8, and says what they are where that is known.
void refuse_other_formats(const std::string& path, std::string_view text);

}  // namespace tutti::data::detail

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

TUTTI_INLINE bool is_beyond_float(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error != std::errc::invalid_argument && end == text.data() + text.size() &&
         !csv_number(text);
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

namespace tutti::data {

namespace detail {

// A value in quotes, shortened where it is long.
TUTTI_INLINE std::string shown(std::string_view value) {
  constexpr std::size_t most = 40;
  return c10::str('"', value.substr(0, most), value.size() > most ? "...\"" : "\"");
}

// Names as they stand in a C++ list, the first ones of many.
TUTTI_INLINE std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t most = 30;
  std::string out = "{";
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) {
    out += (i > 0 ? ", " : "") + shown(names[i]);
  }
  return out + (names.size() > most ? ", ...}" : "}");
}

TUTTI_INLINE std::size_t find_column(const std::vector<std::string>& names, const char* option,
                                     const std::string& wanted) {
  const auto found = std::find(names.begin(), names.end(), wanted);
  TUTTI_CHECK_VALUE(found != names.end(), "read_csv: .", option, " names the column ",
                    shown(wanted), ", which is not there; the columns are ", listed(names));
  return static_cast<std::size_t>(found - names.begin());
}

// Names columns that have no name, and refuses those that share one.
TUTTI_INLINE void complete_names(const std::string& path, std::vector<std::string>& names) {
  std::map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) {
      names[i] = "Unnamed: " + std::to_string(i);
    }
    const auto [other, is_new] = places.emplace(names[i], i);
    TUTTI_CHECK(is_new, "'", path, "': columns ", other->second + 1, " and ", i + 1,
                " are both called ", shown(names[i]), "; rename one of them");
  }
}

TUTTI_INLINE CsvColumns choose_columns(std::vector<std::string> names, const CsvOptions& options) {
  CsvColumns out;
  std::vector<bool> taken(names.size(), false);
  const auto take = [&](const char* option, const std::string& name) {
    const std::size_t column = find_column(names, option, name);
    TUTTI_CHECK_VALUE(!taken[column], "read_csv: the column ", shown(name),
                      " is named twice, the second time by .", option);
    taken[column] = true;
    return column;
  };
  if (!options.label.empty()) {
    out.label = take("label", options.label);
  }
  if (!options.target.empty()) {
    out.target = take("target", options.target);
  }
  TUTTI_CHECK_VALUE(options.columns.empty() || options.ignore.empty(),
                    "read_csv: both .columns and .ignore are set; .columns alone says which "
                    "columns are read");
  for (const std::string& name : options.columns) {
    out.features.push_back(take("columns", name));
  }
  for (const std::string& name : options.ignore) {
    take("ignore", name);
  }
  for (std::size_t i = 0; i < names.size() && options.columns.empty(); ++i) {
    if (!taken[i]) {
      out.features.push_back(i);
    }
  }
  TUTTI_CHECK_VALUE(!out.features.empty(),
                    "read_csv: no column is left for the features; the "
                    "columns are ",
                    listed(names));
  out.names = std::move(names);
  return out;
}

TUTTI_INLINE CsvRows::CsvRows(std::string path, const CsvOptions& options,
                              std::vector<std::string> names)
    : path_(std::move(path)),
      options_(options),
      columns_(choose_columns(std::move(names), options)) {
  for (const std::string& name : options.classes) {
    const auto label = static_cast<std::int64_t>(labels_by_name_.size());
    TUTTI_CHECK_VALUE(labels_by_name_.emplace(name, label).second, "read_csv: .classes has ",
                      shown(name), " twice");
  }
  TUTTI_CHECK_VALUE(options.classes.empty() || columns_.label,
                    "read_csv: .classes is set but no .label; name the column that holds them");
  const bool fills = options.missing == MissingValues::fill;
  TUTTI_CHECK_VALUE(
      options.fill.empty() || (fills && options.fill.size() == columns_.features.size()),
      "read_csv: .fill has ", options.fill.size(), " values and there are ",
      columns_.features.size(),
      " features; expected one for each, with .missing = MissingValues::fill");
  if (!fills && options.missing != MissingValues::keep) {
    needed_ = columns_.features;
  }
  for (const auto& column : {columns_.label, columns_.target}) {
    if (column) {
      needed_.push_back(*column);
    }
  }
}

TUTTI_INLINE std::string CsvRows::place(std::int64_t line, std::size_t column) const {
  return c10::str("'", path_, "', line ", line, ", column ", column + 1, " (",
                  columns_.names[column], ")");
}

TUTTI_INLINE void CsvRows::add(const std::vector<std::string>& fields, std::int64_t line) {
  TUTTI_CHECK(fields.size() == columns_.names.size(), "'", path_, "', line ", line, " has ",
              fields.size(), fields.size() == 1 ? " value" : " values", ", expected ",
              columns_.names.size(), ", one for each column, with '", options_.separator,
              "' between them");
  if (lacks_values(fields, line)) {
    ++dropped_;
    return;
  }
  add_features(fields, line);
  if (columns_.label) {
    add_label(fields[*columns_.label], line);
  }
  if (columns_.target) {
    const std::string& text = fields[*columns_.target];
    const auto number = csv_number(text);
    TUTTI_CHECK(number || !is_beyond_float(text), place(line, *columns_.target), ": the target is ",
                shown(text), ", expected a number that float32 holds, finite and at most 3.4e38");
    TUTTI_CHECK(number, place(line, *columns_.target), ": the target is ", shown(text),
                ", expected a number; name the column of a class with .label");
    targets_.push_back(static_cast<float>(*number));
  }
  ++rows_;
}

// True when the row is to be left out.
TUTTI_INLINE bool CsvRows::lacks_values(const std::vector<std::string>& fields,
                                        std::int64_t line) const {
  const auto lacking = std::find_if(needed_.begin(), needed_.end(),
                                    [&](std::size_t column) { return is_missing(fields[column]); });
  if (lacking == needed_.end()) {
    return false;
  }
  TUTTI_CHECK(options_.missing == MissingValues::drop_row, place(line, *lacking),
              ": the value is missing (", shown(fields[*lacking]),
              "); leave such rows out with .missing = MissingValues::drop_row, or leave the column "
              "out");
  return true;
}

TUTTI_INLINE void CsvRows::add_features(const std::vector<std::string>& fields, std::int64_t line) {
  for (const std::size_t column : columns_.features) {
    const std::string& text = fields[column];
    if (is_missing(text)) {
      features_.push_back(std::numeric_limits<float>::quiet_NaN());
    } else if (const auto number = csv_number(text)) {
      features_.push_back(static_cast<float>(*number));
    } else {
      refuse_texts(fields, line);
    }
  }
}

// Names all columns of the row that hold no number, so that one look at the error suffices.
TUTTI_INLINE void CsvRows::refuse_texts(const std::vector<std::string>& fields,
                                        std::int64_t line) const {
  std::vector<std::string> names;
  std::string places;
  bool texts = false;
  for (const std::size_t column : columns_.features) {
    if (!is_missing(fields[column]) && !csv_number(fields[column])) {
      texts = texts || !is_beyond_float(fields[column]);
      names.push_back(columns_.names[column]);
      places += c10::str(places.empty() ? "" : ", ", shown(fields[column]), " in column ",
                         column + 1, " (", names.back(), ")");
    }
  }
  TUTTI_CHECK(texts, "'", path_, "', line ", line, ": expected numbers that float32 holds, finite ",
              "and at most 3.4e38, got ", places,
              "; correct the file, or leave columns out with .ignore = ", listed(names));
  TUTTI_CHECK(false, "'", path_, "', line ", line, ": expected numbers with a decimal point, got ",
              places, "; leave columns of texts out with .ignore = ", listed(names),
              ", and name the column of the class with .label");
}

TUTTI_INLINE void CsvRows::add_label(const std::string& name, std::int64_t line) {
  const auto next = static_cast<std::int64_t>(labels_by_name_.size());
  auto found = labels_by_name_.find(name);
  if (found == labels_by_name_.end()) {
    TUTTI_CHECK(options_.classes.empty(), place(line, *columns_.label), ": the class is ",
                shown(name), ", expected one of ", listed(options_.classes));
    found = labels_by_name_.emplace(name, next).first;
  }
  labels_.push_back(found->second);
}

// Numbers the classes of the file in their sorted order, unless the options say theirs.
TUTTI_INLINE void CsvRows::sort_classes(CsvTable& table) {
  table.classes = options_.classes;
  if (!table.classes.empty()) {
    return;
  }
  bool are_numbers = true;
  for (const auto& [name, label] : labels_by_name_) {
    table.classes.push_back(name);
    are_numbers = are_numbers && csv_number(name).has_value();
  }
  if (are_numbers) {
    const auto value = [](const std::string& name) { return *csv_number(name); };
    std::stable_sort(table.classes.begin(), table.classes.end(),
                     [&](const auto& a, const auto& b) { return value(a) < value(b); });
    const auto same =
        std::adjacent_find(table.classes.begin(), table.classes.end(),
                           [&](const auto& a, const auto& b) { return value(a) == value(b); });
    TUTTI_CHECK(same == table.classes.end(), "'", path_, "': the classes ", shown(*same), " and ",
                shown(*std::next(same)), " are one number; write it in one way");
  }
  std::vector<std::int64_t> sorted(table.classes.size());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::int64_t seen_as = labels_by_name_.find(table.classes[i])->second;
    sorted[static_cast<std::size_t>(seen_as)] = static_cast<std::int64_t>(i);
  }
  for (std::int64_t& label : labels_) {
    label = sorted[static_cast<std::size_t>(label)];
  }
}

TUTTI_INLINE void CsvRows::fill_features(CsvTable& table) {
  const std::size_t width = columns_.features.size();
  table.fill = options_.fill;
  for (std::size_t column = 0; column < width && options_.fill.empty(); ++column) {
    double sum = 0.0;
    std::int64_t count = 0;
    for (std::size_t i = column; i < features_.size(); i += width) {
      sum += std::isnan(features_[i]) ? 0.0 : static_cast<double>(features_[i]);
      count += std::isnan(features_[i]) ? 0 : 1;
    }
    TUTTI_CHECK(count > 0, "'", path_, "': no row has a value in the column ",
                shown(columns_.names[columns_.features[column]]),
                ", so that it has no mean; leave the column out, or set .fill");
    table.fill.push_back(static_cast<float>(sum / static_cast<double>(count)));
  }
  for (std::size_t i = 0; i < features_.size(); ++i) {
    features_[i] = std::isnan(features_[i]) ? table.fill[i % width] : features_[i];
  }
}

template <class T>
at::Tensor csv_tensor(const std::vector<T>& values, at::IntArrayRef shape, at::ScalarType type) {
  at::Tensor out(at::detail::empty_cpu(shape, type, /*pin_memory=*/false, std::nullopt));
  std::memcpy(out.mutable_data_ptr(), values.data(), values.size() * sizeof(T));
  return out;
}

TUTTI_INLINE CsvTable CsvRows::finish() {
  TUTTI_CHECK(rows_ > 0, "'", path_, "' has no row of values",
              dropped_ > 0 ? c10::str(": each of its ", dropped_, " lacks one") : "",
              ", expected one or more");
  CsvTable out;
  for (const std::size_t column : columns_.features) {
    out.columns.push_back(columns_.names[column]);
  }
  const auto width = static_cast<std::int64_t>(out.columns.size());
  if (options_.missing == MissingValues::fill) {
    fill_features(out);
  }
  out.features = csv_tensor(features_, {rows_, width}, at::kFloat);
  if (columns_.label) {
    sort_classes(out);
    out.labels = csv_tensor(labels_, {rows_}, at::kLong);
  }
  if (columns_.target) {
    out.targets = csv_tensor(targets_, {rows_, 1}, at::kFloat);
  }
  out.dropped = dropped_;
  return out;
}

// The names in the first line; an error when it has none.
TUTTI_INLINE std::vector<std::string> read_header(const std::string& path, CsvParser& parser) {
  std::vector<std::string> names;
  TUTTI_CHECK(parser.next(names), "'", path,
              "' is empty, expected a line with the names of the "
              "columns");
  TUTTI_CHECK(!std::all_of(names.begin(), names.end(),
                           [](const auto& name) { return csv_number(name).has_value(); }),
              "'", path, "', line ", parser.line(),
              " has numbers alone, expected the names of the "
              "columns; write them there, or give them with .names");
  return names;
}

}  // namespace detail

TUTTI_INLINE CsvTable read_csv(const std::string& path, const CsvOptions& options) {
  const char separator = options.separator;
  TUTTI_CHECK_VALUE(separator != '"' && separator != '\n' && separator != '\r' && separator != ' ',
                    "read_csv: .separator is a quote, a blank or a line end, expected ',', ';', "
                    "'\\t' or another character");
  const detail::FileReader file(path);
  const std::string bytes = file.read(0, file.size());
  std::string_view text = bytes;
  detail::refuse_other_formats(path, text);
  if (text.starts_with("\xef\xbb\xbf")) {
    text.remove_prefix(3);
  }
  detail::CsvParser parser(path, text, separator);
  std::vector<std::string> names =
      options.names.empty() ? detail::read_header(path, parser) : options.names;
  detail::complete_names(path, names);
  detail::CsvRows rows(path, options, std::move(names));
  std::vector<std::string> fields;
  while (parser.next(fields)) {
    rows.add(fields, parser.line());
  }
  return rows.finish();
}

}  // namespace tutti::data
