// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/core/detail/cpu.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/nn/detail/batch_norm_job.hpp>
#include <tutti/nn/detail/floats.hpp>

// Floats whose channels lie next to each other, read as batch normalisation has to: for two sums of
// each channel, and once more to change every number; eight channels together whatever their
// number.
namespace tutti::nn::detail {

// [pixels, channels] as [count, width] rows: `width` is a multiple of the lanes and of the
// channels, so that column i is of channel i % channels. Less than a row may be left behind them.
struct WideRows {
  std::int64_t channels = 0, pixels = 0, width = 0, count = 0;
  std::int64_t piece = 0, pieces = 0;  // rows that one thread takes at a time
  bool streams = false;                // as in RowJob

  WideRows(std::int64_t pixels_, std::int64_t channels_) : channels(channels_), pixels(pixels_) {
    constexpr std::int64_t least_width = 4 * lanes, piece_numbers = 1 << 16, least_piece = 64,
                           cached = 1 << 21;
    width = channels * (lanes / std::min(lanes, channels & -channels));  // lanes: a power of two
    width *= (least_width + width - 1) / width;
    count = pixels * channels / width;
    piece = std::clamp(piece_numbers / width, least_piece, block);
    pieces = (count + piece - 1) / piece;
    streams = pixels * channels > cached;
  }

  // The numbers of a channel, one for each column.
  template <class F>
  std::vector<float> spread(const F& of_channel) const {
    std::vector<float> out(static_cast<std::size_t>(width));
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto channel = static_cast<std::size_t>(channels);
      out[i] = i < channel ? of_channel(static_cast<std::int64_t>(i)) : out[i - channel];
    }
    return out;
  }

  // f(place, channel) of each number behind the last row.
  template <class F>
  void each_left(const F& f) const {
    for (std::int64_t at = count * width; at < pixels * channels; ++at) {
      f(at, at % channels);
    }
  }
};

// What a piece of rows is read for: sums of columns, or one number for each.
enum class RowPass { moments, normalize, gradient_moments, gradient };

struct RowJob {
  std::int64_t width = 0;
  const float* x = nullptr;
  const float* dy = nullptr;
  float* out = nullptr;          // y or dx
  const float* scale = nullptr;  // of each column: out = scale * x + shift, and for a gradient
  const float* shift = nullptr;  // out = scale * dy + shift + slope * (x - center)
  const float* slope = nullptr;
  const float* center = nullptr;
  bool streams = false;  // through memory, no cache holds it: then rows are changed one by one
};

// Rows are read in columns of n numbers, and what the n rows after them are is fetched by their
// order in memory meanwhile, for columns show the processor none.
template <std::int64_t n, bool writes = false>
[[gnu::always_inline]] inline void prefetch(const float* from) {
  constexpr std::int64_t line = 16;  // numbers
  for (std::int64_t i = 0; n > 1 && i < n * lanes; i += line) {
    __builtin_prefetch(from + i, writes ? 1 : 0);
  }
}

// Adds to a and b, for each column of n rows, d and d * (x - center), where d is dy or x - center.
template <bool Gradient, std::int64_t n>
[[gnu::always_inline]] inline void add_rows(const RowJob& job, std::int64_t at, float* a,
                                            float* b) {
  Floats center;
  Floats d;
  Floats v;
  Floats sum;
  Floats product;
  for (std::int64_t i = 0; i < job.width; i += lanes) {
    load(center, job.center + i);
    load(sum, a + i);
    load(product, b + i);
    const std::int64_t next = at + n * (job.width + i);
    prefetch<n>(job.x + next);
    if constexpr (Gradient) {
      prefetch<n>(job.dy + next);
    }
    Floats sums{};
    Floats products{};
    for (std::int64_t row = 0; row < n; ++row) {
      load(v, job.x + at + row * job.width + i);
      v -= center;
      if constexpr (Gradient) {
        load(d, job.dy + at + row * job.width + i);
      } else {
        d = v;
      }
      sums += d;
      products += d * v;
    }
    sum += sums;
    product += products;
    store(a + i, sum);
    store(b + i, product);
  }
}

