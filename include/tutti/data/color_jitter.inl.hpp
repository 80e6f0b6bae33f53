// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/color_jitter.hpp>

namespace tutti::data {

namespace detail {

TUTTI_INLINE void expect_colours_of(const at::Tensor& images, double factor,
                                    std::string_view what) {
  expect_images(images, what);
  TUTTI_CHECK_VALUE(images.is_cpu() && (images.size(-3) == 1 || images.size(-3) == 3), what,
                    ": the image is ", images.scalar_type(), images.sizes(), " on ",
                    images.device(), ", expected 1 or 3 channels on the CPU");
  TUTTI_CHECK_VALUE(factor >= 0, what, ": the factor is ", factor, ", expected 0 or more");
}

// How bright floats are: [..., 1, H, W].
TUTTI_INLINE at::Tensor brightness_of(const at::Tensor& images) {
  if (images.size(-3) == 1) {
    return images;
  }
  const auto channel = [&](std::int64_t i) { return images.narrow(-3, i, 1); };
  return channel(0).mul(0.2989).add_(channel(1), 0.587).add_(channel(2), 0.114);
}

TUTTI_INLINE at::Tensor blend_floats(const at::Tensor& images, const at::Tensor& with,
                                     double factor) {
  return images.mul(factor).add_(with, 1 - factor).clamp_(0, 1);
}

// The hue of n pixels moved on. Three planes of `area` floats, from 0 to 1.
TUTTI_INLINE void shift_hue(const float* in, float* out, std::int64_t area, float shift) {
  const auto unit = [](float x) { return std::clamp(x, 0.0F, 1.0F); };
  for (std::int64_t n = 0; n < area; ++n) {
    const float r = in[n];
    const float g = in[area + n];
    const float b = in[2 * area + n];
    const float v = std::max({r, g, b});
    const float range = v - std::min({r, g, b});
    const bool grey = range == 0;
    const float s = grey ? 0 : range / v;
    const auto missing = [&](float x) { return grey ? 0 : (v - x) / range; };
    float h = r == v   ? missing(b) - missing(g)
              : g == v ? missing(r) + 2 - missing(b)
                       : missing(g) + 4 - missing(r);
    h = std::fmod(h * (1.0F / 6) + 1, 1.0F) + shift;
    h -= std::floor(h);
    const float place = h * 6;
    const float sector = std::floor(place);
    const float part = s * (place - sector);
    const float q = unit((1 - part) * v);
    const float t = unit((part + (1 - s)) * v);
    const float p = unit((1 - s) * v);
    const std::array<std::array<float, 3>, 6> colours{
        {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}}};
    const auto& colour = colours[static_cast<std::size_t>(sector) % 6];
    out[n] = colour[0];
    out[area + n] = colour[1];
    out[2 * area + n] = colour[2];
  }
}

}  // namespace detail

TUTTI_INLINE at::Tensor adjust_brightness(const at::Tensor& images, double factor) {
  detail::expect_colours_of(images, factor, "adjust_brightness");
  return images.is_floating_point() ? images.mul(factor).clamp_(0, 1) : brightness(images, factor);
}

TUTTI_INLINE at::Tensor adjust_contrast(const at::Tensor& images, double factor) {
  detail::expect_colours_of(images, factor, "adjust_contrast");
  if (!images.is_floating_point()) {
    return contrast(images, factor);
  }
  const at::Tensor mean = detail::brightness_of(images).mean({-3, -2, -1}, /*keepdim=*/true);
  return detail::blend_floats(images, mean, factor);
}

TUTTI_INLINE at::Tensor adjust_saturation(const at::Tensor& images, double factor) {
  detail::expect_colours_of(images, factor, "adjust_saturation");
  if (!images.is_floating_point()) {
    return color(images, factor);
  }
  return images.size(-3) == 1 ? images.clone()
                              : detail::blend_floats(images, detail::brightness_of(images), factor);
}

TUTTI_INLINE at::Tensor adjust_hue(const at::Tensor& images, double shift) {
  detail::expect_colours_of(images, 0, "adjust_hue");
  if (!images.is_floating_point()) {
    return hue(images, shift);
  }
  TUTTI_CHECK_VALUE(shift >= -0.5 && shift <= 0.5, "adjust_hue: the shift is ", shift,
                    ", expected -0.5 to 0.5");
  if (images.size(-3) == 1) {
    return images.clone();
  }
  const at::Tensor x = images.to(at::kFloat).contiguous();
  at::Tensor out = x.new_empty(x.sizes());
  const std::int64_t area = x.size(-2) * x.size(-1);
  const auto* from = x.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  ::tutti::detail::parallel_each(area == 0 ? 0 : x.numel() / (3 * area), [&](std::int64_t i) {
    detail::shift_hue(from + i * 3 * area, to + i * 3 * area, area, static_cast<float>(shift));
  });
  return out.to(images.scalar_type());
}

TUTTI_INLINE at::Tensor jitter_colors(const at::Tensor& images, const ColorFactors& factors) {
  at::Tensor out = images;
  for (const std::int64_t which : factors.order) {
    if (which == 0 && factors.brightness) {
      out = adjust_brightness(out, *factors.brightness);
    } else if (which == 1 && factors.contrast) {
      out = adjust_contrast(out, *factors.contrast);
    } else if (which == 2 && factors.saturation) {
      out = adjust_saturation(out, *factors.saturation);
    } else if (which == 3 && factors.hue) {
      out = adjust_hue(out, *factors.hue);
    }
  }
  return out;
}

TUTTI_INLINE ColorFactors ColorJitter::draw(Rng& rng) const {
  const auto range = [](const JitterRange& given, double center, const Range& bounds,
                        std::string_view what) {
    const Range out = given.about(center, bounds.low);
    TUTTI_CHECK_VALUE(out.low <= out.high && out.low >= bounds.low && out.high <= bounds.high,
                      "ColorJitter: ", what, " is from ", out.low, " to ", out.high,
                      ", expected numbers from ", bounds.low, " to ", bounds.high,
                      ", the smaller one first");
    return out;
  };
  const double most = std::numeric_limits<double>::max();
  const std::array<Range, 4> ranges{
      range(brightness, 1, {0, most}, "brightness"), range(contrast, 1, {0, most}, "contrast"),
      range(saturation, 1, {0, most}, "saturation"), range(hue, 0, {-0.5, 0.5}, "hue")};
  ColorFactors out;
  const at::Tensor order = rng.permutation(4);
  std::copy_n(order.const_data_ptr<std::int64_t>(), 4, out.order.begin());
  const auto factor = [&](const Range& r, double center) -> std::optional<double> {
    return r.low == center && r.high == center ? std::nullopt
                                               : std::optional(rng.uniform(r.low, r.high));
  };
  out.brightness = factor(ranges[0], 1);
  out.contrast = factor(ranges[1], 1);
  out.saturation = factor(ranges[2], 1);
  out.hue = factor(ranges[3], 0);
  return out;
}

TUTTI_INLINE at::Tensor ColorJitter::operator()(const at::Tensor& images, Rng& rng) const {
  detail::expect_colours_of(images, 0, "ColorJitter");
  return detail::per_image(images, rng, {}, [this](const at::Tensor& image, Rng& draws) {
    return jitter_colors(image, draw(draws));
  });
}

}  // namespace tutti::data
