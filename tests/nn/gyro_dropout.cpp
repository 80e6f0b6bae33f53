#include <tutti/nn/gyro_dropout.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::nn::GyroDropoutImpl;

TEST_CASE("rows are dealt to the masks in use, and what is kept is scaled up", "[nn][law]") {
  GyroDropoutImpl layer({.p = 0.25, .sigma = 8, .tau = 2}, tutti::Rng(5));
  const at::Tensor y = layer.forward(torch::ones({4, 100}));
  CHECK(y[0].equal(y[1]));
  CHECK(y[2].equal(y[3]));
  CHECK(y.eq(0).logical_or(y.sub(1 / 0.75).abs().lt(1e-6)).all().item<bool>());
  CHECK(layer.mask(4).gt(0).equal(y.gt(0)));
  const double dropped = layer.state().masks.eq(0).to(at::kFloat).mean().item<double>();
  CHECK(dropped > 0.2);
  CHECK(dropped < 0.3);
}

TEST_CASE("images lose whole channels, sequences the same features everywhere", "[nn][law]") {
  GyroDropoutImpl layer({.p = 0.5, .sigma = 4, .tau = 1}, tutti::Rng(5));
  const at::Tensor image = layer.forward(torch::ones({2, 16, 3, 3}));
  CHECK(image.flatten(2).std(2).max().item<double>() < 1e-6);
  GyroDropoutImpl other({.p = 0.5, .sigma = 4, .tau = 1}, tutti::Rng(5));
  const at::Tensor text = other.forward(torch::ones({2, 5, 16}));
  CHECK(text.std(1).max().item<double>() < 1e-6);
}

TEST_CASE("masks are picked anew after a period, and evaluation drops nothing", "[nn]") {
  GyroDropoutImpl layer({.p = 0.5, .sigma = 64, .tau = 4, .period = 2}, tutti::Rng(5));
  const at::Tensor x = torch::ones({8, 32});
  const at::Tensor first = layer.forward(x);
  CHECK(layer.forward(x).equal(first));
  CHECK_FALSE(layer.forward(x).equal(first));
  layer.eval();
  CHECK(layer.forward(x).equal(x));
  CHECK(layer.state().calls == 3);
}

TEST_CASE("a restored layer goes on with the same masks", "[nn][resume]") {
  GyroDropoutImpl layer({.sigma = 16, .tau = 4}, tutti::Rng(5));
  const at::Tensor x = torch::ones({8, 32});
  layer.forward(x);
  tutti::Archive archive;
  layer.save_state(archive);
  GyroDropoutImpl restored({.sigma = 16, .tau = 4}, tutti::Rng(9));
  restored.set_state(GyroDropoutImpl::load_state(archive));
  CHECK(restored.forward(x).equal(layer.forward(x)));
}

TEST_CASE("options of masks that cannot be meant are refused", "[nn]") {
  for (const tutti::nn::GyroDropoutOptions& options : {tutti::nn::GyroDropoutOptions{.p = -0.1},
                                                       {.p = 1},
                                                       {.sigma = 0},
                                                       {.tau = 0},
                                                       {.period = 0}}) {
    CHECK_THROWS_AS(GyroDropoutImpl(options), c10::ValueError);
  }
  GyroDropoutImpl least({.p = 0, .sigma = 1, .tau = 1, .period = 1});
  const at::Tensor x = torch::ones({3, 5});
  CHECK(least.forward(x).equal(x));
  CHECK(least.forward(x.slice(0, 0, 0)).sizes() == at::IntArrayRef{0, 5});
}

TEST_CASE("inputs that do not fit the masks are refused", "[nn]") {
  GyroDropoutImpl layer;
  CHECK_THROWS_WITH(layer.forward(torch::ones({4})), ContainsSubstring("two dimensions or more"));
  layer.forward(torch::ones({4, 6}));
  CHECK_THROWS_WITH(layer.forward(torch::ones({4, 7})),
                    ContainsSubstring("7 features, expected 6"));
}

TEST_CASE("the state of a layer with other numbers of masks is refused", "[nn][resume]") {
  GyroDropoutImpl layer({.sigma = 8, .tau = 2}, tutti::Rng(5));
  GyroDropoutImpl other({.sigma = 8, .tau = 4});
  other.set_state(layer.state());  // nothing drawn yet
  layer.forward(torch::ones({4, 6}));
  CHECK_THROWS_WITH(other.set_state(layer.state()),
                    ContainsSubstring("2 masks in use and tau is 4"));
  GyroDropoutImpl more({.sigma = 16, .tau = 2});
  CHECK_THROWS_WITH(more.set_state(layer.state()), ContainsSubstring("8 masks and sigma is 16"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