template <bool Gradient, std::int64_t n>
[[gnu::always_inline]] inline void map_rows(const RowJob& job, std::int64_t at) {
  Floats scale;
  Floats shift;
  Floats slope;
  Floats center;
  Floats v;
  Floats d;
  for (std::int64_t i = 0; i < job.width; i += lanes) {
    const std::int64_t next = at + n * (job.width + i);
    load(scale, job.scale + i);
    load(shift, job.shift + i);
    if constexpr (Gradient) {
      load(slope, job.slope + i);
      load(center, job.center + i);
      prefetch<n>(job.dy + next);
    }
    prefetch<n>(job.x + next);
    prefetch<n, true>(job.out + next);
    for (std::int64_t row = 0; row < n; ++row) {
      const std::int64_t here = at + row * job.width + i;
      load(v, job.x + here);
      if constexpr (Gradient) {
        load(d, job.dy + here);
        v = d * scale + shift + (v - center) * slope;
      } else {
        v = v * scale + shift;
      }
      store(job.out + here, v);
    }
  }
}

template <RowPass pass, std::int64_t n>
[[gnu::always_inline]] inline void pass_rows(const RowJob& job, std::int64_t row, float* sums) {
  constexpr bool gradient = pass == RowPass::gradient_moments || pass == RowPass::gradient;
  if constexpr (pass == RowPass::moments || pass == RowPass::gradient_moments) {
    add_rows<gradient, n>(job, row * job.width, sums, sums + job.width);
  } else {
    map_rows<gradient, n>(job, row * job.width);
  }
}

// Rows [begin, end); sums: two for each column, where the pass has any.
template <RowPass pass>
[[gnu::always_inline]] inline void pass_piece(const RowJob& job, std::int64_t begin,
                                              std::int64_t end, float* sums) {
  constexpr bool adds = pass == RowPass::moments || pass == RowPass::gradient_moments;
  constexpr std::int64_t together = adds ? 4 : 2;
  std::int64_t row = begin;
  for (; (adds || !job.streams) && row + together <= end; row += together) {
    pass_rows<pass, together>(job, row, sums);
  }
  for (; row < end; ++row) {
    pass_rows<pass, 1>(job, row, sums);
  }
}

#if defined(__x86_64__)
template <RowPass pass>
[[gnu::target("avx2,fma")]] inline void pass_piece_avx2(const RowJob& job, std::int64_t begin,
                                                        std::int64_t end, float* sums) {
  pass_piece<pass>(job, begin, end, sums);
}
#endif

// Rows [begin, end) by the loop that is compiled for this processor.
template <RowPass pass>
void pass_any(const RowJob& job, std::int64_t begin, std::int64_t end, float* sums) {
#if defined(__x86_64__)
  if (::tutti::detail::has_avx2()) {
    pass_piece_avx2<pass>(job, begin, end, sums);
    return;
  }
#endif
  pass_piece<pass>(job, begin, end, sums);
}

// The two sums of each channel over all pixels, all the first, then all the second.
template <RowPass pass>
std::vector<double> add_up(const WideRows& rows, const RowJob& job) {
  const auto width = static_cast<std::size_t>(2 * rows.width);
  std::vector<double> of_pieces(static_cast<std::size_t>(rows.pieces) * width);
  ::tutti::detail::parallel_each(rows.pieces, [&](std::int64_t i) {
    std::vector<float> sums(width);
    pass_any<pass>(job, i * rows.piece, std::min((i + 1) * rows.piece, rows.count), sums.data());
    std::copy(sums.begin(), sums.end(), of_pieces.data() + static_cast<std::size_t>(i) * width);
  });
  std::vector<double> out(static_cast<std::size_t>(2 * rows.channels));
  double* const of_d = out.data();
  double* const of_products = of_d + rows.channels;
  const double* from = of_pieces.data();
  for (std::int64_t i = 0; i < rows.pieces; ++i) {
    for (double* to : {of_d, of_products}) {
      for (std::int64_t column = 0; column < rows.width; column += rows.channels) {
        for (std::int64_t channel = 0; channel < rows.channels; ++channel) {
          to[channel] += *from++;
        }
      }
    }
  }
  rows.each_left([&](std::int64_t at, std::int64_t channel) {
    const auto v = static_cast<double>(job.x[at] - job.center[channel]);
    const double d = pass == RowPass::moments ? v : static_cast<double>(job.dy[at]);
    of_d[channel] += d;
    of_products[channel] += d * v;
  });
  return out;
}

