// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/fused/detail/geometry.hpp>
#include <tutti/fused/detail/kernels.hpp>
#include <tutti/fused/detail/segments.hpp>

/// The pass over the pixels of one image.
namespace tutti::fused::detail {

/// How the bytes of all channels become floats, and by which loops.
struct ChannelTables {
  std::vector<Values> values;
  std::vector<Kernels> kernels;

  ChannelTables(const Scale& scale, std::int64_t channels, double mixing) {
    for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c) {
      const double mean = scale.mean.empty() ? 0 : scale.mean[c];
      const double std = scale.std.empty() ? 1 : scale.std[c];
      values.emplace_back(static_cast<float>(scale.divisor), static_cast<float>(mean),
                          static_cast<float>(std), mixing);
      kernels.push_back(choose(values.back()));
    }
  }
};

/// Where images lie, in elements.
struct Layout {
  std::int64_t image;
  std::int64_t channel;
  std::int64_t row;
  std::int64_t column;
  explicit Layout(const at::Tensor& x)
      : image(x.stride(0)), channel(x.stride(1)), row(x.stride(2)), column(x.stride(3)) {}
};

/// Output pixels that are made of the same: row by row, or across rows where they lie
/// together in the output and in the images.
struct Span {
  std::int64_t row;
  std::int64_t first;
  std::int64_t length;
  Blend terms;
};

/// Writes images of the output, one by one; each thread has its own. T: float, or what floats are
/// rounded to.
template <class T>
class RowWriter {
 public:
  RowWriter(const at::Tensor& images, const at::Tensor& out, const Geometry& geometry,
            const ChannelTables& tables)
      : from_(images.const_data_ptr<std::uint8_t>()),
        to_(out.mutable_data_ptr<T>()),
        source_(images),
        target_(out),
        channels_(out.size(1)),
        width_(out.size(3)),
        planar_(target_.column == 1),
        direct_(geometry.none() && source_.column == 1 && source_.row == width_ && planar_),
        geometry_(geometry),
        tables_(tables),
        own_room_(static_cast<std::size_t>(width_ + Geometry::slack)),
        partner_room_(static_cast<std::size_t>(width_ + Geometry::slack)),
        lines_(static_cast<std::size_t>(!planar_ ? channels_ * width_
                                        : rounds ? std::max(width_, part)
                                                 : 0)) {}

  /// One more segment of the image, after those before it.
  void add(std::int64_t row, std::int64_t first, std::int64_t last, const Blend& terms) {
    if (direct_ && !spans_.empty() && spans_.back().terms == terms &&
        terms.own.fill != Fill::black && terms.partner.fill != Fill::black) {
      spans_.back().length += last - first;
    } else {
      spans_.push_back({row, first, last - first, terms});
    }
  }

  /// Writes the segments added, which are all of image n, and forgets them.
  void write(std::int64_t n) {
    T* image = to_ + n * target_.image;
    if (planar_) {
      for (std::int64_t c = 0; c < channels_; ++c) {
        for (const Span& span : spans_) {
          put(span, c, image + c * target_.channel + span.row * target_.row + span.first);
        }
      }
    } else {
      for (const Span& span : spans_) {
        interleave(span, image + span.row * target_.row + span.first * target_.column);
      }
    }
    spans_.clear();
  }

 private:
  static constexpr bool rounds = !std::is_same_v<T, float>;
  static constexpr std::int64_t part = 2048;  // floats that stay in the cache until rounded

  void put(const Span& span, std::int64_t c, T* out) {
    if constexpr (!rounds) {
      write(span, c, out);
    } else {
      for (std::int64_t at = 0; at < span.length; at += part) {
        const std::int64_t n = std::min(part, span.length - at);
        write({span.row, span.first + at, n, span.terms}, c, lines_.data());
        std::transform(lines_.begin(), lines_.begin() + n, out + at,
                       [](float x) { return static_cast<T>(x); });
      }
    }
  }

  void write(const Span& span, std::int64_t c, float* out) {
    const Values& values = tables_.values[static_cast<std::size_t>(c)];
    const Kernels& kernels = tables_.kernels[static_cast<std::size_t>(c)];
    const auto& [own, partner, mixed] = span.terms;
    const bool own_is_zero = own.fill == Fill::zero;
    const bool partner_is_zero = !mixed || partner.fill == Fill::zero;
    if (own_is_zero && partner_is_zero) {
      std::fill_n(out, span.length, 0.0F);
    } else if (!mixed) {
      kernels.plain(bytes(own, span, c, own_room_.data()), out, span.length, values);
    } else if (own_is_zero) {
      beside_hole(bytes(partner, span, c, own_room_.data()), out, span.length, values.partner);
    } else if (partner_is_zero) {
      beside_hole(bytes(own, span, c, own_room_.data()), out, span.length, values.own);
    } else {
      kernels.mixed(bytes(own, span, c, own_room_.data()),
                    bytes(partner, span, c, partner_room_.data()), out, span.length, values);
    }
  }

  // All channels of a span, beside one another.
  void interleave(const Span& span, T* out) {
    for (std::int64_t c = 0; c < channels_; ++c) {
      write(span, c, lines_.data() + c * span.length);
    }
    for (std::int64_t j = 0; j < span.length; ++j) {
      for (std::int64_t c = 0; c < channels_; ++c) {
        out[j * target_.column + c * target_.channel] =
            static_cast<T>(lines_[static_cast<std::size_t>(c * span.length + j)]);
      }
    }
  }

  // One side of a blend whose other is a hole.
  static void beside_hole(const std::uint8_t* bytes, float* out, std::int64_t n,
                          const std::array<float, 256>& table) {
    for (std::int64_t i = 0; i < n; ++i) {
      out[i] = table[bytes[i]] + 0.0F;
    }
  }

  const std::uint8_t* bytes(const Term& term, const Span& span, std::int64_t c,
                            std::uint8_t* room) {
    if (term.fill == Fill::black) {
      std::fill_n(room, span.length, std::uint8_t{0});
      return room;
    }
    const std::uint8_t* plane = from_ + term.image * source_.image + c * source_.channel;
    if (direct_) {
      return plane + span.row * width_ + span.first;
    }
    return geometry_.fetch(plane, source_.row, source_.column, term.image, span.row, span.first,
                           span.first + span.length, room);
  }

  const std::uint8_t* from_;
  T* to_;
  Layout source_;
  Layout target_;
  std::int64_t channels_;
  std::int64_t width_;
  bool planar_;  // channels of the output lie one after the other
  bool direct_;  // pixels stay where they are, so that rows hang together
  const Geometry& geometry_;
  const ChannelTables& tables_;
  std::vector<Span> spans_;
  std::vector<std::uint8_t> own_room_;
  std::vector<std::uint8_t> partner_room_;
  std::vector<float> lines_;
};

}  // namespace tutti::fused::detail
