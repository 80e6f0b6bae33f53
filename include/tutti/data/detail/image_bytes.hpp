// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

/// 8-bit image operations on planes of pixels, with Pillow's arithmetic.
namespace tutti::data::detail {

using Byte = std::uint8_t;
using Table = std::array<Byte, 256>;              // what becomes of each value
using Histogram = std::array<std::int64_t, 256>;  // how often each value occurs

// One image [C, H, W], contiguous.
struct Planes {
  const Byte* pixels;
  std::int64_t channels;
  std::int64_t height;
  std::int64_t width;

  [[nodiscard]] std::int64_t area() const { return height * width; }
  [[nodiscard]] const Byte* plane(std::int64_t channel) const { return pixels + channel * area(); }
};

inline Byte to_byte(double value) {
  return static_cast<Byte>(std::clamp(value, 0.0, 255.0));
}

inline Table identity_table() {
  Table table;
  for (std::size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<Byte>(i);
  }
  return table;
}

inline Histogram count_values(const Byte* plane, std::int64_t n) {
  Histogram counts{};
  for (std::int64_t i = 0; i < n; ++i) {
    ++counts[plane[i]];
  }
  return counts;
}

inline void look_up(const Byte* from, Byte* to, std::int64_t n, const Table& table) {
  for (std::int64_t i = 0; i < n; ++i) {
    to[i] = table[from[i]];
  }
}

// The darkest value becomes 0, the brightest 255.
inline Table autocontrast_table(const Histogram& counts) {
  const auto used = [](std::int64_t count) { return count != 0; };
  const auto low = std::find_if(counts.begin(), counts.end(), used) - counts.begin();
  const auto high = 255 - (std::find_if(counts.rbegin(), counts.rend(), used) - counts.rbegin());
  Table table = identity_table();
  if (high > low) {
    const double scale = 255.0 / static_cast<double>(high - low);
    const double offset = static_cast<double>(-low) * scale;
    for (std::size_t i = 0; i < table.size(); ++i) {
      table[i] = to_byte(static_cast<double>(i) * scale + offset);
    }
  }
  return table;
}

// Every value becomes about equally frequent.
inline Table equalize_table(const Histogram& counts) {
  std::int64_t all = 0;
  std::int64_t last = 0;
  std::int64_t values = 0;
  for (const std::int64_t count : counts) {
    all += count;
    last = count != 0 ? count : last;
    values += count != 0 ? 1 : 0;
  }
  const std::int64_t step = (all - last) / 255;
  Table table = identity_table();
  if (values > 1 && step > 0) {
    std::int64_t below = step / 2;
    for (std::size_t i = 0; i < table.size(); ++i) {
      table[i] = static_cast<Byte>(std::min<std::int64_t>(below / step, 255));
      below += counts[i];
    }
  }
  return table;
}

// from + factor * (to - from), cut off below and above, rounded down.
inline Byte blend(int from, int to, float factor) {
  const float mixed = static_cast<float>(from) + factor * static_cast<float>(to - from);
  return mixed <= 0.0F ? Byte{0} : mixed >= 255.0F ? Byte{255} : static_cast<Byte>(mixed);
}

// Each value blended with one grey.
inline Table blend_table(int grey, float factor) {
  Table table;
  for (std::size_t i = 0; i < table.size(); ++i) {
    table[i] = blend(grey, static_cast<int>(i), factor);
  }
  return table;
}

// How bright pixel `i` is: ITU-R BT.601, in 16-bit fixed point. One channel is bright as it is.
inline int brightness_at(const Planes& image, std::int64_t i) {
  if (image.channels == 1) {
    return image.pixels[i];
  }
  return (image.plane(0)[i] * 19595 + image.plane(1)[i] * 38470 + image.plane(2)[i] * 7471 +
          0x8000) >>
         16;
}

// The mean brightness, rounded.
inline int mean_brightness(const Planes& image) {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < image.area(); ++i) {
    sum += brightness_at(image, i);
  }
  return static_cast<int>(static_cast<double>(sum) / static_cast<double>(image.area()) + 0.5);
}

inline void blend_with_grey(const Planes& image, Byte* out, float factor) {
  for (std::int64_t i = 0; i < image.area(); ++i) {
    const int grey = brightness_at(image, i);
    for (std::int64_t channel = 0; channel < image.channels; ++channel) {
      out[channel * image.area() + i] = blend(grey, image.plane(channel)[i], factor);
    }
  }
}

