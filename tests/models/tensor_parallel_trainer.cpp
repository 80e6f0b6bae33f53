// A Trainer whose model is spread over ranks, in two dimensions, with checkpoints.

#include <tutti/models/tensor_parallel.hpp>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/checkpoint/convert.hpp>
#include <tutti/checkpoint/sharded_checkpoint.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/models/spread_of.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/muon.hpp>
#include <tutti/train/sharded.hpp>
#include <tutti/trainer.hpp>

#include "dist/alone.hpp"
#include "dist/initialize.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"
#include "train/sharded_runs.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using dist::SequenceParallel;
using dist::ShardStage;
using sharded_runs::difference;
using tutti_test::all_passed;
using tutti_test::alone;
using tutti_test::run_ranks;

namespace {

auto gpt2(const models::TensorParallelOptions& spread = {.degree = 1}) {
  auto model = sharded_runs::gpt2({.width = 16});
  model->to(at::kDouble);
  models::tensor_parallel(*model, spread);
  return model.ptr();
}

TrainerOptions options(std::int64_t batch_size) {
  const TensorLoader loader = sharded_runs::texts(batch_size);
  TrainerOptions out = sharded_runs::options(loader, AdamW{.lr = 1e-2});
  out.eval = {{"test", loader}};
  return out;
}

const GradientClipping clipping{.clipping_type = ClippingType::norm, .clipping_threshold = 0.2};

/// What a run reports: losses and counts of examples; metrics, which are sums of floats.
struct Report final {
  std::vector<double> all{};
  std::vector<double> metrics{};
  void apply(BatchEnd, State& state) {
    all.push_back(state.total_loss.at("total").item<double>());
    all.push_back(static_cast<double>(state.timestamp.sample));
    for (const auto& [name, value] : state.train_metric_values) {
      metrics.push_back(value);
    }
  }
  void apply(EvalEnd, State& state) {
    for (const auto& [name, value] : state.eval_metric_values.at("test")) {
      metrics.push_back(value);
    }
    all.push_back(static_cast<double>(state.eval_timestamp.sample));
  }
};

/// Trains a model; with a folder saves it there at the end.
Report trained(std::shared_ptr<models::GPT2LMHeadModelImpl> model, TrainerOptions with,
               const std::string& saved = {}) {
  Trainer<Report, GradientClipping> trainer(std::move(model), std::move(with), Report{}, clipping);
  trainer.fit();
  if (!saved.empty()) {
    trainer.save_checkpoint(saved);
  }
  return trainer.get<Report>();
}

void check_equal(const std::string& one, const std::string& other) {
  using sharded_runs::tensors_of;
  sharded_runs::check_equal(tensors_of(one), tensors_of(other),
                            61);  // weights, two moments of each
}

}  // namespace

TEST_CASE("rank body: a Trainer in two dimensions", "[.rank]") {
  tutti_test::initialize();
  std::vector<std::pair<std::string, Report>> runs;
  for (const auto sequence : {SequenceParallel::no, SequenceParallel::yes}) {
    for (const ShardStage stage :
         {ShardStage::none, ShardStage::optimizer, ShardStage::gradients, ShardStage::parameters}) {
      TrainerOptions with = options(6);
      with.sharding.stage = stage;
      with.device_train_microbatch_size = 2;
      runs.emplace_back(std::string(to_string(stage)),
                        trained(gpt2({.degree = 2, .sequence = sequence}), with));
    }
  }
  runs.emplace_back("all four ranks", trained(gpt2({.degree = 4}), options(12)));
  const auto one = alone([&] {
    TrainerOptions with = options(12);
    with.device_train_microbatch_size = 4;
    return trained(gpt2(), with);
  });
  CHECK(one.all.size() == 10);
  CHECK(one.metrics.size() == 12);
  for (const auto& [name, reported] : runs) {
    INFO(name);
    CHECK(difference(reported.all, one.all) < 1e-11);
    CHECK(difference(reported.metrics, one.metrics) < 1e-4);
  }
}

TEST_CASE("a Trainer trains a model on two ranks and two copies as one process does",
          "[models][tensor_parallel][nccl]") {
  CHECK(run_ranks("rank body: a Trainer in two dimensions", 4, std::chrono::seconds(180)) ==
        all_passed);
}

