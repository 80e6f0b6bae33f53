#include <tutti/trainer.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/models/classifier.hpp>

#include "dist/alone.hpp"
#include "dist/initialize.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/out_of_memory.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using dist::SyncStrategy;
using tutti_test::all_passed;
using tutti_test::alone;
using tutti_test::run_ranks;

namespace {

/// Remembers every batch's loss and the weights after it.
struct Record final {
  std::vector<double> losses{};
  std::vector<at::Tensor> weights{};
  void apply(BatchEnd, State& state) {
    losses.push_back(state.total_loss.at("total").item<double>());
    weights.push_back(tiny::flat(*state.model));
  }
};

/// Remembers which examples this rank is given.
struct Dealt final {
  std::vector<at::Tensor> numbers{};
  void apply(AfterDataloader, State& state) {
    numbers.push_back(state.batch.inputs().select(1, 0));
  }
};

struct Fail final {
  int on_rank = 1;
  void apply(BatchStart, State& state) const {
    TORCH_CHECK(state.rank != on_rank || state.timestamp.batch < 2, "the disk is full");
  }
};

struct Die final {
  void apply(BeforeBackward, State& state) const {
    if (state.rank == 1 && state.timestamp.batch == 2) {
      _exit(3);
    }
  }
};

/// Each rank has the statistics of its own batches.
struct Normed : torch::nn::Module {
  Normed() {
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    linear = register_module("linear", torch::nn::Linear(4, 2));
  }
  Outputs forward(const Batch& batch) { return linear(norm(batch.inputs())); }
  Loss loss(const Outputs& outputs, const Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear linear{nullptr};
};

/// Remembers the statistics with which every evaluation is made.
struct BuffersInEvaluation final {
  std::vector<at::Tensor> means{};
  void apply(EvalBeforeForward, State& state) {
    if (state.eval_timestamp.batch == 0) {
      means.push_back(state.model->named_buffers()["norm.running_mean"].detach().cpu().clone());
    }
  }
};

TrainerOptions options(std::int64_t rows, std::int64_t batch_size) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({rows, 4});
  const at::Tensor y = at::randn({rows, 2});
  return {.train = TensorLoader{x, y, {.batch_size = batch_size}},
          .max_duration = "2ep",
          .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
          .device = tutti_test::device_name(),
          .seed = 3,
          .progress_bar = false};
}

template <class Model>
Record record(Model model, const TrainerOptions& with) {
  Trainer<Record> trainer(model, with);
  trainer.fit();
  for (const at::Tensor& weights : trainer.template get<Record>().weights) {
    const auto ranks = trainer.state().communicator->all_gather(weights);
    CHECK(ranks.front().equal(ranks.back()));
  }
  return trainer.template get<Record>();
}

void check_close(const Record& two, const Record& one, std::size_t batches) {
  REQUIRE(two.losses.size() == batches);
  REQUIRE(one.losses.size() == batches);
  for (std::size_t i = 0; i < batches; ++i) {
    CHECK(std::abs(two.losses[i] - one.losses[i]) < 1e-5);
    CHECK(two.weights[i].allclose(one.weights[i], 1e-5, 1e-5));
  }
}

void compare(SyncStrategy strategy, std::int64_t microbatch) {
  TrainerOptions with = options(24, 6);
  with.data_parallel.sync_strategy = strategy;
  with.device_train_microbatch_size = microbatch;
  const Record two = record(tiny::net(1 + static_cast<std::uint64_t>(dist::rank())), with);
  const Record one = alone([] { return record(tiny::net(1), options(24, 12)); });
  check_close(two, one, 4);
}

}  // namespace

TEST_CASE("rank body: trainer", "[.rank]") {
  compare(SyncStrategy::single_auto_sync, 0);
}

TEST_CASE("rank body: trainer with uneven microbatches", "[.rank]") {
  compare(SyncStrategy::single_auto_sync, 4);
}

TEST_CASE("rank body: trainer with forced sync", "[.rank]") {
  compare(SyncStrategy::forced_sync, 3);
}

TEST_CASE("rank body: an optimizer with a closure", "[.rank]") {
  const auto with = [](std::int64_t batch_size, std::int64_t microbatch) {
    TrainerOptions out = options(24, batch_size);
    out.optimizer = [](torch::nn::Module& model) {
      return std::make_unique<torch::optim::LBFGS>(
          model.parameters(),
          torch::optim::LBFGSOptions(1).max_iter(4).line_search_fn("strong_wolfe"));
    };
    out.device_train_microbatch_size = microbatch;
    return out;
  };
  const auto net = [] { return tiny::net(1 + static_cast<std::uint64_t>(dist::rank())); };
  const Record two = record(net(), with(6, 0));
  const Record parts = record(net(), with(6, 4));
  const Record one = alone([&] { return record(tiny::net(1), with(12, 0)); });
  check_close(two, one, 4);
  check_close(parts, one, 4);
}

