// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/fused/pixels.hpp>

/// What rows of the output are made of: each pixel expression divides a row into segments and says
/// of which images they are.
namespace tutti::fused::detail {

/// What stands in a segment of a row.
enum class Fill : std::uint8_t {
  pixels,  // those of an image
  black,   // bytes 0
  zero,    // the float 0
};

/// A segment of an image.
struct Term {
  std::int64_t image = 0;
  Fill fill = Fill::pixels;
  friend bool operator==(const Term&, const Term&) = default;
};

/// One segment, or a blend of two.
struct Blend {
  Term own{};
  Term partner{};
  bool mixed = false;
  friend bool operator==(const Blend&, const Blend&) = default;
};

/// Columns [first, last) of one row, at least one, of one image.
struct Segment {
  std::int64_t image;
  std::int64_t row;
  std::int64_t first;
  std::int64_t last;
};

// Each of the following calls sink(first, last, terms) for the segments of p from left to right;
// inner(p, sink) does so for what the stages before give. Geometry divides nothing.

template <class Node, class Inner, class Sink>
void cut(const Node&, Fill, const Inner& inner, const Segment& p, const Sink& sink) {
  inner(p, sink);
}

template <class Inner, class Sink>
void cut(const Holes& holes, Fill fill, const Inner& inner, const Segment& p, const Sink& sink) {
  for (std::int64_t at = p.first; at < p.last;) {
    std::int64_t hole_end = at;  // of the hole that covers `at`
    std::int64_t next = p.last;  // hole that begins after it
    for (const Box& box : holes.of(p.image)) {
      if (p.row < box.top || p.row >= box.bottom || box.right <= at || box.left == box.right) {
        continue;
      }
      if (box.left <= at) {
        hole_end = std::max(hole_end, std::min(box.right, p.last));
      } else {
        next = std::min(next, box.left);
      }
    }
    if (hole_end > at) {
      sink(at, hole_end, Blend{.own = {p.image, fill}});
      at = hole_end;
    } else {
      inner(Segment{p.image, p.row, at, next}, sink);
      at = next;
    }
  }
}

template <class Inner, class Sink>
void cut(const Mix& mix, Fill, const Inner& inner, const Segment& p, const Sink& sink) {
  if (mix.mixing == 0 || !mix.indices.defined()) {
    inner(p, sink);
    return;
  }
  const std::int64_t partner = mix.indices.const_data_ptr<std::int64_t>()[p.image];
  inner(p, [&](std::int64_t first, std::int64_t last, const Blend& own) {
    inner(Segment{partner, p.row, first, last},
          [&](std::int64_t from, std::int64_t to, const Blend& other) {
            sink(from, to, Blend{own.own, other.own, true});
          });
  });
}

template <class Inner, class Sink>
void cut(const Paste& paste, Fill, const Inner& inner, const Segment& p, const Sink& sink) {
  const Box& box = paste.box;
  const std::int64_t left = std::clamp(box.left, p.first, p.last);
  const std::int64_t right = std::clamp(box.right, p.first, p.last);
  if (p.row < box.top || p.row >= box.bottom || left >= right || !paste.indices.defined()) {
    inner(p, sink);
    return;
  }
  const std::int64_t partner = paste.indices.const_data_ptr<std::int64_t>()[p.image];
  const auto part = [&](std::int64_t image, std::int64_t first, std::int64_t last) {
    if (first < last) {
      inner(Segment{image, p.row, first, last}, sink);
    }
  };
  part(p.image, p.first, left);
  part(partner, left, right);
  part(p.image, right, p.last);
}

/// `Node` makes examples of several.
template <class Node>
concept Mixes = std::same_as<Node, Mix> || std::same_as<Node, Paste>;

/// What remains of an example's own target.
inline double share_of_own(const Mix& mix) {
  return 1 - mix.mixing;
}
inline double share_of_own(const Paste& paste) {
  return paste.kept;
}

/// Of which examples' targets an example's target is made: weights [P], rows int64 [N, P].
struct Pairs {
  std::vector<std::int64_t> rows;
  std::vector<double> weights;
};

// The pairs of images [N, P] of the stages before, and those of the partners.
inline Pairs blend(const Pairs& of, const at::Tensor& indices, double keep) {
  Pairs out;
  for (const double share : {keep, 1 - keep}) {
    for (const double weight : of.weights) {
      out.weights.push_back(share * weight);
    }
  }
  const auto width = std::ssize(of.weights);
  const auto* partner = indices.const_data_ptr<std::int64_t>();
  for (std::int64_t n = 0; n < indices.numel(); ++n) {
    for (const std::int64_t image : {n, partner[n]}) {
      const auto from = of.rows.begin() + image * width;
      out.rows.insert(out.rows.end(), from, from + width);
    }
  }
  return out;
}

}  // namespace tutti::fused::detail
