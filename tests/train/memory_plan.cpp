#include <tutti/train/memory_plan.hpp>

#include <memory>
#include <string>
#include <vector>

#include <torch/optim/adam.h>

#include <tutti/dist/ddp.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/sharded.hpp>
#include <tutti/trainer.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr std::int64_t elements = 4 * 8 + 8 + 8 * 2 + 2;

Trainer<> trainer(SGD optimizer) {
  return Trainer<>(tiny::net(), {.train = tiny::batches(2),
                                 .max_duration = "1ba",
                                 .optimizer = optimizer,
                                 .progress_bar = false});
}

}  // namespace

TEST_CASE("a trainer's plan has its optimizer's state as soon as there is one",
          "[train][memory_plan]") {
  auto sgd = trainer(SGD{.lr = 0.1, .momentum = 0.9});
  CHECK(memory_plan(sgd)[0].optimizer == 8 * elements);  // Adam's, as the default says
  CHECK(memory_plan(sgd, 1, {.optimizer_bytes = 4})[0].optimizer == 4 * elements);
  sgd.fit();
  const auto plans = memory_plan(sgd, 8);
  CHECK(plans[0].optimizer == 4 * elements);
  CHECK(plans[0].parameters == 4 * elements);
  CHECK(plans[3].optimizer == 4 * plans[3].shard);
  REQUIRE(plans.size() == 4);
  CHECK(plans[1].stage == dist::ShardStage::optimizer);
  CHECK(plans[3].stage == dist::ShardStage::parameters);
  CHECK(plans[3].world_size == 8);

  const auto net = tiny::net();
  Trainer<> adam(net, {.train = tiny::batches(2),
                       .max_duration = "1ba",
                       .optimizer = std::make_shared<torch::optim::Adam>(net->parameters()),
                       .progress_bar = false});
  adam.fit();
  CHECK(memory_plan(adam)[0].optimizer == 8 * elements);
}

TEST_CASE("rank body: a plan of a sharded model says where it can be made", "[.rank]") {
  const auto of_stage = [](dist::ShardStage stage) {
    return Trainer<>(tiny::net(), {.train = tiny::batches(2),
                                   .max_duration = "1ba",
                                   .optimizer = SGD{.lr = 0.1},
                                   .device = "cpu",
                                   .progress_bar = false,
                                   .sharding = {.stage = stage}});
  };
  const auto sharded = of_stage(dist::ShardStage::parameters);
  CHECK_THROWS_WITH(memory_plan(sharded, 8),
                    ContainsSubstring("memory_plan: the model is sharded, so that ") &&
                        ContainsSubstring("plan in one process, or with sharding.stage = "
                                          "ShardStage::none"));
  CHECK(memory_plan(of_stage(dist::ShardStage::none), 8)[3].stage == dist::ShardStage::parameters);
}

TEST_CASE("a plan is made in one process, or without sharding", "[train][memory_plan]") {
  CHECK(tutti_test::run_ranks("rank body: a plan of a sharded model says where it can be made") ==
        tutti_test::all_passed);
  Trainer<> one(tiny::net(), {.train = tiny::batches(2),
                              .max_duration = "1ba",
                              .optimizer = SGD{.lr = 0.1},
                              .progress_bar = false,
                              .sharding = {.stage = dist::ShardStage::parameters}});
  CHECK(memory_plan(one, 8)[0].parameters == 4 * elements);
}

TEST_CASE("a trainer's plan refuses what dist::memory_plan refuses", "[train][memory_plan]") {
  const auto sgd = trainer(SGD{.lr = 0.1});
  CHECK_THROWS_WITH(memory_plan(sgd, 0), ContainsSubstring("rank 0 of 0 ranks"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
