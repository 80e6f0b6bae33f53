#include <tutti/nn/pooling.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include <ATen/Parallel.h>

#include "support/catch.hpp"

using namespace tutti;

namespace {

// Few different numbers, so that windows have equal ones; some NaN and -inf.
at::Tensor images(std::int64_t height, std::int64_t width) {
  at::Tensor x = at::randint(-3, 3, {2, 3, height, width}).to(at::kFloat);
  const at::Tensor which = at::rand({2, 3, height, width});
  x.masked_fill_(which < 0.1, std::numeric_limits<float>::quiet_NaN());
  return x.masked_fill_(which > 0.6, -std::numeric_limits<float>::infinity());
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.isnan(), b.isnan()) && at::equal(a.nan_to_num(7), b.nan_to_num(7));
}

}  // namespace

TEST_CASE("a max-pool and its gradient are LibTorch's, bit by bit, or refused as there",
          "[nn][pooling]") {
  torch::manual_seed(1);
  int pooled = 0;
  int refused = 0;
  for (const std::int64_t kernel : {1, 2, 3, 5}) {
    for (const std::int64_t stride : {1, 2, 3}) {
      for (const std::int64_t padding : {0, 1, 2}) {
        for (const std::int64_t dilation : {1, 2}) {
          for (const std::int64_t width : {1, 4, 8, 17, 35}) {
            const auto options = torch::nn::MaxPool2dOptions({kernel, kernel + kernel % 2})
                                     .stride({stride, 1 + stride % 3})
                                     .padding(padding)
                                     .dilation(dilation)
                                     .ceil_mode(width % 2 == 0);
            torch::nn::MaxPool2d theirs(options);
            nn::MaxPool2d ours(options);
            const at::Tensor data = images(9, width);
            at::Tensor expected;
            try {
              expected = theirs(data);
            } catch (const c10::Error&) {
              ++refused;
              CHECK_THROWS_AS(ours(data), c10::Error);
              continue;
            }
            ++pooled;
            const at::Tensor a = data.clone().requires_grad_();
            const at::Tensor b = data.clone().requires_grad_();
            const at::Tensor y = ours(a);
            const at::Tensor weights = at::randn_like(expected);
            y.backward(weights);
            theirs(b).backward(weights);
            CAPTURE(kernel, stride, padding, dilation, width);
            REQUIRE(same(y, expected));
            REQUIRE(at::equal(a.grad(), b.grad()));
          }
        }
      }
    }
  }
  CHECK(pooled > 150);
  CHECK(refused > 20);
}

TEST_CASE("a max-pool of many planes is the same with any number of threads", "[nn][pooling]") {
  torch::manual_seed(2);
  const at::Tensor x = at::randn({8, 16, 56, 56});
  nn::MaxPool2d layer(torch::nn::MaxPool2dOptions(3).stride(2).padding(1));
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = layer(x);
  at::set_num_threads(4);
  const at::Tensor four = layer(x);
  at::set_num_threads(before);
  CHECK(at::equal(one, four));
  CHECK(at::equal(one, torch::nn::MaxPool2d(layer->options)(x)));
}

TEST_CASE("what the loops of a max-pool cannot do is LibTorch's", "[nn][pooling]") {
  nn::MaxPool2d layer(2);
  const at::Tensor x = at::randn({2, 3, 8, 8});
  CHECK(at::equal(layer(x.to(at::kDouble)), layer(x).to(at::kDouble)));
  const at::Tensor last = layer(x.contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(last.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(at::equal(last, layer(x)));
  CHECK(at::equal(layer(x[0]), layer(x)[0]));  // [C, H, W]
  CHECK(at::equal(std::get<0>(layer->forward_with_indices(x)), layer(x)));
}

TEST_CASE("the loops for any processor pool like those for this one", "[nn][pooling]") {
  torch::manual_seed(3);
  const at::Tensor x = images(11, 21).view({6, 11, 21});
  const nn::detail::PoolOptions options{
      .kernel = {3, 2}, .stride = {1, 2}, .padding = {1, 1}, .dilation = {2, 1}};
  nn::detail::PoolJob job = nn::detail::pool_job(options, 11, 21);
  const at::Tensor y = at::empty({6, job.rows.windows, job.columns.windows});
  const at::Tensor indices = at::empty(y.sizes(), at::kLong);
  job.x = x.const_data_ptr<float>();
  job.y = y.mutable_data_ptr<float>();
  job.indices = indices.mutable_data_ptr<std::int64_t>();
  std::vector<float> phases(static_cast<std::size_t>(job.rows.size * job.line()),
                            -std::numeric_limits<float>::infinity());
  for (std::int64_t plane = 0; plane < 6; ++plane) {
    nn::detail::pool_plane(job, plane, phases.data());
  }
  torch::nn::MaxPool2d theirs(
      torch::nn::MaxPool2dOptions({3, 2}).stride({1, 2}).padding(1).dilation({2, 1}));
  const auto [expected, expected_indices] = theirs->forward_with_indices(x);
  CHECK(same(y, expected));
  CHECK(at::equal(indices, expected_indices));
}
