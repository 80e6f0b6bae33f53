#include <tutti/trainer.hpp>

#include <cstdlib>
#include <string>
#include <vector>

#include <tutti/callbacks/eval_output_logging.hpp>
#include <tutti/callbacks/load_checkpoint.hpp>
#include <tutti/callbacks/memory_monitor.hpp>
#include <tutti/callbacks/prediction_writer.hpp>
#include <tutti/callbacks/reduce_lr_on_plateau.hpp>
#include <tutti/callbacks/speed_monitor.hpp>
#include <tutti/checkpoint/local_object_store.hpp>
#include <tutti/checkpoint/remote.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/metrics/loss_metric.hpp>

#include "callbacks/run.hpp"
#include "dist/ranks.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using tutti_test::all_passed;
using tutti_test::run_ranks;

namespace {

/// Has the mean of the targets' first numbers as a metric: 2 on rank 0, 4 on rank 1.
struct MeanNet : tiny::Net {
  static Metrics metrics(bool train) {
    const auto first = [](const at::Tensor&, const at::Tensor& y) { return y[0][0]; };
    return train ? Metrics{} : Metrics{std::make_shared<LossMetric>(first, "Mean")};
  }
};

/// Says that it computes 1000 operations for each example, 10 times as many on rank 1.
struct CountingNet : tiny::Net {
  double flops_per_batch(const Batch& batch) {
    return (dist::rank() == 1 ? 10'000.0 : 1000.0) * static_cast<double>(batch.num_samples());
  }
};

TrainerOptions options() {
  at::manual_seed(7);
  const at::Tensor x = at::randn({16, 4});
  const at::Tensor y = at::randn({16, 2});
  auto out = callback_run::options();
  out.train = TensorLoader{x, y, {.batch_size = 2}};
  out.eval = {{"test", TensorLoader{at::arange(4).reshape({4, 1}).expand({4, 4}).to(at::kFloat),
                                    at::arange(8).reshape({4, 2}).to(at::kFloat),
                                    {.batch_size = 1}}}};
  out.max_duration = "1ep";
  return out;
}

}  // namespace

TEST_CASE("rank body: callbacks sum over ranks", "[.rank]") {
  Trainer trainer{std::make_shared<CountingNet>(), options(),
                  SpeedMonitor{.window_size = 2, .gpu_flops_available = 1e15}, InMemoryLogger{}};
  trainer.fit();
  const auto& memory = trainer.get<InMemoryLogger>();
  const auto& window = *trainer.get<SpeedMonitor>().run.window;
  CHECK(window.flops.back() == 22'000.0);  // 2 examples on each rank
  CHECK(window.samples.back() == 16);      // of both ranks
  CHECK(memory.latest("throughput/device/flops_per_sec") ==
        Approx(memory.latest("throughput/flops_per_sec") / 2));
  CHECK(memory.latest("throughput/device/samples_per_sec") ==
        Approx(memory.latest("throughput/samples_per_sec") / 2));

  InMemoryLogger own;
  State state;
  state.logger.add(own);
  state.communicator = trainer.state().communicator;
  const double rank = trainer.state().rank;
  MemoryMonitor{.dist_aggregate_batch_interval = 1}.report(state, {{"alloc_retries", 4 + rank}});
  CHECK(own.latest("memory/alloc_retries") == 4 + rank);
  CHECK(own.latest("memory/alloc_retries_avg") == 4.5);
  CHECK(own.latest("memory/alloc_retries_min") == 4.0);
  CHECK(own.latest("memory/alloc_retries_max") == 5.0);
}

TEST_CASE("rank body: a table has the rows of all ranks", "[.rank]") {
  Trainer trainer{
      tiny::net(), options(),
      EvalOutputLogging{
          .input_text = [](const at::Tensor& x) { return "x" + std::to_string(x[0].item<int>()); }},
      InMemoryLogger{}};
  trainer.fit();
  const std::string table = trainer.get<InMemoryLogger>().tables.at("test_step_4");
  std::size_t from = 0;
  for (const char* row : {"x0", "x2", "x1", "x3"}) {  // rank 0's examples first
    const auto found = table.find(row, from);
    CHECK(found != std::string::npos);
    from = found;
  }
}

TEST_CASE("rank body: each rank writes what it has predicted", "[.rank]") {
  const std::string folder = std::getenv("TMPDIR");
  Trainer<PredictionWriter> trainer{tiny::net(), options(),
                                    PredictionWriter{.filename = folder + "/{rank}.safetensors"}};
  const int rank = trainer.state().rank;
  const at::Tensor x = at::arange(20, at::kFloat).reshape({5, 4});
  TensorLoader loader{x, at::zeros({5, 2}), {.batch_size = 2}};
  loader.shard(rank, 2);
  trainer.predict(loader);
  const auto read =
      checkpoint::read_safetensors(folder + "/" + std::to_string(rank) + ".safetensors");
  REQUIRE(read.size() == 1);
  REQUIRE(read[0].second.sizes() == at::IntArrayRef{3, 2});
  for (int row = 0; row < 3; ++row) {  // the sixth example is the first one again
    const at::Tensor one = x[(2 * row + rank) % 5].unsqueeze(0);
    const auto net = std::dynamic_pointer_cast<tiny::Net>(trainer.state().model);
    CHECK(at::allclose(read[0].second[row], net->forward({one, one}).tensor()[0], 1e-5, 1e-6));
  }
  Trainer<PredictionWriter> by_default{tiny::net(), options()};
  CHECK(by_default.get<PredictionWriter>().filename == "{run_folder}/predictions-rank{rank}.csv");
  const auto refused = [&] {
    Trainer<PredictionWriter> other{tiny::net(), options(),
                                    PredictionWriter{.filename = folder + "/p.safetensors"}};
  };
  CHECK_THROWS_WITH(refused(), Catch::Matchers::ContainsSubstring("but 2 ranks write; put {rank}"));
}

TEST_CASE("rank body: ranks reduce rates together", "[.rank]") {
  auto with_eval = options();
  with_eval.max_duration = "2ep";
  Trainer trainer{std::make_shared<MeanNet>(), with_eval,
                  ReduceLROnPlateau{.monitor = "Mean", .dataloader_label = "test", .patience = 0}};
  trainer.fit();
  CHECK(*trainer.get<ReduceLROnPlateau>().run.best == 3.0);  // of both ranks
  CHECK(trainer.state().optimizers[0]->param_groups()[0].options().get_lr() == 0.1 * 0.1);
}

TEST_CASE("rank body: weights come from a store", "[.rank]") {
  const std::string root = std::string(std::getenv("TMPDIR")) + "/remote";
  Trainer trainer{tiny::net(static_cast<std::uint64_t>(5 + dist::Environment::read().rank)),
                  options(),
                  LoadCheckpoint{.load_path = "runs/one", .object_store = LocalObjectStore{root}}};
  CHECK(tiny::flat(*trainer.state().model).equal(tiny::flat(*tiny::net(99))));
  const auto refuse = [&] {
    Trainer refused{
        tiny::net(), options(),
        LoadCheckpoint{.load_path = "runs/none", .object_store = LocalObjectStore{root}}};
  };
  CHECK_THROWS(refuse());  // on every rank
}

TEST_CASE("what callbacks report of several ranks is reduced", "[callbacks][dist]") {
  CHECK(run_ranks("rank body: callbacks sum over ranks") == all_passed);
}

TEST_CASE("evaluation examples of all ranks are in one table", "[callbacks][dist]") {
  CHECK(run_ranks("rank body: a table has the rows of all ranks") == all_passed);
}

TEST_CASE("each rank has its part of a prediction in its file", "[callbacks][dist]") {
  const TemporaryFolder folder;
  const EnvironmentVariable temporary("TMPDIR", folder.path().c_str());
  CHECK(run_ranks("rank body: each rank writes what it has predicted") == all_passed);
  CHECK(sorted_names(folder.path()) == std::vector<std::string>{"0.safetensors", "1.safetensors"});
}

TEST_CASE("all ranks see the same plateau", "[callbacks][dist]") {
  CHECK(run_ranks("rank body: ranks reduce rates together") == all_passed);
}

TEST_CASE("each node downloads a checkpoint once for all its ranks", "[callbacks][dist]") {
  const TemporaryFolder folder;
  const TemporaryFolder here;
  checkpoint::Snapshot snapshot;
  checkpoint::save_module(*tiny::net(99), snapshot.model);
  checkpoint::write_snapshot(here / "one", snapshot);
  checkpoint::upload_snapshot(LocalObjectStore{(folder / "remote").string()}, here / "one",
                              "runs/one");
  const EnvironmentVariable temporary("TMPDIR", folder.path().c_str());
  CHECK(run_ranks("rank body: weights come from a store") == all_passed);
  CHECK(sorted_names(folder.path()) == std::vector<std::string>{"remote"});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
