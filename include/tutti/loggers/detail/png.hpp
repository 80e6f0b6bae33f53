// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/core/detail/crc.hpp>

namespace tutti::detail {

// A picture: rows of `width` pixels of `channels` bytes.
struct Picture {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;  // 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha
  std::string pixels{};
};

inline void append_big_endian(std::string& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    out += static_cast<char>(value >> shift);
  }
}

// The picture as a PNG file whose pixels are stored, not compressed: that is exactly specified and
// short, and pictures that are logged are small.
// Source: RFC 2083 (PNG), 1950 (zlib), 1951 (stored blocks).
inline std::string png(const Picture& picture) {
  std::string out = "\x89PNG\r\n\x1A\n";
  const auto chunk = [&](std::string_view type, std::string_view data) {
    append_big_endian(out, static_cast<std::uint32_t>(data.size()));
    const std::size_t start = out.size();
    out.append(type).append(data);
    append_big_endian(out, crc32_png(std::string_view(out).substr(start)));
  };
  std::string header;
  append_big_endian(header, static_cast<std::uint32_t>(picture.width));
  append_big_endian(header, static_cast<std::uint32_t>(picture.height));
  constexpr char colour_types[] = {0, 0, 4, 2, 6};
  header += {8, colour_types[picture.channels], 0, 0, 0};
  chunk("IHDR", header);

  const auto row = static_cast<std::size_t>(picture.width * picture.channels);
  std::string rows;  // each after a byte that says: not filtered
  for (std::int64_t y = 0; y < picture.height; ++y) {
    rows += '\0';
    rows.append(picture.pixels, static_cast<std::size_t>(y) * row, row);
  }
  std::string data = "\x78\x01";
  for (std::size_t at = 0; at < rows.size(); at += 65535) {
    const std::size_t size = std::min<std::size_t>(65535, rows.size() - at);
    data += static_cast<char>(at + size == rows.size());  // the last block
    for (const std::size_t word : {size, ~size}) {
      data += static_cast<char>(word);
      data += static_cast<char>(word >> 8);
    }
    data.append(rows, at, size);
  }
  std::uint32_t a = 1;  // Adler-32
  std::uint32_t b = 0;
  for (const char c : rows) {
    a = (a + static_cast<unsigned char>(c)) % 65521;
    b = (b + a) % 65521;
  }
  append_big_endian(data, b << 16 | a);
  chunk("IDAT", data);
  chunk("IEND", {});
  return out;
}

}  // namespace tutti::detail
