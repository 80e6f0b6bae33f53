// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include <tutti/fused/pixels.hpp>

/// The CUDA kernel of a fused pass, as a text that the compiler puts together from its stages.
///
/// A thread writes one element of the output, and threads beside one another write elements beside
/// one another, in either memory format. What was drawn lies in `data`, see Tables: its first
/// numbers say where the part of each stage begins. TUTTI_OUT is the output's type, TUTTI_LAST
/// whether its channels lie together. Every operation is rounded on its own, as on the CPU: the
/// text is to be compiled without contraction, with IEEE division and denormals.
namespace tutti::fused::detail {

inline constexpr std::string_view prologue = R"cuda(
struct Batch {
  const unsigned char* raw;                         // the images
  const int* data;                                  // what the stages drew
  long long image, channel, row, column;            // strides of raw
  int raw_height, raw_width;
  int images, channels, height, width;              // of the output
};

// Where an element lies in its image.
struct Place {
  int channel, row, column;
};

template <int Part>
__device__ const int* part(const Batch& batch) {
  return batch.data + batch.data[Part];
}

struct Raw {
  typedef unsigned char Value;
  __device__ static Value at(const Batch& batch, int image, Place to) {
    return batch.raw[image * batch.image + to.channel * batch.channel + to.row * batch.row +
                     to.column * batch.column];
  }
};
)cuda";

inline constexpr std::string_view window = R"cuda(
// A window of each image, left and right exchanged where its step is -1; black outside.
template <int Part, class Before>
struct Window {
  typedef unsigned char Value;
  __device__ static Value at(const Batch& batch, int image, Place to) {
    const int* origin = part<Part>(batch) + 3 * image;  // row, column, step
    const Place from = {to.channel, origin[0] + to.row, origin[1] + origin[2] * to.column};
    const bool inside = from.row >= 0 && from.row < batch.raw_height && from.column >= 0 &&
                        from.column < batch.raw_width;
    return inside ? Before::at(batch, image, from) : Value(0);
  }
};
)cuda";

inline constexpr std::string_view grid = R"cuda(
// Rows, then columns, by index.
template <int Part, class Before>
struct Take {
  typedef unsigned char Value;
  __device__ static Value at(const Batch& batch, int image, Place to) {
    const int* table = part<Part>(batch);
    return Before::at(batch, image,
                      {to.channel, table[to.row], table[batch.height + to.column]});
  }
};
)cuda";

/// What a stage does, by its pixel expression; empty for those that only move pixels.
template <class Node>
inline constexpr std::string_view fragment{};

template <>
inline constexpr std::string_view fragment<Scale> = R"cuda(
// Bytes become floats.
template <int Part, class Before>
struct Scale {
  typedef float Value;
  __device__ static Value at(const Batch& batch, int image, Place to) {
    const int* bits = part<Part>(batch);  // divisor, means, deviations
    const float divisor = __int_as_float(bits[0]);
    const float mean = __int_as_float(bits[1 + to.channel]);
    const float deviation = __int_as_float(bits[1 + batch.channels + to.channel]);
    return (float(Before::at(batch, image, to)) / divisor - mean) / deviation;
  }
};
)cuda";

template <>
inline constexpr std::string_view fragment<Holes> = R"cuda(
// 0 in boxes: black before Scale, the float 0 after it.
template <int Part, class Before>
struct Holes {
  typedef typename Before::Value Value;
  __device__ static Value at(const Batch& batch, int image, Place to) {
    const int* first = part<Part>(batch);    // by image, or for all, then the end
    const int* box = first + 1 + image * first[0];
    const int* end = first + box[1];
    for (box = first + box[0]; box != end; box += 4) {  // top, left, bottom, right
      if (to.row >= box[0] && to.column >= box[1] && to.row < box[2] && to.column < box[3]) {
        return Value(0);
      }
    }
    return Before::at(batch, image, to);
  }
};
)cuda";

template <>
inline constexpr std::string_view fragment<Mix> = R"cuda(
// A blend with another image.
template <int Part, class Before>
struct Mix {
  typedef float Value;
  __device__ static Value at(const Batch& batch, int image, Place to) {
    const int* drawn = part<Part>(batch);  // whether at all, weights, partners
    const float own = Before::at(batch, image, to);
    if (drawn[0] == 0) {
      return own;
    }
    const float partner = Before::at(batch, drawn[3 + image], to);
    return __int_as_float(drawn[1]) * own + __int_as_float(drawn[2]) * partner;
  }
};
)cuda";

template <>
inline constexpr std::string_view fragment<Paste> = R"cuda(
// A box of another image.
template <int Part, class Before>
struct Paste {
  typedef typename Before::Value Value;
  __device__ static Value at(const Batch& batch, int image, Place to) {
    const int* drawn = part<Part>(batch);  // top, left, bottom, right, partners
    const bool inside = to.row >= drawn[0] && to.column >= drawn[1] && to.row < drawn[2] &&
                        to.column < drawn[3];
    return Before::at(batch, inside ? drawn[4 + image] : image, to);
  }
};
)cuda";

