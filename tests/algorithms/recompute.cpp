#include <tutti/algorithms/recompute.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/algorithms/gyro_dropout.hpp>
#include <tutti/algorithms/stochastic_depth.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/nn/activation_checkpointing.hpp>
#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Recompute;
using tutti::functional::apply_recompute;
using Paths = std::vector<std::string>;
namespace nn = tutti::nn;

struct Exported {
  using model_features = tutti::types<tutti::is_compiled>;
};
static_assert(tutti::Algorithm<Recompute>);
static_assert(sizeof(tutti::With<Recompute{.blocks = {"h.*"}, .share = 0.5}>) > 0);
static_assert(tutti::Recipe<Recompute>::valid);
static_assert(!tutti::detail::can_be_combined<Recompute, tutti::StochasticDepth>);
static_assert(!tutti::detail::can_be_combined<tutti::GyroDropout, Recompute>);
static_assert(!tutti::Supports<Recompute, Exported>);

struct BlockImpl : torch::nn::Module, nn::Block {
  BlockImpl()
      : up(register_module("up", nn::Linear(6, 10))),
        norm(register_module("norm", nn::BatchNorm1d(10))),
        drop(register_module("drop", nn::Dropout(0.3))),
        down(register_module("down", nn::Linear(10, 6))) {}

  at::Tensor forward(const at::Tensor& x) {
    return in_block(x, [this](const at::Tensor& y) {
      ++calls;
      return y + down(drop(norm(up(y)).relu()));
    });
  }

  nn::Linear up;
  nn::BatchNorm1d norm;
  nn::Dropout drop;
  nn::Linear down;
  int calls = 0;
};
TORCH_MODULE(Block);

// Four blocks in two stages between two layers, trained for a mean squared error.
struct Net : torch::nn::Module {
  Net() {
    in = register_module("in", nn::Linear(4, 6));
    stage1 = register_module("stage1", nn::Sequential(Block(), Block()));
    stage2 = register_module("stage2", nn::Sequential(Block(), Block()));
    out = register_module("out", nn::Linear(6, 2));
  }
  tutti::Outputs forward(const tutti::Batch& batch) {
    return out(stage2->forward(stage1->forward(in(batch.inputs()))));
  }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  [[nodiscard]] std::vector<int> calls() const {
    std::vector<int> all;
    for (const auto& module : modules()) {
      if (const auto* block = dynamic_cast<const BlockImpl*>(module.get())) {
        all.push_back(block->calls);
      }
    }
    return all;
  }
  nn::Linear in{nullptr}, out{nullptr};
  nn::Sequential stage1{nullptr}, stage2{nullptr};
};

std::shared_ptr<Net> net() {
  at::manual_seed(5);
  return std::make_shared<Net>();
}

}  // namespace

TEST_CASE("blocks are chosen by name, by share and by both", "[functional][recompute]") {
  const auto model = net();
  CHECK(apply_recompute(*model) == Paths{"stage1.0", "stage1.1", "stage2.0", "stage2.1"});
  CHECK(apply_recompute(*model, {.share = 0.5}) == Paths{"stage1.0", "stage2.0"});
  CHECK(apply_recompute(*model, {.share = 0.75}) == Paths{"stage1.0", "stage1.1", "stage2.0"});
  CHECK(apply_recompute(*model, {.share = 0.01}) == Paths{"stage1.0"});
  CHECK(apply_recompute(*model, {.blocks = {"stage2.*"}}) == Paths{"stage2.0", "stage2.1"});
  CHECK(apply_recompute(*model, {.blocks = {"*.1", "stage1.0"}, .share = 2.0 / 3}) ==
        Paths{"stage1.0", "stage1.1"});
  // The last choice counts.
  const auto& all = model->stage2->children();
  CHECK_FALSE(dynamic_cast<nn::Block&>(*all[1]).activation_checkpointing());
}

TEST_CASE("a Sequential is recomputed as a whole, and what is inside of it once",
          "[functional][recompute]") {
  const auto model = net();
  CHECK(apply_recompute(*model, {.blocks = {"stage*"}}) == Paths{"stage1", "stage2"});
  const tutti::Batch batch(at::ones({3, 4}), at::zeros({3, 2}));
  model->loss(model->forward(batch), batch).total().backward();
  CHECK(model->calls() == std::vector{2, 2, 2, 2});
}

TEST_CASE("training with recomputed blocks ends with the same bits", "[recompute][law][trainer]") {
  const auto run = [](const Recompute& recompute, bool off, tutti::Precision precision) {
    const auto model = net();
    tutti::TrainerOptions options{.train = tiny::batches(3, 8),
                                  .max_duration = "2ep",
                                  .optimizer = tutti::DecoupledSGDW{.lr = 0.1, .momentum = 0.9},
                                  .device_train_microbatch_size = 4,
                                  .device = "cpu",
                                  .precision = precision,
                                  .seed = 17,
                                  .progress_bar = false};
    tutti::Trainer trainer{model, std::move(options), recompute};
    if (off) {
      for (const auto& module : model->modules()) {
        if (auto* one = dynamic_cast<nn::Recomputable*>(module.get())) {
          one->set_activation_checkpointing(false);
        }
      }
    }
    trainer.fit();
    return std::pair(tiny::flat(*model), model->calls());
  };
  for (const auto precision : {tutti::Precision::fp32, tutti::Precision::amp_bf16}) {
    const auto plain = run({}, true, precision);
    CHECK(plain.second == std::vector{12, 12, 12, 12});  // 2 epochs, 3 batches, 2 microbatches
    const auto half = run({.share = 0.5}, false, precision);
    CHECK(half.second == std::vector{24, 12, 24, 12});
    CHECK(half.first.equal(plain.first));
    CHECK(run({}, false, precision).first.equal(plain.first));
    CHECK(run({.blocks = {"stage?"}}, false, precision).first.equal(plain.first));
  }
}

TEST_CASE("Recompute says what it cannot find", "[recompute]") {
  CHECK_THROWS_WITH(Recompute{.share = 0}.validate(),
                    ContainsSubstring("share is 0, expected a number above 0, at most 1"));
  const auto model = net();
  CHECK_THROWS_WITH(apply_recompute(*model, {.blocks = {"stage1.*", "h.*"}}),
                    ContainsSubstring("\"h.*\", which matches no nn::Block"));
  CHECK_THROWS_WITH(apply_recompute(*model, {.blocks = {"in"}}), ContainsSubstring("\"in\""));
  const auto none = tiny::net();
  CHECK_THROWS_WITH(apply_recompute(*none), ContainsSubstring("derive its blocks from nn::Block"));
  CHECK(apply_recompute(*none, {.if_none = tutti::surgery::IfNone::ignore}).empty());
  Warnings warnings;
  CHECK(apply_recompute(*none, {.if_none = tutti::surgery::IfNone::warn}).empty());
  CHECK_THAT(warnings.texts.back(), ContainsSubstring("Recompute: the model has no nn::Block"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
