#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/algorithms/alibi.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/lora.hpp>
#include <tutti/algorithms/swa.hpp>
#include <tutti/callbacks/load_checkpoint.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/nn/deferred_init.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/train/sharded.hpp>
#include <tutti/trainer.hpp>

#include "dist/alone.hpp"
#include "dist/initialize.hpp"
#include "dist/ranks.hpp"
#include "support/bytes_read.hpp"
#include "support/catch.hpp"
#include "support/counted_memory.hpp"
#include "support/temporary_folder.hpp"
#include "train/sharded_runs.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using dist::ShardStage;
using sharded_runs::Gpt2Size;
using sharded_runs::Losses;
using tutti_test::all_passed;
using tutti_test::alone;
using tutti_test::CountedMemory;
using tutti_test::run_ranks;

namespace {

std::shared_ptr<models::GPT2LMHeadModelImpl> gpt2(bool deferred, const Gpt2Size& size = {}) {
  return deferred ? nn::deferred_init([&] { return sharded_runs::gpt2(size).ptr(); })
                  : sharded_runs::gpt2(size).ptr();
}

TrainerOptions options(std::int64_t batch_size, ShardStage stage) {
  TrainerOptions out = sharded_runs::options(sharded_runs::texts(batch_size), AdamW{.lr = 1e-2});
  out.sharding.stage = stage;
  return out;
}

template <class... Ps>
std::vector<double> losses(bool deferred, const TrainerOptions& with, const std::string& save,
                           Ps... policies) {
  Trainer<Losses, Ps...> trainer(gpt2(deferred), with, Losses{}, std::move(policies)...);
  trainer.fit();
  if (!save.empty()) {
    trainer.save_checkpoint(save);
  }
  return trainer.template get<Losses>().all;
}

}  // namespace

TEST_CASE("rank body: models without memory train as those with", "[.rank]") {
  const auto group = tutti_test::initialize();
  const std::int64_t here = 12 / group->size();
  for (const ShardStage stage : {ShardStage::none, ShardStage::optimizer, ShardStage::parameters}) {
    INFO(to_string(stage));
    TrainerOptions with = options(here, stage);
    const std::vector<double> expected = losses(false, with, "");
    CHECK(expected.size() == 4);
    CHECK(losses(true, with, "") == expected);
    with.precision = Precision::bf16_true;
    CHECK(losses(true, with, "") == losses(false, with, ""));
  }
  TrainerOptions with = options(here, ShardStage::parameters);
  with.sharding.param_dtype = at::kBFloat16;
  with.sharding.reduce_dtype = at::kFloat;
  CHECK(losses(true, with, "") == losses(false, with, ""));
  const EMA ema{.half_life = "2ba", .update_interval = "1ba"};
  CHECK(losses(true, with, "", ALiBi{.max_sequence_length = 8}, ema) ==
        losses(false, with, "", ALiBi{.max_sequence_length = 8}, ema));
  const SWA mean{.swa_start = "0ep", .swa_end = "2ep", .update_interval = "1ba"};
  const LoRA adapters{.r = 2, .target_modules = {"c_attn", "c_proj"}};
  CHECK(losses(true, with, "", adapters, mean) == losses(false, with, "", adapters, mean));
  CHECK(alone([&] { return losses(true, options(12, ShardStage::parameters), ""); }) ==
        alone([&] { return losses(false, options(12, ShardStage::none), ""); }));
}

TEST_CASE("rank body: ranks draw what rank 0 draws", "[.rank]") {
  const auto group = tutti_test::initialize();
  const TrainerOptions with = options(6, ShardStage::parameters);
  const auto weights = [&](bool deferred, std::uint64_t seed) {
    Trainer<> trainer(gpt2(deferred, {.seed = seed}), with);
    const auto whole = trainer.state().sharding->summon();
    std::vector<at::Tensor> out;
    for (const at::Tensor& one : trainer.state().model->parameters()) {
      out.push_back(one.detach().clone());
    }
    return out;
  };
  const auto expected = weights(false, 1);
  const auto drawn = weights(true, static_cast<std::uint64_t>(group->rank()) + 1);
  REQUIRE(drawn.size() == expected.size());
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    CHECK(drawn[i].equal(expected[i]));
  }
}

