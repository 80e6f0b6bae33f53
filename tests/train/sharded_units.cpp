#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/layer_freezing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/nn/deferred_init.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/train/sharded.hpp>
#include <tutti/trainer.hpp>

#include "dist/initialize.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/warnings.hpp"
#include "train/sharded_runs.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using dist::ShardStage;
using sharded_runs::difference;
using sharded_runs::Losses;
using tutti_test::all_passed;
using tutti_test::run_ranks;

namespace {

/// LibTorch's own layers, of which none is a unit.
torch::nn::Sequential network() {
  at::manual_seed(1);
  torch::nn::Sequential net;
  for (int i = 0; i < 4; ++i) {
    net->push_back(torch::nn::Linear(i == 0 ? 6 : 16, 16));
    net->push_back(torch::nn::Functional([](const at::Tensor& x) { return x.tanh(); }));
  }
  net->push_back(torch::nn::Linear(16, 3));
  return net;
}

TrainerOptions options(std::int64_t batch_size, bool shards) {
  at::manual_seed(2);
  TrainerOptions out =
      sharded_runs::options(TensorLoader{at::randn({24, 6}),
                                         at::randint(3, {24}, at::kLong),
                                         {.batch_size = batch_size, .shuffle = false}},
                            AdamW{.lr = 1e-2});
  if (shards) {
    out.sharding = {.stage = ShardStage::parameters, .units = {"*"}};
  }
  return out;
}

template <class... Ps>
std::vector<double> losses(TrainerOptions with, const std::string& save, bool deferred,
                           Ps... policies) {
  auto net = deferred ? nn::deferred_init(&network) : network();
  Trainer<Losses, Ps...> trainer(Classifier{std::move(net), {.num_classes = 3}}, std::move(with),
                                 Losses{}, std::move(policies)...);
  trainer.fit();
  if (!save.empty()) {
    trainer.save_checkpoint(save);
  }
  return trainer.template get<Losses>().all;
}

/// Sharded as not.
template <class... Ps>
void compare(std::int64_t microbatch, Ps... policies) {
  std::vector<std::vector<double>> both;
  for (const bool shards : {false, true}) {
    TrainerOptions with = options(12 / tutti_test::initialize()->size(), shards);
    with.device_train_microbatch_size = microbatch;
    with.eval = {{"test", options(3, false).train}};
    with.eval_interval = "1ba";
    both.push_back(losses(std::move(with), "", false, policies...));
  }
  CHECK(both[0].size() == 4);
  CHECK(difference(both[0], both[1]) < 1e-6);
}

}  // namespace

TEST_CASE("rank body: networks without units train as replicated ones", "[.rank]") {
  compare(0);
  compare(2, GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 0.2},
          EMA{.half_life = "2ba", .update_interval = "1ba"});
  compare(0, LayerFreezing{.freeze_start = 0.2, .freeze_level = 0.6});
  compare(0, MixUp{.alpha = 0.2});
}

TEST_CASE("rank body: networks without units are saved and go on", "[.rank]") {
  const std::string folder = std::getenv("TUTTI_TEST_FOLDER");
  const auto group = tutti_test::initialize();
  const std::int64_t here = 12 / group->size();
  const auto whole = losses(options(here, true), "", false);
  CHECK(losses(options(here, true), "", true) == whole);  // also when each rank draws its rows
  for (const auto layout : {CheckpointLayout::whole, CheckpointLayout::sharded}) {
    TrainerOptions half = options(here, true);
    half.checkpoint_layout = layout;
    half.max_duration = "1ep";
    const std::string saved = folder + (layout == CheckpointLayout::whole ? "/whole" : "/parts");
    std::vector<double> both = losses(half, saved, false);
    half.load_path = saved;
    half.max_duration = "2ep";
    const auto second = losses(half, "", true);
    both.insert(both.end(), second.begin(), second.end());
    CHECK(both == whole);
  }
  // Predictions, and a step of another type.
  TrainerOptions with = options(here, true);
  with.precision = Precision::amp_bf16;
  with.sharding.param_dtype = at::kBFloat16;
  with.sharding.reduce_dtype = at::kFloat;
  Trainer<Losses> trainer(Classifier{network(), {.num_classes = 3}}, std::move(with), Losses{});
  trainer.fit();
  CHECK(difference(trainer.get<Losses>().all, whole) < 2e-2);
  const auto predicted = trainer.predict(options(here, false).train);
  CHECK(predicted.size() == 4);
}

TEST_CASE("rank body: a frozen layer that stays whole", "[.rank]") {
  const std::string folder = std::getenv("TUTTI_TEST_FOLDER");
  const std::int64_t here = 12 / tutti_test::initialize()->size();
  const auto run = [](TrainerOptions with, const std::string& save) {
    auto net = network();
    for (const at::Tensor& one : net->children().front()->parameters()) {
      one.set_requires_grad(false);
    }
    Trainer<Losses, EMA> trainer(Classifier{std::move(net), {.num_classes = 3}}, std::move(with),
                                 Losses{}, EMA{.half_life = "2ba", .update_interval = "1ba"});
    trainer.fit();
    if (!save.empty()) {
      trainer.save_checkpoint(save);
    }
    return trainer.get<Losses>().all;
  };
  TrainerOptions with = options(here, true);
  with.sharding.ignored = {"*0"};
  const auto whole = run(with, "");
  CHECK(difference(whole, run(options(here, false), "")) < 1e-6);
  for (const auto layout : {CheckpointLayout::whole, CheckpointLayout::sharded}) {
    TrainerOptions half = with;
    half.checkpoint_layout = layout;
    half.max_duration = "1ep";
    const std::string saved = folder + (layout == CheckpointLayout::whole ? "/one" : "/rest");
    std::vector<double> both = run(half, saved);
    half.load_path = saved;
    half.max_duration = "2ep";
    const auto second = run(half, "");
    both.insert(both.end(), second.begin(), second.end());
    CHECK(both == whole);
    half.sharding.ignored.clear();  // what one run leaves alone, another shards
    const auto sharded = run(half, "");
    CHECK(sharded == second);
  }
}

TEST_CASE("rank body: a sharded network without units and names", "[.rank]") {
  const Warnings warnings;
  TrainerOptions with = options(6, true);
  with.sharding.units.clear();
  losses(std::move(with), "", false);
  const auto told =
      std::count_if(warnings.texts.begin(), warnings.texts.end(), [](const std::string& text) {
        return text.find("the model has no units, so that every rank has all parameters") !=
               std::string::npos;
      });
  CHECK(told == (dist::here().rank == 0 ? 1 : 0));
}

TEST_CASE("a network without units is sharded by the names of its modules", "[train][sharded]") {
  const TemporaryFolder folder;
  ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
  for (const char* body : {"rank body: networks without units train as replicated ones",
                           "rank body: networks without units are saved and go on",
                           "rank body: a frozen layer that stays whole",
                           "rank body: a sharded network without units and names"}) {
    CHECK(run_ranks(body, 2, std::chrono::seconds(120)) == all_passed);
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
