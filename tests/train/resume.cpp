#include <tutti/train/resume.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include <tutti/callbacks/checkpoint_saver.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

TrainerOptions options(Time length = "4ba") {
  return {.train = tiny::batches(8),
          .max_duration = length,
          .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
          .device = "cpu",
          .seed = 3,
          .run_name = "calm-motet",
          .progress_bar = false};
}

TrainerOptions saving(const TemporaryFolder& folder, Time length = "4ba") {
  TrainerOptions out = options(length);
  out.save_folder = (folder / "{run_name}").string();
  out.save_interval = "2ba";
  return out;
}

TrainerOptions loading(const TemporaryFolder& folder, Time length = "6ba") {
  TrainerOptions out = options(length);
  out.load_path = (folder / "calm-motet/latest").string();
  return out;
}

struct Rates final {
  std::vector<double> used;
  void apply(BatchStart, const State& state) {
    used.push_back(state.optimizers[0]->param_groups()[0].options().get_lr());
  }
};
struct Counter final {
  int count = 0;
  void apply(BatchEnd, State&) { ++count; }
  void save(Archive& archive) const { archive.put("count", count); }
  void load(const Archive& archive) { count = archive.get<int>("count"); }
};

struct Iterations final {
  std::vector<std::int64_t> ends{};  // at which batch
  void apply(IterationEnd, const State& state) { ends.push_back(state.timestamp.batch); }
};

}  // namespace

TEST_CASE("a full load reports all parts as restored and nothing else", "[train][resume]") {
  const TemporaryFolder folder;
  Trainer<Counter>(tiny::net(), saving(folder)).fit();
  Warnings warnings;
  Trainer<Counter> trainer(tiny::net(2), loading(folder));
  const RunLoadReport& report = trainer.load_report();
  CHECK(report.complete());
  CHECK(report.restored == Names{"optimizers", "timestamp", "rank_zero_seed", "schedulers",
                                 "policies/Counter", "rng"});
  CHECK(report.model.loaded.size() == 4);
  CHECK_THAT(report.text(), ContainsSubstring("latest': 4 of 4 weights"));
  CHECK(warnings.texts.empty());
  CHECK(trainer.get<Counter>().count == 4);
  Trainer<Counter> none(tiny::net(), options());
  CHECK(none.load_report().path.empty());
  CHECK(none.load_report().text().empty());
}

TEST_CASE("an epoch that goes on with batches of another size is warned of", "[train][resume]") {
  const TemporaryFolder folder;
  Trainer<>(tiny::net(), saving(folder)).fit();
  const auto said = [&](std::int64_t size) {
    TrainerOptions more = loading(folder, "7ba");
    more.train = tiny::batches(8, size);
    const Warnings warnings;
    Trainer<>(tiny::net(), more).fit();
    return warnings.texts;
  };
  CHECK(said(6).empty());
  {
    TrainerOptions more = loading(folder, "6ba");  // the epoch's last batch is smaller
    std::vector<Batch> data = tiny::batches(4);
    data.push_back(tiny::batches(1, 2).front());
    more.train = data;
    const Warnings warnings;
    Trainer<>(tiny::net(), more).fit();
    CHECK(warnings.texts.empty());
  }
  const auto texts = said(3);
  REQUIRE(texts.size() == 1);  // not in every batch
  CHECK_THAT(texts[0], ContainsSubstring("goes on behind 4 batches of 6 samples of all ranks, and "
                                         "a batch has 3 now, so the loader has left out 12 samples "
                                         "where 24 were trained on"));
}

