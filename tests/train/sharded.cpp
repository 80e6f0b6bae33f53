#include <tutti/train/sharded.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <tutti/algorithms/factorize.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/local_sgd.hpp>
#include <tutti/algorithms/skip_spikes.hpp>
#include <tutti/algorithms/swa.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/lamb.hpp>
#include <tutti/optim/lookahead.hpp>
#include <tutti/optim/nadam.hpp>
#include <tutti/optim/schedule_free.hpp>
#include <tutti/trainer.hpp>

#include "dist/alone.hpp"
#include "dist/initialize.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/warnings.hpp"
#include "train/sharded_runs.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using dist::ShardStage;
using sharded_runs::difference;
using sharded_runs::Losses;
using sharded_runs::stages;
using sharded_runs::tensors_of;
using tutti_test::all_passed;
using tutti_test::alone;
using tutti_test::run_ranks;

namespace {

auto gpt2() {
  return sharded_runs::gpt2().ptr();
}

OptimizerSpec optimizer = AdamW{.lr = 1e-2};  // of the runs

TrainerOptions options(std::int64_t batch_size) {
  return sharded_runs::options(sharded_runs::texts(batch_size), optimizer);
}

template <class... Ps>
std::vector<double> losses(TrainerOptions with, Ps... policies) {
  Trainer<Losses, Ps...> trainer(gpt2(), std::move(with), Losses{}, std::move(policies)...);
  trainer.fit();
  return trainer.template get<Losses>().all;
}

/// Every stage trains as DDP does, and as one process on the whole batches.
template <class... Ps>
void compare(std::int64_t microbatch, double tolerance, Ps... policies) {
  const auto with = [&](ShardStage stage, std::int64_t batch) {
    TrainerOptions out = options(batch);
    out.sharding.stage = stage;
    out.device_train_microbatch_size = microbatch;
    return out;
  };
  const std::int64_t here = 12 / tutti_test::initialize()->size();
  const auto replicated = losses(with(ShardStage::none, here), policies...);
  CHECK(replicated.size() == 4);
  for (const ShardStage stage : stages) {
    INFO(to_string(stage));
    CHECK(difference(losses(with(stage, here), policies...), replicated) < tolerance);
    TrainerOptions offloading = with(stage, here);
    offloading.sharding.cpu_offload = true;
    CHECK(difference(losses(offloading, policies...), replicated) < tolerance);
    if (microbatch > 0) {  // a unit's reduction goes on meanwhile, as it does on a GPU
      TrainerOptions overlapping = with(stage, here);
      overlapping.sharding.overlap_reduce = true;
      CHECK(difference(losses(overlapping, policies...), replicated) < tolerance);
    }
  }
  const auto one = alone([&] { return losses(with(ShardStage::parameters, 12), policies...); });
  CHECK(difference(one, replicated) < 10 * tolerance);
}

std::string refused(TrainerOptions with, auto... policies) {
  try {
    Trainer<decltype(policies)...> trainer(gpt2(), std::move(with), std::move(policies)...);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

/// One of a user's own, which needs whole tensors.
struct OfNorms final : torch::optim::SGD, optim::FusedStepOptimizer {
  explicit OfNorms(std::vector<at::Tensor> parameters)
      : SGD(std::move(parameters), torch::optim::SGDOptions(0.1)) {}
  using SGD::step;
  void step(const optim::FusedStep&) override { SGD::step(); }
  bool elementwise() const override { return false; }
};

void check_equal(const std::string& one, const std::string& other) {
  sharded_runs::check_equal(tensors_of(one), tensors_of(other),
                            61);  // weights, two moments of each
}

}  // namespace

TEST_CASE("rank body: sharded as replicated", "[.rank]") {
  compare(0, 1e-6);
}

TEST_CASE("rank body: an optimizer with numbers of each parameter within another", "[.rank]") {
  optimizer = Lookahead<NAdam>{.optimizer = {.lr = 1e-2}, .k = 2};
  compare(0, 1e-6);
}

TEST_CASE("rank body: in microbatches with a limit on the norm", "[.rank]") {
  compare(2, 1e-6,
          GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 0.2});
}

TEST_CASE("rank body: clipping of vectors that no rank has whole", "[.rank]") {
  compare(0, 1e-6,
          GradientClipping{.clipping_type = ClippingType::adaptive, .clipping_threshold = 0.02});
}

TEST_CASE("rank body: clipping by value that leaves some alone", "[.rank]") {
  compare(0, 1e-6,
          GradientClipping{.clipping_type = ClippingType::value,
                           .clipping_threshold = 1e-3,
                           .exclude = {"transformer.wte.*"}});
}

TEST_CASE("rank body: a frozen part of another type", "[.rank]") {
  const std::string folder = std::getenv("TUTTI_TEST_FOLDER");
  const auto model = [] {
    auto out = gpt2();
    for (const auto& item : out->named_parameters()) {
      if (item.key().find(".attn.") != std::string::npos) {
        item.value().set_requires_grad(false);
        item.value().set_data(item.value().to(at::kBFloat16));
      }
    }
    return out;
  };
  const auto run = [&](TrainerOptions with, const std::string& save = "") {
    Trainer trainer(
        model(), std::move(with), Losses{},
        GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 0.2});
    trainer.fit();
    if (!save.empty()) {
      trainer.save_checkpoint(save);
    }
    return trainer.get<Losses>().all;
  };
  TrainerOptions with = options(6);
  with.precision = Precision::amp_bf16;
  // On a GPU norms are added up in another order, and bfloat16 rounds some weights the other way.
  const double most = tutti_test::device().is_cpu() ? 1e-6 : 1e-3;
  const auto replicated = run(with);
  for (const ShardStage stage : stages) {
    INFO(to_string(stage));
    with.sharding.stage = stage;
    const auto whole = run(with);
    CHECK(difference(whole, replicated) < most);
    for (const auto layout : {CheckpointLayout::whole, CheckpointLayout::sharded}) {
      TrainerOptions half = with;
      half.checkpoint_layout = layout;
      half.max_duration = "1ep";
      const std::string saved = folder + "/" + std::string(to_string(stage)) +
                                (layout == CheckpointLayout::whole ? "" : "_sharded");
      std::vector<double> both = run(half, saved);
      half.load_path = saved;
      half.max_duration = "2ep";
      const std::vector<double> second = run(half);
      both.insert(both.end(), second.begin(), second.end());
      CHECK(both == whole);
    }
    CHECK(tensors_of(folder + "/" + std::string(to_string(stage)))
              .at("model/transformer.h.0.attn.c_attn.weight")
              .scalar_type() == at::kBFloat16);
  }
}

