// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <tutti/checkpoint/detail/little_endian.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/archive_path.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_parse.hpp>

namespace tutti::checkpoint {

/// Name, type, shape and place of one tensor in a safetensors file; offsets count from the end of
/// the header.
struct TensorLayout {
  std::string name;
  c10::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t bytes() const { return end - begin; }
};

namespace detail {

struct DtypeName {
  std::string_view name;
  c10::ScalarType dtype;
};

/// The element types of the safetensors format and LibTorch's names of them.
inline constexpr DtypeName dtype_names[] = {
    {"F64", c10::ScalarType::Double},
    {"F32", c10::ScalarType::Float},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"I64", c10::ScalarType::Long},
    {"I32", c10::ScalarType::Int},
    {"I16", c10::ScalarType::Short},
    {"I8", c10::ScalarType::Char},
    {"U64", c10::ScalarType::UInt64},
    {"U32", c10::ScalarType::UInt32},
    {"U16", c10::ScalarType::UInt16},
    {"U8", c10::ScalarType::Byte},
    {"BOOL", c10::ScalarType::Bool},
    {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    {"F8_E5M2", c10::ScalarType::Float8_e5m2},
    {"F8_E4M3FNUZ", c10::ScalarType::Float8_e4m3fnuz},
    {"F8_E5M2FNUZ", c10::ScalarType::Float8_e5m2fnuz},
    {"F8_E8M0", c10::ScalarType::Float8_e8m0fnu},
    {"C64", c10::ScalarType::ComplexFloat},
};

inline constexpr std::size_t max_name = 4096;  // bytes
inline constexpr int max_dimensions = 64;      // as in NumPy

/// What is wrong with a tensor's name, which is a path in an Archive; empty: nothing.
std::string problem_of_name(std::string_view name);

/// Bytes of a tensor; false when they, or the strides of an empty one, do not fit 63 bits.
bool byte_count(const TensorLayout& tensor, std::uint64_t& bytes);

/// One entry of the header. Throws std::invalid_argument when it is not a tensor's description.
TensorLayout parse_layout(const std::string& name, const tutti::detail::Json& entry);

std::string_view dtype_name(c10::ScalarType dtype);

}  // namespace detail

}  // namespace tutti::checkpoint

#if TUTTI_BODIES

namespace tutti::checkpoint::detail {

TUTTI_INLINE bool byte_count(const TensorLayout& tensor, std::uint64_t& bytes) {
  constexpr std::uint64_t limit = std::uint64_t{1} << 62;
  bool empty = false;
  bytes = c10::elementSize(tensor.dtype);
  for (const std::int64_t extent : tensor.shape) {
    const auto factor = static_cast<std::uint64_t>(extent == 0 ? 1 : extent);
    if (bytes > limit / factor) {
      return false;
    }
    bytes *= factor;
    empty = empty || extent == 0;
  }
  bytes = empty ? 0 : bytes;
  return true;
}

TUTTI_INLINE std::string problem_of_name(std::string_view name) {
  const std::size_t levels = tutti::detail::count_names(name);
  if (name.size() > max_name) {
    return "has a name of " + std::to_string(name.size()) + " bytes, expected at most " +
           std::to_string(max_name);
  }
  return levels <= Archive::max_depth
             ? ""
             : "has a name of " + std::to_string(levels) + " levels, expected at most " +
                   std::to_string(Archive::max_depth);
}

TUTTI_INLINE TensorLayout parse_layout(const std::string& name, const tutti::detail::Json& entry) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument(
        "tensor '" + (name.size() > max_name ? name.substr(0, 64) + "..." : name) + "' " + why);
  };
  if (const std::string problem = problem_of_name(name); !problem.empty()) {
    refuse(problem);
  }
  TensorLayout tensor{.name = name, .dtype = c10::ScalarType::Undefined, .shape = {}};
  for (const auto& [text, dtype] : dtype_names) {
    if (text == entry["dtype"].string()) {
      tensor.dtype = dtype;
    }
  }
  if (tensor.dtype == c10::ScalarType::Undefined) {
    refuse("has the unknown element type '" + entry["dtype"].string() + "'");
  }
  if (entry["shape"].size() > std::size_t{max_dimensions}) {
    refuse("has " + std::to_string(entry["shape"].size()) + " dimensions, expected at most " +
           std::to_string(max_dimensions));
  }
  for (const auto& extent : entry["shape"].array()) {
    tensor.shape.push_back(extent.integer());
    if (extent.integer() < 0) {
      refuse("has the negative extent " + std::to_string(extent.integer()));
    }
  }
  const auto& offsets = entry["data_offsets"];
  if (offsets.size() != 2 || offsets[0].integer() < 0 ||
      offsets[1].integer() < offsets[0].integer()) {
    refuse("has data_offsets that are no pair begin <= end");
  }
  tensor.begin = static_cast<std::uint64_t>(offsets[0].integer());
  tensor.end = static_cast<std::uint64_t>(offsets[1].integer());
  std::uint64_t bytes = 0;
  if (!byte_count(tensor, bytes) || bytes != tensor.bytes()) {
    refuse("has " + std::to_string(tensor.bytes()) + " bytes of data, not what its shape needs");
  }
  if (entry.size() != 3) {
    refuse("has fields besides dtype, shape and data_offsets");
  }
  return tensor;
}

TUTTI_INLINE std::string_view dtype_name(c10::ScalarType dtype) {
  for (const auto& [text, known] : dtype_names) {
    if (known == dtype) {
      return text;
    }
  }
  return {};
}

}  // namespace tutti::checkpoint::detail

#endif
