#include <tutti/models/residual_block.hpp>

#include <torch/nn/module.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

// The smallest block that an algorithm can join otherwise.
struct Block : torch::nn::Module, tutti::models::ResidualBlock {
  at::Tensor forward(const at::Tensor& x) { return joined(x); }
  at::Tensor residual(const at::Tensor& x) override { return x * 3; }
  at::Tensor shortcut(const at::Tensor& x) override { return x - 5; }
  [[nodiscard]] bool projects() const override { return false; }
};

// One that ends in no relu, and says how it computes the whole.
struct Open : Block {
  at::Tensor finish(const at::Tensor& sum) override { return sum; }
  at::Tensor whole(const at::Tensor& x) override { return x * 4 - 5; }
};

}  // namespace

TEST_CASE("a residual block adds its branches and ends in a relu unless it says otherwise",
          "[models][residual_block]") {
  const at::Tensor x = at::tensor({-1.0, 1.0, 2.0});
  Block block;
  CHECK(block.forward(x).equal(at::tensor({0.0, 0.0, 3.0})));
  Open open;
  CHECK(open.forward(x).equal(at::tensor({-9.0, -1.0, 3.0})));
  CHECK(x.equal(at::tensor({-1.0, 1.0, 2.0})));
}

TEST_CASE("what joins a residual block sees its parts and can be taken away",
          "[models][residual_block]") {
  const at::Tensor x = at::tensor({-1.0, 2.0});
  Open block;
  block.set_join([](tutti::models::ResidualBlock& one, const at::Tensor& input) {
    return one.finish(one.shortcut(input));
  });
  CHECK(block.forward(x).equal(at::tensor({-6.0, -3.0})));
  CHECK(block.is_joined_otherwise());
  CHECK_FALSE(block.evaluation_factor());
  block.set_join({});
  CHECK(block.forward(x).equal(at::tensor({-9.0, 3.0})));
  CHECK(block.evaluation_factor() == 1);
  block.set_join(
      [](tutti::models::ResidualBlock& one, const at::Tensor& y) { return one.whole(y); },
      [] { return 0.5; });
  CHECK(block.evaluation_factor() == 0.5);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
