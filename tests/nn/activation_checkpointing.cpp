#include <tutti/nn/activation_checkpointing.hpp>

#include <memory>
#include <vector>

#include <tutti/core/autocast.hpp>
#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/gyro_dropout.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>
#include <tutti/train/backward.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
namespace functional = tutti::functional;
namespace nn = tutti::nn;

struct Block : torch::nn::Module {
  explicit Block(double p)
      : up(register_module("up", nn::Linear(6, 12))),
        drop(register_module("drop", nn::Dropout(p))),
        down(register_module("down", nn::Linear(12, 6))) {}

  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    return x + down(drop(up(x).relu()));
  }

  nn::Linear up;
  nn::Dropout drop;
  nn::Linear down;
  int calls = 0;
};

struct Chain {
  explicit Chain(double p = 0.0) {
    torch::manual_seed(1);
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(std::make_shared<Block>(p));
    }
  }

  at::Tensor forward(at::Tensor x, bool checkpoints) {
    for (const auto& block : blocks) {
      x = checkpoints ? functional::checkpoint_activations(
                            *block, [block](const at::Tensor& y) { return block->forward(y); }, x)
                      : block->forward(x);
    }
    return x;
  }

  std::vector<at::Tensor> gradients() {
    std::vector<at::Tensor> out;
    for (const auto& block : blocks) {
      for (const at::Tensor& parameter : block->parameters()) {
        out.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
        parameter.mutable_grad().reset();
      }
    }
    return out;
  }

  std::vector<std::shared_ptr<Block>> blocks;
};

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined() || (a[i].defined() && !a[i].equal(b[i]))) {
      return false;
    }
  }
  return a.size() == b.size();
}

// The gradients of the input and of all parameters after one step of `run`.
template <class Run>
std::vector<at::Tensor> step(Chain& chain, bool learns, Run&& run) {
  torch::manual_seed(2);
  const at::Tensor x = at::randn({4, 6}).requires_grad_(learns);
  run(x);
  std::vector<at::Tensor> out = chain.gradients();
  out.push_back(x.grad());
  return out;
}

}  // namespace

TEST_CASE("gradients with activation checkpointing are the same bits", "[nn][law]") {
  Chain chain;
  for (const bool learns : {true, false}) {
    const auto with = [&](bool checkpoints) {
      return step(chain, learns, [&](const at::Tensor& x) {
        chain.forward(x, checkpoints).pow(2).sum().backward();
      });
    };
    CHECK(equal(with(true), with(false)));
  }
  // Each block was computed twice with checkpointing and once without.
  CHECK(chain.blocks[0]->calls == 2 * (2 + 1));
}

TEST_CASE("the second computation draws the dropout of the first, and shifts no later numbers",
          "[nn][law]") {
  Chain chain(0.5);
  at::Tensor after[2];
  const auto with = [&](bool checkpoints) {
    return step(chain, true, [&](const at::Tensor& x) {
      const at::Tensor y = chain.forward(x, checkpoints);
      const at::Tensor noise = at::rand({3});  // between the passes
      (y.pow(2).sum() + noise.sum()).backward();
      after[checkpoints ? 1 : 0] = at::rand({3});
    });
  };
  CHECK(equal(with(true), with(false)));
  CHECK(after[0].equal(after[1]));
}

TEST_CASE("the second computation runs in the precision of the first", "[nn][law]") {
  Chain chain(0.5);
  for (const bool inside : {false, true}) {
    for (const bool shared : {false, true}) {
      const auto with = [&](bool checkpoints) {
        return step(chain, true, [&](const at::Tensor& x) {
          at::Tensor loss;
          {
            const tutti::Autocast autocast(at::kCPU, at::kBFloat16);
            loss = chain.forward(x, checkpoints).to(at::kFloat).pow(2).sum();
            if (shared) {  // a weight that is cast outside of its block, too
              loss = loss + chain.blocks[0]->up(x).to(at::kFloat).sum();
            }
            if (inside) {
              loss.backward();
            }
          }
          if (!inside) {
            loss.backward();
          }
        });
      };
      INFO("backward inside of autocast: " << inside << ", a shared weight: " << shared);
      const auto checkpointed = with(true);
      const auto plain = with(false);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        // Autocast's cache adds up the gradients of a shared weight in bf16.
        const bool same = shared ? checkpointed[i].allclose(plain[i], 2e-2, 2e-2)
                                 : checkpointed[i].equal(plain[i]);
        CHECK(same);
      }
    }
  }
}

TEST_CASE("frozen parameters stay without gradients, and without any the block just runs", "[nn]") {
  Chain chain;
  chain.blocks[1]->up->weight.set_requires_grad(false);
  const auto with = [&](bool checkpoints) {
    return step(chain, true, [&](const at::Tensor& x) {
      chain.forward(x, checkpoints).pow(2).sum().backward();
    });
  };
  const auto gradients = with(true);
  CHECK_FALSE(gradients[4].defined());  // up.weight of the second block
  CHECK(equal(gradients, with(false)));

  const torch::NoGradGuard no_grad;
  chain.blocks[0]->calls = 0;
  const at::Tensor y = chain.forward(at::ones({1, 6}), true);
  CHECK(chain.blocks[0]->calls == 1);
  CHECK_FALSE(y.requires_grad());
}

