// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/json.hpp>

#ifdef TUTTI_WITH_ARROW
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <utility>

#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/arrow_files.hpp>
#include <tutti/data/detail/file_reader.hpp>
#endif

/// Parquet and Arrow files, by libarrow, where the program is linked to it: the target
/// tutti::arrow, which the CMake function tutti_find_arrow() makes and which defines
/// TUTTI_WITH_ARROW.
namespace tutti::data {

/// Options of ParquetDataset.
struct ParquetOptions {
  std::vector<std::string> columns{};  ///< those that are read, in this order; empty: all
  /// Row groups that are kept decoded, those used last, for all threads together; 0: all. Each is
  /// as large in memory as its columns. An order that jumps between more reads groups again.
  std::int64_t row_groups_in_memory = 16;
  /// Makes an example of a row, an object with a member for each column. Empty: each column, a
  /// number, bytes or lists of numbers, is a tensor by its name.
  std::function<Batch(const tutti::detail::Json& row)> example{};
};

#ifdef TUTTI_WITH_ARROW

/// The rows of Parquet files, one file behind the other: a data set for DataLoader.
///
///     tutti::data::ParquetDataset rows{"train", {.columns = {"text"}, .example = [&](const auto&
///     row)
///     {
///       return tutti::Batch{{"input_ids",
///       at::tensor(tokenizer.encode(row["text"].string()).ids)}};
///     }}};
///     tutti::DataLoader train{rows, {.batch_size = 8, .shuffle = true, .collate =
///     PadSequences{}}};
///
/// Arrow's IPC files and streams, which Hugging Face's `save_to_disk` writes, are read too; a file
/// is known by its first bytes. Files are mapped. Several threads read side by side. Tensors have
/// the types of their columns, uint16 and uint32 as int64.
/// Copies share all.
class ParquetDataset {
 public:
  /// path: a file, or a folder whose files with names that end in `.parquet` or `.arrow` are read
  /// in the order of their names.
  /// Throws c10::Error, naming the file: it cannot be opened or is none of these, a column is not
  /// there or has another type than in the first file, or there is no row; c10::ValueError when an
  /// option is out of range.
  explicit ParquetDataset(const std::string& path, ParquetOptions options = {})
      : ParquetDataset(files_of(path), std::move(options)) {}
  explicit ParquetDataset(const std::vector<std::string>& paths, ParquetOptions options = {});

  /// Rows, of all files.
  [[nodiscard]] std::int64_t size() const { return size_; }

  /// Names of the columns that are read.
  [[nodiscard]] const std::vector<std::string>& columns() const { return columns_; }

  /// Row `index`, 0 .. size() - 1, as an object: null where a value is missing, bytes as a string,
  /// dates, times and decimals as text.
  /// Throws c10::IndexError out of range, and c10::Error that names the file when it is damaged.
  [[nodiscard]] tutti::detail::Json value(std::int64_t index) const;

  /// Example `index`. Throws as value() does; also when a column cannot be made a tensor, and what
  /// options.example throws, with the file and row in front of it.
  [[nodiscard]] Batch get(std::int64_t index) const;

  /// Where row `index` stands, for messages: "'train.parquet', row 3", from 1.
  [[nodiscard]] std::string place(std::int64_t index) const;

 private:
  struct Part {
    const detail::ArrowFile* file;
    std::size_t number;    // in its file
    std::int64_t before;   // rows of the parts before
    std::int64_t of_file;  // the same, in its file
  };

  static std::vector<std::string> files_of(const std::string& path);
  void add(std::unique_ptr<detail::ArrowFile> file);
  [[nodiscard]] const Part& part_of(std::int64_t index) const;

