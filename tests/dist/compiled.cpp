// An exported model in two processes: the vision transformer of examples/compiled, as data.

#include <tutti/models/compiled.hpp>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "dist/alone.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using tutti_test::all_passed;
using tutti_test::alone;
using tutti_test::run_ranks;

namespace {

struct Run {
  std::int64_t batch_size = 6;  // on each rank
  std::int64_t microbatch = 0;
  std::int64_t until = 8;  // batches
  std::string save{}, load{};
};

// The weights after a run on 24 images; they are equal on all ranks.
at::Tensor weights_after(const Run& run) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({24, 1, 8, 8}), y = at::randint(10, {24}, at::kLong);
  const auto net = load_compiled(TUTTI_SOURCE_DIR "/examples/compiled/digits.tutti");
  TrainerOptions options{.train = TensorLoader{x, y, {.batch_size = run.batch_size}},
                         .max_duration = Time(run.until, TimeUnit::batch),
                         .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
                         .device_train_microbatch_size = run.microbatch,
                         .device = "cpu",
                         .seed = 3,
                         .progress_bar = false};
  options.save_folder = run.save;
  options.load_path = run.load;
  Trainer<> trainer{Classifier{net, {.num_classes = 10}}, options};
  trainer.fit();
  std::vector<at::Tensor> all;
  for (const at::Tensor& each : net->parameters()) {
    all.push_back(each.detach().flatten());
  }
  const at::Tensor out = at::cat(all);
  const auto ranks = trainer.state().communicator->all_gather(out);
  CHECK(ranks.front().equal(ranks.back()));
  return out;
}

}  // namespace

TEST_CASE("rank body: an exported model", "[.rank]") {
  const at::Tensor two = weights_after({});
  const at::Tensor parts = weights_after({.microbatch = 4});
  // A run that is resumed is the run that was not stopped, bit for bit.
  const char* const given = std::getenv("TUTTI_TEST_FOLDER");
  REQUIRE(given != nullptr);
  const std::string folder = std::string(given) + "/run";
  weights_after({.until = 5, .save = folder});
  CHECK(weights_after({.load = folder + "/latest"}).equal(two));
  // One process with the whole batch has the same weights.
  const at::Tensor one = alone([] { return weights_after({.batch_size = 12}); });
  CHECK(two.allclose(one, 1e-4, 1e-5));
  CHECK(parts.allclose(one, 1e-4, 1e-5));
  CHECK_FALSE(one.allclose(alone([] { return weights_after({.batch_size = 12, .until = 1}); }),
                           1e-3, 1e-3));
}

TEST_CASE("two processes train an exported model as one process does", "[dist][models][compiled]") {
  const TemporaryFolder folder;
  const EnvironmentVariable shared("TUTTI_TEST_FOLDER", folder.path().c_str());
  CHECK(run_ranks("rank body: an exported model", 2, std::chrono::seconds(180)) == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
