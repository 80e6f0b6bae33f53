// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

// What both loops of batch normalisation, for planes and for rows of channels, are given and give.
namespace tutti::nn::detail {

// Sums are kept in float over at most `block` numbers and in double beyond. Their order depends on
// the shape alone, not on the number of threads.
inline constexpr std::int64_t block = 512;

struct BatchNormJob {
  std::int64_t images = 0, channels = 0, pixels = 0;
  const float* x = nullptr;
  const float* weight = nullptr;  // null: 1
  const float* bias = nullptr;    // null: 0
  float* y = nullptr;
  float* mean = nullptr;          // of each channel
  float* inverse = nullptr;       // likewise 1 / sqrt(variance + eps)
  float* running_mean = nullptr;  // null: none is kept
  float* running_var = nullptr;
  double momentum = 0, eps = 0;
};

// y = scale * x + shift
struct Affine {
  float scale = 0, shift = 0;
};

// Notes the mean of a channel and `squares`, the sum of the squared distances to it. Returns what
// the channel's numbers become.
inline Affine settle(const BatchNormJob& job, std::int64_t channel, double mean, double squares) {
  const auto count = static_cast<double>(job.images * job.pixels);
  const double inverse = 1 / std::sqrt(squares / count + job.eps);
  job.mean[channel] = static_cast<float>(mean);
  job.inverse[channel] = static_cast<float>(inverse);
  if (job.running_mean != nullptr) {
    const auto follow = [&](float& running, double value) {
      running = static_cast<float>(job.momentum * value +
                                   (1 - job.momentum) * static_cast<double>(running));
    };
    follow(job.running_mean[channel], mean);
    follow(job.running_var[channel], squares / (count - 1));
  }
  const auto scale = static_cast<float>(
      job.weight == nullptr ? inverse : inverse * static_cast<double>(job.weight[channel]));
  const float bias = job.bias == nullptr ? 0.0F : job.bias[channel];
  return {.scale = scale, .shift = bias - job.mean[channel] * scale};
}

}  // namespace tutti::nn::detail
