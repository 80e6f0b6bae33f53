#include <tutti/nn/weight_norm.hpp>

#include <memory>

#include <tutti/nn/conv.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>

#include "nn/parametrizations.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;

template <class Layer>
nn::Sequential normed(const Layer& layer, std::int64_t dim = 0) {
  nn::Sequential model(std::make_shared<nn::WeightNormedImpl<Layer>>(*layer, dim));
  model->to(at::kDouble);
  return model;
}

}  // namespace

TEST_CASE("a weight-normed layer trains as torch's weight_norm", "[nn][golden]") {
  parametrizations::check("weight_norm.linear", normed(nn::Linear(4, 3)));
  parametrizations::check("weight_norm.conv",
                          normed(nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1))));
  parametrizations::check("weight_norm.whole", normed(nn::Linear(4, 3), -1));
}

TEST_CASE("lengths are those of the weight at first, and frozen as it is", "[nn]") {
  nn::Linear layer(4, 3);
  layer->weight.set_requires_grad(false);
  const nn::WeightNormedImpl<nn::Linear> normed(*layer);
  CHECK(normed.direction().is_same(layer->weight));
  CHECK(normed.length().allclose(layer->weight.norm(2, {1}, true)));
  CHECK_FALSE(normed.length().requires_grad());
  CHECK(normed.named_parameters().size() == 3);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
