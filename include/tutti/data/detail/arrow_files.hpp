// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
#include <arrow/scalar.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/json_tensor.hpp>
#include <tutti/data/detail/mapped_file.hpp>
#include <tutti/data/detail/thrown.hpp>

// Parquet and Arrow files by libarrow.
namespace tutti::data::detail {

using tutti::detail::Json;

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

// Arrow's IPC format: a file (`.arrow`, `.feather`), or a stream, which Hugging Face's data sets
// are.
class IpcFile final : public ArrowFile {
 public:
  IpcFile(const std::string& path, bool is_stream) : ArrowFile(path) {
    if (is_stream) {
      auto reader = arrow_ok(::arrow::ipc::RecordBatchStreamReader::Open(open()), place());
      schema_ = reader->schema();
      for (;;) {
        std::shared_ptr<::arrow::RecordBatch> batch;
        arrow_ok(reader->ReadNext(&batch), place());
        if (batch == nullptr) {
          break;
        }
        parts_.push_back(std::move(batch));
      }
      return;
    }
    auto reader = arrow_ok(::arrow::ipc::RecordBatchFileReader::Open(open()), place());
    schema_ = reader->schema();
    for (int i = 0; i < reader->num_record_batches(); ++i) {
      parts_.push_back(arrow_ok(reader->ReadRecordBatch(i), place()));
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
    std::vector<int> places;
    for (const std::string& column : columns) {
      places.push_back(schema_->GetFieldIndex(column));
    }
    check(part);
    const auto batch = arrow_ok(parts_[part]->SelectColumns(places), place());
    return arrow_ok(::arrow::Table::FromRecordBatches({batch}), place());
  }

 private:
  // Offsets in a damaged file point anywhere; looked at once.
  void check(std::size_t part) const {
    const std::lock_guard lock(mutex_);
    checked_.resize(parts_.size());
    if (!checked_[part]) {
      arrow_ok(parts_[part]->ValidateFull(), place());
      checked_[part] = true;
    }
  }

  std::shared_ptr<::arrow::Schema> schema_;
  std::vector<std::shared_ptr<::arrow::RecordBatch>> parts_;  // of the mapped file, not copied
  mutable std::mutex mutex_;
  mutable std::vector<bool> checked_;
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
    const bool is_file = begin == "ARROW1";
    TUTTI_CHECK(is_file || begin.starts_with("\xff\xff\xff\xff"), "'", path,
                "' is no Parquet or Arrow file: it begins with neither \"PAR1\" nor \"ARROW1\"");
    return std::make_unique<IpcFile>(path, !is_file);
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

// The array that holds the values of one that only refers to them, and the place in it.
inline std::pair<std::shared_ptr<::arrow::Array>, std::int64_t> referred(
    std::shared_ptr<::arrow::Array> array, std::int64_t i) {
  for (;;) {
    if (const auto* words = dynamic_cast<const ::arrow::DictionaryArray*>(array.get())) {
      i = words->IsNull(i) ? -1 : words->GetValueIndex(i);
      array = words->dictionary();
    } else if (const auto* extension = dynamic_cast<const ::arrow::ExtensionArray*>(array.get())) {
      array = extension->storage();
    } else {
      return {std::move(array), i};
    }
    if (i < 0) {
      return {std::move(array), i};
    }
  }
}

// The values of a list and which of them belong to row i; null for what is none.
struct ArrowList {
  std::shared_ptr<::arrow::Array> values{};
  std::int64_t begin = 0;
  std::int64_t size = 0;
};
inline ArrowList list_at(const ::arrow::Array& array, std::int64_t i) {
  const auto of = [i](const auto& list) {
    return ArrowList{list.values(), list.value_offset(i),
                     static_cast<std::int64_t>(list.value_length(i))};
  };
  switch (array.type_id()) {
    case ::arrow::Type::LIST:
      return of(static_cast<const ::arrow::ListArray&>(array));
    case ::arrow::Type::LARGE_LIST:
      return of(static_cast<const ::arrow::LargeListArray&>(array));
    case ::arrow::Type::FIXED_SIZE_LIST:
      return of(static_cast<const ::arrow::FixedSizeListArray&>(array));
    default:
      return {};
  }
}

// Calls use(values, type) for an array of numbers: a pointer to row 0, and LibTorch's type of them.
// False for another.
template <class F>
bool with_numbers(const ::arrow::Array& array, F&& use) {
  const auto as = [&](const auto& numbers, c10::ScalarType type) {
    use(numbers.raw_values(), type);
    return true;
  };
  switch (array.type_id()) {
    case ::arrow::Type::INT8:
      return as(static_cast<const ::arrow::Int8Array&>(array), at::kChar);
    case ::arrow::Type::UINT8:
      return as(static_cast<const ::arrow::UInt8Array&>(array), at::kByte);
    case ::arrow::Type::INT16:
      return as(static_cast<const ::arrow::Int16Array&>(array), at::kShort);
    case ::arrow::Type::INT32:
      return as(static_cast<const ::arrow::Int32Array&>(array), at::kInt);
    case ::arrow::Type::INT64:
      return as(static_cast<const ::arrow::Int64Array&>(array), at::kLong);
    case ::arrow::Type::UINT16:  // LibTorch computes with neither
      return as(static_cast<const ::arrow::UInt16Array&>(array), at::kLong);
    case ::arrow::Type::UINT32:
      return as(static_cast<const ::arrow::UInt32Array&>(array), at::kLong);
    case ::arrow::Type::HALF_FLOAT:
      return as(static_cast<const ::arrow::HalfFloatArray&>(array), at::kHalf);
    case ::arrow::Type::FLOAT:
      return as(static_cast<const ::arrow::FloatArray&>(array), at::kFloat);
    case ::arrow::Type::DOUBLE:
      return as(static_cast<const ::arrow::DoubleArray&>(array), at::kDouble);
    default:
      return false;
  }
}

// Values begin .. begin + size - 1 as [size, ...]; of one row: its value.
inline at::Tensor tensor_of(const std::shared_ptr<::arrow::Array>& array, std::int64_t begin,
                            std::int64_t size, bool one_row, const std::string& place) {
  for (std::int64_t i = begin; i < begin + size; ++i) {
    TUTTI_CHECK(!array->IsNull(i), place, one_row ? " is null" : " has a null in it",
                "; make the example yourself with .example");
  }
  std::vector<std::int64_t> shape;
  if (!one_row) {
    shape.push_back(size);
  }
  at::Tensor out;
  const bool numbers = with_numbers(*array, [&](const auto* values, c10::ScalarType type) {
    out = at::detail::empty_cpu(shape, type);
    using V = std::remove_cvref_t<decltype(*values)>;
    if (size > 0 && out.element_size() == static_cast<std::int64_t>(sizeof(V))) {
      std::memcpy(out.mutable_data_ptr(), values + begin,
                  static_cast<std::size_t>(size) * sizeof(V));
    } else if (size > 0) {
      std::copy_n(values + begin, size, out.mutable_data_ptr<std::int64_t>());
    }
  });
  if (numbers) {
    return out;
  }
  if (array->type_id() == ::arrow::Type::BOOL) {
    out = at::detail::empty_cpu(shape, at::kBool);
    for (std::int64_t i = 0; i < size; ++i) {
      out.mutable_data_ptr<bool>()[i] =
          static_cast<const ::arrow::BooleanArray&>(*array).Value(begin + i);
    }
    return out;
  }
  if (one_row) {
    if (const auto* bytes = dynamic_cast<const ::arrow::BinaryArray*>(array.get());
        bytes != nullptr && array->type_id() == ::arrow::Type::BINARY) {
      return byte_tensor(bytes->GetView(begin));
    }
    if (const auto* bytes = dynamic_cast<const ::arrow::LargeBinaryArray*>(array.get());
        bytes != nullptr && array->type_id() == ::arrow::Type::LARGE_BINARY) {
      return byte_tensor(bytes->GetView(begin));
    }
    if (const auto* bytes = dynamic_cast<const ::arrow::FixedSizeBinaryArray*>(array.get());
        bytes != nullptr && array->type_id() == ::arrow::Type::FIXED_SIZE_BINARY) {
      return byte_tensor(bytes->GetView(begin));
    }
  }
  const auto value_at = [&](std::int64_t i) {
    const auto [values, at] = referred(array, i);
    TUTTI_CHECK(at >= 0, place, " has a null in it; make the example yourself with .example");
    if (values != array) {
      return tensor_of(values, at, 1, true, place);
    }
    const ArrowList list = list_at(*array, i);
    TUTTI_CHECK(list.values != nullptr, place, " is ", array->type()->ToString(),
                ", expected numbers or lists of numbers; leave it out with .columns, or make the "
                "example yourself with .example");
    return tensor_of(list.values, list.begin, list.size, false, place);
  };
  if (one_row) {
    return value_at(begin);
  }
  std::vector<at::Tensor> rows;
  for (std::int64_t i = begin; i < begin + size; ++i) {
    rows.push_back(value_at(i));
    TUTTI_CHECK(rows.back().sizes() == rows.front().sizes(), place, " has lists of ",
                rows.front().sizes(), " and ", rows.back().sizes(),
                " side by side, which is no tensor; make the example yourself with .example");
  }
  return rows.empty() ? at::detail::empty_cpu({0}, at::kFloat) : at::stack(rows);
}

// Row i as Json, whatever it is: bytes as a string, dates and decimals as their text.
inline Json json_of(const std::shared_ptr<::arrow::Array>& from, std::int64_t row,
                    const std::string& place) {
  const auto [array, i] = referred(from, row);
  if (i < 0 || array->IsNull(i)) {
    return nullptr;
  }
  Json out;
  const bool numbers =
      with_numbers(*array, [&out, at = i](const auto* values, c10::ScalarType type) {
        if (type == at::kFloat || type == at::kDouble) {
          out = Json(static_cast<double>(values[at]));
        } else if (type == at::kHalf) {
          at::Half half;
          std::memcpy(&half, values + at, sizeof(half));
          out = Json(static_cast<double>(half));
        } else {
          out = Json(static_cast<std::int64_t>(values[at]));
        }
      });
  if (numbers) {
    return out;
  }
  const auto text = [at = i](const auto& strings) {
    return Json(std::string(strings.GetView(at)));
  };
  switch (array->type_id()) {
    case ::arrow::Type::BOOL:
      return static_cast<const ::arrow::BooleanArray&>(*array).Value(i);
    case ::arrow::Type::UINT64: {
      const std::uint64_t value = static_cast<const ::arrow::UInt64Array&>(*array).Value(i);
      TUTTI_CHECK(value <= std::uint64_t(INT64_MAX), place, " is ", value,
                  ", which is no int64; leave it out with .columns");
      return static_cast<std::int64_t>(value);
    }
    case ::arrow::Type::STRING:
    case ::arrow::Type::BINARY:
      return text(static_cast<const ::arrow::BinaryArray&>(*array));
    case ::arrow::Type::LARGE_STRING:
    case ::arrow::Type::LARGE_BINARY:
      return text(static_cast<const ::arrow::LargeBinaryArray&>(*array));
    case ::arrow::Type::FIXED_SIZE_BINARY:
      return text(static_cast<const ::arrow::FixedSizeBinaryArray&>(*array));
    case ::arrow::Type::STRUCT: {
      const auto& fields = static_cast<const ::arrow::StructArray&>(*array);
      Json::Object members;
      for (int f = 0; f < fields.num_fields(); ++f) {
        members.emplace_back(fields.struct_type()->field(f)->name(),
                             json_of(fields.field(f), i, place));
      }
      return members;
    }
    default:
      break;
  }
  if (const ArrowList list = list_at(*array, i); list.values != nullptr) {
    Json::Array values;
    for (std::int64_t at = 0; at < list.size; ++at) {
      values.push_back(json_of(list.values, list.begin + at, place));
    }
    return values;
  }
  return arrow_ok(array->GetScalar(i), place)->ToString();
}

}  // namespace tutti::data::detail
