#include <tutti/nn/batchnorm.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

namespace {

// Both layers with the same parameters, other than 1 and 0; LibTorch's in double, for its loops
// over floats are off by more than ours.
template <class Ours, class Theirs>
void make_equal(Ours& ours, Theirs& theirs) {
  const torch::NoGradGuard no_grad;
  theirs->to(at::kDouble);
  if (ours->weight.defined()) {
    ours->weight.uniform_(0.5, 1.5);
    ours->bias.uniform_(-1, 1);
    theirs->weight.copy_(ours->weight);
    theirs->bias.copy_(ours->bias);
  }
}

void check_close(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.defined() == b.defined());
  if (a.defined()) {
    CHECK(a.strides() == b.strides());
    const double largest = b.abs().max().item<double>();
    CHECK(at::allclose(a.to(at::kDouble), b.to(at::kDouble), 2e-5, 2e-6 * std::max(1.0, largest)));
  }
}

// Output, gradients and running statistics of both over two batches.
template <class Ours, class Theirs>
void compare(Ours ours, Theirs theirs, const std::vector<std::int64_t>& sizes,
             at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  make_equal(ours, theirs);
  for (int batch = 0; batch < 2; ++batch) {
    const at::Tensor data = at::randn(sizes).mul_(3).add_(10).contiguous(format);
    const at::Tensor weights = at::randn(sizes);
    const at::Tensor a = data.clone().requires_grad_();
    const at::Tensor b = data.to(at::kDouble).requires_grad_();
    const at::Tensor y = ours(a);
    CAPTURE(sizes, format);
    check_close(y, theirs(b));
    y.mul(weights).sum().backward();
    theirs(b).mul(weights).sum().backward();
    ours(a);  // theirs has seen the batch twice
    check_close(a.grad(), b.grad());
  }
  for (std::size_t i = 0; i < ours->parameters().size(); ++i) {
    check_close(ours->parameters()[i].grad(), theirs->parameters()[i].grad());
  }
  REQUIRE(ours->buffers().size() == theirs->buffers().size());
  for (std::size_t i = 0; i < ours->buffers().size(); ++i) {
    check_close(ours->buffers()[i].to(at::kFloat), theirs->buffers()[i].to(at::kFloat));
  }
}

}  // namespace

TEST_CASE("a batch normalisation in training is LibTorch's", "[nn][batchnorm]") {
  torch::manual_seed(1);
  const torch::nn::BatchNormOptions plain(5);
  const torch::nn::BatchNormOptions bare = torch::nn::BatchNormOptions(5).affine(false);
  const torch::nn::BatchNormOptions now =
      torch::nn::BatchNormOptions(5).track_running_stats(false).eps(0.1);
  const torch::nn::BatchNormOptions all = torch::nn::BatchNormOptions(5).momentum(std::nullopt);
  for (const auto& options : {plain, bare, now, all}) {
    for (const std::vector<std::int64_t>& sizes :
         std::vector<std::vector<std::int64_t>>{{4, 5, 8, 8}, {3, 5, 3, 3}, {2, 5, 41, 29}}) {
      compare(nn::BatchNorm2d(options), torch::nn::BatchNorm2d(options), sizes);
    }
    compare(nn::BatchNorm1d(options), torch::nn::BatchNorm1d(options), {4, 5, 11});
    compare(nn::BatchNorm1d(options), torch::nn::BatchNorm1d(options), {6, 5});
    compare(nn::BatchNorm1d(options), torch::nn::BatchNorm1d(options), {70, 5});
    compare(nn::BatchNorm2d(options), torch::nn::BatchNorm2d(options), {70, 5, 1, 1});
    compare(nn::BatchNorm3d(options), torch::nn::BatchNorm3d(options), {2, 5, 3, 4, 5});
    compare(nn::BatchNorm2d(options), torch::nn::BatchNorm2d(options), {4, 5, 9, 8},
            at::MemoryFormat::ChannelsLast);
    compare(nn::BatchNorm3d(options), torch::nn::BatchNorm3d(options), {2, 5, 3, 4, 5},
            at::MemoryFormat::ChannelsLast3d);
  }
}

TEST_CASE("a batch normalisation with the channels last is LibTorch's for any number of them",
          "[nn][batchnorm]") {
  torch::manual_seed(6);
  for (const std::int64_t channels : {1, 2, 3, 7, 8, 12, 20, 32, 33, 64, 129}) {
    for (const std::int64_t side : {1, 2, 3, 9, 24}) {
      compare(nn::BatchNorm2d(channels), torch::nn::BatchNorm2d(channels),
              {11, channels, side, side + side % 2}, at::MemoryFormat::ChannelsLast);
    }
  }
}