TEST_CASE("rank body: sharded checkpoints", "[.rank]") {
  const std::string folder = std::getenv("TUTTI_TEST_FOLDER");
  const auto group = tutti_test::initialize();
  const bool replicas = group->size() == 4;
  for (const ShardStage stage : stages) {
    const std::string name = folder + "/" + std::string(to_string(stage));
    TrainerOptions with = options(12 / group->size());
    with.max_duration = "1ep";
    with.sharding = {.stage = stage, .shard_degree = replicas ? 2 : 0};
    const SWA mean{.swa_start = "0ep", .swa_end = "2ep", .update_interval = "1ba"};
    {
      Trainer trainer(gpt2(), with, mean);
      trainer.fit();
      trainer.save_checkpoint(name + "_first");
    }
    with.load_path = name + "_first";
    with.max_duration = "2ep";
    with.save_overwrite = true;
    Trainer trainer(gpt2(), with, mean);
    trainer.save_checkpoint(name + "_again");
    trainer.fit();
    trainer.save_checkpoint(name + "_end");
  }
  group->barrier();
  CHECK(tensors_of(folder + "/parameters_end").size() > 60);
  if (group->rank() == 0) {
    for (const ShardStage stage : stages) {
      const std::string name = folder + "/" + std::string(to_string(stage));
      INFO(name);
      check_equal(name + "_first", name + "_again");
      alone([&] {
        TrainerOptions with = options(12);
        with.load_path = name + "_first";
        with.max_duration = "2ep";
        Trainer trainer(gpt2(), with,
                        SWA{.swa_start = "0ep", .swa_end = "2ep", .update_interval = "1ba"});
        trainer.save_checkpoint(name + "_alone");
        check_equal(name + "_first", name + "_alone");
        trainer.fit();
        const auto end = tensors_of(name + "_end");
        for (const auto& item : trainer.state().model->named_parameters()) {
          CHECK(item.value().cpu().allclose(end.at("model/" + item.key()), 1e-4, 1e-5));
        }
        return 0;
      });
    }
  }
}

