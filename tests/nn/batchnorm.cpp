#include <tutti/nn/batchnorm.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/autograd.h>

#include "support/catch.hpp"

using namespace tutti;

namespace {

// Both layers with the same parameters, other than 1 and 0.
template <class Ours, class Theirs>
void make_equal(Ours& ours, Theirs& theirs) {
  const torch::NoGradGuard no_grad;
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
    CHECK(at::allclose(a, b, 2e-5, 2e-6));
  }
}

// Output, gradients and running statistics of both over two batches.
template <class Ours, class Theirs>
void compare(Ours ours, Theirs theirs, const std::vector<std::int64_t>& sizes) {
  make_equal(ours, theirs);
  for (int batch = 0; batch < 2; ++batch) {
    const at::Tensor data = at::randn(sizes).mul_(3).add_(10);
    const at::Tensor weights = at::randn(sizes);
    const at::Tensor a = data.clone().requires_grad_();
    const at::Tensor b = data.clone().requires_grad_();
    const at::Tensor y = ours(a);
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
    compare(nn::BatchNorm3d(options), torch::nn::BatchNorm3d(options), {2, 5, 3, 4, 5});
  }
}

TEST_CASE("the loops' mean and variance are those of double precision", "[nn][batchnorm]") {
  torch::manual_seed(2);
  nn::BatchNorm2d layer(torch::nn::BatchNormOptions(3).momentum(1.0));
  const at::Tensor x = at::randn({16, 3, 40, 40}).add_(100);
  const at::Tensor y = layer(x);
  const at::Tensor exact = x.to(at::kDouble);
  const at::Tensor mean = exact.mean({0, 2, 3});
  CHECK(at::allclose(layer->running_mean.to(at::kDouble), mean, 1e-7, 0));
  CHECK(at::allclose(layer->running_var.to(at::kDouble), exact.var({0, 2, 3}), 1e-6, 0));
  CHECK(at::allclose(y.to(at::kDouble).mean({0, 2, 3}), at::zeros({3}, at::kDouble), 0, 1e-4));
}

TEST_CASE("the loops give the same with any number of threads", "[nn][batchnorm]") {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({8, 7, 20, 20});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = nn::BatchNorm2d(7)(x);
  at::set_num_threads(4);
  const at::Tensor four = nn::BatchNorm2d(7)(x);
  at::set_num_threads(before);
  CHECK(at::equal(one, four));
}

TEST_CASE("frozen parameters of a batch normalisation get no gradient", "[nn][batchnorm]") {
  nn::BatchNorm2d layer(4);
  layer->weight.requires_grad_(false);
  layer(at::randn({2, 4, 8, 8})).square().sum().backward();
  CHECK_FALSE(layer->weight.grad().defined());
  CHECK(layer->bias.grad().defined());
  layer->bias.requires_grad_(false);
  CHECK_FALSE(layer(at::randn({2, 4, 8, 8})).requires_grad());
}

TEST_CASE("a batch normalisation has a second gradient", "[nn][batchnorm]") {
  torch::manual_seed(4);
  nn::BatchNorm2d ours(3);
  torch::nn::BatchNorm2d theirs(3);
  make_equal(ours, theirs);
  const at::Tensor data = at::randn({2, 3, 4, 4});
  const auto second = [&](auto& layer) {
    const at::Tensor x = data.clone().requires_grad_();
    const at::Tensor first =
        torch::autograd::grad({layer(x).pow(3).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.square().sum()}, {x})[0];
  };
  CHECK(at::allclose(second(ours), second(theirs), 1e-3, 1e-4));
}

TEST_CASE("changing a normalised batch in place is noticed", "[nn][batchnorm]") {
  nn::BatchNorm2d layer(3);
  at::Tensor x = at::randn({2, 3, 4, 4});
  const at::Tensor y = layer(x);
  x.add_(1);
  CHECK_THROWS_WITH(y.sum().backward(), Catch::Matchers::ContainsSubstring("inplace operation"));
}

TEST_CASE("what the loops cannot do is LibTorch's", "[nn][batchnorm]") {
  nn::BatchNorm2d layer(3);
  CHECK_THROWS_AS(layer(at::randn({2, 3, 8})), c10::Error);     // dimensions
  CHECK_THROWS_AS(layer(at::randn({2, 4, 8, 8})), c10::Error);  // channels
  CHECK(layer(at::randn({0, 3, 8, 8})).size(0) == 0);           // nothing
  const at::Tensor last = at::randn({2, 3, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
  CHECK(layer(last).is_contiguous(at::MemoryFormat::ChannelsLast));  // another order
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
  nn::BatchNorm2d layer(3);
  at::Tensor x = at::randn({2, 3, 8, 8});
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