// A colour by hue, saturation and value, bytes each.
struct Hsv {
  Byte h = 0, s = 0, v = 0;
};

inline Hsv to_hsv(Byte r, Byte g, Byte b) {
  const Byte most = std::max({r, g, b});
  const Byte least = std::min({r, g, b});
  if (most == least) {
    return {0, 0, most};
  }
  const auto range = static_cast<float>(most - least);
  const auto missing = [&](Byte value) {
    return static_cast<double>(static_cast<float>(most - value) / range);
  };
  const double sector = r == most   ? missing(b) - missing(g)
                        : g == most ? 2.0 + missing(r) - missing(b)
                                    : 4.0 + missing(g) - missing(r);
  const auto hue = static_cast<float>(
      std::fmod(static_cast<double>(static_cast<float>(sector)) / 6.0 + 1.0, 1.0));
  const float saturation = range / static_cast<float>(most);
  return {to_byte(static_cast<double>(hue) * 255), to_byte(static_cast<double>(saturation) * 255),
          most};
}

inline std::array<Byte, 3> to_rgb(const Hsv& colour) {
  const auto [h, s, v] = colour;
  const double place = static_cast<double>(h) * 6.0 / 255.0;  // on the circle of six sectors
  const auto sector = static_cast<int>(std::floor(place));
  const auto f = static_cast<float>(place - sector);
  const auto saturation = static_cast<float>(s / 255.0);
  const auto less = [value = v](double share) {
    return to_byte(std::round(value * (1.0 - share)));
  };
  const Byte p = less(static_cast<double>(saturation));
  const Byte q = less(static_cast<double>(saturation * f));
  const Byte t = less(static_cast<double>(saturation) * (1.0 - static_cast<double>(f)));
  switch (s == 0 ? 6 : sector % 6) {
    case 0:
      return {v, t, p};
    case 1:
      return {q, v, p};
    case 2:
      return {p, v, t};
    case 3:
      return {p, q, v};
    case 4:
      return {t, p, v};
    case 5:
      return {v, p, q};
    default:
      return {v, v, v};  // grey
  }
}

// Hues moved on by `shift` of 256. Three channels.
inline void shift_hue(const Planes& image, Byte* out, int shift) {
  const std::int64_t area = image.area();
  for (std::int64_t i = 0; i < area; ++i) {
    Hsv colour = to_hsv(image.plane(0)[i], image.plane(1)[i], image.plane(2)[i]);
    colour.h = static_cast<Byte>(colour.h + shift);  // around the circle
    const auto [r, g, b] = to_rgb(colour);
    out[i] = r;
    out[area + i] = g;
    out[2 * area + i] = b;
  }
}

// Blended with a mean over 3 x 3 pixels in which the middle counts five times; edges stay.
inline void blend_with_smooth(const Planes& image, Byte* out, float factor) {
  const std::int64_t width = image.width;
  std::memcpy(out, image.pixels, static_cast<std::size_t>(image.channels * image.area()));
  for (std::int64_t channel = 0; channel < image.channels; ++channel) {
    for (std::int64_t row = 1; row + 1 < image.height; ++row) {
      const std::int64_t start = row * width;
      const Byte* at = image.plane(channel) + start;
      Byte* to = out + channel * image.area() + start;
      for (std::int64_t x = 1; x + 1 < width; ++x) {
        const int around = at[x - width - 1] + at[x - width] + at[x - width + 1] + at[x - 1] +
                           at[x + 1] + at[x + width - 1] + at[x + width] + at[x + width + 1];
        const int smooth = (2 * (around + 5 * at[x]) + 13) / 26;  // a thirteenth, rounded
        to[x] = blend(smooth, at[x], factor);
      }
    }
  }
}

// Where output pixel (x, y) comes from: (a x + b y + c, d x + e y + f), of the pixels' middles.
struct Affine {
  double a = 1, b = 0, c = 0, d = 0, e = 1, f = 0;
};

// The four pixels around a place, and how much of each.
struct Corner {
  std::int64_t left, right, upper, lower;  // offsets of columns and of rows
  double dx, dy;
};

inline bool find_corner(const Planes& image, double x, double y, Corner& out) {
  if (x < 0 || x >= static_cast<double>(image.width) || y < 0 ||
      y >= static_cast<double>(image.height)) {
    return false;
  }
  const double column = std::floor(x - 0.5);
  const double row = std::floor(y - 0.5);
  const auto i = static_cast<std::int64_t>(column);
  const auto j = static_cast<std::int64_t>(row);
  out = {std::max<std::int64_t>(i, 0),
         std::min(i + 1, image.width - 1),
         std::max<std::int64_t>(j, 0) * image.width,
         std::min(j + 1, image.height - 1) * image.width,
         x - 0.5 - column,
         y - 0.5 - row};
  return true;
}

