// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/idx.hpp>

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