TEST_CASE("only the inputs of the blocks are kept", "[nn]") {
  Chain chain;
  std::weak_ptr<Block> alive;
  at::Tensor y;
  {
    const auto block = std::make_shared<Block>(0.0);
    alive = block;
    y = functional::checkpoint_activations(
        *block, [block](const at::Tensor& x) { return block->forward(x); }, at::ones({1, 6}));
  }
  CHECK_FALSE(alive.expired());  // until the gradients are there
  y.sum().backward();
  CHECK(alive.expired());
}

TEST_CASE("the library's own backward pass and gradients of chosen tensors work too", "[nn]") {
  Chain chain;
  const auto expected = step(
      chain, true, [&](const at::Tensor& x) { chain.forward(x, false).pow(2).sum().backward(); });
  const auto walked = step(chain, true, [&](const at::Tensor& x) {
    tutti::train::Backward backward;
    backward(chain.forward(x, true).pow(2).sum());
  });
  CHECK(equal(walked, expected));

  torch::manual_seed(2);
  const at::Tensor x = at::randn({4, 6}).requires_grad_();
  const at::Tensor loss = chain.forward(x, true).pow(2).sum();
  const at::Tensor& weight = chain.blocks[2]->down->weight;
  const auto some = torch::autograd::grad({loss}, {weight, x});
  CHECK(some[0].equal(expected[10]));
  CHECK(some[1].equal(expected.back()));
  CHECK_FALSE(weight.grad().defined());
}

TEST_CASE("running statistics move once, and gradients are those without checkpointing",
          "[nn][law]") {
  torch::manual_seed(3);
  const auto net = std::make_shared<nn::SequentialImpl>(torch::nn::Linear(5, 4), nn::BatchNorm1d(4),
                                                        torch::nn::Linear(4, 2));
  const at::Tensor x = at::randn({8, 5}).requires_grad_();
  std::vector<at::Tensor> found[2];
  for (const bool checkpoints : {false, true}) {
    const auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone());
    copy->set_activation_checkpointing(checkpoints);
    x.mutable_grad().reset();
    for (int i = 0; i < 3; ++i) {
      copy->forward(x).pow(2).sum().backward();
    }
    auto& all = found[checkpoints ? 1 : 0];
    all = copy->buffers();
    for (const at::Tensor& parameter : copy->parameters()) {
      all.push_back(parameter.grad());
    }
    all.push_back(x.grad());
  }
  CHECK(equal(found[1], found[0]));
  CHECK(found[1][2].item<std::int64_t>() == 3);  // num_batches_tracked
}

TEST_CASE("a block is computed again with what its forward was given", "[nn]") {
  struct Scaled : torch::nn::Module, nn::Block {
    Scaled() : layer(register_module("layer", nn::Linear(3, 3))) {}
    at::Tensor forward(const at::Tensor& x, const at::Tensor& scale) {
      return in_block(x, [this, scale](const at::Tensor& y) {
        ++calls;
        return layer(y).tanh() * scale;
      });
    }
    nn::Linear layer;
    int calls = 0;
  };
  torch::manual_seed(4);
  const auto block = std::make_shared<Scaled>();
  const at::Tensor x = at::randn({2, 3}).requires_grad_();
  const auto gradients = [&] {
    block->zero_grad();
    x.mutable_grad().reset();
    block->forward(x, at::full({3}, 2.0)).sum().backward();
    return std::vector{x.grad().clone(), block->layer->weight.grad().clone()};
  };
  const auto plain = gradients();
  CHECK(block->calls == 1);
  block->set_activation_checkpointing(true);
  CHECK(equal(gradients(), plain));
  CHECK(block->calls == 3);
  const at::Tensor learnt = at::full({3}, 2.0).requires_grad_();
  CHECK_THROWS_WITH(block->forward(x, learnt).sum().backward(),
                    ContainsSubstring("neither its input nor one of its parameters"));
}

TEST_CASE("checkpointing says what it cannot do", "[nn]") {
  Chain chain;
  const at::Tensor x = at::ones({1, 6}).requires_grad_();
  CHECK_THROWS_WITH(
      torch::autograd::grad({chain.forward(x, true).sum()}, {x}, {}, true, /*create_graph=*/true),
      ContainsSubstring("set_activation_checkpointing(false)"));
  auto& block = chain.blocks[0];
  block->drop->slot() = nn::Slot(std::make_shared<nn::GyroDropoutImpl>());
  block->replace_module("drop", block->drop->slot().module());
  CHECK_THROWS_WITH(chain.forward(x, true), ContainsSubstring("GyroDropout"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