inline constexpr std::string_view epilogue = R"cuda(
struct Half {
  unsigned short bits;
};
struct BFloat16 {
  unsigned short bits;
};
#ifdef __CUDACC_RTC__
__device__ unsigned short half_bits(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
#endif
__device__ void put(float& to, float x) { to = x; }
__device__ void put(Half& to, float x) { to.bits = half_bits(x); }
__device__ void put(BFloat16& to, float x) {
  const unsigned bits = __float_as_uint(x);
  to.bits = x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // to nearest even
}

extern "C" __global__ void tutti_fused_pass(Batch batch, TUTTI_OUT* out) {
  // A line: a row of one channel, or one of all channels beside one another.
  const int length = TUTTI_LAST ? batch.width * batch.channels : batch.width;
  const int lines = TUTTI_LAST ? batch.height : batch.height * batch.channels;
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= length) {
    return;
  }
  for (int line = blockIdx.y * blockDim.y + threadIdx.y; line < lines;
       line += gridDim.y * blockDim.y) {
    const Place to = TUTTI_LAST ? Place{at % batch.channels, line, at / batch.channels}
                                : Place{line / batch.height, line % batch.height, at};
    for (int image = blockIdx.z; image < batch.images; image += gridDim.z) {
      const long long before = (long long)image * lines + line;
      put(out[before * length + at], Pass::at(batch, image, to));
    }
  }
}
)cuda";

/// Parts of `data`: two of where pixels come from, then one for each stage.
inline constexpr int window_part = 0;
inline constexpr int grid_part = 1;
inline constexpr int first_stage_part = 2;

template <class Node, class... Nodes>
inline constexpr bool among = (std::is_same_v<Node, Nodes> || ...);

/// Pixels are taken from windows, from rows and columns by index.
template <class... Nodes>
inline constexpr bool has_window = among<Crops, Nodes...> || among<Flips, Nodes...>;
template <class... Nodes>
inline constexpr bool has_grid = among<Take, Nodes...>;

template <class Node>
inline constexpr std::string_view stage_name = std::is_same_v<Node, Scale>   ? "Scale"
                                               : std::is_same_v<Node, Holes> ? "Holes"
                                               : std::is_same_v<Node, Mix>   ? "Mix"
                                               : std::is_same_v<Node, Paste> ? "Paste"
                                                                             : "";

// All parts of the source, in order, are given to put(text).
template <class... Nodes, class Put>
constexpr void write_source(const Put& put) {
  static_assert(sizeof...(Nodes) + first_stage_part < 100, "the numbers below have two digits");
  put(prologue);
  put(has_window<Nodes...> ? window : "");
  put(has_grid<Nodes...> ? grid : "");
  put(among<Scale, Nodes...> ? fragment<Scale> : "");
  put(among<Holes, Nodes...> ? fragment<Holes> : "");
  put(among<Mix, Nodes...> ? fragment<Mix> : "");
  put(among<Paste, Nodes...> ? fragment<Paste> : "");
  // The last stage asks those before it: typedef Mix<3, Scale<2, Raw>> Pass;
  put("\ntypedef ");
  int depth = 0;
  const auto open = [&](std::string_view name, int part) {
    const char digits[] = {static_cast<char>('0' + part / 10), static_cast<char>('0' + part % 10)};
    put(name);
    put("<");
    put(std::string_view(digits + (part < 10 ? 1 : 0), part < 10 ? 1 : 2));
    put(", ");
    ++depth;
  };
  constexpr std::array<std::string_view, sizeof...(Nodes)> names{stage_name<Nodes>...};
  for (std::size_t i = names.size(); i-- > 0;) {
    if (!names[i].empty()) {
      open(names[i], first_stage_part + static_cast<int>(i));
    }
  }
  if (has_grid<Nodes...>) {
    open("Take", grid_part);
  }
  if (has_window<Nodes...>) {
    open("Window", window_part);
  }
  put("Raw");
  while (depth-- > 0) {
    put(">");
  }
  put(" Pass;\n");
  put(epilogue);
}

template <class... Nodes>
consteval std::size_t source_length() {
  std::size_t length = 0;
  write_source<Nodes...>([&](std::string_view text) { length += text.size(); });
  return length;
}

// With a zero at the end.
template <class... Nodes>
inline constexpr auto source_chars = [] {
  std::array<char, source_length<Nodes...>() + 1> out{};
  std::size_t at = 0;
  write_source<Nodes...>([&](std::string_view text) {
    for (const char c : text) {
      out[at++] = c;
    }
  });
  return out;
}();

/// The kernel of a pass whose stages have these pixel expressions, in this order.
template <class... Nodes>
inline constexpr std::string_view source{source_chars<Nodes...>.data(),
                                         source_chars<Nodes...>.size() - 1};

}  // namespace tutti::fused::detail
