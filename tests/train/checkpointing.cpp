#include <tutti/train/checkpointing.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/engine.hpp>
#include <tutti/trainer.hpp>

#include "support/bytes_read.hpp"
#include "support/catch.hpp"
#include "support/fake_communicator.hpp"
#include "support/other_rank.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;

namespace {

struct Counter final {
  Rng rng{};
  int count = 0;
  int prepared = 0;
  void apply(BatchEnd, State&) { ++count; }
  void save(Archive& archive) const { archive.put("count", count); }
  void load(const Archive& archive) { count = archive.get<int>("count"); }
  void prepare_load(const Archive& archive, State&) { prepared = archive.get<int>("count"); }
};
struct Doubler final {
  int twice = 0;
  void apply(BatchEnd, State&) { twice += 2; }
  void save(Archive& archive) const { archive.put("twice", twice); }
  void load(const Archive& archive) { twice = archive.get<int>("twice"); }
};
struct Surgeon final {
  static constexpr About about{.required_on_load = true};
  void apply(Init, State&) const {}
};
struct Namesake final {
  static constexpr std::string_view name = "Counter";
  void apply(BatchEnd, State&) {}
  void save(Archive& archive) const { archive.put("count", 0); }
  void load(const Archive&) {}
};
struct Wide : tiny::Net {  // another head
  Wide() { out = replace_module("out", torch::nn::Linear(8, 3)); }
};

// A run of a recipe as checkpoints see it, without one that trains.
template <class... Ps>
struct Bench {
  std::shared_ptr<tiny::Net> net;
  Engine<Ps...> engine;
  train::PolicyStates policies = train::policy_states(engine);
  State state;
  train::Run run;

  explicit Bench(std::uint64_t seed = 1) : net(tiny::net(seed)) {
    state.model = net;
    state.communicator = std::make_shared<dist::SingleProcess>();
    state.optimizers = {SGD{.lr = 0.1}.build(net->parameters())};
    state.run_name = "calm-motet";
    run.bind_schedule(state);
  }
  checkpoint::Snapshot collect(const train::SaveOptions& options = {}) const {
    return train::collect(policies, state, run, nullptr, options);
  }
  void save(const std::string& path, const train::SaveOptions& options = {}) const {
    checkpoint::write_snapshot(path, collect(options), /*overwrite=*/true);
  }
  RunLoadReport load(const std::string& path, const train::LoadOptions& options = {}) {
    return train::load_checkpoint(path, policies, state, run, nullptr, options);
  }
};

// A checkpoint of a recipe with a Counter at 7, after 5 batches.
struct Saved {
  TemporaryFolder folder;
  std::string path = (folder / "saved").string();
  at::Tensor weights;

