// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/fused/detail/geometry.hpp>
#include <tutti/fused/detail/source.hpp>
#include <tutti/fused/pixels.hpp>

/// What the stages of a pass drew, as the kernel reads it.
namespace tutti::fused::detail {

/// Numbers for the parts of the kernel, one after the other; the first ones say where each begins.
class Tables {
 public:
  /// geometry, frame, nodes: of a plan: all stages composed, the batch after them, and what each
  /// of them drew in the coordinates of the output.
  template <class... Nodes>
  Tables(const Geometry& geometry, const Frame& frame, const std::tuple<Nodes...>& nodes)
      : numbers_(first_stage_part + sizeof...(Nodes)) {
    if constexpr (has_window<Nodes...>) {
      begin(window_part);
      for (std::int64_t image = 0; image < frame.images; ++image) {
        const auto [row, column, step] = geometry.origin(image);
        put(row, column, step);
      }
    }
    if constexpr (has_grid<Nodes...>) {
      begin(grid_part);
      put_indices(geometry.rows(), frame.height);
      put_indices(geometry.columns(), frame.width);
    }
    int stage = first_stage_part;
    std::apply([&](const auto&... node) { ((begin(stage++), add(node, frame)), ...); }, nodes);
  }

  [[nodiscard]] const std::vector<std::int32_t>& numbers() const { return numbers_; }

 private:
  // Nothing but what `window` and `grid` say.
  void add(const Crops&, const Frame&) {}
  void add(const Flips&, const Frame&) {}
  void add(const Take&, const Frame&) {}

  void add(const Scale& scale, const Frame& frame) {
    put_float(scale.divisor);
    for (const auto& [values, otherwise] : {std::pair(&scale.mean, 0), std::pair(&scale.std, 1)}) {
      for (std::int64_t c = 0; c < frame.channels; ++c) {
        put_float(values->empty() ? otherwise : (*values)[static_cast<std::size_t>(c)]);
      }
    }
  }

  void add(const Holes& holes, const Frame&) {
    const std::size_t lists = std::max<std::size_t>(holes.boxes.size(), 1);
    put(lists > 1 ? 1 : 0);
    std::size_t at = lists + 2;  // of the first box, from here
    put(at);
    for (const auto& boxes : holes.boxes) {
      put(at += 4 * boxes.size());
    }
    if (holes.boxes.empty()) {
      put(at);
    }
    for (const auto& boxes : holes.boxes) {
      for (const Box& box : boxes) {
        put(box.top, box.left, box.bottom, box.right);
      }
    }
  }

  void add(const Mix& mix, const Frame& frame) {
    put(mix.indices.defined() && mix.mixing != 0 ? 1 : 0);
    put_float(1 - mix.mixing);
    put_float(mix.mixing);
    put_partners(mix.indices, frame);
  }

  void add(const Paste& paste, const Frame& frame) {
    const Box box = paste.indices.defined() ? paste.box : Box{};
    put(box.top, box.left, box.bottom, box.right);
    put_partners(paste.indices, frame);
  }

  void begin(int part) { numbers_[static_cast<std::size_t>(part)] = narrow(numbers_.size()); }

  template <class... Ts>
  void put(Ts... values) {
    (numbers_.push_back(narrow(values)), ...);
  }
  void put_float(double value) {
    numbers_.push_back(std::bit_cast<std::int32_t>(static_cast<float>(value)));
  }
  void put_indices(const std::vector<std::int64_t>& indices, std::int64_t size) {
    for (std::int64_t i = 0; i < size; ++i) {
      put(indices.empty() ? i : indices[static_cast<std::size_t>(i)]);
    }
  }
  void put_partners(const at::Tensor& indices, const Frame& frame) {
    for (std::int64_t n = 0; indices.defined() && n < frame.images; ++n) {
      put(indices.const_data_ptr<std::int64_t>()[n]);
    }
  }

  template <class T>
  static std::int32_t narrow(T value) {
    TUTTI_CHECK(std::in_range<std::int32_t>(value), "fused::Plan: ", value,
                " does not fit into the 32 bits in which a CUDA kernel counts");
    return static_cast<std::int32_t>(value);
  }

  std::vector<std::int32_t> numbers_;
};

/// The first argument of the kernel, as its text declares it.
struct KernelBatch {
  const std::uint8_t* raw = nullptr;
  const std::int32_t* data = nullptr;
  std::int64_t image = 0, channel = 0, row = 0, column = 0;
  std::int32_t raw_height = 0, raw_width = 0;
  std::int32_t images = 0, channels = 0, height = 0, width = 0;

  KernelBatch(const at::Tensor& from, const Frame& frame)
      : raw(from.const_data_ptr<std::uint8_t>()),
        image(from.stride(0)),
        channel(from.stride(1)),
        row(from.stride(2)),
        column(from.stride(3)),
        raw_height(static_cast<std::int32_t>(from.size(2))),
        raw_width(static_cast<std::int32_t>(from.size(3))),
        images(static_cast<std::int32_t>(frame.images)),
        channels(static_cast<std::int32_t>(frame.channels)),
        height(static_cast<std::int32_t>(frame.height)),
        width(static_cast<std::int32_t>(frame.width)) {}
};

/// How many threads write an output, in blocks and in a grid of blocks: x along its lines, y over
/// the lines, z over the images. Where there would be more blocks than CUDA allows, threads go on.
struct Launch {
  std::array<unsigned, 3> block{32, 8, 1};
  std::array<unsigned, 3> grid{1, 1, 1};

  /// Throws c10::ValueError when an image is so large that 32 bits do not count its numbers.
  Launch(const Frame& frame, bool channels_last) {
    constexpr std::int64_t most_numbers = std::int64_t{1} << 30;
    constexpr std::int64_t most_blocks = 65535;  // in y and z
    TUTTI_CHECK_VALUE(frame.channels * frame.height * frame.width <= most_numbers,
                      "fused::Plan: images of [", frame.channels, ", ", frame.height, ", ",
                      frame.width, "] are too large for a CUDA kernel, which does up to ",
                      most_numbers, " numbers each");
    const auto blocks = [&](std::int64_t threads, unsigned in_block) {
      return (threads + in_block - 1) / in_block;
    };
    const std::int64_t beside = channels_last ? frame.channels : 1;
    const std::int64_t lines = frame.height * frame.channels / beside;
    grid = {static_cast<unsigned>(blocks(frame.width * beside, block[0])),
            static_cast<unsigned>(std::min(blocks(lines, block[1]), most_blocks)),
            static_cast<unsigned>(std::min(frame.images, most_blocks))};
  }
};

}  // namespace tutti::fused::detail
