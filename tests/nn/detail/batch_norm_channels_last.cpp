#include <tutti/nn/detail/batch_norm_channels_last.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti::nn::detail;

namespace {

// Numbers around 100, others at each place.
std::vector<float> numbers(std::int64_t count, float scale = 1) {
  std::vector<float> out(static_cast<std::size_t>(count));
  std::uint32_t state = 1;
  for (float& each : out) {
    state = state * 1664525 + 1013904223;
    each = 100 + scale * static_cast<float>(state >> 8) / static_cast<float>(1 << 24);
  }
  return out;
}

// The mean and the sum of squared distances to it of a channel, in double.
std::pair<double, double> exact(const std::vector<float>& x, std::int64_t channels,
                                std::int64_t channel) {
  double sum = 0;
  double squares = 0;
  const auto size = static_cast<std::int64_t>(x.size());
  const auto count = static_cast<double>(size / channels);
  for (std::int64_t i = channel; i < size; i += channels) {
    sum += static_cast<double>(x[static_cast<std::size_t>(i)]);
  }
  for (std::int64_t i = channel; i < size; i += channels) {
    const double d = static_cast<double>(x[static_cast<std::size_t>(i)]) - sum / count;
    squares += d * d;
  }
  return {sum / count, squares};
}

// What normalize_rows makes of rows of channels. The running averages are those of these rows.
struct Normalized {
  static constexpr double eps = 1e-5;

  explicit Normalized(const std::vector<float>& x, std::int64_t channels)
      : y(x.size()),
        mean(static_cast<std::size_t>(channels)),
        inverse(mean),
        running_mean(mean),
        running_var(mean) {
    normalize_rows({.images = 1,
                    .channels = channels,
                    .pixels = static_cast<std::int64_t>(x.size()) / channels,
                    .x = x.data(),
                    .y = y.data(),
                    .mean = mean.data(),
                    .inverse = inverse.data(),
                    .running_mean = running_mean.data(),
                    .running_var = running_var.data(),
                    .momentum = 1,
                    .eps = eps});
  }

  std::vector<float> y, mean, inverse, running_mean, running_var;
};

}  // namespace

TEST_CASE("rows of channels hold every number once, in whole vectors", "[nn][batchnorm]") {
  for (const std::int64_t channels : {1, 2, 3, 5, 8, 12, 31, 32, 64, 100, 1023}) {
    for (const std::int64_t pixels : {8, 9, 77, 5000}) {
      const WideRows rows(pixels, channels);
      CAPTURE(channels, pixels);
      CHECK(rows.width % lanes == 0);
      CHECK(rows.width % channels == 0);
      CHECK(rows.width >= 4 * lanes);
      CHECK(rows.pieces * rows.piece >= rows.count);
      CHECK((rows.pieces - 1) * rows.piece < std::max<std::int64_t>(rows.count, 1));
      std::int64_t left = 0;
      rows.each_left([&](std::int64_t at, std::int64_t channel) {
        CHECK(at % channels == channel);
        ++left;
      });
      CHECK(rows.count * rows.width + left == pixels * channels);
      CHECK(left < rows.width);
      const auto spread = rows.spread([](std::int64_t i) { return static_cast<float>(i); });
      CHECK(spread.size() == static_cast<std::size_t>(rows.width));
      CHECK(spread.back() == static_cast<float>(channels - 1));
    }
  }
}

TEST_CASE("the sums of rows of channels are those of double precision", "[nn][batchnorm]") {
  for (const std::int64_t channels : {1, 3, 8, 20, 65}) {
    for (const std::int64_t pixels : {8, 40, 3001}) {
      const std::vector<float> x = numbers(channels * pixels);
      const Normalized out(x, channels);
      CAPTURE(channels, pixels);
      for (std::int64_t channel = 0; channel < channels; ++channel) {
        const auto i = static_cast<std::size_t>(channel);
        const auto [of_x, squares] = exact(x, channels, channel);
        CHECK_THAT(out.mean[i], Catch::Matchers::WithinRel(of_x, 1e-7));
        CHECK(out.running_mean[i] == out.mean[i]);
        CHECK_THAT(out.running_var[i],
                   Catch::Matchers::WithinRel(squares / static_cast<double>(pixels - 1), 2e-6));
      }
    }
  }
}

TEST_CASE("the rows' loops for any processor do what those for this one do", "[nn][batchnorm]") {
  const bool streams = GENERATE(false, true);
  constexpr std::int64_t width = 40, count = 11;
  const std::vector<float> x = numbers(width * count);
  const std::vector<float> dy = numbers(width * count, 7);
  const std::vector<float> row = numbers(4 * width, 3);
  const auto run = [&](auto f) {
    std::vector<float> sums(2 * width);
    std::vector<float> out(x.size());
    f(RowJob{.width = width,
             .x = x.data(),
             .dy = dy.data(),
             .out = out.data(),
             .scale = row.data(),
             .shift = row.data() + width,
             .slope = row.data() + 2 * width,
             .center = row.data() + 3 * width,
             .streams = streams},
      sums.data());
    out.insert(out.end(), sums.begin(), sums.end());
    return out;
  };
  const auto compare = [&]<RowPass pass>() {
    const auto any =
        run([](const RowJob& job, float* sums) { pass_piece<pass>(job, 0, count, sums); });
    const auto here =
        run([](const RowJob& job, float* sums) { pass_any<pass>(job, 0, count, sums); });
    for (std::size_t i = 0; i < any.size(); ++i) {
      CHECK_THAT(any[i], Catch::Matchers::WithinRel(here[i], 1e-5F) ||
                             Catch::Matchers::WithinAbs(here[i], 1e-4F));
    }
  };
  compare.operator()<RowPass::moments>();
  compare.operator()<RowPass::normalize>();
  compare.operator()<RowPass::gradient_moments>();
  compare.operator()<RowPass::gradient>();
}

TEST_CASE("a variance is right where the rows that are looked at first are unlike the others",
          "[nn][batchnorm]") {
  constexpr std::int64_t images = 8, channels = 64, pixels = 1024;
  std::vector<float> x = numbers(images * pixels * channels);
  for (std::int64_t image = 0; image < images; ++image) {  // as the corners of padded images
    for (std::int64_t channel = 1; channel < channels; ++channel) {
      x[static_cast<std::size_t>(image * pixels * channels + channel)] += 1000;
    }
  }
  x[0] = std::numeric_limits<float>::infinity();
  const Normalized out(x, channels);
  CHECK(out.mean[0] == std::numeric_limits<float>::infinity());
  for (std::size_t i = 1; i < channels; ++i) {
    const auto [center, squares] = exact(x, channels, static_cast<std::int64_t>(i));
    const double expected = 1 / std::sqrt(squares / (images * pixels) + Normalized::eps);
    CHECK_THAT(out.mean[i], Catch::Matchers::WithinRel(center, 1e-6));
    CHECK_THAT(out.inverse[i], Catch::Matchers::WithinRel(expected, 2e-6));
  }
}

TEST_CASE("an infinite number makes its channel's mean infinite and no other's",
          "[nn][batchnorm]") {
  std::vector<float> x = numbers(64 * 8);
  x[3] = std::numeric_limits<float>::infinity();
  const Normalized out(x, 8);
  CHECK(out.mean[3] == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(out.y[3 + 8]));
  CHECK(std::isfinite(out.mean[2]));
  CHECK(std::isfinite(out.y[2]));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