  explicit Saved(const train::SaveOptions& options = {}) {
    Bench<Counter> bench;
    bench.engine.get<Counter>().count = 7;
    bench.state.timestamp.batch = 5;
    bench.state.rank_zero_seed = 17;
    bench.save(path, options);
    weights = tiny::flat(*bench.net);
  }
};

bool has(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

TEST_CASE("a checkpoint holds facts, weights and all that a run goes on from",
          "[train][checkpointing]") {
  Bench<Counter> bench;
  bench.state.timestamp.epoch = 2;
  bench.state.timestamp.batch = 5;
  const checkpoint::Snapshot all = bench.collect();
  CHECK(all.meta.get<std::string>("run_name") == "calm-motet");
  CHECK(all.meta.get<std::int64_t>("world_size") == 1);
  CHECK(all.meta.get<std::string>("precision") == "fp32");
  CHECK(all.meta.get<std::int64_t>("epoch") == 2);
  CHECK(all.meta.get<std::int64_t>("batch") == 5);
  CHECK_FALSE(all.meta.get<bool>("weights_only"));
  CHECK(all.meta.get<Names>("policies") == Names{"Counter"});
  CHECK(all.model.size() == 4);
  for (const char* part : {"timestamp", "rank_zero_seed", "schedulers", "optimizers/0",
                           "policies/Counter/count", "rng/0/libtorch", "rng/0/policies/Counter"}) {
    INFO(part);
    CHECK(all.state.contains(part));
  }
  const checkpoint::Snapshot weights = bench.collect({.weights_only = true});
  CHECK(weights.meta.get<bool>("weights_only"));
  CHECK(weights.model.size() == 4);
  CHECK(weights.state.names().empty());
}

TEST_CASE("two policies of one name cannot be saved", "[train][checkpointing]") {
  const Bench<Counter, Namesake> bench;
  CHECK_THROWS_WITH(bench.collect(), ContainsSubstring("are called \"Counter\"; give one of them"));
  CHECK_NOTHROW(bench.collect({.weights_only = true}));
}

TEST_CASE("a full load restores weights, time and policies, which prepare themselves",
          "[train][checkpointing]") {
  const Saved saved;
  Bench<Counter> bench(2);
  const RunLoadReport report = bench.load(saved.path);
  CHECK(at::equal(tiny::flat(*bench.net), saved.weights));
  CHECK(bench.state.timestamp.batch == 5);
  CHECK(bench.state.rank_zero_seed == 17);
  CHECK(bench.engine.get<Counter>().count == 7);
  CHECK(bench.engine.get<Counter>().prepared == 7);
  CHECK(report.path == saved.path);
  CHECK(report.complete());
  CHECK(has(report.restored, "policies/Counter"));
  CHECK(has(report.restored, "rng"));
}

TEST_CASE("LibTorch's generators are set when the run says so, not by the load",
          "[train][checkpointing]") {
  const TemporaryFolder folder;
  Bench<> bench;
  at::manual_seed(5);
  bench.save((folder / "saved").string());
  const at::Tensor next = at::rand({4});
  bench.load((folder / "saved").string());
  CHECK_FALSE(at::equal(at::rand({4}), next));
  REQUIRE(bench.run.restore_rng);
  bench.run.restore_rng();
  CHECK(at::equal(at::rand({4}), next));
}

TEST_CASE("weights alone start a run at 0", "[train][checkpointing]") {
  const Saved saved;
  Bench<Counter> bench(2);
  Warnings warnings;
  const RunLoadReport report = bench.load(saved.path, {.weights_only = true});
  CHECK(at::equal(tiny::flat(*bench.net), saved.weights));
  CHECK(report.weights_only);
  CHECK(report.restored.empty());
  CHECK(bench.state.timestamp.batch == 0);
  CHECK(bench.engine.get<Counter>().count == 0);
  CHECK_FALSE(bench.run.restore_rng);
  CHECK(warnings.texts.empty());
}

TEST_CASE("a checkpoint of weights alone is no place to go on from", "[train][checkpointing]") {
  const Saved saved({.weights_only = true});
  Bench<Counter> bench(2);
  CHECK_THROWS_WITH(bench.load(saved.path), ContainsSubstring("holds weights only; set "
                                                              "load_weights_only to start"));
  CHECK_NOTHROW(bench.load(saved.path, {.weights_only = true}));
}

TEST_CASE("another recipe takes what it has a place for, and the report says the rest",
          "[train][checkpointing]") {
  const Saved saved;
  Bench<Doubler> bench(2);
  const Warnings quiet;
  const RunLoadReport report = bench.load(saved.path);
  CHECK(report.afresh == Names{"policies/Doubler"});
  CHECK(report.unused == Names{"policies/Counter"});
  CHECK(bench.engine.get<Doubler>().twice == 0);
}

TEST_CASE("ignored parts of a checkpoint start afresh", "[train][checkpointing]") {
  const Saved saved;
  Bench<Counter> bench(2);
  Warnings warnings;
  const RunLoadReport report = bench.load(
      saved.path, {.ignore_keys = {"state/timestamp", "state/policies/*", "rng", "state/nothing"}});
  CHECK(bench.state.timestamp.batch == 0);
  CHECK(bench.engine.get<Counter>().count == 0);
  CHECK(report.ignored == Names{"state/timestamp", "state/policies/Counter", "rng"});
  CHECK(has(report.restored, "optimizers"));
  REQUIRE_FALSE(warnings.texts.empty());
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("load_ignore_keys: nothing in the checkpoint matches") &&
                 ContainsSubstring("state/nothing"));
}

TEST_CASE("weights can be ignored, and all of the state", "[train][checkpointing]") {
  const Saved saved;
  const Warnings quiet;
  Bench<Counter> fresh(2);
  const at::Tensor own = tiny::flat(*fresh.net);
  CHECK(fresh.load(saved.path, {.ignore_keys = {"state/model"}}).ignored == Names{"state/model"});
  CHECK(at::equal(tiny::flat(*fresh.net), own));
  CHECK(fresh.state.timestamp.batch == 5);
  Bench<Counter> nothing(2);
  const RunLoadReport report = nothing.load(saved.path, {.ignore_keys = {"state"}});
  CHECK(at::equal(tiny::flat(*nothing.net), own));
  CHECK(nothing.state.timestamp.batch == 0);
  CHECK(report.restored == Names{"rng"});
}

TEST_CASE("what is ignored when saving is not there, and a key of nothing is warned of",
          "[train][checkpointing]") {
  const Bench<Counter> bench;
  Warnings warnings;
  const Names keys{"state/model/out.*", "state/optimizers", "state/optimiser"};
  const checkpoint::Snapshot saved = bench.collect({.ignore_keys = keys});
  CHECK(saved.model.names() == Names{"in.weight", "in.bias"});
  CHECK_FALSE(saved.state.contains("optimizers"));
  CHECK(saved.state.contains("rng/0/libtorch"));
  CHECK(warnings.texts.empty());
  bench.collect({.ignore_keys = keys, .warn_unmatched = true});
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("save_ignore_keys: nothing") &&
                                    ContainsSubstring("state/optimiser"));
}

