#include <tutti/train/sharded_parts.hpp>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/checkpoint/convert.hpp>
#include <tutti/checkpoint/latest.hpp>
#include <tutti/checkpoint/sharded_snapshot.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/train/sharded.hpp>
#include <tutti/trainer.hpp>

#include "dist/alone.hpp"
#include "dist/initialize.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "train/sharded_runs.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using dist::ShardStage;
using sharded_runs::stages;
using sharded_runs::tensors_of;
using tutti_test::all_passed;
using tutti_test::run_ranks;
namespace fs = std::filesystem;
using Names = std::vector<std::string>;

namespace {

auto gpt2(std::uint64_t seed = 1, std::int64_t vocab_size = 37) {
  return sharded_runs::gpt2({.seed = seed, .vocab_size = vocab_size}).ptr();
}

/// Six batches of 12 texts, three an epoch, for so many ranks.
TrainerOptions options(int ranks, ShardStage stage, const std::string& folder = {}) {
  TrainerOptions out = sharded_runs::options(
      sharded_runs::texts(12 / ranks, /*count=*/36, /*length=*/8, /*shuffle=*/true),
      AdamW{.lr = 1e-2});
  out.save_folder = folder;
  out.save_filename = "ba{batch}";
  out.save_interval = "2ba";
  out.checkpoint_layout = CheckpointLayout::sharded;
  out.sharding = {.stage = stage, .shard_degree = ranks == 4 ? 2 : 0};
  return out;
}

/// The loss of every batch. Rank 1 is killed so many milliseconds after the fourth, behind which a
/// checkpoint is written; -1: it is not.
struct Losses final {
  int killed_after = -1;
  std::vector<double> all{};
  void apply(BatchEnd, State& state) {
    all.push_back(state.total_loss.at("total").item<double>());
    if (killed_after >= 0 && state.rank == 1 && all.size() == 4) {
      std::thread([wait = std::chrono::milliseconds(killed_after)] {
        std::this_thread::sleep_for(wait);
        std::raise(SIGKILL);
      }).detach();
    }
  }
};

void check_equal(const sharded_runs::Tensors& one, const sharded_runs::Tensors& other) {
  sharded_runs::check_equal(one, other, 21);
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

void write_losses(const std::string& path, const std::vector<double>& losses) {
  std::ofstream file(path);
  file.precision(17);
  for (const double loss : losses) {
    file << loss << '\n';
  }
}

std::vector<double> read_losses(const std::string& path) {
  std::ifstream file(path);
  std::vector<double> out;
  for (double loss = 0; file >> loss;) {
    out.push_back(loss);
  }
  return out;
}

std::string refused(TrainerOptions with, std::int64_t vocab_size = 37) {
  try {
    Trainer trainer(gpt2(1, vocab_size), std::move(with), Losses{});
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

Names names_in(const fs::path& folder) {
  return fs::exists(folder) ? sorted_names(folder) : Names{};
}

}  // namespace

TEST_CASE("rank body: a run that is not interrupted", "[.rank]") {
  const std::string folder = variable("TUTTI_TEST_FOLDER");
  const auto group = tutti_test::initialize();
  for (const ShardStage stage : stages) {
    const std::string name = folder + "/" + std::string(to_string(stage));
    Trainer trainer(gpt2(), options(group->size(), stage, name), Losses{}, EMA{.half_life = "2ba"});
    trainer.fit();
    const auto& losses = trainer.get<Losses>().all;
    REQUIRE(losses.size() == 6);
    if (group->rank() == 0) {
      write_losses(name + "/losses", losses);
      CHECK(names_in(name + "/ba2") == Names{"manifest.json", "model", "optim", "ranks", "state"});
      CHECK(names_in(name + "/ba2/model").size() == 2);
      CHECK(names_in(name + "/ba2/optim").size() == 2);
      CHECK(names_in(name + "/ba2/ranks").size() == 2);
      CHECK(names_in(name + "/ba2/state").size() == (stage == ShardStage::parameters ? 2U : 1U));
      const auto model = fs::file_size(name + "/ba2/model/" + names_in(name + "/ba2/model")[0]);
      const auto other = fs::file_size(name + "/ba2/model/" + names_in(name + "/ba2/model")[1]);
      CHECK(std::abs(static_cast<double>(model) - static_cast<double>(other)) <
            0.1 * static_cast<double>(model));
    }
  }
  group->barrier();
}

TEST_CASE("rank body: goes on with another number of ranks", "[.rank]") {
  const std::string folder = variable("TUTTI_TEST_FOLDER");
  const std::string from = variable("TUTTI_TEST_FROM");
  const auto group = tutti_test::initialize();
  const int ranks = group->size();
  for (const ShardStage stage : stages) {
    INFO(to_string(stage));
    const std::string name = folder + "/" + std::string(to_string(stage));
    TrainerOptions with = options(ranks, stage);
    with.load_path = name + "/" + from;
    Trainer trainer(gpt2(), with, Losses{}, EMA{.half_life = "2ba"});
    CHECK(trainer.state().timestamp.batch == 2);
    const std::string again = name + "/of" + std::to_string(ranks);
    trainer.save_checkpoint(again);
    if (group->rank() == 0) {
      check_equal(tensors_of(again), tensors_of(name + "/ba2"));
      CHECK(checkpoint::ShardedCheckpoint(again).ranks() == ranks);
    }
    trainer.fit();
    const auto expected = read_losses(name + "/losses");
    const auto& losses = trainer.get<Losses>().all;
    REQUIRE(losses.size() == 4);
    for (std::size_t i = 0; i < losses.size(); ++i) {
      CHECK(std::abs(losses[i] - expected.at(i + 2)) < 1e-6);
    }
  }
  group->barrier();
}

TEST_CASE("rank body: whole and sharded checkpoints", "[.rank]") {
  const std::string folder = variable("TUTTI_TEST_FOLDER");
  const auto group = tutti_test::initialize();
  for (const ShardStage stage : stages) {
    INFO(to_string(stage));
    const std::string name = folder + "/" + std::string(to_string(stage));
    TrainerOptions with = options(2, stage);
    with.load_path = name + "/ba2";
    with.checkpoint_layout = CheckpointLayout::whole;
    {
      Trainer trainer(gpt2(2), with, Losses{}, EMA{.half_life = "2ba"});
      trainer.save_checkpoint(name + "/whole");
    }
    with.load_path = name + "/whole";
    with.checkpoint_layout = CheckpointLayout::sharded;
    {
      Trainer trainer(gpt2(2), with, Losses{}, EMA{.half_life = "2ba"});
      trainer.save_checkpoint(name + "/sharded");
      trainer.save_checkpoint(name + "/weights", /*weights_only=*/true);
    }
    with.load_path = name + "/weights";
    with.load_weights_only = true;
    Trainer trainer(gpt2(2), with, Losses{}, EMA{.half_life = "2ba"});
    CHECK(trainer.state().timestamp.batch == 0);
    trainer.save_checkpoint(name + "/loaded", /*weights_only=*/true);
    if (group->rank() == 0) {
      check_equal(tensors_of(name + "/whole"), tensors_of(name + "/ba2"));
      check_equal(tensors_of(name + "/sharded"), tensors_of(name + "/ba2"));
      check_equal(tensors_of(name + "/loaded", false), tensors_of(name + "/ba2", false));
      CHECK(names_in(name + "/weights") == Names{"manifest.json", "model", "ranks"});
      CHECK(names_in(name + "/weights/ranks").empty());
      checkpoint::consolidate_checkpoint(name + "/ba2", name + "/put_together");
      checkpoint::shard_checkpoint(name + "/put_together", name + "/cut", 3);
      CHECK_FALSE(checkpoint::is_sharded(name + "/put_together"));
      check_equal(tensors_of(name + "/put_together"), tensors_of(name + "/ba2"));
      check_equal(tensors_of(name + "/cut"), tensors_of(name + "/ba2"));
    }
    group->barrier();
    with.load_weights_only = false;
    with.load_path = name + "/cut";
    Trainer again(gpt2(2), with, Losses{}, EMA{.half_life = "2ba"});
    again.fit();
    CHECK(std::abs(again.get<Losses>().all.back() - read_losses(name + "/losses").back()) < 1e-6);
  }
  TrainerOptions without = options(2, ShardStage::parameters);
  without.load_path = folder + "/parameters/ba2";
  without.load_ignore_keys = {"state/optimizers", "rng", "state/model/transformer.wpe.*"};
  Trainer trainer(gpt2(2), without, Losses{}, EMA{.half_life = "2ba"});
  const auto& report = trainer.load_report();
  CHECK(report.ignored == Names{"state/model/transformer.wpe.weight", "state/optimizers", "rng"});
  CHECK(trainer.state().timestamp.batch == 2);
  group->barrier();
}

/// Whole averages, of which every rank has rows.
template <class... Ps>
std::vector<at::Tensor> averages_of(Trainer<Ps...>& trainer) {
  const dist::Sharding& sharding = *trainer.state().sharding;
  std::vector<at::Tensor> out;
  for (const auto& item : trainer.template get<EMA>().averages()) {
    for (const dist::ShardedParameter& one : sharding.parameters()) {
      if (one.name == item.first) {
        out.push_back(sharding.whole_of(one, item.second).cpu());
      }
    }
  }
  CHECK(out.size() == 28);
  return out;
}

TEST_CASE("rank body: sharded checkpoints of a folder", "[.rank]") {
  const std::string folder = variable("TUTTI_TEST_FOLDER");
  const auto group = tutti_test::initialize();
  for (const bool async : {false, true}) {
    const std::string name = folder + (async ? "/async" : "/sync");
    const auto with = [&](ShardStage stage, Time length) {
      TrainerOptions out = options(2, stage, name);
      out.max_duration = length;
      out.save_interval = "1ba";
      out.save_num_checkpoints_to_keep = 2;
      out.save_async = async;
      out.run_name = "calm-motet";
      out.autoresume = true;
      return out;
    };
    std::vector<at::Tensor> averages;
    {
      Trainer trainer(gpt2(), with(ShardStage::parameters, "4ba"), Losses{},
                      EMA{.half_life = "2ba"});
      trainer.fit();
      CHECK(trainer.last_checkpoint() == name + "/ba4");
      averages = averages_of(trainer);
    }
    group->barrier();  // rank 0 has left the folder
    CHECK(names_in(name) == Names{"ba3", "ba4", "latest"});
    CHECK(fs::read_symlink(name + "/latest") == "ba4");
    {
      const checkpoint::ShardedCheckpoint saved(name + "/latest");
      const auto& model = saved.folder("model");
      std::size_t i = 0;
      const auto like = gpt2();
      for (const auto& item : like->named_parameters()) {
        CHECK(model.read(item.key()).equal(averages.at(i++)));  // the model is the averages
      }
    }
    Trainer trainer(gpt2(2), with(ShardStage::parameters, "6ba"), Losses{},
                    EMA{.half_life = "2ba"});
    CHECK(trainer.state().timestamp.batch == 4);
    std::size_t i = 0;
    for (const at::Tensor& average : averages_of(trainer)) {
      CHECK(average.equal(averages.at(i++)));
    }
    trainer.fit();
    group->barrier();  // rank 0 has left the folder
    CHECK(names_in(name) == Names{"ba5", "ba6", "latest"});
    group->barrier();
  }
  check_equal(tensors_of(folder + "/sync/ba6"), tensors_of(folder + "/async/ba6"));
}

TEST_CASE("rank body: damaged sharded checkpoints", "[.rank]") {
  const std::string folder = variable("TUTTI_TEST_FOLDER");
  const auto group = tutti_test::initialize();
  const std::string good = folder + "/parameters/ba2";
  const auto after = [&](const std::string& name, auto damage) {
    const std::string path = folder + "/" + name;
    if (group->rank() == 0) {
      fs::copy(good, path, fs::copy_options::recursive);
      damage(fs::path(path));
    }
    group->barrier();
    TrainerOptions with = options(2, ShardStage::parameters);
    with.load_path = path;
    return refused(with);
  };
  const std::string second = "optim/shard-00002-model-00001-of-00001.safetensors";
  CHECK_THAT(
      after("lost", [&](const fs::path& path) { fs::remove(path / second); }),
      ContainsSubstring(second) && ContainsSubstring("is missing, which the manifest lists"));
  CHECK_THAT(after("short",
                   [&](const fs::path& path) {
                     fs::resize_file(path / second, fs::file_size(path / second) - 5);
                   }),
             ContainsSubstring(second) && ContainsSubstring("it is truncated"));
  CHECK_THAT(after("changed",
                   [&](const fs::path& path) {
                     std::fstream file(path / second, std::ios::in | std::ios::out);
                     file.seekp(-3, std::ios::end);
                     file.put('\x55').put('\x44');
                   }),
             ContainsSubstring(second) && ContainsSubstring("it was damaged or changed"));
  CHECK_THAT(after("open", [&](const fs::path& path) { fs::remove(path / "manifest.json"); }),
             ContainsSubstring("has no manifest.json"));
  CHECK_THAT(after("model",
                   [&](const fs::path& path) {
                     fs::remove_all(path);
                     auto snapshot = checkpoint::read_checkpoint(good);
                     snapshot.model.erase("transformer.wpe.weight");
                     checkpoint::write_snapshot(folder + "/other", snapshot);
                     checkpoint::shard_checkpoint(folder + "/other", path, 2);
                   }),
             ContainsSubstring("transformer.wpe.weight") && ContainsSubstring("missing"));

  TrainerOptions differs = options(2, ShardStage::parameters, folder + "/differs");
  differs.checkpoint_layout =
      group->rank() == 0 ? CheckpointLayout::whole : CheckpointLayout::sharded;
  CHECK_THAT(refused(differs),
             ContainsSubstring("rank 1 has [checkpoint_layout = sharded] where rank 0 has"));
  TrainerOptions other = options(2, ShardStage::parameters);
  other.load_path = folder + (group->rank() == 0 ? "/parameters/ba2" : "/parameters/ba4");
  CHECK_THAT(refused(other), ContainsSubstring("the ranks have loaded different checkpoints"));
  other.load_path = folder + (group->rank() == 0 ? "/other" : "/parameters/ba2");
  CHECK_THAT(refused(other), ContainsSubstring("rank 1 has found a sharded one of"));
  TrainerOptions some = options(2, ShardStage::parameters);
  some.load_path = good;
  some.load_strict_model_weights = false;
  some.load_weights_only = true;
  CHECK_THAT(refused(some, group->rank() == 0 ? 37 : 38),
             ContainsSubstring("rank 1 takes other weights from the checkpoint than rank 0"));
  group->barrier();
}

TEST_CASE("rank body: a rank cannot write its part", "[.rank]") {
  const std::string folder = variable("TUTTI_TEST_FOLDER");
  const auto group = tutti_test::initialize();
  for (const bool async : {false, true}) {
    TrainerOptions with = options(2, ShardStage::parameters, folder + "/kept");
    with.save_async = async;
    with.save_overwrite = true;
    Trainer trainer(gpt2(), with, Losses{});
    trainer.state().model->register_buffer("odd\xff", at::ones({2}));  // no name for a file
    std::string text;
    try {
      trainer.fit();
    } catch (const c10::Error& error) {
      text = error.what_without_backtrace();
    }
    CHECK_THAT(text, ContainsSubstring("rank 0: "));
    group->barrier();
    CHECK(names_in(folder + "/kept").empty());
    group->barrier();
  }
}

TEST_CASE("rank body: one of them dies while it saves", "[.rank]") {
  const std::string folder = variable("TUTTI_TEST_FOLDER");
  const auto with = [&](int ranks) {
    TrainerOptions out = options(ranks, ShardStage::parameters, folder + "/run");
    out.save_async = variable("TUTTI_TEST_ASYNC") == "1";
    out.run_name = "calm-motet";
    out.autoresume = true;
    return out;
  };
  std::string text;
  try {
    Trainer trainer(gpt2(), with(2),
                    Losses{.killed_after = std::stoi(variable("TUTTI_TEST_KILL"))});
    trainer.fit();
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  }
  CHECK_FALSE(text.empty());
  const auto latest = checkpoint::find_latest(folder + "/run", "latest");
  const std::int64_t batch =
      latest ? checkpoint::read_checkpoint(*latest).meta.get<std::int64_t>("batch") : 0;
  const bool in_background = variable("TUTTI_TEST_ASYNC") == "1";  // the first may be under way
  CHECK((batch == 2 || batch == 4 || (batch == 0 && in_background)));
  tutti_test::alone([&] {
    Trainer trainer(gpt2(2), with(1), Losses{});
    CHECK(trainer.state().timestamp.batch == batch);
    trainer.fit();
    return 0;
  });
  const Names names = names_in(folder + "/run");
  CHECK((names == Names{"ba2", "ba4", "ba6", "latest"}));
}

TEST_CASE("a sharded run goes on with other numbers of ranks", "[train][sharded][nccl]") {
  const TemporaryFolder folder;
  ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
  const auto limit = std::chrono::seconds(120);
  REQUIRE(run_ranks("rank body: a run that is not interrupted", 2, limit) == all_passed);
  ::setenv("TUTTI_TEST_FROM", "ba2", 1);
  for (const int ranks : {3, 1, 4}) {
    CHECK(run_ranks("rank body: goes on with another number of ranks", ranks, limit) == all_passed);
    ::setenv("TUTTI_TEST_FROM", ("of" + std::to_string(ranks)).c_str(), 1);
  }
  CHECK(run_ranks("rank body: goes on with another number of ranks", 2, limit) == all_passed);
  CHECK(run_ranks("rank body: whole and sharded checkpoints", 2, limit) == all_passed);
  CHECK(run_ranks("rank body: damaged sharded checkpoints", 2, limit) == all_passed);
}

TEST_CASE("savers write sharded checkpoints, keep so many and go on from them",
          "[train][sharded][nccl]") {
  const TemporaryFolder folder;
  ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
  const auto limit = std::chrono::seconds(120);
  CHECK(run_ranks("rank body: sharded checkpoints of a folder", 2, limit) == all_passed);
  CHECK(run_ranks("rank body: a rank cannot write its part", 2, limit) == all_passed);
}

TEST_CASE("a rank that dies while it saves leaves the old checkpoint or the new one",
          "[train][sharded]") {
  struct Case {
    int wait;
    const char* async;
  };
  for (const Case& one : {Case{0, "0"}, Case{25, "0"}, Case{15, "1"}}) {
    const TemporaryFolder folder;
    const std::string port = std::to_string(tutti_test::free_port());
    const auto start = [&](int rank) {
      return std::make_unique<tutti_test::RankProcess>(
          "rank body: one of them dies while it saves",
          std::map<std::string, std::string>{{"RANK", std::to_string(rank)},
                                             {"WORLD_SIZE", "2"},
                                             {"LOCAL_RANK", std::to_string(rank)},
                                             {"LOCAL_WORLD_SIZE", "2"},
                                             {"MASTER_ADDR", "127.0.0.1"},
                                             {"MASTER_PORT", port},
                                             {"OMP_NUM_THREADS", "1"},
                                             {"TUTTI_TEST_FOLDER", folder.path().string()},
                                             {"TUTTI_TEST_KILL", std::to_string(one.wait)},
                                             {"TUTTI_TEST_ASYNC", one.async}});
    };
    const auto dies = start(1);
    const auto stays = start(0);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!stays->is_done() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    INFO(one.wait << ' ' << one.async << '\n' << stays->output());
    CHECK(stays->passed());
    CHECK_FALSE(dies->passed());
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