TEST_CASE("a longer run is scheduled as if it had been that long from the start",
          "[train][resume][schedule]") {
  const TemporaryFolder folder;
  TrainerOptions first = saving(folder, "4ba");
  first.schedule = Linear{.alpha_f = 0};
  Trainer<>(tiny::net(), first).fit();
  TrainerOptions longer = options("8ba");
  longer.schedule = first.schedule;
  Trainer<Rates> whole(tiny::net(), longer);
  whole.fit();
  longer.load_path = (folder / "calm-motet/latest").string();
  Trainer<Rates> resumed(tiny::net(), longer);
  resumed.fit();
  const auto& all = whole.get<Rates>().used;
  CHECK(resumed.get<Rates>().used == std::vector(all.begin() + 4, all.end()));

  TrainerOptions half = options("4ba");  // the same in one process
  half.schedule = first.schedule;
  Trainer<Rates> twice(tiny::net(), half);
  twice.fit();
  twice.fit({.duration = "4ba"});
  CHECK(twice.get<Rates>().used.at(4) == all.at(4));
}

TEST_CASE("a run that is named goes on where its folder says", "[train][resume][autoresume]") {
  const TemporaryFolder folder;
  auto uninterrupted = tiny::net(1, 0.5);
  Trainer<Counter>(uninterrupted, options("6ba")).fit();
  TrainerOptions again = saving(folder, "4ba");
  again.autoresume = true;
  again.load_weights_only = true;  // of account for load_path only
  again.load_ignore_keys = {"state/*"};
  Trainer<Counter>(tiny::net(1, 0.5), again).fit();  // finds nothing: begins
  again.max_duration = "6ba";
  auto resumed = tiny::net(5, 0.5);
  Trainer<Counter> trainer(resumed, again);
  CHECK_THAT(trainer.load_report().path, ContainsSubstring("ep0-ba4"));
  CHECK_FALSE(trainer.load_report().weights_only);
  trainer.fit();
  CHECK(trainer.get<Counter>().count == 6);
  CHECK(at::equal(tiny::flat(*uninterrupted), tiny::flat(*resumed)));

  Warnings warnings;
  Trainer<Counter> complete(tiny::net(), again);  // a job that is started once too often
  complete.fit();
  CHECK(complete.get<Counter>().count == 6);
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("is complete"));

  again.save_latest_filename = "";
  CHECK_THROWS_WITH((Trainer<Counter>{tiny::net(), again}),
                    ContainsSubstring("save_latest_filename is empty"));
}

TEST_CASE("autoresume falls back to load_path with its options", "[train][resume][autoresume]") {
  const TemporaryFolder other;
  const TemporaryFolder folder;
  Trainer<>(tiny::net(), saving(other)).fit();
  TrainerOptions begin = saving(folder);
  begin.autoresume = true;
  begin.load_path = (other / "calm-motet/latest").string();
  begin.load_weights_only = true;
  Trainer<> trainer(tiny::net(2), begin);
  CHECK(trainer.load_report().weights_only);
  CHECK(trainer.state().timestamp.batch == 0);
}

TEST_CASE("a checkpoint newer than the pointer is no obstacle to going on", "[train][resume]") {
  const TemporaryFolder folder;
  Trainer<>(tiny::net(), saving(folder)).fit();
  fs::remove(folder / "calm-motet/latest");  // as if killed between the two
  fs::create_symlink("ep0-ba2", folder / "calm-motet/latest");
  TrainerOptions rest = saving(folder);
  rest.load_path = (folder / "calm-motet/latest").string();
  Trainer<> trainer(tiny::net(), rest);
  CHECK_NOTHROW(trainer.fit());
  rest.load_path = (folder / "calm-motet/ep0-ba2").string();  // chosen by hand: is it meant?
  Trainer<> by_hand(tiny::net(), rest);
  CHECK_THROWS_WITH(by_hand.fit(), ContainsSubstring("is from batch 4, later than"));
}