// Writes job.out, a number for each of job.x.
template <RowPass pass>
void map(const WideRows& rows, const RowJob& job) {
  ::tutti::detail::parallel_each(rows.pieces, [&](std::int64_t i) {
    pass_any<pass>(job, i * rows.piece, std::min((i + 1) * rows.piece, rows.count), nullptr);
  });
  rows.each_left([&](std::int64_t at, std::int64_t i) {
    job.out[at] = pass == RowPass::normalize ? job.x[at] * job.scale[i] + job.shift[i]
                                             : job.dy[at] * job.scale[i] + job.shift[i] +
                                                   (job.x[at] - job.center[i]) * job.slope[i];
  });
}

}  // namespace tutti::nn::detail

// Batch normalisation in training over floats on the CPU whose channels lie next to each other, and
// its gradient: each reads the numbers twice, where ATen's loops read them three times, and once
// more in the rare case that is_far() looks for. Sums are in double beyond a few hundred numbers,
// and in ATen's loops in float.
namespace tutti::nn::detail {

// Something near the mean of each channel, from a few rows: squares of distances to it lose nothing
// when they are made those of distances to the mean.
inline std::vector<float> near_means(const WideRows& rows, const float* x) {
  const std::int64_t samples = std::min<std::int64_t>(rows.count, 8);
  const std::vector<float> zeros(static_cast<std::size_t>(rows.width));
  std::vector<float> sums(2 * zeros.size());
  const RowJob pass{.width = rows.width, .x = x, .center = zeros.data()};
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t row = i * rows.count / samples;
    pass_any<RowPass::moments>(pass, row, row + 1, sums.data());
  }
  return rows.spread([&](std::int64_t channel) {
    float sum = 0;
    for (std::int64_t column = channel; column < rows.width; column += rows.channels) {
      sum += sums[static_cast<std::size_t>(column)];
    }
    const float mean = sum / static_cast<float>(samples * rows.width / rows.channels);
    return std::isfinite(mean) ? mean : 0;
  });
}

// The few rows were unlike the others, as the corners of images may be: what is near their mean is
// so far from that of all that its squares hide the variance in the last bits of a float.
inline bool is_far(const BatchNormJob& job, const WideRows& rows, const std::vector<double>& sums) {
  constexpr double most = 16;  // times the variance: an error of some 1e-6 of it
  const auto count = static_cast<double>(rows.pixels);
  for (std::size_t i = 0; i < sums.size() / 2; ++i) {
    const double square = sums[i] / count * (sums[i] / count);
    if (square > most * (sums[i + sums.size() / 2] / count - square + job.eps)) {
      return true;
    }
  }
  return false;
}

