// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::detail {

/// The entries of a zip archive in memory, as torch.save() and numpy.savez() write it, with the
/// fields of 64 bits where there are any. The machine is little-endian.
///
/// Every entry lies inside the archive and under a name of its own. Throws c10::Error that begins
/// with `place` and names the entry for anything else: encryption, several volumes, a directory
/// that is cut off. Source: PKWARE, APPNOTE.TXT, 4.3.
class ZipArchive {
 public:
  static constexpr unsigned stored = 0;
  static constexpr unsigned deflated = 8;

  struct Entry {
    std::uint64_t offset = 0;  ///< of the first byte, in the archive
    std::uint64_t size = 0;    ///< bytes of the file
    std::uint64_t packed = 0;  ///< bytes in the archive
    unsigned method = stored;
    std::uint32_t crc = 0;  ///< of the file
  };

  /// bytes: the archive, which outlives this. place: what messages begin with, "'a.npz'".
  ZipArchive(std::string_view bytes, std::string place) : file_(bytes), place_(std::move(place)) {
    read_directory();
  }

  /// The entries by name.
  [[nodiscard]] const std::map<std::string, Entry>& entries() const { return entries_; }

  /// The bytes of an entry as they stand in the archive.
  [[nodiscard]] std::string_view bytes(const Entry& entry) const {
    return file_.substr(entry.offset, entry.packed);
  }

 private:
  struct Directory {
    std::uint64_t count = 0;
    std::uint64_t size = 0;
    std::uint64_t offset = 0;
  };

  [[noreturn]] void refuse(const std::string& why) const {
    TUTTI_CHECK(false, place_, " is refused: ", why);
  }

  // A number of the file; one that is not wholly inside is refused.
  template <class T>
  T at(std::uint64_t offset) const {
    T out{};
    if (offset > file_.size() || file_.size() - offset < sizeof out) {
      refuse("the zip archive is truncated");
    }
    std::memcpy(&out, file_.data() + offset, sizeof out);
    return out;
  }

  std::uint64_t end_record() const;
  Directory directory() const;
  void read_directory();
  std::uint64_t read_entry(std::uint64_t at, std::uint64_t end);
  void widen(std::uint64_t at, std::uint64_t end, Entry& entry) const;
  void place(const std::string& name, Entry& entry) const;