TEST_CASE("a run killed between its last checkpoint and pointing to it goes on from that",
          "[train][resume]") {
  const TemporaryFolder folder;
  const fs::path saved = folder / "calm-motet";
  Trainer<>(tiny::net(), saving(folder)).fit();
  TrainerOptions rest = saving(folder, "6ba");
  rest.autoresume = true;
  checkpoint::point_latest(saved / "latest", "ep0-ba2");
  set_written(saved / "latest", std::int64_t{1} << 33);  // by hand: later than all
  CHECK(Trainer<>(tiny::net(), rest).state().timestamp.batch == 2);
  set_written(saved / "latest", 1000);  // as if killed between the two
  Trainer<> trainer(tiny::net(), rest);
  CHECK(trainer.state().timestamp.batch == 4);
  trainer.fit();
  CHECK(sorted_names(saved) == Names{"ep0-ba2", "ep0-ba4", "ep0-ba6", "latest"});
  CHECK(fs::read_symlink(saved / "latest") == "ep0-ba6");
}

TEST_CASE("a sharded checkpoint of Composer's is refused with what to do", "[train][resume]") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "calm-motet/ep1-ba10");
  write_bytes(folder / "calm-motet/ep1-ba10/.metadata", "x");
  write_bytes(folder / "calm-motet/ep1-ba10/__0_0.distcp", "x");
  fs::create_symlink("ep1-ba10", folder / "calm-motet/latest");
  const auto refusal = ContainsSubstring(
      "ep1-ba10' has .distcp files, which are pickles and are not read; in "
      "Python load it into the model and save that by dcp.save(");
  CHECK_THROWS_WITH(Trainer<>(tiny::net(), loading(folder)), refusal);
  TrainerOptions rest = saving(folder);
  rest.autoresume = true;
  CHECK_THROWS_WITH(Trainer<>(tiny::net(), rest), refusal);
}

TEST_CASE("a run that goes on from another folder removes nothing in its own", "[train][resume]") {
  const TemporaryFolder folder;
  TrainerOptions first = saving(folder, "6ba");
  first.save_folder = (folder / "a").string();
  Trainer<>(tiny::net(), first).fit();
  TrainerOptions second = saving(folder, "4ba");
  second.save_folder = (folder / "b").string();
  second.seed = 5;
  Trainer<>(tiny::net(), second).fit();
  TrainerOptions third = saving(folder, "10ba");
  third.load_path = (folder / "a/latest").string();
  third.save_folder = second.save_folder;
  third.save_num_checkpoints_to_keep = 1;
  Trainer<>(tiny::net(), third).fit();
  CHECK(sorted_names(folder / "b") == Names{"ep0-ba2", "ep0-ba4", "ep1-ba10", "latest"});
  CHECK(sorted_names(folder / "a") == Names{"ep0-ba2", "ep0-ba4", "ep0-ba6", "latest"});
  third.max_duration = "12ba";
  for (const bool autoresume : {true, false}) {  // its own list goes on
    third.autoresume = autoresume;
    third.load_path = autoresume ? "" : (folder / "b/latest").string();
    third.max_duration = autoresume ? "12ba"_t : "14ba"_t;
    Trainer<>(tiny::net(), third).fit();
    CHECK(sorted_names(folder / "b") ==
          Names{"ep0-ba2", "ep0-ba4", autoresume ? "ep1-ba12" : "ep1-ba14", "latest"});
  }
}

TEST_CASE("a run killed after its last save saves nothing twice when it goes on",
          "[train][resume]") {
  struct FailAtEnd final {
    bool fails = true;
    void apply(EpochEnd, const State& state) const {
      TORCH_CHECK(!fails || state.timestamp.batch < 16, "killed");
    }
  };
  for (const bool often : {false, true}) {
    const TemporaryFolder folder;
    TrainerOptions run = saving(folder, "2ep");  // of eight batches each
    run.save_interval = "8ba";
    run.save_num_checkpoints_to_keep = 2;
    run.autoresume = true;
    const CheckpointSaver second{.folder = (folder / "second").string(),
                                 .save_interval = often ? "8ba"_t : "100ba"_t,
                                 .num_checkpoints_to_keep = 2};
    {
      Trainer trainer(tiny::net(), run, FailAtEnd{}, second);
      CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("killed"));
    }
    const Names whole{"ep0-ba8", "ep1-ba16", "latest"};
    CHECK(sorted_names(folder / "calm-motet") == whole);
    Trainer trainer(tiny::net(2), run, FailAtEnd{.fails = false}, second);
    trainer.fit();
    CHECK(trainer.state().timestamp.epoch == 2);
    CHECK(sorted_names(folder / "calm-motet") == whole);
    CHECK(sorted_names(folder / "second") == (often ? whole : Names{"ep2-ba16", "latest"}));
  }
}