TEST_CASE("rank body: loaders of several lengths", "[.rank]") {
  TrainerOptions with = options(24, 6);
  with.train = tiny::batches(3 + dist::rank());
  with.max_duration = "1ep";
  Trainer<> trainer{tiny::net(1), with};
  const Warnings warnings;
  trainer.fit();
  CHECK(trainer.state().timestamp.batch == 3);
  const auto left =
      std::count_if(warnings.texts.begin(), warnings.texts.end(), [](const std::string& each) {
        return each.find(
                   "epoch 0 ends after 3 batches, since another rank has no more: what rank "
                   "1 has left") != std::string::npos;
      });
  CHECK(left == dist::rank());
}

TEST_CASE("rank body: exact evaluation", "[.rank]") {
  at::manual_seed(11);
  const at::Tensor x = at::randn({11, 4});
  const at::Tensor y = at::randint(3, {11}, at::kLong);
  const auto evaluate = [&](std::int64_t batch_size) {
    at::manual_seed(1);
    const Classifier model{torch::nn::Linear(4, 3), {.num_classes = 3}};
    Trainer<> trainer{model,
                      {.eval = {{"test", TensorLoader{x, y, {.batch_size = batch_size}}}},
                       .optimizer = SGD{.lr = 0.1},
                       .device = tutti_test::device_name(),
                       .progress_bar = false}};
    trainer.eval();
    return trainer.state().eval_metric_values.at("test");
  };
  // 6 examples on each rank, one of them a repetition: alone in its batch, and not.
  const auto singles = evaluate(1);
  const auto triples = evaluate(3);
  const auto one = alone([&] { return evaluate(1); });
  REQUIRE(one.size() == 2);
  for (const auto& [name, value] : one) {
    CHECK(std::abs(singles.at(name) - value) < 1e-6);
  }
  // The reference's CrossEntropy is a mean over batches, so it depends on how they are cut.
  CHECK(std::abs(triples.at("MulticlassAccuracy") - one.at("MulticlassAccuracy")) < 1e-6);
}

TEST_CASE("rank body: evaluated buffers", "[.rank]") {
  const auto model = std::make_shared<Normed>();
  TrainerOptions with = options(24, 6);
  with.eval = {{"test", TensorLoader{at::randn({6, 4}), at::randn({6, 2}), {.batch_size = 3}}}};
  Trainer trainer{model, with, EMA{.half_life = "2ba"}, BuffersInEvaluation{}};
  trainer.fit();
  dist::Communicator& group = *trainer.state().communicator;
  const auto& seen = trainer.get<BuffersInEvaluation>().means;
  REQUIRE(seen.size() == 2);
  for (const at::Tensor& mean : seen) {
    const auto ranks = group.all_gather(mean);
    CHECK(ranks.front().equal(ranks.back()));
  }
  // Those of the averages, not of the model that goes on.
  CHECK_FALSE(seen.back().equal(model->norm->running_mean.cpu()));
  const auto ranks = group.all_gather(model->norm->running_mean);
  CHECK(ranks.front().equal(ranks.back()));  // what rank 0 saves
}

TEST_CASE("rank body: one drawn seed orders the data of all ranks", "[.rank]") {
  const at::Tensor numbers = at::arange(24, at::kFloat);
  TrainerOptions with = options(24, 3);
  with.train = TensorLoader{
      numbers.unsqueeze(1).expand({24, 4}), at::zeros({24, 2}), {.batch_size = 3, .shuffle = true}};
  with.max_duration = "1ep";
  with.seed.reset();
  Trainer<Dealt> trainer(tiny::net(), with);
  trainer.fit();
  const at::Tensor own = at::cat(trainer.get<Dealt>().numbers);
  CHECK(own.size(0) == 12);
  const at::Tensor all = at::cat(trainer.state().communicator->all_gather(own));
  CHECK_FALSE(all.equal(numbers));
  CHECK(std::get<0>(all.sort()).equal(numbers));
}

TEST_CASE("rank body: an exception", "[.rank]") {
  Trainer<Fail> trainer(tiny::net(), options(24, 3));
  trainer.fit();
}

