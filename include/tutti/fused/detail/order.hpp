// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

#include <tutti/fused/pixels.hpp>

/// Which pixel expressions may follow which.
namespace tutti::fused::detail {

template <class Node, class... Nodes>
inline constexpr std::size_t count =
    (std::size_t{0} + ... + std::size_t{std::is_same_v<Node, Nodes>});

// Where Node stands first; sizeof...(Nodes) when it is not among them.
template <class Node, class... Nodes>
consteval std::size_t index() {
  std::size_t at = 0;
  (void)((std::is_same_v<Node, Nodes> || (++at, false)) || ...);
  return at;
}

// Every node that moves the raw images stands before every other one.
template <class... Nodes>
consteval bool loader_first() {
  bool others = false;
  bool fits = true;
  const auto look = [&](bool moves) {
    fits = fits && !(moves && others);
    others = others || !moves;
  };
  (look(std::is_same_v<Nodes, Crops> || std::is_same_v<Nodes, Flips>), ...);
  return fits;
}

/// The checks of Pass<Stages...>, by the pixel expressions of its stages.
template <class... Nodes>
struct Order {
  static constexpr std::size_t scale = index<Scale, Nodes...>();

  static_assert(count<Scale, Nodes...> == 1,
                "tutti: a fused pass makes floats of bytes exactly once; put one "
                "tutti::fused::Normalize among its stages.");
  static_assert(count<Scale, Nodes...> != 1 || scale < index<Mix, Nodes...>() ||
                    count<Mix, Nodes...> == 0,
                "tutti: bytes cannot be blended; put tutti::fused::Normalize before MixUp.");
  static_assert(count<Mix, Nodes...> <= 1, "tutti: a fused pass blends once; keep one MixUp.");
  static_assert(count<Crops, Nodes...> <= 1 && count<Flips, Nodes...> <= 1,
                "tutti: a fused pass crops once and flips once; keep one RandomCrop and one "
                "RandomFlip.");
  static_assert(loader_first<Nodes...>(),
                "tutti: RandomCrop and RandomFlip move the images before they are a batch; put "
                "them before all other stages.");
};

}  // namespace tutti::fused::detail
