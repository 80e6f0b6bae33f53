#include <tutti/nn/spectral_norm.hpp>

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
nn::Sequential normed(const Layer& layer, std::int64_t iterations = 1) {
  nn::Sequential model(std::make_shared<nn::SpectralNormedImpl<Layer>>(
      *layer, tutti::SpectralNormOptions{.n_power_iterations = iterations}));
  model->to(at::kDouble);
  return model;
}

}  // namespace

TEST_CASE("a spectral-normed layer trains as torch's spectral_norm", "[nn][golden]") {
  parametrizations::check("spectral_norm.linear", normed(nn::Linear(4, 3)));
  parametrizations::check("spectral_norm.conv",
                          normed(nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)), 2));
}

TEST_CASE("evaluation leaves the vectors, and vectors have no weights to normalise", "[nn]") {
  nn::SpectralNormedImpl<nn::Linear> layer(*nn::Linear(4, 3));
  const at::Tensor before = layer.buffers()[0].clone();
  layer.eval();
  layer.forward(at::ones({1, 4}));
  CHECK(layer.buffers()[0].equal(before));
  layer.train();
  for (int i = 0; i < 5; ++i) {
    layer.forward(at::ones({1, 4}));
  }
  CHECK(std::abs(layer.buffers()[0].norm().item<double>() - 1) < 1e-5);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