TEST_CASE("rank body: what does not go with sharding", "[.rank]") {
  const auto group = tutti_test::initialize();
  const auto with = [](ShardStage stage) {
    TrainerOptions out = options(6);
    out.sharding.stage = stage;
    return out;
  };
  CHECK_THAT(
      refused(with(ShardStage::optimizer), LocalSGD{}),
      ContainsSubstring("sharding.stage is optimizer, which does not go with LocalSGD: each rank"));
  CHECK_THAT(refused(with(ShardStage::parameters), SkipSpikes{}),
             ContainsSubstring("SkipSpikes: it goes back to a checkpoint") &&
                 ContainsSubstring("set reload_after to 0"));
  CHECK_THAT(refused(with(ShardStage::gradients),
                     Factorize{.refactorize_interval = "1ep", .if_none = surgery::IfNone::ignore}),
             ContainsSubstring("set refactorize_interval to 0"));

  TrainerOptions automatic = with(ShardStage::parameters);
  automatic.device_train_microbatch_size = "auto";
  CHECK_THAT(refused(automatic), ContainsSubstring("the microbatch size is \"auto\""));
  automatic.sharding.stage = ShardStage::gradients;
  CHECK(refused(automatic) == "no error");

  TrainerOptions degree = with(ShardStage::parameters);
  degree.sharding.shard_degree = 3;
  CHECK_THAT(refused(degree), ContainsSubstring("shard_degree is 3 in a run of 2 ranks"));

  TrainerOptions strategy = with(ShardStage::gradients);
  strategy.data_parallel.sync_strategy = dist::SyncStrategy::multi_auto_sync;
  CHECK_THAT(refused(strategy), ContainsSubstring("data_parallel.sync_strategy is set"));

  TrainerOptions compressed = with(ShardStage::gradients);
  compressed.data_parallel.compression = dist::GradientCompression::bf16;
  CHECK_THAT(refused(compressed), ContainsSubstring("data_parallel.compression is bf16"));

  TrainerOptions lbfgs = with(ShardStage::optimizer);
  lbfgs.optimizer = OptimizerSpec([](torch::nn::Module& model) {
    return std::make_shared<torch::optim::LBFGS>(model.parameters());
  });
  CHECK_THAT(refused(lbfgs), ContainsSubstring("looks at all gradients at once"));

  TrainerOptions whole = with(ShardStage::optimizer);
  whole.optimizer = OptimizerSpec(
      [](torch::nn::Module& model) { return std::make_shared<OfNorms>(model.parameters()); });
  CHECK_THAT(refused(whole), ContainsSubstring("OfNorms looks at whole tensors") &&
                                 ContainsSubstring("steps_on_shards() and take_shards()"));
  whole.optimizer = OptimizerSpec([](torch::nn::Module& model) {
    std::vector<at::Tensor> parameters = model.parameters();
    parameters.push_back(at::zeros({2, 3}).requires_grad_());
    return LAMB{}.build(std::move(parameters));
  });
  CHECK_THAT(refused(whole),
             ContainsSubstring("a tensor [2, 3] that is no parameter of the model"));
  whole.optimizer = ScheduleFreeSGD{};
  CHECK_THAT(refused(whole), ContainsSubstring("ScheduleFreeSGD puts averages into the model"));

  const auto differs = with(group->rank() == 0 ? ShardStage::gradients : ShardStage::parameters);
  CHECK_THAT(refused(differs), ContainsSubstring("rank 1 has [sharding stage parameters") &&
                                   ContainsSubstring("where rank 0 has [sharding stage gradients"));
  const auto some = with(group->rank() == 0 ? ShardStage::none : ShardStage::parameters);
  CHECK_THAT(refused(some), ContainsSubstring("has [sharding stage parameters"));
}

