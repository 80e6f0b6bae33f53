// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/file_reader.hpp>

/// The table of contents of a tar file: ustar, with the longer names of pax and GNU.
/// Source: POSIX.1-2001, "pax - portable archive interchange".
namespace tutti::data::detail {

struct TarEntry {
  std::string name;   // without "./" in front and "/" behind
  std::string whole;  // as it stands in the file
  bool is_folder = false;
  std::uint64_t begin = 0;   // of the headers
  std::uint64_t offset = 0;  // of its bytes in the file
  std::uint64_t size = 0;
  std::uint64_t end = 0;  // of the last block
};

inline constexpr std::uint64_t tar_block = 512;
using TarHeader = std::array<char, tar_block>;

inline std::string_view tar_field(const TarHeader& header, std::size_t offset, std::size_t size) {
  const std::string_view field(header.data() + offset, size);
  return field.substr(0, field.find('\0'));
}

// Octal digits, or with the uppermost bit set a big-endian number.
inline std::uint64_t tar_number(const TarHeader& header, std::size_t offset, std::size_t size) {
  std::uint64_t value = 0;
  if ((static_cast<unsigned char>(header[offset]) & 0x80U) != 0) {
    for (std::size_t i = size - 8; i < size; ++i) {
      value = value << 8U | static_cast<unsigned char>(header[offset + i]);
    }
    return value;
  }
  for (const char digit : tar_field(header, offset, size)) {
    if (digit >= '0' && digit <= '7') {
      value = value << 3U | static_cast<std::uint64_t>(digit - '0');
    }
  }
  return value;
}

inline bool tar_checksum_fits(const TarHeader& header) {
  std::int64_t sum = 0;
  std::int64_t of_signed = 0;  // as some programs of old add them
  for (std::size_t i = 0; i < header.size(); ++i) {
    const char byte = i >= 148 && i < 156 ? ' ' : header[i];
    sum += static_cast<unsigned char>(byte);
    of_signed += static_cast<signed char>(byte);
  }
  const auto want = static_cast<std::int64_t>(tar_number(header, 148, 8));
  return sum == want || of_signed == want;
}

// The value of one of pax's records, "<length> <key>=<value>\n"; empty when there is none.
inline std::string pax_value(std::string_view records, std::string_view key) {
  std::string found;
  while (!records.empty()) {
    std::size_t length = 0;
    const char* end = records.data() + records.size();
    const auto [at, error] = std::from_chars(records.data(), end, length);
    const auto digits = static_cast<std::size_t>(at - records.data());
    if (error != std::errc{} || length < digits + 3 || length > records.size()) {
      break;
    }
    const std::string_view record = records.substr(digits + 1, length - digits - 2);
    if (record.starts_with(key) && record.substr(key.size()).starts_with('=')) {
      found = record.substr(key.size() + 1);
    }
    records.remove_prefix(length);
  }
  return found;
}

inline std::string tar_name(const TarHeader& header) {
  std::string name(tar_field(header, 0, 100));
  if (const auto prefix = tar_field(header, 345, 155);
      tar_field(header, 257, 6) == "ustar" && !prefix.empty()) {
    name = std::string(prefix) + "/" + name;
  }
  return name;
}

inline std::string tidy_tar_name(std::string name) {
  while (name.starts_with("./")) {
    name.erase(0, 2);
  }
  while (name.ends_with('/')) {
    name.pop_back();
  }
  return name;
}

// A part of a tar file in memory, whole entries, as a file that ends with a block of zeros.
class TarPart {
 public:
  TarPart(const std::string& path, std::string_view bytes) : path_(path), bytes_(bytes) {}

  void read(std::uint64_t offset, char* to, std::uint64_t bytes) const {
    if (offset < bytes_.size()) {
      bytes_.copy(to, bytes, offset);
    } else {
      std::fill_n(to, bytes, '\0');
    }
  }
  [[nodiscard]] std::string read(std::uint64_t offset, std::uint64_t bytes) const {
    return std::string(bytes_.substr(offset, bytes));
  }
  [[nodiscard]] std::uint64_t size() const { return bytes_.size() + tar_block; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  const std::string& path_;
  std::string_view bytes_;
};

// What entries of their own say of the file behind them, by pax ('x') or GNU ('L').
struct TarExtra {
  std::string name{};
  std::optional<std::uint64_t> size{};
  bool is_sparse = false;

  void read_pax(std::string_view records) {
    name = pax_value(records, "path");
    const std::string number = pax_value(records, "size");
    std::uint64_t value = 0;
    const auto read = std::from_chars(number.data(), number.data() + number.size(), value);
    size = read.ec == std::errc{} ? std::optional(value) : std::nullopt;
    is_sparse = !pax_value(records, "GNU.sparse.major").empty() ||
                !pax_value(records, "GNU.sparse.size").empty();
  }
  void read_gnu(std::string records) {
    name = std::move(records);
    name.resize(std::min(name.find('\0'), name.size()));
  }
};

// Calls see(TarEntry) for every file and folder, in their order. Links and devices are left out.
// The end is a block of zeros; that a second one follows, as the standard says, is not asked for.
// Throws c10::Error, naming the file, when it is no tar file, is compressed or is cut off.
template <class File, class See>
void read_tar(const File& file, const See& see) {
  TarExtra extra;
  std::uint64_t begin = 0;  // of an entry's first header
  TarHeader header{};
  for (std::uint64_t at = 0;;) {
    TUTTI_CHECK(at + tar_block <= file.size(), "'", file.path(), "' is ",
                at == 0 ? "no tar file" : "cut off", ": it has ", file.size(),
                " bytes, and at byte ", at,
                " there is neither another file nor the block of zeros that ends a tar file");
    file.read(at, header.data(), tar_block);
    if (header == TarHeader{}) {
      return;
    }
    TUTTI_CHECK(at > 0 || !std::string_view(header.data(), 2).starts_with("\x1f\x8b"), "'",
                file.path(), "' is compressed with gzip; decompress it first (gunzip)");
    TUTTI_CHECK(tar_checksum_fits(header), "'", file.path(), "' is ",
                at == 0 ? "no tar file that can be read, or a compressed one" : "damaged",
                ": the checksum at byte ", at, " does not fit");
    const char type = header[156];
    const bool is_extra = type == 'x' || type == 'L';
    const std::uint64_t size = extra.size && !is_extra ? *extra.size : tar_number(header, 124, 12);
    const std::uint64_t offset = at + tar_block;
    TUTTI_CHECK(size <= file.size() - offset, "'", file.path(), "' is cut off: it has ",
                file.size(), " bytes, and '", tar_name(header), "' at byte ", at, " has ", size);
    const std::uint64_t next = offset + (size + tar_block - 1) / tar_block * tar_block;
    if (type == 'x') {
      extra.read_pax(file.read(offset, size));
    } else if (type == 'L') {
      extra.read_gnu(file.read(offset, size));
    } else if (type != 'g' && type != 'K') {
      const std::string name = extra.name.empty() ? tar_name(header) : extra.name;
      TUTTI_CHECK(type != 'S' && !extra.is_sparse, "'", file.path(), "': '", name, "' at byte ", at,
                  " is a sparse file, which is not read; write the tar file without --sparse");
      const bool is_folder = type == '5';
      if (is_folder || type == '0' || type == '\0' || type == '7') {
        see(TarEntry{tidy_tar_name(name), name, is_folder, begin, offset, is_folder ? 0 : size,
                     next});
      }
      extra = {};
      begin = next;
    }
    at = next;
  }
}

}  // namespace tutti::data::detail
