// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/shard_layout.hpp>

namespace tutti::checkpoint {

TUTTI_INLINE std::string TensorBox::text() const {
  std::string out = "[";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    out += (i > 0 ? ", " : "") + std::to_string(offsets[i]) + ':' +
           std::to_string(offsets[i] + sizes[i]);
  }
  return out + "]";
}

TUTTI_INLINE std::optional<TensorBox> intersection(const TensorBox& a, const TensorBox& b) {
  TensorBox out{a.offsets, a.sizes};
  for (std::size_t i = 0; i < a.sizes.size(); ++i) {
    const std::int64_t begin = std::max(a.offsets[i], b.offsets[i]);
    const std::int64_t end = std::min(a.offsets[i] + a.sizes[i], b.offsets[i] + b.sizes[i]);
    if (begin >= end) {
      return std::nullopt;
    }
    out.offsets[i] = begin;
    out.sizes[i] = end - begin;
  }
  return out;
}

TUTTI_INLINE TensorBox shard_box(const std::vector<std::int64_t>& shape, int rank, int ranks,
                                 std::size_t dim) {
  TUTTI_CHECK(ranks >= 1 && rank >= 0 && rank < ranks, "shard_box: this is rank ", rank, " of ",
              ranks, ", expected 0 to ", ranks - 1);
  TUTTI_CHECK(dim < shape.size(), "shard_box: dimension ", dim, " of a tensor of ", shape.size(),
              " dimensions was to be cut; one rank holds a scalar whole");
  TensorBox out = whole_box(shape);
  const std::int64_t size = shape[dim];
  const std::int64_t chunk = (size + ranks - 1) / ranks;
  const std::int64_t begin = std::min(size, rank * chunk);
  out.offsets[dim] = begin;
  out.sizes[dim] = std::min(size, begin + chunk) - begin;
  return out;
}

TUTTI_INLINE TensorPieces::TensorPieces(std::vector<TensorBox> boxes) : boxes_(std::move(boxes)) {
  constexpr std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  const TensorBox* first = nullptr;  // one with elements, if there is any
  for (const TensorBox& box : boxes_) {
    TUTTI_CHECK(box.offsets.size() == box.sizes.size(), "a piece has ", box.offsets.size(),
                " offsets for ", box.sizes.size(), " dimensions");
    bool empty = false;
    for (std::size_t i = 0; i < box.sizes.size(); ++i) {
      TUTTI_CHECK(
          box.offsets[i] >= 0 && box.sizes[i] >= 0 && box.offsets[i] <= limit - box.sizes[i],
          "a piece begins at ", box.offsets[i], " and has ", box.sizes[i], " of dimension ", i,
          ", which no tensor has");
      empty = empty || box.sizes[i] == 0;
    }
    if (!empty && first == nullptr) {
      first = &box;
    }
  }
  const std::size_t dims =
      first != nullptr ? first->sizes.size() : (boxes_.empty() ? 0 : boxes_.front().sizes.size());
  shape_.assign(dims, 0);
  for (std::size_t p = 0; p < boxes_.size(); ++p) {
    const TensorBox& box = boxes_[p];
    const bool empty = std::ranges::count(box.sizes, 0) > 0;
    if (empty && box.sizes.size() != dims) {
      continue;
    }
    TUTTI_CHECK(box.sizes.size() == dims, "its pieces have ", dims, " and ", box.sizes.size(),
                " dimensions");
    for (std::size_t i = 0; i < dims; ++i) {
      shape_[i] = std::max(shape_[i], box.offsets[i] + box.sizes[i]);
    }
    if (!empty) {
      order_.push_back(p);
      longest_ = std::max(longest_, dims == 0 ? 0 : box.sizes[0]);
    }
  }
  if (dims > 0) {
    std::ranges::stable_sort(order_, {}, [this](std::size_t p) { return boxes_[p].offsets[0]; });
  }
}