TEST_CASE("a pointer with placeholders is found again", "[train][resume][autoresume]") {
  const TemporaryFolder folder;
  TrainerOptions run = saving(folder, "2ba");
  run.save_latest_filename = "latest-{run_name}-rank{rank}";
  run.autoresume = true;
  Trainer<>(tiny::net(), run).fit();
  CHECK(sorted_names(folder / "calm-motet") == Names{"ep0-ba2", "latest-calm-motet-rank0"});
  run.max_duration = "4ba";
  Trainer<> trainer(tiny::net(), run);
  CHECK(trainer.state().timestamp.batch == 2);
  run.autoresume = false;
  trainer.close();
  run.load_path = (folder / "calm-motet/latest-calm-motet-rank0").string();
  Trainer<> by_path(tiny::net(), run);
  CHECK_NOTHROW(by_path.fit());
}

TEST_CASE("the name of the run stands in load_path as in save_folder", "[train][resume]") {
  const TemporaryFolder folder;
  Trainer<>(tiny::net(), saving(folder)).fit();
  TrainerOptions run = loading(folder);
  run.load_path = (folder / "{run_name}/latest").string();
  Trainer trainer(tiny::net(2), run);
  CHECK(trainer.state().timestamp.batch == 4);
}

TEST_CASE("keys ignored when saving are not in the file", "[train][resume]") {
  const TemporaryFolder folder;
  TrainerOptions small = saving(folder);
  small.save_ignore_keys = {"state/optimizers", "state/model/out.*", "state/optimiser"};
  Warnings warnings;
  Trainer<>(tiny::net(), small).fit();
  REQUIRE(warnings.texts.size() == 1);  // though it saves twice
  CHECK_THAT(warnings.texts[0], ContainsSubstring("save_ignore_keys: nothing"));
  const auto saved = checkpoint::read_snapshot(folder / "calm-motet/latest");
  CHECK(saved.model.names() == Names{"in.weight", "in.bias"});
  CHECK_FALSE(saved.state.contains("optimizers"));
  CHECK(saved.state.contains("timestamp"));
  CHECK(saved.state.contains("rng/0/libtorch/cpu"));
}

TEST_CASE("an iteration that ended at the checkpoint ends when the run is resumed",
          "[train][resume]") {
  for (const bool tokens : {false, true}) {
    const TemporaryFolder folder;
    const auto set = [tokens](TrainerOptions options) {
      options.train.hooks.num_tokens = [](const Batch&) { return TokenCount{10}; };
      options.iteration_length = tokens ? Time(40, TimeUnit::token) : Time(1, TimeUnit::epoch);
      return options;
    };
    const Time whole(24, TimeUnit::batch);
    TrainerOptions first = set(saving(folder, whole));
    first.save_interval = tokens ? "4ba"_t : "1ep"_t;  // eight batches an epoch
    first.save_latest_filename = "";
    Trainer<Iterations> uninterrupted(tiny::net(), first);
    uninterrupted.fit();
    const std::vector<std::int64_t> all = uninterrupted.get<Iterations>().ends;
    REQUIRE(all.size() == (tokens ? 6 : 3));
    TrainerOptions rest = set(options(whole));
    rest.load_path = (folder / (tokens ? "calm-motet/ep0-ba4" : "calm-motet/ep1-ba8")).string();
    Trainer<Iterations> resumed(tiny::net(), rest);
    resumed.fit();
    CHECK(resumed.get<Iterations>().ends == all);  // the first of them again: it came after saving
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
