#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/optim/adafactor.hpp>
#include <tutti/optim/groups.hpp>
#include <tutti/optim/lamb.hpp>
#include <tutti/optim/lars.hpp>
#include <tutti/optim/lookahead.hpp>
#include <tutti/optim/muon.hpp>
#include <tutti/train/sharded.hpp>
#include <tutti/trainer.hpp>

#include "dist/alone.hpp"
#include "dist/initialize.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "train/sharded_runs.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// Optimizers that look at whole tensors, of which ranks have rows.

using namespace tutti;
using dist::ShardStage;
using sharded_runs::difference;
using sharded_runs::Losses;
using sharded_runs::relative_difference;
using sharded_runs::stages;
using tutti_test::all_passed;
using tutti_test::alone;
using tutti_test::run_ranks;

namespace {

constexpr double tolerance = 1e-12;

// Of the four positions the third of three ranks has no row; a matrix of a unit is frozen.
auto gpt2() {
  auto model = sharded_runs::gpt2({.n_positions = 4});
  model->to(at::kDouble);
  model->named_parameters()["transformer.h.1.mlp.c_fc.weight"].set_requires_grad(false);
  return model.ptr();
}

// The gradient of the keys' biases is noise, which an eps of 1e-10 makes steps of.
const std::vector<std::pair<std::string, OptimizerSpec>>& optimizers() {
  static const std::vector<std::pair<std::string, OptimizerSpec>> all{
      {"LAMB", LAMB{.lr = 1e-2, .eps = 1e-4}},
      {"LARS", LARS{.lr = 1, .momentum = 0.9, .weight_decay = 0.01, .trust_coeff = 0.02}},
      {"Adafactor", Lookahead<Adafactor>{.optimizer = {.eps = {1e-4, 1e-3}}, .k = 3}},
      {"Muon", [](torch::nn::Module& net) {
         return optim::build(Muon{.lr = 1e-2, .adamw_eps = 1e-4},
                             optim::groups(net, {{"*wte*", {.lr_scale = 0.5, .use_muon = false}}}));
       }}};
  return all;
}

struct Made {
  std::vector<double> losses{};
  sharded_runs::Tensors saved{};  // on rank 0
};

/// Two epochs of two batches of twelve. Saves after each epoch, and the end beside that: a new run
/// that is sharded parts, others whole.
Made made(const OptimizerSpec& optimizer, const dist::ShardingOptions& sharding,
          const std::string& path, const std::string& load_path = "") {
  const int ranks = dist::world_size();
  TrainerOptions with =
      sharded_runs::options(sharded_runs::texts(12 / ranks, /*count=*/24, /*length=*/4), optimizer);
  with.sharding = sharding;
  with.load_path = load_path;
  with.save_folder = path + "_saved";
  with.save_filename = "ep{epoch}";
  if (sharding.stage != ShardStage::none && load_path.empty()) {
    with.checkpoint_layout = CheckpointLayout::sharded;
  }
  Trainer trainer(gpt2(), std::move(with), Losses{},
                  GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 0.5});
  trainer.fit();
  trainer.save_checkpoint(path);
  Made out{.losses = trainer.get<Losses>().all};
  if (trainer.state().rank == 0) {
    out.saved = sharded_runs::tensors_of(path);
  }
  return out;
}

void check_alike(const Made& made, const Made& whole) {
  CHECK(whole.losses.size() == 4);
  CHECK(difference(made.losses, whole.losses) < tolerance);
  CHECK(relative_difference(made.saved, whole.saved) < tolerance);
}

/// The same of a run that has gone on after the first epoch.
void check_rest(const Made& rest, const Made& whole, int rank = 0) {
  CHECK(difference(rest.losses, {whole.losses.at(2), whole.losses.at(3)}) < tolerance);
  if (rank == 0) {
    CHECK(relative_difference(rest.saved, whole.saved) < tolerance);
  }
}