TEST_CASE("rank body: a rank dies", "[.rank]") {
  Trainer<Die> trainer(tiny::net(), options(24, 3));
  CHECK_THROWS_WITH(
      trainer.fit(),
      ContainsSubstring("tutti::dist::DistributedDataParallel::backward: rank 0 of 2") &&
          ContainsSubstring("look for its own error first"));
}

TEST_CASE("rank body: resume", "[.rank]") {
  const TemporaryFolder mine;
  const auto group = tutti_test::initialize();
  TrainerOptions with = options(24, 3);
  with.save_folder = group->broadcast_bytes(mine.path().string());
  with.save_interval = "3ba";
  with.run_name = "two";
  const Record whole = record(tiny::net(), with);
  REQUIRE(whole.losses.size() == 8);
  group->barrier();
  with.load_path = with.save_folder + "/ep0-ba3";
  with.save_folder.clear();
  const Record rest = record(tiny::net(5), with);
  REQUIRE(rest.losses.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(rest.losses[i] == whole.losses[i + 3]);
    CHECK(rest.weights[i].equal(whole.weights[i + 3]));
  }
  group->barrier();
}

TEST_CASE("two ranks train as one process with twice the batch", "[dist][trainer][nccl]") {
  CHECK(run_ranks("rank body: trainer") == all_passed);
  CHECK(run_ranks("rank body: trainer with uneven microbatches") == all_passed);
  CHECK(run_ranks("rank body: trainer with forced sync") == all_passed);
}

TEST_CASE("two ranks evaluate a closure as often as each other, and train as one process",
          "[dist][closure][nccl]") {
  CHECK(run_ranks("rank body: an optimizer with a closure") == all_passed);
}

TEST_CASE("two ranks deal out one order where nobody gave a seed", "[dist][trainer][nccl]") {
  CHECK(run_ranks("rank body: one drawn seed orders the data of all ranks") == all_passed);
}

TEST_CASE("a rank that has batches left where an epoch ends says so", "[dist][trainer]") {
  CHECK(run_ranks("rank body: loaders of several lengths") == all_passed);
}

TEST_CASE("two ranks evaluate the averages of rank 0's buffers", "[dist][trainer][nccl]") {
  CHECK(run_ranks("rank body: evaluated buffers") == all_passed);
}

TEST_CASE("two ranks evaluate every example once", "[dist][trainer][nccl]") {
  CHECK(run_ranks("rank body: exact evaluation") == all_passed);
}

TEST_CASE("an exception on one rank ends both", "[dist][trainer]") {
  const auto begin = std::chrono::steady_clock::now();
  const std::string report = run_ranks("rank body: an exception");
  CHECK_THAT(report, ContainsSubstring("the disk is full"));
  CHECK_THAT(report, ContainsSubstring("--- rank 0 failed"));
  CHECK_THAT(report, !ContainsSubstring("killed at the limit"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(50));
}

TEST_CASE("a rank whose peer dies in a backward pass says where it waited", "[dist][trainer]") {
  const std::string report = run_ranks("rank body: a rank dies");
  CHECK_THAT(report, ContainsSubstring("--- rank 1 failed"));
  CHECK_THAT(report, !ContainsSubstring("--- rank 0"));
}

TEST_CASE("two ranks resume bit for bit", "[dist][trainer][nccl]") {
  CHECK(run_ranks("rank body: resume") == all_passed);
}

namespace {

// Rank 1 has less room, in the second backward pass of a batch.
struct Room final {
  int overflows = 0;
  void apply(AfterBackward, const State& state) {
    if (state.rank == 1 && state.batch.num_samples() > 2) {
      ++overflows;
      tutti_test::out_of_memory();
    }
  }
};

}  // namespace

TEST_CASE("rank body: one rank runs out of memory", "[.rank]") {
  const auto train = [](CountOrAuto microbatch, auto... policies) {
    auto with = options(48, 8);
    with.device_train_microbatch_size = microbatch;
    const auto model = tiny::net();
    Trainer trainer{model, with, policies...};
    trainer.fit();
    CHECK(trainer.state().device_train_microbatch_size == 2);
    return tiny::flat(*model);
  };
  const at::Tensor found = train("auto", Room{});
  CHECK(found.allclose(train(2), 1e-5, 1e-6));
  const auto all = dist::default_group()->all_gather(found);
  CHECK(all.front().equal(all.back()));
}

TEST_CASE("two ranks shrink together when one runs out of memory in a backward pass",
          "[dist][microbatching]") {
  CHECK(run_ranks("rank body: one rank runs out of memory") == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
