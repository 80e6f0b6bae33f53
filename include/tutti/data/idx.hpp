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

namespace tutti::data::detail {

TUTTI_INLINE void swap_bytes(void* data, std::size_t bytes, std::size_t width) {
  if (width == 1 || std::endian::native == std::endian::big) {
    return;
  }
  auto* at = static_cast<unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; i += width) {
    for (std::size_t j = 0; j < width / 2; ++j) {
      std::swap(at[i + j], at[i + width - 1 - j]);
    }
  }
}

TUTTI_INLINE IdxHeader read_idx_header(const FileReader& file) {
  const std::string& path = file.path();
  TUTTI_CHECK(file.size() >= 4, "'", path, "' is no IDX file: it has ", file.size(),
              " bytes, expected at least 4");
  std::array<unsigned char, 4> magic{};
  file.read(0, magic.data(), 4);
  TUTTI_CHECK(!(magic[0] == 0x1f && magic[1] == 0x8b), "'", path,
              "' is compressed with gzip; decompress it first (gunzip)");
  TUTTI_CHECK(magic[0] == 0 && magic[1] == 0, "'", path, "' is no IDX file: it begins with bytes ",
              int{magic[0]}, ", ", int{magic[1]}, ", expected 0, 0");
  IdxHeader header{idx_type(magic[2], path), {}, 0};
  std::uint64_t bytes = at::elementSize(header.type);
  const std::uint64_t before = 4 + 4 * std::uint64_t{magic[3]};
  TUTTI_CHECK(file.size() >= before, "'", path, "' is cut off: it has ", file.size(),
              " bytes, expected ", before, " for the header alone");
  for (std::uint64_t at = 4; at < before; at += 4) {
    std::array<unsigned char, 4> size{};
    file.read(at, size.data(), 4);
    header.shape.push_back(big_endian(size.data()));
    TUTTI_CHECK(!__builtin_mul_overflow(bytes, big_endian(size.data()), &bytes), "'", path,
                "' is damaged: its dimensions ", at::IntArrayRef(header.shape),
                " do not fit into memory");
  }
  header.bytes = bytes;
  return header;
}

}  // namespace tutti::data::detail

namespace tutti::data {

TUTTI_INLINE at::Tensor load_idx(const std::string& path) {
  const detail::FileReader file(path);
  const detail::IdxHeader header = detail::read_idx_header(file);
  const std::uint64_t before = 4 + 4 * header.shape.size();
  TUTTI_CHECK(file.size() - before == header.bytes, "'", path, "' has ", file.size(),
              " bytes, expected ", header.bytes + before, " for dimensions ",
              at::IntArrayRef(header.shape), " of ", header.type, "; it is ",
              file.size() - before < header.bytes ? "cut off" : "damaged");
  at::Tensor out(
      at::detail::empty_cpu(header.shape, header.type, /*pin_memory=*/false, std::nullopt));
  file.read(before, out.mutable_data_ptr(), header.bytes);
  detail::swap_bytes(out.mutable_data_ptr(), header.bytes, at::elementSize(header.type));
  return out;
}

TUTTI_INLINE void save_idx(const std::string& path, const at::Tensor& tensor) {
  std::uint8_t code = 0;
  for (const detail::IdxType& known : detail::idx_types) {
    code = known.type == tensor.scalar_type() ? known.code : code;
  }
  TUTTI_CHECK(code != 0, "save_idx: the tensor is ", tensor.scalar_type(),
              ", expected uint8, int8, int16, int32, float or double");
  TUTTI_CHECK(tensor.dim() <= 255, "save_idx: the tensor has ", tensor.dim(),
              " dimensions, expected at most 255");
  std::string bytes{'\0', '\0', static_cast<char>(code), static_cast<char>(tensor.dim())};
  for (const std::int64_t size : tensor.sizes()) {
    TUTTI_CHECK(size <= 0xffffffffLL, "save_idx: a dimension is ", size,
                ", expected less than 2^32");
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<char>((size >> shift) & 0xff));
    }
  }
  const at::Tensor plain = tensor.cpu().contiguous();
  const std::size_t header = bytes.size();
  bytes.append(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
  detail::swap_bytes(bytes.data() + header, plain.nbytes(), at::elementSize(plain.scalar_type()));
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  TUTTI_CHECK(file, "'", path, "' cannot be written: ", std::strerror(errno));
}

}  // namespace tutti::data

#endif
