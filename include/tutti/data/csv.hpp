// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/file_reader.hpp>

/// Tables in text files: a line for each example, values with a separator between them.
/// Source: RFC 4180, "Common Format and MIME Type for Comma-Separated Values (CSV) Files".
namespace tutti::data {

/// What read_csv() does with a row that lacks a value in a column that is read.
enum class MissingValues : std::uint8_t {
  refuse,    ///< an error that names the place
  drop_row,  ///< the row is left out and counted in CsvTable::dropped
  keep,      ///< the value is NaN; a missing label or target is an error
  fill,      ///< the value is that of CsvOptions::fill; a missing label or target is an error
};

/// Options of read_csv().
struct CsvOptions {
  std::string label{};                 ///< the column that holds the class of a row, as text or
                                       ///< number; empty: none
  std::string target{};                ///< the column that holds a number to predict; empty: none
  std::vector<std::string> columns{};  ///< features, in this order; empty: all other columns
  std::vector<std::string> ignore{};   ///< columns that are not read where `columns` is empty
  std::vector<std::string> classes{};  ///< classes by number, as those of the training file; empty:
                                       ///< those of the file, sorted
  std::vector<std::string> names{};    ///< of all columns, for a file without a header line
  MissingValues missing = MissingValues::refuse;
  std::vector<float> fill{};  ///< with MissingValues::fill, for each feature, what stands in place
                              ///< of a missing value; empty: the means of the file
  char separator = ',';
};

/// A table as numbers: `TensorLoader{table.features, table.labels, {.batch_size = 32}}` makes
/// batches of it. It is a data set for DataLoader as well, a row an example.
struct CsvTable {
  at::Tensor features;               ///< float32 [N, D]
  at::Tensor labels;                 ///< int64 [N], numbers of `classes`; undefined without label
  at::Tensor targets;                ///< float32 [N, 1]; undefined without target
  std::vector<std::string> columns;  ///< names of the D features
  std::vector<std::string> classes;  ///< names, by label
  std::int64_t dropped = 0;          ///< rows that lacked a value and were left out
  std::vector<float> fill;           ///< what missing values were filled with, of each feature

  /// Rows.
  [[nodiscard]] std::int64_t size() const { return features.defined() ? features.size(0) : 0; }

  /// Row `index`, 0 .. size() - 1: "inputs", float32 [D], and "targets", its label, or without
  /// labels its target. Throws c10::IndexError out of range.
  [[nodiscard]] Batch get(std::int64_t index) const {
    TUTTI_CHECK_INDEX(index >= 0 && index < size(), "CsvTable: index is ", index,
                      ", expected 0 to ", size() - 1);
    Batch out(features.select(0, index));
    const at::Tensor& targets_or_labels = labels.defined() ? labels : targets;
    if (targets_or_labels.defined()) {
      out["targets"] = targets_or_labels.select(0, index);
    }
    return out;
  }
};

/// Reads a CSV file whose first line has the names of the columns.
///
///     auto train = tutti::data::read_csv("train.csv", {.label = "species"});
///     auto test = tutti::data::read_csv(
///         "test.csv", {.label = "species", .columns = train.columns, .classes = train.classes});
///
/// A value may stand in double quotes, with separators, line ends and doubled quotes inside. Blanks
/// around values, empty lines and a byte order mark do not count. Features and targets are finite
/// numbers with a decimal point. A value is missing when it is empty or one of NA, N/A, n/a, #N/A,
/// <NA>, NaN, nan, NULL, null, None. Classes are sorted by number when all are numbers, else by
/// their bytes. A column without a name is called "Unnamed: " and its place from 0, as in pandas.
/// Returns rows in the order of the file.
/// Throws c10::Error, with the file and where it can the line and the column, when the file cannot
/// be read or is no such table, and c10::ValueError for options that name no column or contradict
/// each other.
CsvTable read_csv(const std::string& path, const CsvOptions& options = {});

namespace detail {

// Which columns are read for what, by their places.
struct CsvColumns {
  std::vector<std::string> names;
  std::vector<std::size_t> features;
  std::optional<std::size_t> label;
  std::optional<std::size_t> target;
};

// Collects the numbers of a table row by row.
class CsvRows {
 public:
  CsvRows(std::string path, const CsvOptions& options, std::vector<std::string> names);
  void add(const std::vector<std::string>& fields, std::int64_t line);
  CsvTable finish();

 private:
  [[nodiscard]] std::string place(std::int64_t line, std::size_t column) const;
  [[nodiscard]] bool lacks_values(const std::vector<std::string>& fields, std::int64_t line) const;
  void add_features(const std::vector<std::string>& fields, std::int64_t line);
  void add_label(const std::string& name, std::int64_t line);
  [[noreturn]] void refuse_texts(const std::vector<std::string>& fields, std::int64_t line) const;
  void sort_classes(CsvTable& table);
  void fill_features(CsvTable& table);

  std::string path_;
  const CsvOptions& options_;
  CsvColumns columns_;
  std::vector<std::size_t> needed_;  // columns in which each row has a value
  std::map<std::string, std::int64_t, std::less<>> labels_by_name_;  // in the order of appearance
  std::vector<float> features_;
  std::vector<std::int64_t> labels_;
  std::vector<float> targets_;
  std::int64_t rows_ = 0;
  std::int64_t dropped_ = 0;
};

}  // namespace detail

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/csv.inl.hpp>
#endif
