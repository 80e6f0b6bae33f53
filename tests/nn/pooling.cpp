#include <tutti/nn/pooling.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

namespace {

constexpr auto channels_last = at::MemoryFormat::ChannelsLast;

// Few different numbers, so that windows have equal ones; some NaN and -inf.
at::Tensor images(std::int64_t channels, std::int64_t height, std::int64_t width) {
  at::Tensor x = at::randint(-3, 3, {2, channels, height, width}).to(at::kFloat);
  const at::Tensor which = at::rand({2, channels, height, width});
  x.masked_fill_(which < 0.1, std::numeric_limits<float>::quiet_NaN());
  return x.masked_fill_(which > 0.6, -std::numeric_limits<float>::infinity());
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.strides() == b.strides() && at::equal(a.isnan(), b.isnan()) &&
         at::equal(a.nan_to_num(7), b.nan_to_num(7));
}

}  // namespace

TEST_CASE("a max-pool and its gradient are LibTorch's, bit by bit, or refused as there",
          "[nn][pooling]") {
  torch::manual_seed(1);
  const bool last = GENERATE(false, true);
  int pooled = 0;
  int refused = 0;
  for (const std::int64_t kernel : {1, 2, 3, 5}) {
    for (const std::int64_t stride : {1, 2, 3}) {
      for (const std::int64_t padding : {0, 1, 2}) {
        for (const std::int64_t dilation : {1, 2}) {
          for (const std::int64_t width : {1, 4, 8, 17, 35}) {
            if (width < dilation) {
              continue;  // padding alone: there LibTorch writes beside the gradient
            }
            const auto options = torch::nn::MaxPool2dOptions({kernel, kernel + kernel % 2})
                                     .stride({stride, 1 + stride % 3})
                                     .padding(padding)
                                     .dilation(dilation)
                                     .ceil_mode(width % 2 == 0);
            torch::nn::MaxPool2d theirs(options);
            nn::MaxPool2d ours(options);
            const at::Tensor data =
                last ? images(width == 8 ? 67 : 12, 9, width).contiguous(channels_last)
                     : images(3, 9, width);
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
            REQUIRE(same(a.grad(), b.grad()));
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
  const auto format = GENERATE(at::MemoryFormat::Contiguous, channels_last);
  const at::Tensor x = at::randn({8, 16, 56, 56}).contiguous(format);
  nn::MaxPool2d layer(torch::nn::MaxPool2dOptions(3).stride(2).padding(1));
  const int before = at::get_num_threads();
  const auto with_threads = [&](int threads) {
    at::set_num_threads(threads);
    const at::Tensor in = x.clone().requires_grad_();
    const at::Tensor y = layer(in);
    y.backward(y.detach());
    at::set_num_threads(before);
    return std::pair(y, in.grad());
  };
  const auto [one, gradient] = with_threads(1);
  const auto [four, gradient_of_four] = with_threads(4);
  CHECK(at::equal(one, four));
  CHECK(at::equal(gradient, gradient_of_four));
  CHECK(at::equal(one, torch::nn::MaxPool2d(layer->options)(x)));
}

TEST_CASE("a max-pool of tensors whose order is not told by their strides is LibTorch's",
          "[nn][pooling]") {
  torch::manual_seed(4);
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{
           {2, 1, 16, 16}, {2, 16, 1, 1}, {1, 16, 1, 16}, {1, 16, 16, 1}, {2, 3, 16, 16}}) {
    for (const auto format : {at::MemoryFormat::Contiguous, channels_last}) {
      const at::Tensor data = at::randn(sizes).contiguous(format);
      const auto options = torch::nn::MaxPool2dOptions(2).stride(1).padding(1);
      const at::Tensor a = data.clone().requires_grad_();
      const at::Tensor b = data.clone().requires_grad_();
      const at::Tensor y = nn::MaxPool2d(options)(a);
      const at::Tensor expected = torch::nn::MaxPool2d(options)(b);
      y.backward(y.detach());
      expected.backward(expected.detach());
      CAPTURE(sizes, format);
      CHECK(same(y, expected));
      CHECK(same(a.grad(), b.grad()));
    }
  }
}

TEST_CASE("a max-pool takes a gradient in another order, and has a second one", "[nn][pooling]") {
  torch::manual_seed(5);
  const auto format = GENERATE(at::MemoryFormat::Contiguous, channels_last);
  const at::Tensor data = at::randn({2, 8, 9, 9}).contiguous(format);
  const auto gradients = [&](auto&& layer, const at::Tensor& weights) {
    const at::Tensor x = data.clone().requires_grad_();
    const at::Tensor y = layer(x);
    const at::Tensor plain = torch::autograd::grad({y}, {x}, {weights}, true)[0];
    const at::Tensor first =
        torch::autograd::grad({y.pow(3).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return std::pair(plain, torch::autograd::grad({first.square().sum()}, {x})[0]);
  };
  for (const at::Tensor& weights :
       {at::randn({2, 8, 4, 4}), at::randn({2, 8, 4, 4}).contiguous(channels_last),
        at::randn({8, 1, 1}).expand({2, 8, 4, 4})}) {
    const auto [ours, second] = gradients(nn::MaxPool2d(2), weights);
    const auto [theirs, their_second] = gradients(torch::nn::MaxPool2d(2), weights);
    CHECK(same(ours, theirs));
    CHECK(same(second, their_second));
  }
}

TEST_CASE("a max-pool without a gradient, and changing its input in place", "[nn][pooling]") {
  const auto format = GENERATE(at::MemoryFormat::Contiguous, channels_last);
  nn::MaxPool2d layer(2);
  at::Tensor x = at::randn({2, 8, 9, 9}).contiguous(format);
  CHECK_FALSE(layer(x).requires_grad());
  CHECK(same(layer(x), torch::nn::MaxPool2d(2)(x)));
  const at::Tensor in = x.clone().requires_grad_().mul(1);
  const at::Tensor y = layer(in);
  in.detach().add_(1);
  CHECK_THROWS_WITH(y.sum().backward(), Catch::Matchers::ContainsSubstring("inplace operation"));
}

TEST_CASE("what the loops of a max-pool cannot do is LibTorch's", "[nn][pooling]") {
  nn::MaxPool2d layer(2);
  const auto format = GENERATE(at::MemoryFormat::Contiguous, channels_last);
  const at::Tensor x = at::randn({2, 9, 8, 8}).contiguous(format);
  CHECK(at::equal(layer(x.to(at::kDouble)), layer(x).to(at::kDouble)));
  CHECK(at::equal(layer(x[0]), layer(x)[0]));                    // [C, H, W]
  CHECK(at::equal(layer(x.slice(1, 1)), layer(x).slice(1, 1)));  // another order
  CHECK(at::equal(std::get<0>(layer->forward_with_indices(x)), layer(x)));
  CHECK(layer(at::empty({0, 9, 8, 8}).contiguous(format)).size(0) == 0);
  CHECK_THROWS_AS(layer(x.slice(2, 0, 0)), c10::Error);
  CHECK(at::equal(layer(at::_neg_view(x)), layer(x.neg())));  // the sign still to be turned
  CHECK(layer(at::_efficientzerotensor({2, 9, 8, 8}, at::kFloat)).eq(0).all().item<bool>());
  const at::Tensor a = x.clone().requires_grad_();
  const at::Tensor y = layer(a);
  const at::Tensor dy = at::ones_like(y);
  const auto gradient = [&](const at::Tensor& of_y) {
    return torch::autograd::grad({y}, {a}, {of_y}, /*retain_graph=*/true)[0];
  };
  CHECK(at::equal(gradient(at::_neg_view(dy)), gradient(dy).neg()));
}

TEST_CASE("the loops for any processor pool like those for this one", "[nn][pooling]") {
  torch::manual_seed(3);
  const at::Tensor x = images(3, 11, 21).view({6, 11, 21});
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

}  // namespace UNITY_BUILD_UNIQUE_ID