TEST_CASE("rank body: copies of sharded weights that autocast keeps", "[.rank]") {
  const int rank = tutti_test::initialize()->rank();
  TrainerOptions with = options(6);
  with.max_duration = "2ba";
  with.sharding.stage = ShardStage::parameters;
  with.precision = Precision::amp_bf16;
  const auto told = [](const auto& train) {
    const Warnings warnings;
    train();
    return std::count_if(warnings.texts.begin(), warnings.texts.end(), [](const auto& text) {
      return text.find("sharding.param_dtype is not set") != std::string::npos;
    });
  };
  const auto made = [&] { losses(with); };
  CHECK(told(made) == (rank == 0 ? 1 : 0));
  with.precision = Precision::fp32;
  Trainer<> trainer(gpt2(), with);
  const auto again = [&] { trainer.fit({.duration = "1ba", .precision = Precision::amp_bf16}); };
  CHECK(told(again) == (rank == 0 ? 1 : 0));
  CHECK(told(again) == 0);
  with.precision = Precision::amp_bf16;
  with.sharding.param_dtype = at::kBFloat16;
  with.sharding.reduce_dtype = at::kFloat;
  CHECK(told(made) == 0);
}

TEST_CASE("rank body: other numbers of microbatches", "[.rank]") {
  const int rank = tutti_test::initialize()->rank();
  const auto fit = [&](ShardStage stage, std::int64_t batch_size) {
    TrainerOptions with = options(batch_size);
    with.max_duration = "1ba";
    with.sharding.stage = stage;
    with.device_train_microbatch_size = 2;
    try {
      return std::to_string(losses(std::move(with)).size()) + " batch";
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
  };
  for (const ShardStage stage : {ShardStage::gradients, ShardStage::parameters}) {
    INFO(to_string(stage));
    CHECK_THAT(fit(stage, rank == 0 ? 8 : 6),
               ContainsSubstring("rank 1 has 3 microbatches of its batch and rank 0 has 4, so one "
                                 "would wait"));
    CHECK(fit(stage, rank == 0 ? 4 : 3) == "1 batch");  // two each
  }
  CHECK(fit(ShardStage::optimizer, rank == 0 ? 8 : 6) == "1 batch");
  TrainerOptions with = options(rank == 0 ? 8 : 6);
  with.device_train_microbatch_size = 2;
  with.data_parallel.sync_strategy = dist::SyncStrategy::multi_auto_sync;
  CHECK_THROWS_WITH(losses(std::move(with)), ContainsSubstring("rank 1 has 3 microbatches"));
}

TEST_CASE("rank body: evaluations and predictions of other numbers of passes", "[.rank]") {
  const int rank = tutti_test::initialize()->rank();
  const auto run = [&](ShardStage stage) {
    TrainerOptions with = options(4);
    with.max_duration = "1ba";
    with.sharding.stage = stage;
    with.eval_interval = "1ba";
    // A batch of 4 texts on rank 0 and of 2 on rank 1, so two microbatches and one.
    with.eval = {
        {"test", sharded_runs::texts(4, rank == 0 ? 8 : 4), {.device_eval_microbatch_size = 2}}};
    Trainer<> trainer(gpt2(), std::move(with));
    trainer.fit();
    // Three batches and one.
    const std::vector<Outputs> predicted =
        trainer.predict(sharded_runs::texts(2, rank == 0 ? 6 : 2));
    CHECK(predicted.size() == (rank == 0 ? 3 : 1));
    std::vector<at::Tensor> logits;
    for (const Outputs& one : predicted) {
      logits.push_back(one.tensor().reshape({-1}));
    }
    const double loss = trainer.state().metric("test", "LanguageCrossEntropy");
    return std::pair(loss, at::cat(logits));
  };
  const auto replicated = run(ShardStage::none);
  const auto sharded = run(ShardStage::parameters);
  CHECK(std::abs(sharded.first - replicated.first) < 1e-5);
  CHECK((sharded.second - replicated.second).abs().max().item<double>() < 1e-5);

  TrainerOptions with = options(4);
  with.sharding.stage = ShardStage::parameters;
  Trainer<> trainer(gpt2(), with);
  CHECK_THROWS_WITH(trainer.predict(sharded_runs::texts(2, rank == 0 ? 6 : 0)),
                    ContainsSubstring("the loaders of 1 of 2 ranks gave no batch"));
  with.eval = {{"test", sharded_runs::texts(2, 4), {.device_eval_microbatch_size = "auto"}}};
  CHECK_THAT(refused(with), ContainsSubstring("device_eval_microbatch_size is \"auto\""));
}

TEST_CASE("a trainer trains a sharded model as a replicated one", "[train][sharded][nccl]") {
  for (const char* body : {"rank body: sharded as replicated",
                           "rank body: an optimizer with numbers of each parameter within another",
                           "rank body: in microbatches with a limit on the norm"}) {
    CHECK(run_ranks(body, 2, std::chrono::seconds(120)) == all_passed);
  }
}

TEST_CASE("a frozen part of another type is sharded, saved and loaded", "[train][sharded][nccl]") {
  const TemporaryFolder folder;
  ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
  CHECK(run_ranks("rank body: a frozen part of another type", 2, std::chrono::seconds(120)) ==
        all_passed);
}

TEST_CASE("gradients of which ranks have parts are clipped as whole ones",
          "[train][sharded][nccl]") {
  for (const char* body : {"rank body: clipping of vectors that no rank has whole",
                           "rank body: clipping by value that leaves some alone"}) {
    CHECK(run_ranks(body, 3, std::chrono::seconds(120)) == all_passed);
  }
}

TEST_CASE("a checkpoint of a sharded run is that of one process", "[train][sharded][nccl]") {
  for (const int ranks : {2, 3, 4}) {
    const TemporaryFolder folder;
    ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
    CHECK(run_ranks("rank body: sharded checkpoints", ranks, std::chrono::seconds(120)) ==
          all_passed);
  }
}

TEST_CASE("rank 0 warns once of the copies that autocast keeps of sharded weights",
          "[train][sharded]") {
  CHECK(run_ranks("rank body: copies of sharded weights that autocast keeps", 2,
                  std::chrono::seconds(120)) == all_passed);
}

TEST_CASE("ranks with other numbers of microbatches do not wait for ever", "[train][sharded]") {
  CHECK(run_ranks("rank body: other numbers of microbatches", 2, std::chrono::seconds(120)) ==
        all_passed);
}

TEST_CASE("ranks evaluate and predict a sharded model in other numbers of passes",
          "[train][sharded]") {
  CHECK(run_ranks("rank body: evaluations and predictions of other numbers of passes", 2,
                  std::chrono::seconds(120)) == all_passed);
}

TEST_CASE("a run that cannot be sharded is refused on every rank", "[train][sharded]") {
  CHECK(run_ranks("rank body: what does not go with sharding", 2, std::chrono::seconds(120)) ==
        all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