TEST_CASE("an error of one rank is thrown on all of them", "[train][checkpointing][dist]") {
  OtherRank fails(0, "no such file");
  CHECK_THROWS_WITH(train::detail::on_every_rank(fails, [] {}),
                    ContainsSubstring("rank 1: no such file"));
  CHECK_THROWS_AS(
      train::detail::on_every_rank(fails, [] { throw std::invalid_argument("its own"); }),
      std::invalid_argument);
  OtherRank well;
  CHECK_THROWS_WITH(train::detail::on_every_rank(well, [] { throw std::runtime_error("own"); }),
                    "own");
  CHECK_NOTHROW(train::detail::on_every_rank(well, [] {}));
}

namespace {

/// The other rank is at batch 4, and fails nowhere.
struct OtherCheckpoint final : OtherRank {
  explicit OtherCheckpoint(std::string what) : OtherRank(4), found(std::move(what)) {}
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return {bytes, bytes.empty() || found.empty() ? bytes : found};
  }

  std::string found;  // empty: what this one has
};

}  // namespace

TEST_CASE("ranks that have loaded different checkpoints say so", "[train][checkpointing][dist]") {
  const Saved saved;
  const Warnings quiet;
  const auto load = [&](const std::string& found) {
    Bench<Counter> bench;
    bench.state.communicator = std::make_shared<OtherCheckpoint>(found);
    bench.load(saved.path);
  };
  CHECK_THROWS_WITH(load(""), ContainsSubstring("have loaded different checkpoints") &&
                                  ContainsSubstring("rank 0 is at batch 5"));
  CHECK_THROWS_WITH(load("a sharded one of today"),
                    ContainsSubstring("have loaded different checkpoints") &&
                        ContainsSubstring("rank 1 has found a sharded one of today, rank 0 a "
                                          "whole one of 2"));
}