TEST_CASE("rank body: checkpoints of a model over other ranks", "[.rank]") {
  const std::string folder = std::getenv("TUTTI_TEST_FOLDER");
  const auto group = tutti_test::initialize();
  const auto first_epoch = [](std::int64_t batch) {
    TrainerOptions with = options(batch);
    with.max_duration = "1ep";
    return with;
  };
  TrainerOptions with = first_epoch(6);
  with.sharding.stage = ShardStage::gradients;  // moments are parts of parts
  trained(gpt2({.degree = 2}), with, folder + "/two");
  // Loaded and saved by one rank each, then by all four together: the same numbers.
  const std::pair<int, std::string> next[] = {{1, "one"}, {4, "four"}, {2, "again"}};
  std::string last = folder + "/two";
  std::vector<Report> continued;
  for (const auto& [degree, name] : next) {
    with = options(12 * degree / 4);
    with.load_path = last;
    with.eval = {};
    {
      Trainer trainer(gpt2({.degree = degree}), with);
      trainer.save_checkpoint(folder + "/" + name);
    }
    last = folder + "/" + name;
    continued.push_back(trained(gpt2({.degree = degree}), with));
  }
  group->barrier();
  for (const auto& [degree, name] : next) {
    INFO(name);
    check_equal(folder + "/two", folder + "/" + name);
  }
  const auto one = alone([&] {
    TrainerOptions whole = options(12);
    whole.load_path = folder + "/two";
    whole.eval = {};
    return trained(gpt2(), whole);
  });
  for (const Report& reported : continued) {
    CHECK(difference(reported.all, one.all) < 1e-11);
  }
}

TEST_CASE("a checkpoint is the whole model's, for any number of ranks a model",
          "[models][tensor_parallel][nccl]") {
  const TemporaryFolder folder;
  ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
  CHECK(run_ranks("rank body: checkpoints of a model over other ranks", 4,
                  std::chrono::seconds(180)) == all_passed);
}

TEST_CASE("rank body: parts of parts in a checkpoint of all ranks", "[.rank]") {
  const std::string folder = std::getenv("TUTTI_TEST_FOLDER");
  const auto group = tutti_test::initialize();
  TrainerOptions with = options(6);
  with.max_duration = "1ep";
  trained(gpt2({.degree = 2}), with, folder + "/whole");
  // Each loads what the one before has written: over other ranks, in other parts, in other files.
  const std::tuple<int, ShardStage, std::string> next[] = {
      {2, ShardStage::none, "copies"},          {2, ShardStage::parameters, "parts of parts"},
      {4, ShardStage::none, "four parts"},      {2, ShardStage::optimizer, "moments"},
      {1, ShardStage::parameters, "only rows"}, {4, ShardStage::none, "four parts again"}};
  std::string last = folder + "/whole";
  std::vector<std::string> names;
  std::vector<std::pair<std::string, Report>> continued;
  for (const auto& [degree, stage, name] : next) {
    with = options(12 * degree / 4);
    with.load_path = last;
    with.checkpoint_layout = CheckpointLayout::sharded;
    with.sharding.stage = stage;
    with.eval = {};
    {
      Trainer trainer(gpt2({.degree = degree}), with);
      trainer.save_checkpoint(folder + "/" + name);
    }
    last = folder + "/" + name;
    names.push_back(name);
    continued.emplace_back(name, trained(gpt2({.degree = degree}), with));
  }
  group->barrier();
  for (const std::string& name : group->rank() == 0 ? names : std::vector<std::string>()) {
    INFO(name);
    const checkpoint::ShardedCheckpoint parts(folder + "/" + name);
    parts.verify();
    CHECK(parts.ranks() == 4);
    checkpoint::consolidate_checkpoint(folder + "/" + name, folder + "/" + name + ", whole");
    check_equal(folder + "/whole", folder + "/" + name + ", whole");
  }
  const auto one = alone([&] {
    TrainerOptions whole = options(12);
    whole.load_path = folder + "/whole";
    whole.eval = {};
    return trained(gpt2(), whole);
  });
  for (const auto& [name, reported] : continued) {
    INFO(name);
    CHECK(difference(reported.all, one.all) < 1e-11);
  }
  // Queries, keys and values are three boxes of a rank; only a row layer's columns are of one.
  const checkpoint::ShardedCheckpoint parts(folder + "/copies");
  const auto& tensors = parts.folder("model").tensors();
  CHECK(tensors.at("transformer.h.0.attn.c_attn.weight").pieces.boxes().size() == 6);
  CHECK(tensors.at("transformer.h.0.attn.c_proj.weight").pieces.boxes().size() == 2);
  CHECK(tensors.at("transformer.h.0.ln_1.weight").pieces.boxes().size() == 1);
  CHECK(parts.has_own(1));
  CHECK_FALSE(parts.has_own(2));  // two copies draw by themselves
}

TEST_CASE("ranks of a model over ranks write their parts of a checkpoint together",
          "[models][tensor_parallel][nccl]") {
  const TemporaryFolder folder;
  ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
  CHECK(run_ranks("rank body: parts of parts in a checkpoint of all ranks", 4,
                  std::chrono::seconds(180)) == all_passed);
}

