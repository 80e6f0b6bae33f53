// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/fused/pixels.hpp>

/// From which byte of the raw images each pixel comes.
namespace tutti::fused::detail {

/// All crops, flips and takes of a pass, composed.
class Geometry {
 public:
  Geometry() = default;
  explicit Geometry(const Frame& source)
      : source_height_(source.height), source_width_(source.width), window_width_(source.width) {}

  void add(const Crops& crops) {
    if (crops.height == 0) {
      return;
    }
    std::vector<Window> windows(crops.corners.size());
    for (std::size_t i = 0; i < windows.size(); ++i) {
      const auto& corner = crops.corners[i];
      const bool flip = !windows_.empty() && windows_[i].flip;
      windows[i] = {corner.row, flip ? window_width_ - crops.width - corner.column : corner.column,
                    flip};
    }
    windows_ = std::move(windows);
    window_width_ = crops.width;
  }

  void add(const Flips& flips) {
    if (flips.flipped.empty()) {
      return;
    }
    windows_.resize(flips.flipped.size());
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      windows_[i].flip = flips.flipped[i];
    }
  }

  void add(const Take& take) {
    compose(rows_, take.rows);
    compose(columns_, take.columns);
    find_stretches();
  }

  /// Pixels stay where they are.
  [[nodiscard]] bool none() const { return windows_.empty() && rows_.empty() && columns_.empty(); }

  /// Where column 0 of row 0 of an image's window lies, and which way the columns go, 1 or -1.
  struct Origin {
    std::int64_t row;
    std::int64_t column;
    std::int64_t step;
  };
  [[nodiscard]] Origin origin(std::int64_t image) const {
    const Window window = windows_.empty() ? Window{} : windows_[static_cast<std::size_t>(image)];
    return {window.row, window.column + (window.flip ? window_width_ - 1 : 0),
            window.flip ? -1 : 1};
  }

  /// Rows and columns of the window, by index; empty: all.
  [[nodiscard]] const std::vector<std::int64_t>& rows() const { return rows_; }
  [[nodiscard]] const std::vector<std::int64_t>& columns() const { return columns_; }

  /// How much more room than it asks for fetch() may write into.
  static constexpr std::int64_t slack = 16;

  /// Columns [first, last) of output row `row` of one channel of an image: from where they lie, or
  /// gathered into `room`, which holds as many and slack.
  ///
  /// plane: the channel's first byte. stride: between rows and columns, in bytes.
  const std::uint8_t* fetch(const std::uint8_t* plane, std::int64_t row_stride,
                            std::int64_t column_stride, std::int64_t image, std::int64_t row,
                            std::int64_t first, std::int64_t last, std::uint8_t* room) const {
    const auto [top, start, step] = origin(image);
    const std::int64_t length = last - first;
    const std::int64_t y = top + (rows_.empty() ? row : rows_[static_cast<std::size_t>(row)]);
    if (y < 0 || y >= source_height_) {
      std::memset(room, 0, static_cast<std::size_t>(length));
      return room;
    }
    const std::uint8_t* line = plane + y * row_stride;
    if (columns_.empty()) {
      return gather(line, column_stride, start + step * first, step, length, room);
    }
    if (windows_.empty()) {
      if (column_stride == 1 && !stretches_.empty()) {
        copy_stretches(line, first, last, room);
      } else {
        pick(line, columns_.data() + first, column_stride, length, room);
      }
      return room;
    }
    for (std::int64_t j = 0; j < length; ++j) {
      const std::int64_t x = start + step * columns_[static_cast<std::size_t>(first + j)];
      room[j] = x < 0 || x >= source_width_ ? std::uint8_t{0} : line[x * column_stride];
    }
    return room;
  }

 private:
  struct Window {
    std::int64_t row = 0;
    std::int64_t column = 0;
    bool flip = false;
  };

  static void compose(std::vector<std::int64_t>& table, std::vector<std::int64_t> next) {
    if (next.empty()) {
      return;
    }
    if (!table.empty()) {
      for (std::int64_t& at : next) {
        at = table[static_cast<std::size_t>(at)];
      }
    }
    table = std::move(next);
  }

