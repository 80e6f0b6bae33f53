// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

/// Which part of a tensor is whose: the boxes that ranks hold, whether those of a checkpoint cover
/// a tensor, and which of them another box needs. No tensor is touched.

namespace tutti::checkpoint {

/// A box of a tensor: in each dimension, where it begins and how far it goes. One of a scalar has
/// no dimensions.
struct TensorBox {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> sizes;

  /// Elements in it.
  [[nodiscard]] std::int64_t numel() const {
    return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  }
  /// "[0:3, 4:8]", rows 0 to 2 and columns 4 to 7.
  [[nodiscard]] std::string text() const;

  bool operator==(const TensorBox&) const = default;
};

/// Where a box of what a rank has of a tensor belongs.
struct PartPlace {
  std::vector<std::int64_t> offsets;  ///< of the box in the whole tensor, in each dimension
  std::vector<std::int64_t> shape;    ///< of the whole tensor
  std::optional<TensorBox> own{};     ///< the box in the rank's tensor; none: it is all of it
};

/// The places of what a rank has of tensors, by their paths in a snapshot: "model/fc.weight",
/// "state/optimizers/0/own/param0/exp_avg". A part has several where its boxes do not lie side by
/// side in the whole, and none where it has no element. Other tensors are whole.
using PartPlaces = std::map<std::string, std::vector<PartPlace>>;

/// The box of a whole tensor.
inline TensorBox whole_box(const std::vector<std::int64_t>& shape) {
  return {std::vector<std::int64_t>(shape.size(), 0), shape};
}

/// What two boxes of one tensor have in common; nothing when that is no element.
std::optional<TensorBox> intersection(const TensorBox& a, const TensorBox& b);

/// What rank `rank` of `ranks` holds of a tensor that is sharded in dimension `dim`: chunks of
/// ceil(size / ranks), as torch.chunk() and PyTorch's fully_shard cut, so the last ranks may have
/// less or nothing.
///
/// shape: at least `dim` + 1 dimensions. rank: 0 to `ranks` - 1.
/// Throws c10::Error when that is not so.
TensorBox shard_box(const std::vector<std::int64_t>& shape, int rank, int ranks,
                    std::size_t dim = 0);

/// The boxes of one tensor that the files of a checkpoint hold, its pieces.
class TensorPieces {
 public:
  TensorPieces() = default;

  /// boxes: as many dimensions in each; offsets and sizes >= 0. Boxes without an element count for
  /// the shape alone. Throws c10::Error when one does not fit.
  explicit TensorPieces(std::vector<TensorBox> boxes);

  [[nodiscard]] const std::vector<TensorBox>& boxes() const { return boxes_; }

  /// The tensor's shape: how far the pieces reach in each dimension.
  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return shape_; }

  /// A part of the tensor that not exactly one piece covers.
  struct Fault {
    TensorBox where;
    std::vector<std::size_t> pieces;  ///< By their places in boxes(); none: a hole.
  };

  /// Calls `see` for each hole and each overlap. Elements are not looked at one by one: the time
  /// grows with the number of pieces. Throws c10::Error when pieces overlap in so many ways that it
  /// would not.
  void each_fault(const std::function<void(const Fault&)>& see) const;

  /// What a reader of `box` takes from which piece.
  struct Part {
    std::size_t piece;  ///< Its place in boxes().
    TensorBox box;      ///< What it has of the wanted box, in coordinates of the tensor.
  };

  /// The parts of `box`, in the order of their first dimension. Only pieces near the box are looked
  /// at when they are cut in the first dimension.
  [[nodiscard]] std::vector<Part> parts_of(const TensorBox& box) const;

 private:
  std::vector<TensorBox> boxes_;
  std::vector<std::int64_t> shape_;
  std::vector<std::size_t> order_;  // of the pieces with elements, by their first offset
  std::int64_t longest_ = 0;        // size of a piece in the first dimension
};

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/shard_layout.inl.hpp>
#endif
