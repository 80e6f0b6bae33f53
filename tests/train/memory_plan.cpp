#include <tutti/train/memory_plan.hpp>

#include <memory>
#include <string>
#include <vector>

#include <torch/optim/adam.h>

#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

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

TEST_CASE("a trainer's plan refuses what dist::memory_plan refuses", "[train][memory_plan]") {
  const auto sgd = trainer(SGD{.lr = 0.1});
  CHECK_THROWS_WITH(memory_plan(sgd, 0), ContainsSubstring("rank 0 of 0 ranks"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