namespace {

TrainerOptions options() {
  return {.train = tiny::batches(4),
          .max_duration = "4ba",
          .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

// The options of a run that starts from what one with a Counter has left.
TrainerOptions after_a_run(const TemporaryFolder& folder) {
  TrainerOptions first = options();
  first.save_folder = folder.path().string();
  Trainer<Counter>(tiny::net(), first).fit();
  TrainerOptions out = options();
  out.load_path = (folder / "latest").string();
  return out;
}

}  // namespace

TEST_CASE("a new head loads strictly when the old one is ignored", "[train][checkpointing]") {
  const TemporaryFolder folder;
  TrainerOptions rest = after_a_run(folder);
  rest.load_ignore_keys = {"state/optimizers", "state/timestamp"};
  const auto load = [&] { Trainer<Counter> trainer(std::make_shared<Wide>(), rest); };
  CHECK_THROWS_WITH(load(), ContainsSubstring("out.weight: shape [2, 8] in the file") &&
                                ContainsSubstring("load_ignore_keys = {\"state/model/fc.*\"}"));
  rest.load_ignore_keys.push_back("out.*");  // no path
  {
    Warnings warnings;
    CHECK_THROWS_WITH(load(), ContainsSubstring("do not fit the model"));
    REQUIRE(warnings.texts.size() == 1);
    CHECK_THAT(warnings.texts.front(),
               ContainsSubstring("nothing in the checkpoint matches \"out") &&
                   ContainsSubstring("state/model/fc.weight"));
  }
  rest.load_ignore_keys.push_back("state/model/out.*");
  Trainer<Counter> trainer(std::make_shared<Wide>(), rest);
  CHECK(trainer.load_report().model.loaded == Names{"in.weight", "in.bias"});
  CHECK_FALSE(trainer.load_report().complete());
}

TEST_CASE("weights that only the model has are left out as asked, and the load is not complete",
          "[train][checkpointing]") {
  const TemporaryFolder folder;
  const Names head{"state/model/out.*"};
  const std::string path = (folder / "headless").string();
  checkpoint::write_snapshot(path, Bench<Counter>().collect({.ignore_keys = head}));
  const Warnings quiet;
  Bench<Counter> bench(2);
  const at::Tensor own = bench.net->out->weight.detach().clone();
  RunLoadReport report = bench.load(path, {.ignore_keys = head});
  CHECK(at::equal(bench.net->out->weight, own));
  CHECK(report.ignored == Names{"state/model/out.weight", "state/model/out.bias"});
  report.afresh.clear();
  report.notes.clear();
  CHECK_FALSE(report.complete());
  CHECK_THAT(report.text(), ContainsSubstring("2 of 4 weights"));
}

TEST_CASE("strict holds in full loads and says which policies the recipe lacks",
          "[train][checkpointing]") {
  const TemporaryFolder folder;
  TrainerOptions rest = after_a_run(folder);
  rest.load_ignore_keys = {"state/optimizers"};
  const auto load = [&] { return Trainer<>(std::make_shared<Wide>(), rest).load_report(); };
  CHECK_THROWS_WITH(load(), ContainsSubstring("do not fit the model") &&
                                ContainsSubstring("policies that this one lacks: Counter"));
  rest.load_strict_model_weights = false;
  const Warnings warnings;
  CHECK(load().model.mismatched.size() == 2);
  REQUIRE(warnings.texts.size() == 1);  // all that was not taken, once
  CHECK_THAT(warnings.texts[0], ContainsSubstring("starting afresh: optimizers") &&
                                    ContainsSubstring("no place for it: policies/Counter") &&
                                    ContainsSubstring("2 different"));
}

TEST_CASE("weights of another precision are converted where the run does not go on bit by bit",
          "[train][checkpointing]") {
  const TemporaryFolder folder;
  TrainerOptions rest = after_a_run(folder);
  rest.precision = Precision::bf16_true;
  const auto load = [&] { return Trainer<>(tiny::net(9), rest).load_report(); };
  CHECK_THROWS_WITH(load(), ContainsSubstring("type Float in the file, BFloat16 in the model") &&
                                ContainsSubstring("load_strict_model_weights = false"));
  rest.load_weights_only = true;
  const auto net = tiny::net(9);
  CHECK(Trainer<>(net, rest).load_report().model.complete());
  const auto saved = checkpoint::read_snapshot(rest.load_path).model;
  CHECK(at::equal(net->in->weight, saved.get<at::Tensor>("in.weight").to(at::kBFloat16)));
  rest.load_weights_only = false;
  rest.load_strict_model_weights = false;
  const Warnings warnings;
  CHECK(load().model.complete());
}

TEST_CASE("a recipe that lacks what changed the checkpoint's model is told so, where weights fit",
          "[train][checkpointing]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "saved").string();
  Bench<Surgeon, Counter>().save(path);
  const Warnings quiet;
  for (const bool weights_only : {false, true}) {
    INFO("weights only " << weights_only);
    Bench<Counter> without(2);
    const RunLoadReport report = without.load(path, {.weights_only = weights_only});
    REQUIRE(report.notes.size() == 1);
    CHECK_THAT(report.notes[0], ContainsSubstring("changed by Surgeon, which this recipe lacks") &&
                                    ContainsSubstring("put what is missing into the recipe"));
    CHECK_FALSE(report.complete());
    Bench<Counter, Surgeon> with(2);
    CHECK(with.load(path, {.weights_only = weights_only}).notes.empty());
    Bench<> head(2);  // takes no weights
    CHECK(head.load(path, {.weights_only = true, .ignore_keys = {"state/model/*"}}).notes.empty());
  }
}

TEST_CASE("of averages of whole parameters a rank reads its rows, and gets the others",
          "[train][checkpointing]") {
  if (bytes_read() < 0) {
    return tutti_test::skip("this system has no /proc/self/io");
  }
  const TemporaryFolder folder;
  const at::Tensor whole = at::rand({1000, 100});
  checkpoint::Snapshot snapshot;
  snapshot.state.put("policies/EMA/count", at::full({1}, 4, at::kLong));
  snapshot.state.put("policies/EMA/weights/fc.weight", whole);
  snapshot.state.put("policies/EMA/weights/fc.bias", at::ones({2}));
  dist::SingleProcess alone;
  checkpoint::write_sharded(folder / "a", checkpoint::to_sharded(snapshot, {}, 0), alone);

  const auto source = std::make_shared<checkpoint::ShardedSource>(folder / "a");
  Archive state = source->snapshot(0, /*with_state=*/true).state;
  const train::PolicyStates policies{{.name = "SWA", .parts = "mean/weights"},
                                     {.name = "EMA", .parts = "weights"},
                                     {.name = "Other"}};
  const train::Copies kept = train::detail::room_for_parts(policies, state);
  REQUIRE(kept.size() == 2);
  CHECK(state.child("policies/EMA/weights").names() == Names{"fc.weight", "fc.bias"});
  FakeCommunicator second(1, 4);
  train::detail::SharedReading reading(source, second, at::kCPU);
  const std::int64_t before = bytes_read();
  reading.read(kept);
  const std::int64_t read = bytes_read() - before;
  CHECK(read >= 100'000);
  CHECK(read < 102'000);  // /proc/self/io counts itself
  reading.exchange();     // all others say what this one does
  const Archive values = source->filled(state);
  const at::Tensor& average = values.tensor("policies/EMA/weights/fc.weight");
  CHECK(average.equal(whole.narrow(0, 250, 250).repeat({4, 1})));
  CHECK(values.tensor("policies/EMA/weights/fc.bias").equal(at::ones({2})));
  CHECK(values.tensor("policies/EMA/count").item<std::int64_t>() == 4);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