TEST_CASE("rank body: a model without memory goes on from a checkpoint", "[.rank]") {
  const std::string folder = std::getenv("TUTTI_TEST_FOLDER");
  const auto group = tutti_test::initialize();
  const EMA ema{.half_life = "2ba", .update_interval = "1ba"};
  for (const auto layout : {CheckpointLayout::whole, CheckpointLayout::sharded}) {
    TrainerOptions with = options(12 / group->size(), ShardStage::parameters);
    with.checkpoint_layout = layout;
    with.max_duration = "1ep";
    const std::string name = folder + (layout == CheckpointLayout::whole ? "/whole" : "/sharded");
    losses(true, with, name, ema);
    with.load_path = name;
    with.max_duration = "2ep";
    const std::vector<double> expected = losses(false, with, "", ema);
    CHECK(expected.size() == 2);
    CHECK(losses(true, with, "", ema) == expected);
    with.load_weights_only = true;
    with.max_duration = "1ep";
    CHECK(losses(true, with, "", ema) == losses(false, with, "", ema));
    with.load_path.clear();
    with.load_weights_only = false;
    const LoadCheckpoint start{.load_path = name};
    CHECK(losses(true, with, "", start) == losses(false, with, "", start));
  }
}

TEST_CASE("rank body: no rank has the whole model", "[.rank]") {
  const std::string folder = std::getenv("TUTTI_TEST_FOLDER");
  const auto group = tutti_test::initialize();
  const auto build = [] {
    models::GPT2Options size{
        .vocab_size = 37, .n_positions = 8, .n_embd = 128, .n_layer = 6, .n_head = 2};
    return models::GPT2LMHeadModel(size).ptr();
  };
  TrainerOptions with = options(2, ShardStage::parameters);
  with.checkpoint_layout = CheckpointLayout::sharded;
  const CountedMemory counted;
  const auto most = [&](bool deferred) {
    const std::int64_t before = CountedMemory::now;
    CountedMemory::most = before;
    Trainer<> trainer(deferred ? nn::deferred_init(build) : build(), with);
    return CountedMemory::most - before;
  };
  std::int64_t bytes = 0;
  std::int64_t block = 0;
  {
    Trainer<> trainer(nn::deferred_init(build), with);
    for (const dist::ShardedParameter& one : trainer.state().sharding->parameters()) {
      bytes += static_cast<std::int64_t>(one.whole.numel() * sizeof(float));
      block += one.name.find("h.0.") == std::string::npos
                   ? 0
                   : static_cast<std::int64_t>(one.whole.numel() * sizeof(float));
    }
    trainer.save_checkpoint(folder + "/checkpoint");
  }
  group->barrier();
  CHECK(most(false) > bytes);
  // The parts, a block, and the largest tensor, 4 of the 12 squares of a block; and batches.
  const std::int64_t allowed = bytes / group->size() + block + block / 3 + 200'000;
  CHECK(allowed < bytes);
  CHECK(most(true) < allowed);

  with.load_path = folder + "/checkpoint";
  with.load_weights_only = true;
  const std::int64_t read = bytes_read();
  CHECK(most(true) < allowed);
  const std::int64_t here = bytes_read() - read;
  if (read >= 0) {  // else the system does not say
    CHECK(here < bytes);
  }
}

TEST_CASE("a model without memory is sharded as one with", "[train][sharded]") {
  for (const int ranks : {2, 3}) {
    CHECK(run_ranks("rank body: models without memory train as those with", ranks,
                    std::chrono::seconds(120)) == all_passed);
  }
  CHECK(run_ranks("rank body: ranks draw what rank 0 draws", 2, std::chrono::seconds(120)) ==
        all_passed);
}

TEST_CASE("a model without memory is loaded in parts", "[train][sharded]") {
  const TemporaryFolder folder;
  ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
  for (const char* body : {"rank body: a model without memory goes on from a checkpoint",
                           "rank body: no rank has the whole model"}) {
    CHECK(run_ranks(body, 3, std::chrono::seconds(120)) == all_passed);
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
