#include <tutti/algorithms/spectral_norm.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <vector>

#include <tutti/core/autocast.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>

#include <ATen/ops/linalg_svdvals.h>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::SpectralNorm;
using tutti::functional::apply_spectral_norm;
namespace nn = tutti::nn;
namespace surgery = tutti::surgery;

static_assert(tutti::Algorithm<SpectralNorm>);
static_assert(tutti::Recipe<SpectralNorm>::valid);
static_assert(sizeof(tutti::With<SpectralNorm{.layers = {"head"}, .n_power_iterations = 2}>) > 0);

}  // namespace

TEST_CASE("the weight of a pass has a largest singular value of 1", "[spectral_norm][law]") {
  at::manual_seed(4);
  nn::Sequential model(nn::Linear(torch::nn::LinearOptions(6, 5).bias(false)));
  apply_spectral_norm(*model, {.n_power_iterations = 50});
  const at::Tensor weight = model->forward(at::eye(6)).t();
  CHECK(std::abs(at::linalg_svdvals(weight)[0].item<double>() - 1) < 1e-4);

  // Under autocast the vectors stay what they are in full precision.
  const at::Tensor before = model->buffers()[0].clone();
  {
    const tutti::Autocast autocast(at::kCPU, at::kBFloat16);
    model->forward(at::eye(6));
  }
  CHECK(model->buffers()[0].allclose(before, 1e-5, 1e-5));
}

TEST_CASE("a recomputed layer has the vectors of its first pass", "[spectral_norm][law]") {
  std::vector<at::Tensor> found[2];
  for (const bool recomputes : {false, true}) {
    at::manual_seed(4);
    nn::Sequential model(nn::Linear(6, 6), nn::Linear(6, 2));
    apply_spectral_norm(*model);
    model->set_activation_checkpointing(recomputes);
    for (int i = 0; i < 2; ++i) {
      model->forward(at::ones({3, 6})).pow(2).sum().backward();
    }
    for (const at::Tensor& parameter : model->parameters()) {
      found[recomputes ? 1 : 0].push_back(parameter.grad());
    }
    for (const at::Tensor& buffer : model->buffers()) {
      found[recomputes ? 1 : 0].push_back(buffer);
    }
  }
  REQUIRE(found[0].size() == 8);
  for (std::size_t i = 0; i < found[0].size(); ++i) {
    CHECK(found[0][i].equal(found[1][i]));
  }
}

TEST_CASE("SpectralNorm says what it cannot do", "[spectral_norm]") {
  CHECK_THROWS_WITH(SpectralNorm{.n_power_iterations = 0}.validate(),
                    ContainsSubstring("n_power_iterations is 0, expected at least 1"));
  nn::Sequential model(nn::Linear(2, 2));
  CHECK_THROWS_WITH(apply_spectral_norm(*model, {.layers = {"conv*"}}),
                    ContainsSubstring("SpectralNorm: layers has \"conv*\""));
  CHECK(apply_spectral_norm(*model).count() == 1);
  CHECK(surgery::count<nn::SpectralNormed>(*model) == 1);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
