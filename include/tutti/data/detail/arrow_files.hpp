// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef TUTTI_WITH_ARROW

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <arrow/array.h>
#include <arrow/array/concatenate.h>
#include <arrow/buffer.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/reader.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/mapped_file.hpp>
#include <tutti/data/detail/thrown.hpp>

// Parquet and Arrow files by libarrow.
namespace tutti::data::detail {

inline void arrow_ok(const ::arrow::Status& status, const std::string& place) {
  TUTTI_CHECK(status.ok(), place, ": ", status.message());
}
template <class T>
T arrow_ok(::arrow::Result<T> result, const std::string& place) {
  arrow_ok(result.status(), place);
  return std::move(result).ValueUnsafe();
}

// A file in parts of neighbouring rows, row groups or record batches, each read as a whole.
class ArrowFile {
 public:
  explicit ArrowFile(const std::string& path) : bytes_(path) {}
  ArrowFile(const ArrowFile&) = delete;
  ArrowFile& operator=(const ArrowFile&) = delete;
  virtual ~ArrowFile() = default;

  [[nodiscard]] const std::string& path() const { return bytes_.path(); }
  [[nodiscard]] std::string place() const { return "'" + path() + "'"; }
  [[nodiscard]] virtual std::shared_ptr<::arrow::Schema> schema() const = 0;
  [[nodiscard]] virtual std::vector<std::int64_t> rows_of_parts() const = 0;
  // columns: names of the schema.
  [[nodiscard]] virtual std::shared_ptr<::arrow::Table> read(
      std::size_t part, const std::vector<std::string>& columns) const = 0;

 protected:
  [[nodiscard]] std::shared_ptr<::arrow::io::BufferReader> open() const {
    return std::make_shared<::arrow::io::BufferReader>(
        std::make_shared<::arrow::Buffer>(static_cast<const std::uint8_t*>(bytes_.bytes()),
                                          static_cast<std::int64_t>(bytes_.size())));
  }

  // Columns of a batch, whose offsets, which in a damaged file point anywhere, are looked at.
  [[nodiscard]] std::shared_ptr<::arrow::Table> columns_of(
      const std::shared_ptr<::arrow::RecordBatch>& batch,
      const std::vector<std::string>& columns) const {
    std::vector<int> places;
    for (const std::string& column : columns) {
      places.push_back(batch->schema()->GetFieldIndex(column));
    }
    const auto some = arrow_ok(batch->SelectColumns(places), place());
    arrow_ok(some->ValidateFull(), place());
    return arrow_ok(::arrow::Table::FromRecordBatches({some}), place());
  }

 private:
  MappedFile bytes_;
};

class ParquetFile final : public ArrowFile {
 public:
  explicit ParquetFile(const std::string& path) : ArrowFile(path) {
    ::parquet::arrow::FileReaderBuilder builder;
    arrow_ok(builder.Open(open()), place());
    arrow_ok(builder.Build(&reader_), place());
    arrow_ok(reader_->GetSchema(&schema_), place());
  }

  std::shared_ptr<::arrow::Schema> schema() const override { return schema_; }
  std::vector<std::int64_t> rows_of_parts() const override {
    std::vector<std::int64_t> out;
    const auto metadata = reader_->parquet_reader()->metadata();
    for (int i = 0; i < metadata->num_row_groups(); ++i) {
      out.push_back(metadata->RowGroup(i)->num_rows());
    }
    return out;
  }
  std::shared_ptr<::arrow::Table> read(std::size_t part,
                                       const std::vector<std::string>& columns) const override {
    std::vector<int> leaves;
    const ::parquet::SchemaDescriptor& all = *reader_->parquet_reader()->metadata()->schema();
    for (int i = 0; i < all.num_columns(); ++i) {
      const std::string& root = all.GetColumnRoot(i)->name();
      if (std::find(columns.begin(), columns.end(), root) != columns.end()) {
        leaves.push_back(i);
      }
    }
    const std::lock_guard lock(mutex_);
    return read_group(*reader_, static_cast<int>(part), leaves);
  }

 private:
  // By the function that this release of Arrow has.
  template <class Reader>
  std::shared_ptr<::arrow::Table> read_group(Reader& reader, int part,
                                             const std::vector<int>& leaves) const {
    if constexpr (requires { reader.ReadRowGroup(part, leaves).ValueUnsafe(); }) {
      return arrow_ok(reader.ReadRowGroup(part, leaves), place());
    } else {
      std::shared_ptr<::arrow::Table> out;
      arrow_ok(reader.ReadRowGroup(part, leaves, &out), place());
      return out;
    }
  }

  std::unique_ptr<::parquet::arrow::FileReader> reader_;
  std::shared_ptr<::arrow::Schema> schema_;
  mutable std::mutex mutex_;
};

// Arrow's IPC format in a file (`.arrow`, `.feather`). A batch is the mapped bytes, unless it is
// compressed.
class IpcFile final : public ArrowFile {
 public:
  explicit IpcFile(const std::string& path) : ArrowFile(path) {
    reader_ = arrow_ok(::arrow::ipc::RecordBatchFileReader::Open(open()), place());
    for (int i = 0; i < reader_->num_record_batches(); ++i) {
      rows_.push_back(arrow_ok(reader_->ReadRecordBatch(i), place())->num_rows());
    }
  }

