// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef TUTTI_WITH_ARROW

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <arrow/array.h>
#include <arrow/scalar.h>
#include <arrow/type.h>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>

#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/arrow_files.hpp>
#include <tutti/data/detail/json_tensor.hpp>

// Values of Arrow's columns as tensors and as Json.
namespace tutti::data::detail {

using tutti::detail::Json;

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

// The bytes or the text of row i; nothing for what is neither.
inline std::optional<std::string_view> bytes_at(const ::arrow::Array& array, std::int64_t i) {
  switch (array.type_id()) {
    case ::arrow::Type::STRING:
    case ::arrow::Type::BINARY:
      return static_cast<const ::arrow::BinaryArray&>(array).GetView(i);
    case ::arrow::Type::LARGE_STRING:
    case ::arrow::Type::LARGE_BINARY:
      return static_cast<const ::arrow::LargeBinaryArray&>(array).GetView(i);
    case ::arrow::Type::FIXED_SIZE_BINARY:
      return static_cast<const ::arrow::FixedSizeBinaryArray&>(array).GetView(i);
    default:
      return std::nullopt;
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
  const bool is_text =
      array->type_id() == ::arrow::Type::STRING || array->type_id() == ::arrow::Type::LARGE_STRING;
  if (const auto bytes = one_row && !is_text ? bytes_at(*array, begin) : std::nullopt) {
    return byte_tensor(*bytes);
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
  if (const auto bytes = bytes_at(*array, i)) {
    return std::string(*bytes);
  }
  switch (array->type_id()) {
    case ::arrow::Type::BOOL:
      return static_cast<const ::arrow::BooleanArray&>(*array).Value(i);
    case ::arrow::Type::UINT64: {
      const std::uint64_t value = static_cast<const ::arrow::UInt64Array&>(*array).Value(i);
      TUTTI_CHECK(value <= std::uint64_t(INT64_MAX), place, " is ", value,
                  ", which is no int64; leave it out with .columns");
      return static_cast<std::int64_t>(value);
    }
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

#endif
