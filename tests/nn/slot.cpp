#include <tutti/nn/slot.hpp>

#include "nn/replaceable.hpp"
#include "support/catch.hpp"

#include <memory>

#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/normalization.hpp>
#include <tutti/nn/pooling.hpp>
#include <tutti/nn/sequential.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
using Catch::Matchers::ContainsSubstring;
using replaceable::check_is_the_plain_layer;
using replaceable::DoubleImpl;

// A layer with its own arithmetic that stays replaceable.
struct NegatedLinearImpl : nn::LinearImpl {
  using nn::LinearImpl::LinearImpl;
  at::Tensor compute(const at::Tensor& x) override { return -nn::LinearImpl::compute(x); }
  std::shared_ptr<nn::LinearImpl> twin() const override { return twin_of(*this); }
};

struct ConvNetImpl : torch::nn::Cloneable<ConvNetImpl> {
  ConvNetImpl() { reset(); }
  void reset() override {
    conv = register_module("conv", nn::Conv2d(1, 2, 3));
    tail = register_module("tail",
                           nn::Sequential(nn::BatchNorm2d(2), nn::Sequential(nn::Dropout(0.))));
  }
  at::Tensor forward(const at::Tensor& x) { return tail(conv(x)); }
  nn::Conv2d conv{nullptr};
  nn::Sequential tail{nullptr};
};

}  // namespace

TEST_CASE("normalisation and pooling are torch::nn's until something stands in",
          "[nn][slot][law]") {
  check_is_the_plain_layer(nn::BatchNorm1d(5), torch::randn({4, 5}));
  check_is_the_plain_layer(nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(3).affine(false)),
                           torch::randn({4, 3, 2, 2}));
  check_is_the_plain_layer(nn::LayerNorm(torch::nn::LayerNormOptions({5})), torch::randn({4, 5}));
  check_is_the_plain_layer(nn::GroupNorm(2, 4), torch::randn({3, 4, 5}));
  check_is_the_plain_layer(nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2).padding(1)),
                           torch::randn({2, 3, 9, 8}));
  check_is_the_plain_layer(nn::AdaptiveAvgPool2d(2), torch::randn({2, 3, 9, 8}));
}

TEST_CASE("max-pool gives indices until something stands in, and then says why not", "[nn][slot]") {
  nn::MaxPool2d pool(2);
  const auto [values, indices] = pool->forward_with_indices(torch::randn({1, 1, 4, 4}));
  CHECK(indices.sizes() == values.sizes());
  pool->slot() = nn::Slot(std::make_shared<DoubleImpl>());
  CHECK_THROWS_WITH(pool->forward_with_indices(torch::randn({1, 1, 4, 4})),
                    ContainsSubstring("DoubleImpl, which gives no indices"));
}

TEST_CASE("a twin computes the same over the same tensors and has its own options",
          "[nn][slot][law]") {
  nn::BatchNorm2d norm(3);
  norm->slot() = nn::Slot(std::make_shared<DoubleImpl>());
  const std::shared_ptr<nn::BatchNorm2dImpl> twin = nn::twin<torch::nn::BatchNorm2dImpl>(*norm);
  CHECK_FALSE(twin->slot());
  CHECK(twin->weight.is_same(norm->weight));
  CHECK(twin->named_buffers()["running_mean"].is_same(norm->running_mean));
  twin->forward(torch::randn({4, 3, 2, 2}));
  CHECK(norm->num_batches_tracked.item<int>() == 1);
  twin->options.eps(1.0);
  CHECK(norm->options.eps() == 1e-5);
}

TEST_CASE("a twin of a plain layer shares its tensors", "[nn][slot]") {
  torch::nn::Linear plain(3, 2);
  const auto twin = nn::twin(*plain);
  const at::Tensor x = torch::randn({5, 3});
  CHECK(twin->weight.is_same(plain->weight));
  CHECK(twin->forward(x).equal(plain->forward(x)));
}

TEST_CASE("a twin keeps what a derived layer computes, or is refused", "[nn][slot]") {
  const auto negated = std::make_shared<NegatedLinearImpl>(3, 2);
  const at::Tensor x = torch::randn({5, 3});
  const auto twin = nn::twin<torch::nn::LinearImpl>(*negated);
  CHECK(twin->forward(x).equal(negated->forward(x)));
  CHECK(twin->weight.is_same(negated->weight));
  const auto clone = std::dynamic_pointer_cast<NegatedLinearImpl>(negated->clone());
  REQUIRE(clone != nullptr);
  CHECK_FALSE(clone->weight.is_same(negated->weight));
  CHECK(clone->named_parameters()["weight"].is_same(clone->weight));
  CHECK(clone->forward(x).equal(negated->forward(x)));

  struct PlainChildImpl : torch::nn::LinearImpl {
    using torch::nn::LinearImpl::LinearImpl;
  };
  CHECK_THROWS_WITH(nn::twin<torch::nn::LinearImpl>(PlainChildImpl(3, 2)),
                    ContainsSubstring("a twin of it would lose what it adds"));
}

TEST_CASE("a model of replaceable layers clones deeply and stays replaceable", "[nn][slot]") {
  auto model = std::make_shared<ConvNetImpl>();
  const at::Tensor x = torch::randn({2, 1, 5, 5});
  auto copy = std::dynamic_pointer_cast<ConvNetImpl>(model->clone());
  REQUIRE(copy != nullptr);
  CHECK(copy->named_parameters().keys() == model->named_parameters().keys());
  CHECK_FALSE(copy->conv->weight.is_same(model->conv->weight));
  CHECK(copy->forward(x).equal(model->forward(x)));
  auto* norm = dynamic_cast<nn::BatchNorm2dImpl*>(copy->tail[0].get());
  REQUIRE(norm != nullptr);
  norm->slot() = nn::Slot(std::make_shared<DoubleImpl>());
  CHECK(copy->forward(x).equal(copy->conv(x) * 2));
}

TEST_CASE("what is frozen in a layer or a model of layers is frozen in its copy", "[nn][slot]") {
  nn::Linear layer(2, 2);
  layer->bias.set_requires_grad(false);
  const auto copied = std::dynamic_pointer_cast<nn::LinearImpl>(layer->clone());
  CHECK(copied->weight.requires_grad());
  CHECK_FALSE(copied->bias.requires_grad());

  auto model = std::make_shared<ConvNetImpl>();
  model->conv->weight.set_requires_grad(false);
  const auto copy = std::dynamic_pointer_cast<ConvNetImpl>(model->clone());
  CHECK_FALSE(copy->conv->weight.requires_grad());
  CHECK(copy->conv->bias.requires_grad());
}

TEST_CASE("a layer that was replaced refuses to be cloned and says what to do", "[nn][slot]") {
  nn::Linear layer(2, 2);
  layer->slot() = nn::Slot(std::make_shared<DoubleImpl>());
  CHECK_THROWS_WITH(layer->clone(), ContainsSubstring("clone the model before its surgery"));
  CHECK_THROWS_WITH(std::make_shared<DoubleImpl>()->clone(),
                    ContainsSubstring("clone the model before its surgery"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