TEST_CASE("rank body: a part that several ranks have", "[.rank]") {
  const std::string folder = std::getenv("TUTTI_TEST_FOLDER");
  const auto group = tutti_test::initialize();
  const auto save = [&](int degree, CheckpointLayout layout, const std::string& from,
                        const std::string& name) {
    models::LlamaOptions size;
    size.vocab_size = 37;
    size.hidden_size = 16;
    size.intermediate_size = 24;
    size.num_hidden_layers = 2;
    size.num_attention_heads = 4;
    size.num_key_value_heads = 2;  // of four ranks two have the same
    size.max_position_embeddings = 8;
    at::manual_seed(3);
    models::LlamaForCausalLM model(size);
    model->to(at::kDouble);
    models::tensor_parallel(*model, {.degree = degree});
    TrainerOptions with = options(12 * degree / 4);
    with.max_duration = "1ep";
    with.eval = {};
    with.checkpoint_layout = layout;
    with.load_path = from;
    if (from.empty()) {
      with.save_folder = folder + "/run";
      with.save_async = true;
    }
    Trainer trainer(model.ptr(), with);
    if (from.empty()) {
      trainer.fit();
    }
    trainer.save_checkpoint(folder + "/" + name);
  };
  save(4, CheckpointLayout::sharded, "", "four");
  save(2, CheckpointLayout::whole, folder + "/run/latest", "two");  // written in the background
  save(1, CheckpointLayout::sharded, folder + "/two", "one");
  save(4, CheckpointLayout::sharded, folder + "/one", "four again");
  group->barrier();
  CHECK(checkpoint::ShardedCheckpoint(folder + "/four").ranks() == 4);
  if (group->rank() != 0) {
    return;
  }
  const auto two = sharded_runs::tensors_of(folder + "/two");
  CHECK(two.size() > 60);  // weights, two moments of each
  for (const char* name : {"four", "one", "four again"}) {
    INFO(name);
    const std::string whole = folder + "/" + name + ", whole";
    checkpoint::consolidate_checkpoint(folder + "/" + name, whole);
    sharded_runs::check_equal(sharded_runs::tensors_of(whole), two, two.size());
  }
}

TEST_CASE("of ranks that have the same part one writes it", "[models][tensor_parallel][nccl]") {
  const TemporaryFolder folder;
  ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
  CHECK(run_ranks("rank body: a part that several ranks have", 4, std::chrono::seconds(180)) ==
        all_passed);
}

TEST_CASE("rank body: a part that does not fit the checkpoint", "[.rank]") {
  const std::string folder = std::getenv("TUTTI_TEST_FOLDER");
  const auto group = tutti_test::initialize();
  TrainerOptions with = options(6);
  with.checkpoint_layout = CheckpointLayout::sharded;
  {
    Trainer trainer(gpt2({.degree = 2}), with);
    trainer.save_checkpoint(folder + "/narrow");
  }
  with.load_path = folder + "/narrow";
  auto wide = sharded_runs::gpt2({.width = 32});
  wide->to(at::kDouble);
  models::tensor_parallel(*wide, {.degree = 2});
  CHECK_THAT(message([&] { Trainer trainer(wide.ptr(), with); }),
             ContainsSubstring("transformer.h.0.attn.c_attn.weight: shape [16, 48] in the file, "
                               "[32, 96] in the model"));
}

TEST_CASE("what a rank has a part of is compared by its whole shape", "[models][tensor_parallel]") {
  const TemporaryFolder folder;
  ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
  CHECK(run_ranks("rank body: a part that does not fit the checkpoint", 2,
                  std::chrono::seconds(60)) == all_passed);
}

namespace {

std::string refused(TrainerOptions with, auto... policies) {
  try {
    Trainer<decltype(policies)...> trainer(gpt2({.degree = 2}), std::move(with),
                                           std::move(policies)...);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

}  // namespace

TEST_CASE("rank body: what does not go with a model over ranks", "[.rank]") {
  tutti_test::initialize();
  CHECK_THAT(refused(options(6), SAM{}),
             ContainsSubstring("by tensor_parallel(), which does not go with SAM: it climbs"));
  CHECK_THAT(refused(options(6), EMA{}), ContainsSubstring("EMA: it averages whole weights"));
  TrainerOptions with = options(6);
  with.optimizer = Muon{};
  CHECK_THAT(refused(with), ContainsSubstring("the optimizer Muon looks at whole tensors"));
  with = options(6);
  with.device_train_microbatch_size = "auto";
  CHECK_THAT(refused(with), ContainsSubstring("the microbatch size is \"auto\""));
  with = options(6);
  with.restore_best = {.monitor = "LanguageCrossEntropy", .dataloader_label = "test"};
  CHECK_THAT(refused(with), ContainsSubstring("restore_best keeps whole weights"));
  const auto adaptive = message([&] {
    Trainer<GradientClipping> trainer(
        gpt2({.degree = 2}), options(6),
        {.clipping_type = ClippingType::adaptive, .clipping_threshold = 0.1});
    trainer.fit();
  });
  CHECK_THAT(adaptive, ContainsSubstring("clipping_type is adaptive"));
}

TEST_CASE("what cannot train a model over ranks is refused by name", "[models][tensor_parallel]") {
  CHECK(run_ranks("rank body: what does not go with a model over ranks", 2) == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