TUTTI_INLINE std::vector<TensorPieces::Part> TensorPieces::parts_of(const TensorBox& box) const {
  std::vector<Part> out;
  auto at = order_.begin();
  auto end = order_.end();
  if (!box.sizes.empty()) {
    const auto first_offset = [this](std::size_t p) { return boxes_[p].offsets[0]; };
    at = std::ranges::upper_bound(order_, box.offsets[0] - longest_, {}, first_offset);
    end = std::ranges::lower_bound(order_, box.offsets[0] + box.sizes[0], {}, first_offset);
  }
  for (; at < end; ++at) {
    if (auto common = intersection(boxes_[*at], box)) {
      out.push_back({*at, std::move(*common)});
    }
  }
  return out;
}

namespace detail {

// A part of a tensor and the pieces that have elements of it.
struct Region {
  TensorBox box;
  std::vector<std::size_t> pieces;
};

// Where to cut a region so that the pieces fall apart: in the dimension in which most of them begin
// or end, at the middle of those places. Nothing where each piece covers all of it.
TUTTI_INLINE std::optional<std::pair<std::size_t, std::int64_t>> place_to_cut(
    const Region& region, const std::vector<TensorBox>& boxes) {
  std::vector<std::int64_t> best;
  std::size_t best_dim = 0;
  for (std::size_t i = 0; i < region.box.sizes.size(); ++i) {
    const std::int64_t begin = region.box.offsets[i];
    const std::int64_t end = begin + region.box.sizes[i];
    std::vector<std::int64_t> places;
    for (const std::size_t p : region.pieces) {
      for (const std::int64_t place :
           std::array{boxes[p].offsets[i], boxes[p].offsets[i] + boxes[p].sizes[i]}) {
        if (place > begin && place < end) {
          places.push_back(place);
        }
      }
    }
    if (places.size() > best.size()) {
      best = std::move(places);
      best_dim = i;
    }
  }
  if (best.empty()) {
    return std::nullopt;
  }
  const auto middle = best.begin() + static_cast<std::ptrdiff_t>(best.size() / 2);
  std::ranges::nth_element(best, middle);
  return std::pair(best_dim, *middle);
}

}  // namespace detail

TUTTI_INLINE void TensorPieces::each_fault(const std::function<void(const Fault&)>& see) const {
  if (std::ranges::count(shape_, 0) > 0 || boxes_.empty()) {
    return;
  }
  const std::size_t most = 10'000 + 100 * order_.size();  // twenty for each of a million in a grid
  std::size_t seen = 0;
  std::vector<detail::Region> left{{whole_box(shape_), order_}};
  while (!left.empty()) {
    const detail::Region region = std::move(left.back());
    left.pop_back();
    seen += 1 + region.pieces.size();
    TUTTI_CHECK(seen <= most, "its ", order_.size(),
                " pieces overlap in too many ways to be from one tensor");
    const auto cut = detail::place_to_cut(region, boxes_);
    if (!cut) {
      if (region.pieces.size() != 1) {
        see({region.box, region.pieces});
      }
      continue;
    }
    const auto [dim, place] = *cut;
    std::array<detail::Region, 2> halves{detail::Region{region.box, {}},
                                         detail::Region{region.box, {}}};
    halves[0].box.sizes[dim] = place - region.box.offsets[dim];
    halves[1].box.offsets[dim] = place;
    halves[1].box.sizes[dim] -= halves[0].box.sizes[dim];
    for (const std::size_t p : region.pieces) {
      if (boxes_[p].offsets[dim] < place) {
        halves[0].pieces.push_back(p);
      }
      if (boxes_[p].offsets[dim] + boxes_[p].sizes[dim] > place) {
        halves[1].pieces.push_back(p);
      }
    }
    left.push_back(std::move(halves[1]));
    left.push_back(std::move(halves[0]));  // first rows first
  }
}

}  // namespace tutti::checkpoint
