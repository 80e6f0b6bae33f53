// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/core/detail/crc.hpp>

namespace tutti::detail {

// A zip archive of stored files, whose fields are all of 64 bits where there is a choice, as those
// of numpy.savez() and torch.save(). Sink: put(std::string_view) is called with its bytes in order.
template <class Sink>
class ZipWriter {
 public:
  explicit ZipWriter(Sink put) : put_(std::move(put)) {}

  // alignment: of the file's first byte in the archive.
  void add(const std::string& name, std::string_view bytes, std::uint64_t alignment = 1) {
    const std::uint64_t offset = written_;
    const std::uint32_t crc = crc32_png(bytes);
    const std::uint64_t unaligned = offset + 30 + name.size() + 20 + 4;
    const std::uint64_t padding = (alignment - unaligned % alignment) % alignment;
    std::string head;
    number(head, 0x04034b50U, 4);
    about(head, crc, name, alignment > 1 ? 24 + padding : 20);
    head += name;
    wide(head, bytes.size(), 2, 0);
    if (alignment > 1) {
      head += "FB";  // as torch.save() calls its padding
      number(head, padding, 2);
      head.append(padding, 'Z');
    }
    put(head);
    put(bytes);
    number(directory_, 0x02014b50U, 4);
    number(directory_, 45, 2);  // made by
    about(directory_, crc, name, 28);
    number(directory_, 0, 10);  // no comment, disk 0, no attributes
    number(directory_, 0xFFFFFFFFU, 4);
    directory_ += name;
    wide(directory_, bytes.size(), 2, 1, offset);
    ++count_;
  }

  void finish() {
    const std::uint64_t begin = written_;
    put(directory_);
    const std::uint64_t end = written_;
    std::string tail;
    number(tail, 0x06064b50U, 4);
    number(tail, 44, 8);
    number(tail, 45, 2);
    number(tail, 45, 2);
    number(tail, 0, 8);  // disks
    number(tail, count_, 8);
    number(tail, count_, 8);
    number(tail, end - begin, 8);
    number(tail, begin, 8);
    number(tail, 0x07064b50U, 4);
    number(tail, 0, 4);
    number(tail, end, 8);
    number(tail, 1, 4);
    number(tail, 0x06054b50U, 4);
    number(tail, 0, 4);
    number(tail, 0xFFFFU, 2);
    number(tail, 0xFFFFU, 2);
    number(tail, 0xFFFFFFFFU, 4);
    number(tail, 0xFFFFFFFFU, 4);
    number(tail, 0, 2);
    put(tail);
  }

 private:
  void put(std::string_view bytes) {
    put_(bytes);
    written_ += bytes.size();
  }

  static void number(std::string& to, std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) {
      to += static_cast<char>(i < 8 ? value >> (8 * i) & 0xFFU : 0);
    }
  }

  // What both headers have: version, no flags, stored, 1980-01-01, sizes in the extra field.
  static void about(std::string& to, std::uint32_t crc, const std::string& name,
                    std::uint64_t extra) {
    number(to, 45, 2);
    number(to, 0x0800, 2);  // the name is UTF-8
    number(to, 0, 2);
    number(to, 0, 2);
    number(to, 0x0021, 2);
    number(to, crc, 4);
    number(to, 0xFFFFFFFFU, 4);
    number(to, 0xFFFFFFFFU, 4);
    number(to, name.size(), 2);
    number(to, extra, 2);
  }

  static void wide(std::string& to, std::uint64_t size, std::uint64_t sizes, std::uint64_t offsets,
                   std::uint64_t offset = 0) {
    number(to, 1, 2);
    number(to, 8 * (sizes + offsets), 2);
    number(to, size, 8);
    number(to, size, 8);
    number(to, offset, static_cast<int>(8 * offsets));
  }

  Sink put_;
  std::string directory_;
  std::uint64_t written_ = 0;
  std::uint64_t count_ = 0;
};

}  // namespace tutti::detail
