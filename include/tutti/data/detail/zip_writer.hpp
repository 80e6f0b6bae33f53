// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/core/detail/crc.hpp>

namespace tutti::data::detail {

// The fields of a zip archive, all of 64 bits where there is a choice, as numpy.savez() has them.
class ZipWriter {
 public:
  void add(const std::string& name, std::string_view bytes) {
    const std::uint64_t offset = out_.size();
    const std::uint32_t crc = tutti::detail::crc32_png(bytes);
    number(0x04034b50U, 4);
    about(crc, name, 20);
    out_ += name;
    wide(bytes.size(), 2, 0);
    out_ += bytes;
    std::swap(out_, directory_);
    number(0x02014b50U, 4);
    number(45, 2);  // made by
    about(crc, name, 28);
    number(0, 10);  // no comment, disk 0, no attributes
    number(0xFFFFFFFFU, 4);
    out_ += name;
    wide(bytes.size(), 2, 1, offset);
    std::swap(out_, directory_);
    ++count_;
  }

  std::string finish() {
    const std::uint64_t begin = out_.size();
    out_ += directory_;
    const std::uint64_t end = out_.size();
    number(0x06064b50U, 4);
    number(44, 8);
    number(45, 2);
    number(45, 2);
    number(0, 8);  // disks
    number(count_, 8);
    number(count_, 8);
    number(end - begin, 8);
    number(begin, 8);
    number(0x07064b50U, 4);
    number(0, 4);
    number(end, 8);
    number(1, 4);
    number(0x06054b50U, 4);
    number(0, 4);
    number(0xFFFFU, 2);
    number(0xFFFFU, 2);
    number(0xFFFFFFFFU, 4);
    number(0xFFFFFFFFU, 4);
    number(0, 2);
    return std::move(out_);
  }

 private:
  void number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) {
      out_ += static_cast<char>(i < 8 ? value >> (8 * i) & 0xFFU : 0);
    }
  }

  // What both headers have: version, no flags, stored, 1980-01-01, sizes in the extra field.
  void about(std::uint32_t crc, const std::string& name, std::uint64_t extra) {
    number(45, 2);
    number(0x0800, 2);  // the name is UTF-8
    number(0, 2);
    number(0, 2);
    number(0x0021, 2);
    number(crc, 4);
    number(0xFFFFFFFFU, 4);
    number(0xFFFFFFFFU, 4);
    number(name.size(), 2);
    number(extra, 2);
  }

  void wide(std::uint64_t size, std::uint64_t sizes, std::uint64_t offsets,
            std::uint64_t offset = 0) {
    number(1, 2);
    number(8 * (sizes + offsets), 2);
    number(size, 8);
    number(size, 8);
    number(offset, static_cast<int>(8 * offsets));
  }

  std::string out_;
  std::string directory_;
  std::uint64_t count_ = 0;
};

}  // namespace tutti::data::detail