// What batch normalisation in training gives for rows of channels.
inline void normalize_rows(const BatchNormJob& job) {
  const WideRows rows(job.images * job.pixels, job.channels);
  const auto count = static_cast<double>(rows.pixels);
  std::vector<float> center = near_means(rows, job.x);
  RowJob pass{.width = rows.width,
              .x = job.x,
              .out = job.y,
              .center = center.data(),
              .streams = rows.streams};
  std::vector<double> sums = add_up<RowPass::moments>(rows, pass);
  if (is_far(job, rows, sums)) {
    for (std::size_t i = 0; i < center.size(); ++i) {
      const auto offset = static_cast<float>(sums[i % (sums.size() / 2)] / count);
      center[i] += std::isfinite(offset) ? offset : 0;
    }
    sums = add_up<RowPass::moments>(rows, pass);
  }
  std::vector<Affine> lines;
  lines.reserve(static_cast<std::size_t>(job.channels));
  for (std::int64_t channel = 0; channel < job.channels; ++channel) {
    const auto i = static_cast<std::size_t>(channel);
    const double offset = sums[i] / count;
    const double squares = sums[i + static_cast<std::size_t>(job.channels)] - sums[i] * offset;
    lines.push_back(
        settle(job, channel, static_cast<double>(center[i]) + offset, std::max(squares, 0.0)));
  }
  const std::vector<float> scale =
      rows.spread([&](std::int64_t i) { return lines[static_cast<std::size_t>(i)].scale; });
  const std::vector<float> shift =
      rows.spread([&](std::int64_t i) { return lines[static_cast<std::size_t>(i)].shift; });
  pass.scale = scale.data();
  pass.shift = shift.data();
  map<RowPass::normalize>(rows, pass);
}

struct BatchNormGradientJob {
  std::int64_t pixels = 0, channels = 0;  // of all images
  const float* x = nullptr;
  const float* dy = nullptr;
  const float* weight = nullptr;  // null: 1
  const float* mean = nullptr;    // of each channel, as BatchNormJob
  const float* inverse = nullptr;
  float* dx = nullptr;  // null: not wanted, as the next two
  float* dweight = nullptr;
  float* dbias = nullptr;
};

// dx from the sums of dy and of dy * (x - mean), one of each for each channel.
inline void map_gradient(const WideRows& rows, RowJob& pass, const BatchNormGradientJob& job,
                         const double* dy, const double* products) {
  const auto count = static_cast<double>(job.pixels);
  const auto gain = [&](std::int64_t i) {
    return static_cast<double>(job.inverse[i]) *
           (job.weight == nullptr ? 1 : static_cast<double>(job.weight[i]));
  };
  const std::vector<float> scale =
      rows.spread([&](std::int64_t i) { return static_cast<float>(gain(i)); });
  const std::vector<float> shift =
      rows.spread([&](std::int64_t i) { return static_cast<float>(-gain(i) * dy[i] / count); });
  const std::vector<float> slope = rows.spread([&](std::int64_t i) {
    const auto inverse = static_cast<double>(job.inverse[i]);
    return static_cast<float>(-gain(i) * inverse * inverse * products[i] / count);
  });
  pass.scale = scale.data();
  pass.shift = shift.data();
  pass.slope = slope.data();
  map<RowPass::gradient>(rows, pass);
}

// The gradient of what normalize_rows does.
inline void differentiate_rows(const BatchNormGradientJob& job) {
  const WideRows rows(job.pixels, job.channels);
  const std::vector<float> center =
      rows.spread([&](std::int64_t channel) { return job.mean[channel]; });
  RowJob pass{.width = rows.width,
              .x = job.x,
              .dy = job.dy,
              .out = job.dx,
              .center = center.data(),
              .streams = rows.streams};
  const std::vector<double> sums = add_up<RowPass::gradient_moments>(rows, pass);
  const double* const dy = sums.data();
  const double* const products = dy + job.channels;
  for (std::int64_t i = 0; i < job.channels; ++i) {
    if (job.dweight != nullptr) {
      job.dweight[i] = static_cast<float>(products[i] * static_cast<double>(job.inverse[i]));
    }
    if (job.dbias != nullptr) {
      job.dbias[i] = static_cast<float>(dy[i]);
    }
  }
  if (job.dx != nullptr) {
    map_gradient(rows, pass, job, dy, products);
  }
}

}  // namespace tutti::nn::detail
