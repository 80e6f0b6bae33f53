#include <tutti/algorithms/factorize.hpp>
#include <tutti/algorithms/gyro_dropout.hpp>
#include <tutti/algorithms/layer_freezing.hpp>

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include <torch/nn/modules/linear.h>

#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/trainer.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using tutti_test::all_passed;
using tutti_test::run_ranks;

namespace {

struct Deep : torch::nn::Module {
  explicit Deep(double drop) {
    first = register_module("first", torch::nn::Linear(4, 6));
    dropout = register_module("dropout", nn::Dropout(drop));
    second = register_module("second", torch::nn::Linear(6, 5));
    last = register_module("last", torch::nn::Linear(5, 2));
  }
  Outputs forward(const Batch& batch) {
    return last(second(dropout(first(batch.inputs()).tanh())).tanh());
  }
  Loss loss(const Outputs& outputs, const Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
  nn::Dropout dropout{nullptr};
};

std::shared_ptr<Deep> deep(double drop = 0) {
  at::manual_seed(1);
  return std::make_shared<Deep>(drop);
}

TrainerOptions options(std::int64_t batch_size, std::int64_t microbatch = 0) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({24, 4});
  const at::Tensor y = at::randn({24, 2});
  return {.train = TensorLoader{x, y, {.batch_size = batch_size}},
          .max_duration = "4ep",
          .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
          .device_train_microbatch_size = microbatch,
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

at::Tensor train_freezing(const TrainerOptions& with) {
  const auto model = deep();
  Trainer trainer{model, with, LayerFreezing{.freeze_start = 0.2}};
  trainer.fit();
  CHECK(trainer.get<LayerFreezing>().run.depth == 2);
  const at::Tensor weights = tiny::flat(*model);
  const auto ranks = trainer.state().communicator->all_gather(weights);
  CHECK(ranks.front().equal(ranks.back()));
  return weights;
}

struct Wide : torch::nn::Module {
  Wide() {
    first = register_module("first", nn::Linear(4, 8));
    second = register_module("second", nn::Linear(8, 2));
  }
  Outputs forward(const Batch& batch) { return second(first(batch.inputs()).tanh()); }
  Loss loss(const Outputs& outputs, const Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  nn::Linear first{nullptr}, second{nullptr};
};

// The weights, and the rank that the first layer ends with.
std::pair<at::Tensor, std::int64_t> train_factored(const TrainerOptions& with) {
  at::manual_seed(1);
  const auto model = std::make_shared<Wide>();
  Trainer trainer{model, with,
                  Factorize{.min_features = 4,
                            .latent_features = 2,
                            .refactorize_interval = "1ep",
                            .refactorize_energy = 0.6}};
  trainer.fit();
  const at::Tensor weights = tiny::flat(*model);
  const auto ranks = trainer.state().communicator->all_gather(weights);
  CHECK(ranks.front().equal(ranks.back()));
  return {weights, trainer.get<Factorize>().run.ranks->at(0)};
}

}  // namespace

TEST_CASE("rank body: layers freeze", "[.rank]") {
  const at::Tensor two = train_freezing(options(6));
  const at::Tensor parts = train_freezing(options(6, 2));
  dist::shutdown();
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    unsetenv(name);
  }
  const at::Tensor one = train_freezing(options(12));
  CHECK(two.allclose(one, 1e-4, 1e-5));
  CHECK(parts.allclose(one, 1e-4, 1e-5));
}

TEST_CASE("rank body: masks", "[.rank]") {
  const auto model = deep(0.3);
  Trainer trainer{model, options(6), GyroDropout{.sigma = 4, .tau = 2}};
  trainer.fit();
  const auto& state = trainer.get<GyroDropout>().run.layers->at("dropout")->state();
  CHECK(state.calls == 8);
  const auto masks = trainer.state().communicator->all_gather(state.masks);
  CHECK(masks.front().equal(masks.back()));
  const auto picks = trainer.state().communicator->all_gather(at::tensor(state.picks, at::kLong));
  CHECK(picks.front().equal(picks.back()));
  const auto weights = trainer.state().communicator->all_gather(tiny::flat(*model));
  CHECK(weights.front().equal(weights.back()));
}

TEST_CASE("rank body: ranks are lowered", "[.rank]") {
  const auto [two, rank] = train_factored(options(6));
  CHECK(rank == 1);
  dist::shutdown();
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    unsetenv(name);
  }
  CHECK(two.allclose(train_factored(options(12)).first, 1e-4, 1e-5));
}

TEST_CASE("two ranks freeze layers as one process does", "[dist][layer_freezing]") {
  CHECK(run_ranks("rank body: layers freeze") == all_passed);
}

TEST_CASE("two ranks share the masks of GyroDropout", "[dist][gyro_dropout]") {
  CHECK(run_ranks("rank body: masks") == all_passed);
}

TEST_CASE("two ranks lower the ranks of Factorize in training as one process does",
          "[dist][factorize]") {
  CHECK(run_ranks("rank body: ranks are lowered") == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
