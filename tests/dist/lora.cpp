#include <tutti/algorithms/lora.hpp>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <tutti/algorithms/ema.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/trainer.hpp>

#include "dist/alone.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using dist::SyncStrategy;
using tutti_test::all_passed;
using tutti_test::alone;
using tutti_test::run_ranks;

namespace {

struct Net : torch::nn::Module {
  Outputs forward(const Batch& batch) { return out(in(batch.inputs()).tanh()); }
  Loss loss(const Outputs& outputs, const Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  nn::Linear in = register_module("in", nn::Linear(4, 8));
  nn::Linear out = register_module("out", nn::Linear(8, 2));
};

std::shared_ptr<Net> net(std::uint64_t seed) {
  at::manual_seed(seed);
  return std::make_shared<Net>();
}

// Remembers every batch's loss and the weights after it, and sees what has gradients.
struct Record final {
  std::vector<double> losses{};
  std::vector<at::Tensor> weights{};

  void apply(AfterTrainBatch, State& state) {
    for (const auto& parameter : state.model->named_parameters()) {
      const bool of_adapter = parameter.key().find("lora_") != std::string::npos;
      INFO(parameter.key());
      CHECK(parameter.value().grad().defined() == of_adapter);
    }
  }
  void apply(BatchEnd, State& state) {
    losses.push_back(state.total_loss.at("total").item<double>());
    weights.push_back(tiny::flat(*state.model));
  }
};

const LoRA lora{.r = 2, .alpha = 8, .target_modules = {"in", "out"}};

TrainerOptions options(std::int64_t batch_size) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({24, 4});
  const at::Tensor y = at::randn({24, 2});
  return {.train = TensorLoader{x, y, {.batch_size = batch_size}},
          .max_duration = "3ep",
          .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
          .device = "cpu",
          .seed = 3,
          .run_name = "adapters",
          .progress_bar = false};
}

// Trains a model that begins otherwise on each rank: those of rank 0 count.
template <class... Policies>
Record record(const TrainerOptions& with, Policies... policies) {
  const auto model = net(1 + static_cast<std::uint64_t>(dist::rank()));
  Trainer trainer{model, with, lora, Record{}, policies...};
  CHECK(trainer.state().optimizers.at(0)->param_groups().at(0).params().size() == 4);
  trainer.fit();
  const at::Tensor base = tiny::flat(*net(1));
  const auto now = model->named_parameters();
  CHECK(at::cat({now["in.base_layer.weight"].flatten(), now["in.base_layer.bias"],
                 now["out.base_layer.weight"].flatten(), now["out.base_layer.bias"]})
            .equal(base));
  const Record& out = trainer.template get<Record>();
  for (const at::Tensor& weights : out.weights) {
    const auto ranks = trainer.state().communicator->all_gather(weights);
    CHECK(ranks.front().equal(ranks.back()));
  }
  return out;
}

void check_close(const Record& two, const Record& one, std::size_t batches) {
  REQUIRE(two.losses.size() == batches);
  REQUIRE(one.losses.size() >= batches);
  const std::size_t before = one.losses.size() - batches;
  for (std::size_t i = 0; i < batches; ++i) {
    CHECK(std::abs(two.losses[i] - one.losses[i + before]) < 1e-5);
    CHECK(two.weights[i].allclose(one.weights[i + before], 1e-5, 1e-5));
  }
}

}  // namespace

TEST_CASE("rank body: adapters as in one process", "[.rank]") {
  const Record whole = record(options(6));
  TrainerOptions parts = options(6);
  parts.device_train_microbatch_size = 4;
  const Record in_parts = record(parts);
  TrainerOptions forced = options(6);
  forced.data_parallel.sync_strategy = SyncStrategy::forced_sync;
  forced.device_train_microbatch_size = 3;
  const Record reduced_after = record(forced);
  const Record one = alone([] { return record(options(12)); });
  CHECK(std::abs(one.losses.front() - one.losses.back()) > 0.05);  // they have learnt
  check_close(whole, one, 6);
  check_close(in_parts, one, 6);
  check_close(reduced_after, one, 6);
}

TEST_CASE("rank body: a checkpoint of adapters", "[.rank]") {
  const TemporaryFolder mine;
  const auto group = dist::initialize();
  TrainerOptions with = options(3);
  with.save_folder = group->broadcast_bytes(mine.path().string());
  with.save_interval = "5ba";
  const EMA ema{.half_life = "2ba"};
  const Record whole = record(with, ema);
  REQUIRE(whole.losses.size() == 12);
  group->barrier();
  with.load_path = with.save_folder + "/ep1-ba5";
  with.save_folder.clear();
  const Record rest = record(with, ema);
  REQUIRE(rest.losses.size() == 7);
  for (std::size_t i = 0; i < 7; ++i) {
    CHECK(rest.losses[i] == whole.losses[i + 5]);
    CHECK(rest.weights[i].equal(whole.weights[i + 5]));
  }
  group->barrier();
  if (group->rank() == 0) {
    alone([&] {
      TrainerOptions one = options(6);
      one.load_path = with.load_path;
      check_close(record(one, ema), whole, 7);
      return 0;
    });
  }
}

TEST_CASE("two ranks train adapters as one process with twice the batch", "[dist][lora]") {
  CHECK(run_ranks("rank body: adapters as in one process") == all_passed);
}

TEST_CASE("two ranks go on from a checkpoint of adapters bit for bit, and one process goes on, too",
          "[dist][lora]") {
  CHECK(run_ranks("rank body: a checkpoint of adapters") == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