  static void pick(const std::uint8_t* line, const std::int64_t* columns,
                   std::int64_t column_stride, std::int64_t length,
                   std::uint8_t* __restrict__ room) {
    for (std::int64_t j = 0; j < length; ++j) {
      room[j] = line[columns[j] * column_stride];
    }
  }

  // Columns that follow one another also in the image.
  struct Stretch {
    std::int64_t first;
    std::int64_t last;
    std::int64_t offset;  // from output to source
  };

  void find_stretches() {
    stretches_.clear();
    for (std::int64_t j = 0; j < std::ssize(columns_); ++j) {
      const std::int64_t offset = columns_[static_cast<std::size_t>(j)] - j;
      if (stretches_.empty() || stretches_.back().offset != offset) {
        stretches_.push_back({j, j, offset});
      }
      stretches_.back().last = j + 1;
    }
    if (4 * stretches_.size() > columns_.size()) {  // so short that single bytes are faster
      stretches_.clear();
    }
  }

  void copy_stretches(const std::uint8_t* line, std::int64_t first, std::int64_t last,
                      std::uint8_t* room) const {
    auto stretch = std::partition_point(stretches_.begin(), stretches_.end(),
                                        [&](const Stretch& s) { return s.last <= first; });
    for (; stretch != stretches_.end() && stretch->first < last; ++stretch) {
      std::int64_t j = std::max(first, stretch->first);
      const std::int64_t end = std::min(last, stretch->last);
      // Whole blocks; what a block brings beyond the end is overwritten by the next stretch.
      for (; j < end && j + stretch->offset + slack <= source_width_; j += slack) {
        std::memcpy(room + (j - first), line + j + stretch->offset, slack);
      }
      if (j < end) {
        std::memcpy(room + (j - first), line + j + stretch->offset,
                    static_cast<std::size_t>(end - j));
      }
    }
  }

  // `length` bytes from `last` to the left.
  static void copy_reversed(const std::uint8_t* last, std::uint8_t* room, std::int64_t length) {
    std::int64_t j = 0;
    for (; j + 8 <= length; j += 8) {
      std::uint64_t eight = 0;
      std::memcpy(&eight, last - j - 7, 8);
      eight = __builtin_bswap64(eight);  // the same in either byte order
      std::memcpy(room + j, &eight, 8);
    }
    for (; j < length; ++j) {
      room[j] = *(last - j);
    }
  }

  // `length` bytes beginning at column x, to the right or, with step -1, to the left.
  const std::uint8_t* gather(const std::uint8_t* line, std::int64_t column_stride, std::int64_t x,
                             std::int64_t step, std::int64_t length, std::uint8_t* room) const {
    const std::int64_t before =
        std::clamp<std::int64_t>(step > 0 ? -x : x - source_width_ + 1, 0, length);
    const std::int64_t inside =
        std::clamp<std::int64_t>(step > 0 ? source_width_ - x : x + 1, before, length);
    if (step * column_stride == 1 && before == 0 && inside == length) {
      return line + x;
    }
    std::memset(room, 0, static_cast<std::size_t>(before));
    if (step * column_stride == 1) {
      std::memcpy(room + before, line + x + before, static_cast<std::size_t>(inside - before));
    } else if (step * column_stride == -1) {
      copy_reversed(line + x - before, room + before, inside - before);
    } else {
      for (std::int64_t j = before; j < inside; ++j) {
        room[j] = line[(x + step * j) * column_stride];
      }
    }
    std::memset(room + inside, 0, static_cast<std::size_t>(length - inside));
    return room;
  }

  std::int64_t source_height_ = 0;
  std::int64_t source_width_ = 0;
  std::int64_t window_width_ = 0;
  std::vector<Window> windows_;        // by image; empty: the whole of each
  std::vector<std::int64_t> rows_;     // of the window; empty: all
  std::vector<std::int64_t> columns_;  // likewise
  std::vector<Stretch> stretches_;     // of columns_, where they are long
};

}  // namespace tutti::fused::detail
