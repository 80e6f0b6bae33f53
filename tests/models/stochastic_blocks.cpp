#include <tutti/models/stochastic_blocks.hpp>

#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <memory>

#include <tutti/models/cifar_resnet.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

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

// Three times its input, which is added to the input or to five less.
struct Threefold : torch::nn::Module, ResidualBlock {
  at::Tensor forward(const at::Tensor& x) { return joined(x); }
  at::Tensor residual(const at::Tensor& x) override { return x * 3; }
  at::Tensor shortcut(const at::Tensor& x) override { return shifts ? x - 5 : x; }
  [[nodiscard]] bool projects() const override { return shifts; }
  bool shifts = false;
};

}  // namespace

TEST_CASE("drop rates rise linearly or are all alike", "[models][stochastic_depth]") {
  const Fixture linear(DropMethod::block, DropDistribution::linear);
  REQUIRE(linear.blocks->size() == 3);
  linear.blocks->set_drop_rate(0.3);
  for (std::size_t l = 0; l < 3; ++l) {
    CHECK(std::abs(linear.blocks->drop_rates()[l] - 0.1 * static_cast<double>(l + 1)) < 1e-15);
  }
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
  with.blocks->draw_from(nullptr);  // a copy of that from now on
  with.blocks->draw_from(nullptr);
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

TEST_CASE("what a block gives is worked out by hand", "[models][stochastic_depth]") {
  const at::Tensor x = at::tensor({2.0, 8.0}).view({2, 1});
  const auto given = [&](DropMethod method, std::initializer_list<double> draws, bool shifts,
                         bool training) {
    const auto blocks =
        std::make_shared<StochasticBlocks>(method, DropDistribution::linear, Rng(3));
    Threefold block;
    block.shifts = shifts;
    block.train(training);
    StochasticBlocks::add(blocks, block);
    blocks->set_drop_rate(0.25);
    Rng rng;
    const auto tape = std::make_shared<tutti::Tape>();
    tape->uniforms = draws;
    rng.replay(tape);
    blocks->draw_from(&rng);
    const at::Tensor y = block.forward(x).flatten();
    return std::vector<double>(y.const_data_ptr<double>(), y.const_data_ptr<double>() + 2);
  };
  using Values = std::vector<double>;
  // In evaluation relu(0.75 * 3x + shortcut), whatever is skipped in training.
  CHECK(given(DropMethod::block, {}, false, false) == Values{6.5, 26});
  CHECK(given(DropMethod::sample, {}, true, false) == Values{1.5, 21});
  // A draw below 0.75 keeps a block; of one that is skipped only the shortcut is left.
  CHECK(given(DropMethod::block, {0.74}, false, true) == Values{8, 32});
  CHECK(given(DropMethod::block, {0.75}, false, true) == Values{2, 8});
  CHECK(given(DropMethod::block, {0.75}, true, true) == Values{0, 3});
  // A draw for each example, of at least 0.25 where it keeps the block.
  CHECK(given(DropMethod::sample, {0.2, 0.25}, false, true) == Values{2, 32});
  CHECK(given(DropMethod::sample, {0.25, 0.2}, true, true) == Values{3, 3});
}

TEST_CASE("blocks go on with a copy of the numbers that they drew from",
          "[models][stochastic_depth]") {
  const auto blocks =
      std::make_shared<StochasticBlocks>(DropMethod::block, DropDistribution::uniform, Rng(3));
  Threefold block;
  StochasticBlocks::add(blocks, block);
  blocks->set_drop_rate(0.5);
  const at::Tensor x = at::ones({1});
  Rng given(17);
  Rng same(17);
  blocks->draw_from(&given);
  for (int i = 0; i < 20; ++i) {
    if (i == 10) {
      blocks->draw_from(nullptr);
    }
    CHECK(block.forward(x).item<double>() == (same.uniform() < 0.5 ? 4 : 1));
  }
  CHECK(given.position() < same.position());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