TEST_CASE("the loops' mean and variance are those of double precision", "[nn][batchnorm]") {
  torch::manual_seed(2);
  const auto format = GENERATE(at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast);
  nn::BatchNorm2d layer(torch::nn::BatchNormOptions(3).momentum(1.0));
  const at::Tensor x = at::randn({16, 3, 40, 40}).add_(100).contiguous(format);
  const at::Tensor y = layer(x);
  const at::Tensor exact = x.to(at::kDouble);
  const at::Tensor mean = exact.mean({0, 2, 3});
  CHECK(at::allclose(layer->running_mean.to(at::kDouble), mean, 1e-7, 0));
  CHECK(at::allclose(layer->running_var.to(at::kDouble), exact.var({0, 2, 3}), 1e-6, 0));
  CHECK(at::allclose(y.to(at::kDouble).mean({0, 2, 3}), at::zeros({3}, at::kDouble), 0, 1e-4));
}

TEST_CASE("the loops give the same with any number of threads", "[nn][batchnorm]") {
  torch::manual_seed(3);
  const auto format = GENERATE(at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast);
  const at::Tensor x = at::randn({64, 7, 33, 20}).contiguous(format);
  const at::Tensor weights = at::randn_like(x);
  const int before = at::get_num_threads();
  const auto with_threads = [&](int threads) {
    at::set_num_threads(threads);
    nn::BatchNorm2d layer(7);
    const at::Tensor in = x.clone().requires_grad_();
    const at::Tensor y = layer(in);
    y.backward(weights);
    at::set_num_threads(before);
    return std::vector<at::Tensor>{y, in.grad(), layer->weight.grad(), layer->bias.grad()};
  };
  const std::vector<at::Tensor> one = with_threads(1);
  const std::vector<at::Tensor> four = with_threads(4);
  for (std::size_t i = 0; i < one.size(); ++i) {
    CHECK(at::equal(one[i], four[i]));
  }
}

TEST_CASE("frozen parameters of a batch normalisation get no gradient", "[nn][batchnorm]") {
  const auto format = GENERATE(at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast);
  nn::BatchNorm2d layer(4);
  const at::Tensor x = at::randn({2, 4, 8, 8}).contiguous(format);
  layer->weight.requires_grad_(false);
  layer(x).square().sum().backward();
  CHECK_FALSE(layer->weight.grad().defined());
  CHECK(layer->bias.grad().defined());
  layer->bias.requires_grad_(false);
  CHECK_FALSE(layer(x).requires_grad());
  const at::Tensor a = x.clone().requires_grad_();
  const at::Tensor b = x.to(at::kDouble).requires_grad_();
  torch::nn::BatchNorm2d theirs(4);
  make_equal(layer, theirs);
  layer(a).pow(3).sum().backward();
  theirs(b).pow(3).sum().backward();
  check_close(a.grad(), b.grad());
}

TEST_CASE("a gradient in another order than the batch is taken", "[nn][batchnorm]") {
  torch::manual_seed(7);
  const at::Tensor data = at::randn({3, 5, 6, 7}).contiguous(at::MemoryFormat::ChannelsLast);
  for (const at::Tensor& dy :
       {at::randn({3, 5, 6, 7}), at::randn({3, 5, 1, 1}).expand({3, 5, 6, 7}),
        at::randn({7, 6, 5, 3}).permute({3, 2, 1, 0})}) {
    nn::BatchNorm2d ours(5);
    torch::nn::BatchNorm2d theirs(5);
    make_equal(ours, theirs);
    const at::Tensor a = data.clone().requires_grad_();
    const at::Tensor b = data.to(at::kDouble).requires_grad_();
    ours(a).backward(dy);
    theirs(b).backward(dy.to(at::kDouble));
    check_close(a.grad(), b.grad());
    check_close(ours->weight.grad(), theirs->weight.grad());
    check_close(ours->bias.grad(), theirs->bias.grad());
  }
}

TEST_CASE("a batch normalisation has LibTorch's tangents", "[nn][batchnorm]") {
  torch::manual_seed(8);
  const auto format = GENERATE(at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast);
  const bool of_weight = GENERATE(false, true);
  nn::BatchNorm2d ours(3);
  torch::nn::BatchNorm2d theirs(3);
  make_equal(ours, theirs);
  const torch::NoGradGuard no_grad;
  const at::Tensor x = at::randn({2, 3, 4, 5}).contiguous(format);
  const at::Tensor direction = of_weight ? at::randn({3}) : at::randn_like(x);
  const std::uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();
  const auto tangent = [&](auto& layer) {
    const auto type = layer->weight.scalar_type();
    at::Tensor in = x.to(type);
    at::Tensor& dual = of_weight ? layer->weight : in;
    dual = at::_make_dual(dual.detach(), direction.to(type), 0);
    return std::get<1>(at::_unpack_dual(layer(in), 0)).clone();
  };
  check_close(tangent(ours), tangent(theirs));
  torch::autograd::ForwardADLevel::release_idx(level);
}

TEST_CASE("a batch normalisation has a second gradient", "[nn][batchnorm]") {
  torch::manual_seed(4);
  nn::BatchNorm2d ours(3);
  torch::nn::BatchNorm2d theirs(3);
  make_equal(ours, theirs);
  const auto format = GENERATE(at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast);
  const at::Tensor data = at::randn({2, 3, 4, 4}).contiguous(format);
  const auto second = [&](auto& layer) {
    const at::Tensor x = data.to(layer->weight.scalar_type()).clone().requires_grad_();
    const at::Tensor first =
        torch::autograd::grad({layer(x).pow(3).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.square().sum()}, {x})[0];
  };
  CHECK(at::allclose(second(ours).to(at::kDouble), second(theirs), 1e-3, 1e-4));
}

