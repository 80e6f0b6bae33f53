#include <tutti/models/stochastic_blocks.hpp>

#include <memory>

#include <tutti/models/cifar_resnet.hpp>

#include "support/catch.hpp"

using tutti::DropDistribution;
using tutti::DropMethod;
using tutti::Rng;
using tutti::models::ResidualBlock;
using tutti::models::StochasticBlocks;

namespace {

struct Fixture {
  decltype(tutti::models::cifar_resnet({.in_channels = 1, .blocks = {1, 1, 1}})) net =
      tutti::models::cifar_resnet({.in_channels = 1, .blocks = {1, 1, 1}});
  std::shared_ptr<StochasticBlocks> blocks;

  Fixture(DropMethod method, DropDistribution distribution) {
    blocks = std::make_shared<StochasticBlocks>(method, distribution, Rng(3));
    for (const auto& module : net->modules()) {
      if (auto* block = dynamic_cast<ResidualBlock*>(module.get())) {
        StochasticBlocks::add(blocks, *block);
      }
    }
  }
};

}  // namespace

TEST_CASE("drop rates rise linearly or are all alike", "[models][stochastic_depth]") {
  const Fixture linear(DropMethod::block, DropDistribution::linear);
  REQUIRE(linear.blocks->size() == 3);
  linear.blocks->set_drop_rate(0.3);
  CHECK(linear.blocks->drop_rates()[0] > 0.0999999);
  CHECK(linear.blocks->drop_rates()[2] == 0.3);
  const Fixture uniform(DropMethod::block, DropDistribution::uniform);
  uniform.blocks->set_drop_rate(0.3);
  CHECK(uniform.blocks->drop_rates()[0] == 0.3);
}

TEST_CASE("at a rate of 0 nothing changes, at 1 only shortcuts are left",
          "[models][stochastic_depth][law]") {
  for (const DropMethod method : {DropMethod::block, DropMethod::sample}) {
    torch::manual_seed(1);
    Fixture with(method, DropDistribution::uniform);
    torch::manual_seed(1);
    auto plain = tutti::models::cifar_resnet({.in_channels = 1, .blocks = {1, 1, 1}});
    const at::Tensor x = torch::randn({4, 1, 8, 8});
    CHECK(with.net->forward(x).allclose(plain->forward(x), 1e-5, 1e-6));
    with.blocks->set_drop_rate(1);
    with.net->zero_grad();
    with.net->forward(x).sum().backward();
    for (const auto& module : with.net->modules()) {
      if (auto* block = dynamic_cast<ResidualBlock*>(module.get());
          block != nullptr && !block->projects()) {
        for (const at::Tensor& parameter : module->parameters()) {
          CHECK((!parameter.grad().defined() || parameter.grad().eq(0).all().item<bool>()));
        }
      }
    }
  }
}

TEST_CASE("examples at a rate of 0 draw no random number", "[models][stochastic_depth]") {
  Fixture with(DropMethod::sample, DropDistribution::uniform);
  Rng empty;
  empty.replay(std::make_shared<tutti::Tape>());
  with.blocks->draw_from(&empty);
  const at::Tensor x = torch::randn({4, 1, 8, 8});
  CHECK_NOTHROW(with.net->forward(x));
  with.blocks->set_drop_rate(0.5);
  CHECK_THROWS(with.net->forward(x));
}

TEST_CASE("in evaluation a block counts as often as it was kept",
          "[models][stochastic_depth][law]") {
  torch::manual_seed(1);
  Fixture with(DropMethod::block, DropDistribution::uniform);
  with.net->eval();
  const at::Tensor x = torch::randn({2, 1, 8, 8});
  const at::Tensor whole = with.net->forward(x);
  with.blocks->set_drop_rate(0.5);
  const at::Tensor once = with.net->forward(x);
  CHECK_FALSE(once.allclose(whole, 1e-4, 1e-5));
  CHECK(with.net->forward(x).equal(once));
}