std::string folder() {
  return std::string(std::getenv("TUTTI_TEST_FOLDER")) + "/";
}

const OptimizerSpec& adafactor() {
  return optimizers().at(2).second;
}

}  // namespace

TEST_CASE("rank body: optimizers of whole tensors", "[.rank]") {
  const int rank = tutti_test::initialize()->rank();
  std::vector<std::vector<Made>> all;
  for (const auto& [name, optimizer] : optimizers()) {
    all.emplace_back();
    for (const ShardStage stage : stages) {
      INFO(name << ", " << to_string(stage));
      const std::string path = folder() + name + std::string(to_string(stage));
      all.back().push_back(made(optimizer, {.stage = stage}, path));
      check_rest(made(optimizer, {.stage = stage}, path + "_rest", path + "_saved/ep1"),
                 all.back().back(), rank);
    }
  }
  if (rank == 0) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto& kind = optimizers()[i];
      const Made one = alone([&] { return made(kind.second, {}, folder() + kind.first); });
      for (const Made& sharded : all[i]) {
        INFO(kind.first << ", " << to_string(stages[&sharded - all[i].data()]));
        check_alike(sharded, one);
      }
    }
  }
}

TEST_CASE("rank body: copies whose ranks have rows of matrices", "[.rank]") {
  const int rank = tutti_test::initialize()->rank();
  std::vector<Made> all;
  for (const auto& [name, optimizer] : optimizers()) {
    all.push_back(
        made(optimizer, {.stage = ShardStage::parameters, .shard_degree = 2}, folder() + name));
  }
  CHECK(all.back().losses.size() == 4);
  if (rank == 0) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto& kind = optimizers()[i];
      INFO(kind.first);
      check_alike(all[i],
                  alone([&] { return made(kind.second, {}, folder() + kind.first + "_one"); }));
    }
  }
}

TEST_CASE("rank body: means of rows begin", "[.rank]") {
  tutti_test::initialize();
  const Made begun = made(adafactor(), {.stage = ShardStage::parameters}, folder() + "two");
  CHECK(begun.losses.size() == 4);
}

TEST_CASE("rank body: means of rows go on", "[.rank]") {
  const int rank = tutti_test::initialize()->rank();
  std::vector<Made> rest;
  for (const char* from : {"two", "one"}) {
    rest.push_back(made(adafactor(), {.stage = ShardStage::parameters},
                        folder() + "three_of_" + from, folder() + from + "_saved/ep1"));
  }
  CHECK(rest.back().losses.size() == 2);
  if (rank == 0) {
    alone([&] {
      const Made whole = made(adafactor(), {}, folder() + "again");
      check_rest(rest[0], whole);
      check_rest(rest[1], whole);
      check_rest(made(adafactor(), {}, folder() + "one_of_two", folder() + "two_saved/ep1"), whole);
      return 0;
    });
  }
}

TEST_CASE("optimizers of whole tensors make of rows what they make of tensors",
          "[train][sharded][nccl]") {
  const TemporaryFolder folder;
  ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
  CHECK(run_ranks("rank body: optimizers of whole tensors", 3, std::chrono::seconds(120)) ==
        all_passed);
}

TEST_CASE("optimizers of whole tensors train copies of a sharded model", "[train][sharded][nccl]") {
  const TemporaryFolder folder;
  ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
  CHECK(run_ranks("rank body: copies whose ranks have rows of matrices", 4,
                  std::chrono::seconds(120)) == all_passed);
}

TEST_CASE("an optimizer that keeps means of rows goes on with another number of ranks",
          "[train][sharded][nccl]") {
  const TemporaryFolder folder;
  ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
  made(adafactor(), {}, (folder / "one").string());
  CHECK(run_ranks("rank body: means of rows begin", 2, std::chrono::seconds(120)) == all_passed);
  CHECK(run_ranks("rank body: means of rows go on", 3, std::chrono::seconds(120)) == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