TEST_CASE("changing a normalised batch in place is noticed", "[nn][batchnorm]") {
  const auto format = GENERATE(at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast);
  nn::BatchNorm2d layer(3);
  at::Tensor x = at::randn({2, 3, 4, 4}).contiguous(format);
  const at::Tensor y = layer(x);
  x.add_(1);
  CHECK_THROWS_WITH(y.sum().backward(), Catch::Matchers::ContainsSubstring("inplace operation"));
}

TEST_CASE("what the loops cannot do is LibTorch's", "[nn][batchnorm]") {
  nn::BatchNorm2d layer(3);
  const auto last = at::MemoryFormat::ChannelsLast;
  CHECK_THROWS_AS(layer(at::randn({2, 3, 8})), c10::Error);                      // dimensions
  CHECK_THROWS_AS(layer(at::randn({2, 4, 8, 8})), c10::Error);                   // channels
  CHECK_THROWS_AS(layer(at::randn({2, 4, 8, 8}).contiguous(last)), c10::Error);  // likewise
  CHECK_THROWS_WITH(nn::BatchNorm1d(3)(at::randn({1, 3})),
                    Catch::Matchers::ContainsSubstring("more than 1 value per channel"));
  CHECK(layer(at::randn({0, 3, 8, 8})).size(0) == 0);  // nothing
  CHECK(layer(at::empty({0, 3, 8, 8}).contiguous(last)).size(0) == 0);
  const at::Tensor across = at::randn({2, 8, 3, 8}).transpose(1, 2);  // another order
  CHECK(at::allclose(layer(across), layer(across.contiguous()), 1e-5, 1e-6));
  for (const auto format : {at::MemoryFormat::Contiguous, last}) {  // the sign still to be turned
    const at::Tensor x = at::randn({2, 3, 8, 8}).contiguous(format);
    CHECK(at::allclose(layer(at::_neg_view(x)), layer(x.neg()), 1e-5, 1e-6));
    const at::Tensor zeros = at::_efficientzerotensor(x.sizes(), at::kFloat);
    CHECK(layer(zeros).eq(0).all().item<bool>());
    const at::Tensor a = x.clone().requires_grad_();
    const at::Tensor y = layer(a);
    const auto gradient = [&](const at::Tensor& of_y) {
      return torch::autograd::grad({y}, {a}, {of_y}, /*retain_graph=*/true)[0];
    };
    const at::Tensor dy = at::randn_like(x);
    CHECK(at::allclose(gradient(at::_neg_view(dy)), gradient(dy).neg(), 1e-5, 1e-6));
  }
  layer->eval();
  const at::Tensor x = at::randn({2, 3, 8, 8});
  const at::Tensor expected = x.sub(layer->running_mean.view({3, 1, 1}))
                                  .div(layer->running_var.add(1e-5).sqrt().view({3, 1, 1}));
  CHECK(at::allclose(layer(x), expected, 1e-4, 1e-5));
  nn::BatchNorm2d wide(3);
  wide->to(at::kDouble);
  CHECK(wide(x.to(at::kDouble)).scalar_type() == at::kDouble);
}

TEST_CASE("NaN in one channel stays in that channel", "[nn][batchnorm]") {
  const auto format = GENERATE(at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast);
  nn::BatchNorm2d layer(3);
  at::Tensor x = at::randn({2, 3, 8, 8}).contiguous(format);
  x[0][1][2][3] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor y = layer(x);
  CHECK(y.select(1, 1).isnan().all().item<bool>());
  CHECK_FALSE(y.select(1, 0).isnan().any().item<bool>());
  CHECK_FALSE(y.select(1, 2).isnan().any().item<bool>());
}

TEST_CASE("the loops for any processor normalise like those for this one", "[nn][batchnorm]") {
  torch::manual_seed(5);
  const at::Tensor x = at::randn({3, 4, 7, 13});
  const at::Tensor y = at::empty_like(x);
  const at::Tensor mean = at::empty({4});
  const at::Tensor inverse = at::empty({4});
  const nn::detail::BatchNormJob job{.images = 3,
                                     .channels = 4,
                                     .pixels = 91,
                                     .x = x.const_data_ptr<float>(),
                                     .y = y.mutable_data_ptr<float>(),
                                     .mean = mean.mutable_data_ptr<float>(),
                                     .inverse = inverse.mutable_data_ptr<float>(),
                                     .eps = 1e-5};
  for (std::int64_t channel = 0; channel < 4; ++channel) {
    nn::detail::normalize(job, channel);
  }
  nn::BatchNorm2d layer(torch::nn::BatchNormOptions(4).affine(false));
  CHECK(at::allclose(y, layer(x), 1e-6, 1e-6));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
