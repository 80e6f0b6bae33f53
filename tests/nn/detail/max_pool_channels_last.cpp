#include <tutti/nn/detail/max_pool_channels_last.hpp>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti::nn::detail;

namespace {

std::vector<float> few_numbers(std::int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  std::uint32_t state = 1;
  for (float& each : out) {
    state = state * 1664525 + 1013904223;
    each = static_cast<float>(state >> 29);
  }
  return out;
}

}  // namespace

TEST_CASE("windows over a place are those that may see it", "[nn][pooling]") {
  for (const std::int64_t kernel : {1, 2, 3, 5}) {
    for (const std::int64_t stride : {1, 2, 3, 7}) {
      for (const std::int64_t dilation : {1, 2}) {
        for (const std::int64_t padding : {0, 1, 2}) {
          const PoolAxis axis = pool_axis({.kernel = {kernel, 1},
                                           .stride = {stride, 1},
                                           .padding = {padding, 0},
                                           .dilation = {dilation, 1},
                                           .ceil_mode = true},
                                          0, 17);
          for (std::int64_t window = 0; window < axis.windows; ++window) {
            const Span places = seen_by(axis, window);
            CHECK(places.first >= 0);
            CHECK(places.end <= axis.size);
            for (std::int64_t at = places.first; at < places.end; at += dilation) {
              const Span over = windows_over(axis, at);
              CHECK(over.first <= window);
              CHECK(window < over.end);
            }
          }
          for (std::int64_t at = 0; at < axis.size; ++at) {
            const Span over = windows_over(axis, at);
            CHECK(over.first >= 0);
            CHECK(over.end <= axis.windows);
            CHECK(over.end - over.first <= (kernel - 1) * dilation / stride + 1);
          }
        }
      }
    }
  }
}

TEST_CASE("the pixels' loops for any processor pool like those for this one", "[nn][pooling]") {
  const std::int64_t channels = GENERATE(8, 43);
  const PoolOptions options{
      .kernel = {3, 2}, .stride = {1, 2}, .padding = {1, 1}, .dilation = {2, 1}};
  PixelPoolJob job = pixel_pool_job(options, channels, 11, 21);
  const std::vector<float> x = few_numbers(2 * 11 * 21 * channels);
  const auto run = [&](auto pool) {
    std::vector<float> y(
        static_cast<std::size_t>(2 * job.rows.windows * job.columns.windows * channels));
    std::vector<std::int32_t> indices(y.size());
    std::vector<float> dx(x.size());
    PixelPoolJob forward = job;
    forward.x = x.data();
    forward.y = y.data();
    forward.indices = indices.data();
    pool(forward, 2 * job.rows.windows);
    PixelPoolJob backward = job;
    backward.dy = y.data();
    backward.winners = indices.data();
    backward.dx = dx.data();
    pool(backward, 2 * job.rows.size);
    return std::tuple(y, indices, dx);
  };
  CHECK(run([](const PixelPoolJob& each, std::int64_t rows) { pool_rows(each, 0, rows); }) ==
        run([](const PixelPoolJob& each, std::int64_t) { pool_pixels(each, 2); }));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
