// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/nn/detail/batch_norm_job.hpp>
#include <tutti/nn/detail/channel_rows.hpp>

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
