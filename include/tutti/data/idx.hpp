// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/file_reader.hpp>

/// IDX files, the format of MNIST and its relatives: two zero bytes, a byte for the type, a byte
/// for the number of dimensions, the dimensions as big-endian 32-bit numbers, and the values, big
/// endian as well.
/// Source: LeCun et al., "The MNIST database of handwritten digits".
namespace tutti::data {

namespace detail {

struct IdxType {
  std::uint8_t code;
  at::ScalarType type;
};
inline constexpr std::array<IdxType, 6> idx_types{{{0x08, at::kByte},
                                                   {0x09, at::kChar},
                                                   {0x0B, at::kShort},
                                                   {0x0C, at::kInt},
                                                   {0x0D, at::kFloat},
                                                   {0x0E, at::kDouble}}};

// Between the file's byte order and the machine's; its own inverse.
void swap_bytes(void* data, std::size_t bytes, std::size_t width);

inline std::uint32_t big_endian(const unsigned char* at) {
  return (std::uint32_t{at[0]} << 24U) | (std::uint32_t{at[1]} << 16U) |
         (std::uint32_t{at[2]} << 8U) | std::uint32_t{at[3]};
}

inline at::ScalarType idx_type(std::uint8_t code, const std::string& path) {
  for (const IdxType& known : idx_types) {
    if (known.code == code) {
      return known.type;
    }
  }
  TUTTI_CHECK(false, "'", path, "' is no IDX file that can be read: its type code is ", int{code},
              ", expected 8 (uint8), 9 (int8), 11 (int16), 12 (int32), 13 (float) or 14 (double)");
}

struct IdxHeader {
  at::ScalarType type;
  std::vector<std::int64_t> shape;
  std::uint64_t bytes;  // of the values
};

IdxHeader read_idx_header(const FileReader& file);

}  // namespace detail

/// Reads an IDX file.
///
/// Returns a CPU tensor with the file's dimensions, of type uint8, int8, int16, int32, float or
/// double.
/// Throws c10::Error, naming the file and what is wrong with it, when it cannot be opened, is no
/// IDX file, is compressed, or is shorter or longer than its header says.
at::Tensor load_idx(const std::string& path);

/// Writes a tensor as an IDX file, replacing what is there.
///
/// tensor: uint8, int8, int16, int32, float or double; at most 255 dimensions of at most 2^32 - 1.
/// Throws c10::Error for other tensors and when the file cannot be written.
void save_idx(const std::string& path, const at::Tensor& tensor);

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/idx.inl.hpp>
#endif