  std::string_view file_;
  std::string place_;
  std::map<std::string, Entry> entries_;
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

namespace zip {

TUTTI_INLINE constexpr std::uint32_t local_signature = 0x04034b50;
TUTTI_INLINE constexpr std::uint32_t entry_signature = 0x02014b50;
TUTTI_INLINE constexpr std::uint32_t end_signature = 0x06054b50;
TUTTI_INLINE constexpr std::uint32_t wide_end_signature = 0x06064b50;
TUTTI_INLINE constexpr std::uint32_t wide_locator_signature = 0x07064b50;
TUTTI_INLINE constexpr std::uint64_t entry_size = 46;
TUTTI_INLINE constexpr std::uint64_t end_size = 22;
TUTTI_INLINE constexpr std::uint64_t local_size = 30;
TUTTI_INLINE constexpr std::uint32_t in_wide_field = 0xFFFFFFFF;

}  // namespace zip

// The end record is the last thing in the file, but for a comment of at most 65,535 bytes.
TUTTI_INLINE std::uint64_t ZipArchive::end_record() const {
  const std::uint64_t size = file_.size();
  for (std::uint64_t back = zip::end_size; back <= size && back < zip::end_size + 0x10000; ++back) {
    const std::uint64_t at = size - back;
    if (this->at<std::uint32_t>(at) == zip::end_signature &&
        this->at<std::uint16_t>(at + 20) == back - zip::end_size) {
      return at;
    }
  }
  refuse("the zip archive has no directory at its end; the file is truncated");
}

TUTTI_INLINE ZipArchive::Directory ZipArchive::directory() const {
  const std::uint64_t end = end_record();
  Directory out{.count = at<std::uint16_t>(end + 10),
                .size = at<std::uint32_t>(end + 12),
                .offset = at<std::uint32_t>(end + 16)};
  std::uint64_t limit = end;
  if (end >= 20 && at<std::uint32_t>(end - 20) == zip::wide_locator_signature) {
    const auto wide = at<std::uint64_t>(end - 20 + 8);
    if (at<std::uint32_t>(wide) != zip::wide_end_signature) {
      refuse("the zip archive's wide end record is not where its locator says");
    }
    out = {.count = at<std::uint64_t>(wide + 32),
           .size = at<std::uint64_t>(wide + 40),
           .offset = at<std::uint64_t>(wide + 48)};
    limit = wide;
  } else if (at<std::uint16_t>(end + 4) != 0 || at<std::uint16_t>(end + 6) != 0) {
    refuse("the zip archive has several volumes");
  }
  if (out.offset > limit || out.size > limit - out.offset) {
    refuse("the zip archive's directory lies outside the file");
  }
  if (out.count > out.size / zip::entry_size) {
    refuse("the zip archive's directory announces " + std::to_string(out.count) + " entries in " +
           std::to_string(out.size) + " bytes");
  }
  return out;
}

TUTTI_INLINE void ZipArchive::read_directory() {
  const Directory directory = this->directory();
  const std::uint64_t end = directory.offset + directory.size;
  std::uint64_t next = directory.offset;
  for (std::uint64_t i = 0; i < directory.count; ++i) {
    next = read_entry(next, end);
  }
}

// Reads the entry of the directory at that place; returns where the next one begins.
TUTTI_INLINE std::uint64_t ZipArchive::read_entry(std::uint64_t at, std::uint64_t end) {
  if (end - at < zip::entry_size || this->at<std::uint32_t>(at) != zip::entry_signature) {
    refuse("the zip archive's directory is damaged at byte " + std::to_string(at));
  }
  const auto flags = this->at<std::uint16_t>(at + 8);
  const auto method = this->at<std::uint16_t>(at + 10);
  Entry entry{.offset = this->at<std::uint32_t>(at + 42),
              .size = this->at<std::uint32_t>(at + 24),
              .packed = this->at<std::uint32_t>(at + 20),
              .method = method,
              .crc = this->at<std::uint32_t>(at + 16)};
  const std::uint64_t name_size = this->at<std::uint16_t>(at + 28);
  const std::uint64_t extra_size = this->at<std::uint16_t>(at + 30);
  const std::uint64_t comment_size = this->at<std::uint16_t>(at + 32);
  const std::uint64_t next = at + zip::entry_size + name_size + extra_size + comment_size;
  if (next > end) {
    refuse("the zip archive's directory is cut off");
  }
  const std::string name(file_.substr(at + zip::entry_size, name_size));
  const std::uint64_t extra = at + zip::entry_size + name_size;
  widen(extra, extra + extra_size, entry);
  const bool plain = method == stored && entry.packed == entry.size;
  if ((flags & 1U) != 0 || (!plain && method != deflated)) {
    refuse("its entry '" + name.substr(0, 64) +
           "' is compressed or encrypted, expected one that is stored or deflated");
  }
  place(name, entry);
  if (!entries_.emplace(name, entry).second) {
    refuse("its entry '" + name.substr(0, 64) + "' occurs twice");
  }
  return next;
}

// Takes the numbers that need 64 bits from the extra field that has them.
TUTTI_INLINE void ZipArchive::widen(std::uint64_t at, std::uint64_t end, Entry& entry) const {
  constexpr std::uint16_t wide = 1;
  while (end - at >= 4) {
    const auto id = this->at<std::uint16_t>(at);
    const std::uint64_t field_end = at + 4 + this->at<std::uint16_t>(at + 2);
    if (field_end > end) {
      refuse("an extra field of the zip archive is cut off");
    }
    std::uint64_t from = at + 4;
    for (std::uint64_t* number : {&entry.size, &entry.packed, &entry.offset}) {
      if (id == wide && *number == zip::in_wide_field) {
        if (field_end - from < 8) {
          refuse("an extra field of the zip archive is cut off");
        }
        *number = this->at<std::uint64_t>(from);
        from += 8;
      }
    }
    at = field_end;
  }
}

// Turns the place of the local header into that of the data, which have to be inside the file.
TUTTI_INLINE void ZipArchive::place(const std::string& name, Entry& entry) const {
  const std::uint64_t local = entry.offset;
  if (local > file_.size() || at<std::uint32_t>(local) != zip::local_signature) {
    refuse("its entry '" + name.substr(0, 64) + "' is not where the zip archive's directory says");
  }
  entry.offset =
      local + zip::local_size + at<std::uint16_t>(local + 26) + at<std::uint16_t>(local + 28);
  if (entry.offset > file_.size() || entry.packed > file_.size() - entry.offset) {
    refuse("its entry '" + name.substr(0, 64) + "' of " + std::to_string(entry.packed) +
           " bytes ends behind the end of the file; it is truncated");
  }
}

}  // namespace tutti::detail

#endif