  std::function<Batch(const tutti::detail::Json&)> example_;
  std::vector<std::string> columns_;
  std::shared_ptr<std::vector<std::unique_ptr<detail::ArrowFile>>> files_ =
      std::make_shared<std::vector<std::unique_ptr<detail::ArrowFile>>>();
  std::vector<Part> parts_;
  std::shared_ptr<detail::ArrowParts> read_;
  std::int64_t size_ = 0;
};

inline std::vector<std::string> ParquetDataset::files_of(const std::string& path) {
  if (!detail::is_folder(path)) {
    return {path};
  }
  std::vector<std::string> out;
  for (const detail::FolderEntry& entry : detail::list_folder(path)) {
    if (!entry.is_folder && (entry.name.ends_with(".parquet") || entry.name.ends_with(".arrow"))) {
      out.push_back(path + "/" + entry.name);
    }
  }
  TUTTI_CHECK(!out.empty(), "ParquetDataset: the folder '", path,
              "' has no file that ends in .parquet or .arrow");
  return out;
}

inline ParquetDataset::ParquetDataset(const std::vector<std::string>& paths, ParquetOptions options)
    : example_(std::move(options.example)), columns_(std::move(options.columns)) {
  TUTTI_CHECK_VALUE(options.row_groups_in_memory >= 0, "ParquetDataset: row_groups_in_memory is ",
                    options.row_groups_in_memory, ", expected 0 or more");
  TUTTI_CHECK_VALUE(!paths.empty(), "ParquetDataset: there is no file, expected one or more");
  for (const std::string& path : paths) {
    add(detail::open_arrow_file(path));
  }
  TUTTI_CHECK(size_ > 0, "'", paths.front(), "' has no row",
              paths.size() > 1 ? ", and neither has another file" : "", ", expected one or more");
  read_ = std::make_shared<detail::ArrowParts>(columns_, options.row_groups_in_memory);
}

inline void ParquetDataset::add(std::unique_ptr<detail::ArrowFile> file) {
  const auto schema = file->schema();
  if (files_->empty() && columns_.empty()) {
    columns_ = schema->field_names();
  }
  for (const std::string& column : columns_) {
    const auto field = schema->GetFieldByName(column);
    TUTTI_CHECK(field != nullptr, file->place(), " has no column \"", column,
                "\" or several of that name; there are: ", schema->field_names());
    if (!files_->empty()) {
      const auto& first = *files_->front();
      const auto type = first.schema()->GetFieldByName(column)->type();
      TUTTI_CHECK(field->type()->Equals(*type), file->place(), ": the column \"", column, "\" is ",
                  field->type()->ToString(), ", but in ", first.place(), " it is ",
                  type->ToString());
    }
  }
  std::int64_t of_file = 0;
  std::size_t number = 0;
  for (const std::int64_t rows : file->rows_of_parts()) {
    if (rows > 0) {
      parts_.push_back({file.get(), number, size_, of_file});
    }
    ++number;
    size_ += rows;
    of_file += rows;
  }
  files_->push_back(std::move(file));
}

inline const ParquetDataset::Part& ParquetDataset::part_of(std::int64_t index) const {
  TUTTI_CHECK_INDEX(index >= 0 && index < size_, "ParquetDataset: index is ", index,
                    ", expected 0 to ", size_ - 1);
  return *std::prev(
      std::upper_bound(parts_.begin(), parts_.end(), index,
                       [](std::int64_t i, const Part& part) { return i < part.before; }));
}

inline std::string ParquetDataset::place(std::int64_t index) const {
  const Part& part = part_of(index);
  return part.file->place() + ", row " + std::to_string(1 + part.of_file + index - part.before);
}

inline tutti::detail::Json ParquetDataset::value(std::int64_t index) const {
  const Part& part = part_of(index);
  const auto columns = read_->get(*part.file, part.number);
  tutti::detail::Json::Object out;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    out.emplace_back(columns_[i], detail::json_of((*columns)[i], index - part.before,
                                                  place(index) + ", \"" + columns_[i] + "\""));
  }
  return out;
}

inline Batch ParquetDataset::get(std::int64_t index) const {
  if (example_) {
    const tutti::detail::Json row = value(index);
    try {
      return example_(row);
    } catch (...) {
      detail::throw_over(place(index) + ": ");
    }
  }
  const Part& part = part_of(index);
  const auto columns = read_->get(*part.file, part.number);
  Batch out;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    out[columns_[i]] = detail::tensor_of((*columns)[i], index - part.before, 1, true,
                                         place(index) + ", \"" + columns_[i] + "\"");
  }
  return out;
}

#else

/// What stands here without libarrow.
class ParquetDataset {
 public:
  template <class Path, bool linked = false>
  explicit ParquetDataset(const Path&, const ParquetOptions& = {}) {
    static_assert(linked,
                  "tutti: this program reads Parquet files without a library for it; install "
                  "libarrow or pyarrow, call tutti_find_arrow() in CMake with "
                  "-DTUTTI_WITH_ARROW=ON and link the target tutti::arrow.");
  }
  [[nodiscard]] std::int64_t size() const { return 0; }
  [[nodiscard]] Batch get(std::int64_t) const { return {}; }
};

#endif

}  // namespace tutti::data