// The image moved, bilinearly interpolated, with black where there was nothing.
inline void transform(const Planes& image, Byte* out, const Affine& from) {
  for (std::int64_t y = 0; y < image.height; ++y) {
    for (std::int64_t x = 0; x < image.width; ++x, ++out) {
      const double column = static_cast<double>(x) + 0.5;
      const double row = static_cast<double>(y) + 0.5;
      Corner corner;
      const bool inside = find_corner(image, from.a * column + from.b * row + from.c,
                                      from.d * column + from.e * row + from.f, corner);
      for (std::int64_t channel = 0; channel < image.channels; ++channel) {
        const Byte* plane = image.plane(channel);
        const auto along = [&](std::int64_t line) {
          const int left = plane[line + corner.left];
          return left + (plane[line + corner.right] - left) * corner.dx;
        };
        double value = 0;
        if (inside) {
          const double upper = along(corner.upper);
          value = upper + (along(corner.lower) - upper) * corner.dy;
        }
        out[channel * image.area()] = static_cast<Byte>(value);
      }
    }
  }
}

// The same with the pixel that lies nearest, in Pillow's 16.16 fixed point.
inline void transform_to_nearest(const Planes& image, Byte* out, const Affine& from) {
  const auto fixed = [](double value) {
    return static_cast<std::int64_t>(std::floor(value * 65536 + 0.5));
  };
  const std::int64_t column_step = fixed(from.a);
  const std::int64_t row_step = fixed(from.d);
  std::int64_t line_column = fixed(from.c + from.a * 0.5 + from.b * 0.5);
  std::int64_t line_row = fixed(from.f + from.d * 0.5 + from.e * 0.5);
  for (std::int64_t y = 0; y < image.height; ++y) {
    std::int64_t column = line_column;
    std::int64_t row = line_row;
    for (std::int64_t x = 0; x < image.width; ++x, ++out) {
      const std::int64_t i = column >> 16;
      const std::int64_t j = row >> 16;
      const bool inside = i >= 0 && i < image.width && j >= 0 && j < image.height;
      for (std::int64_t channel = 0; channel < image.channels; ++channel) {
        out[channel * image.area()] = inside ? image.plane(channel)[j * image.width + i] : Byte{0};
      }
      column += column_step;
      row += row_step;
    }
    line_column += fixed(from.b);
    line_row += fixed(from.e);
  }
}

// The image moved by whole pixels: out(x, y) = in(x + right, y + down), black elsewhere.
inline void shift(const Planes& image, Byte* out, std::int64_t right, std::int64_t down) {
  const std::int64_t first = std::clamp<std::int64_t>(-right, 0, image.width);
  const std::int64_t last = std::clamp<std::int64_t>(image.width - right, first, image.width);
  std::memset(out, 0, static_cast<std::size_t>(image.channels * image.area()));
  for (std::int64_t channel = 0; channel < image.channels; ++channel) {
    for (std::int64_t y = 0; y < image.height; ++y) {
      if (y + down >= 0 && y + down < image.height && last > first) {
        std::memcpy(out + channel * image.area() + y * image.width + first,
                    image.plane(channel) + (y + down) * image.width + first + right,
                    static_cast<std::size_t>(last - first));
      }
    }
  }
}

// To 15 decimals, the nearest number that is written so.
inline double round_to_15(double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.15f", value);
  return std::strtod(text.data(), nullptr);
}

// A turn about the middle, counter-clockwise.
inline Affine turn(double degrees, std::int64_t height, std::int64_t width) {
  constexpr double pi = 3.14159265358979323846;
  const double wrapped = std::fmod(degrees, 360.0) + (std::fmod(degrees, 360.0) < 0 ? 360.0 : 0.0);
  const double angle = -(wrapped * (pi / 180.0));
  const double cosine = round_to_15(std::cos(angle));
  const double sine = round_to_15(std::sin(angle));
  const double x = static_cast<double>(width) / 2;
  const double y = static_cast<double>(height) / 2;
  return {cosine, sine, cosine * -x + sine * -y + x, -sine, cosine, -sine * -x + cosine * -y + y};
}

}  // namespace tutti::data::detail