  std::shared_ptr<::arrow::Schema> schema() const override { return reader_->schema(); }
  std::vector<std::int64_t> rows_of_parts() const override { return rows_; }
  std::shared_ptr<::arrow::Table> read(std::size_t part,
                                       const std::vector<std::string>& columns) const override {
    const std::lock_guard lock(mutex_);
    return columns_of(arrow_ok(reader_->ReadRecordBatch(static_cast<int>(part)), place()), columns);
  }

 private:
  std::shared_ptr<::arrow::ipc::RecordBatchFileReader> reader_;
  std::vector<std::int64_t> rows_;
  mutable std::mutex mutex_;
};

// A stream of it, which Hugging Face's data sets are: it has no index, so all batches are kept.
class IpcStream final : public ArrowFile {
 public:
  explicit IpcStream(const std::string& path) : ArrowFile(path) {
    const auto reader = arrow_ok(::arrow::ipc::RecordBatchStreamReader::Open(open()), place());
    schema_ = reader->schema();
    for (;;) {
      std::shared_ptr<::arrow::RecordBatch> batch;
      arrow_ok(reader->ReadNext(&batch), place());
      if (batch == nullptr) {
        break;
      }
      parts_.push_back(std::move(batch));
    }
  }

  std::shared_ptr<::arrow::Schema> schema() const override { return schema_; }
  std::vector<std::int64_t> rows_of_parts() const override {
    std::vector<std::int64_t> out;
    for (const auto& part : parts_) {
      out.push_back(part->num_rows());
    }
    return out;
  }
  std::shared_ptr<::arrow::Table> read(std::size_t part,
                                       const std::vector<std::string>& columns) const override {
    return columns_of(parts_[part], columns);
  }

 private:
  std::shared_ptr<::arrow::Schema> schema_;
  std::vector<std::shared_ptr<::arrow::RecordBatch>> parts_;
};

inline std::unique_ptr<ArrowFile> open_arrow_file(const std::string& path) {
  const MappedFile bytes(path);
  const std::string_view begin = bytes.text().substr(0, 6);
  try {
    if (begin.starts_with("PAR1")) {
      return std::make_unique<ParquetFile>(path);
    }
    TUTTI_CHECK(!begin.starts_with("PARE"), "'", path,
                "' is an encrypted Parquet file, which is not read");
    if (begin == "ARROW1") {
      return std::make_unique<IpcFile>(path);
    }
    TUTTI_CHECK(begin.starts_with("\xff\xff\xff\xff"), "'", path,
                "' is no Parquet or Arrow file: it begins with neither \"PAR1\" nor \"ARROW1\"");
    return std::make_unique<IpcStream>(path);
  } catch (const c10::Error&) {
    throw;
  } catch (...) {
    throw_over("'" + path + "': ");
  }
}

// The parts that were used last, read once for all threads.
class ArrowParts {
 public:
  using Tables = std::vector<std::shared_ptr<::arrow::Array>>;  // of the columns

  ArrowParts(std::vector<std::string> columns, std::int64_t limit)
      : columns_(std::move(columns)), limit_(limit) {}

  [[nodiscard]] std::shared_ptr<const Tables> get(const ArrowFile& file, std::size_t part) {
    const auto slot = slot_of(&file, part);
    const std::lock_guard lock(slot->mutex);
    if (slot->columns == nullptr) {
      slot->columns = read(file, part);
    }
    return slot->columns;
  }

 private:
  struct Slot {
    const ArrowFile* file;
    std::size_t part;
    std::mutex mutex{};
    std::shared_ptr<const Tables> columns{};
  };

  std::shared_ptr<Slot> slot_of(const ArrowFile* file, std::size_t part) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const auto& slot) {
      return slot->file == file && slot->part == part;
    });
    if (found != slots_.end()) {
      slots_.splice(slots_.begin(), slots_, found);
    } else {
      auto slot = std::make_shared<Slot>();
      slot->file = file;
      slot->part = part;
      slots_.push_front(std::move(slot));
    }
    while (limit_ > 0 && static_cast<std::int64_t>(slots_.size()) > limit_) {
      slots_.pop_back();
    }
    return slots_.front();
  }

  [[nodiscard]] std::shared_ptr<const Tables> read(const ArrowFile& file, std::size_t part) const {
    try {
      const auto table = file.read(part, columns_);
      Tables out;
      for (const std::string& column : columns_) {
        const auto chunks = table->GetColumnByName(column);
        TUTTI_CHECK(chunks != nullptr, file.place(), ": the column \"", column, "\" is not there");
        out.push_back(chunks->num_chunks() == 1
                          ? chunks->chunk(0)
                          : arrow_ok(::arrow::Concatenate(chunks->chunks()), file.place()));
      }
      return std::make_shared<const Tables>(std::move(out));
    } catch (const c10::Error&) {
      throw;
    } catch (...) {
      throw_over(file.place() + ": ");
    }
  }

  std::vector<std::string> columns_;
  std::int64_t limit_;
  std::mutex mutex_{};
  std::list<std::shared_ptr<Slot>> slots_{};  // the one that was used last in front
};

}  // namespace tutti::data::detail

#endif
