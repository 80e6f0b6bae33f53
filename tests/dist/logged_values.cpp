#include <cstdint>
#include <memory>
#include <string>

#include <tutti/core/log.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using tutti_test::all_passed;
using tutti_test::run_ranks;

namespace {

// Logs another name on each rank as well, and on rank 1 nothing in the second batch.
struct Net : tiny::Net {
  Outputs forward(const Batch& batch) {
    if (dist::rank() == 0 || calls++ == 0) {
      log("rank", dist::rank() * 10);
      log("of" + std::to_string(dist::rank()), 1 + dist::rank());
    }
    return tiny::Net::forward(batch);
  }
  int calls = 0;
};

}  // namespace

TEST_CASE("rank body: log() is the mean over the ranks that call it", "[.rank]") {
  at::manual_seed(1);
  Trainer trainer{std::make_shared<Net>(),
                  {.train = TensorLoader{at::randn({8, 4}), at::randn({8, 2}), {.batch_size = 2}},
                   .max_duration = "1ep",
                   .optimizer = SGD{.lr = 0.1},
                   .device = "cpu",
                   .seed = 3,
                   .run_name = "logs",
                   .progress_bar = false},
                  InMemoryLogger{}};
  trainer.fit();
  const auto& seen = trainer.get<InMemoryLogger>();
  CHECK(seen.series("rank").values == std::vector<double>{5, 0});
  CHECK(seen.series("of0").values == std::vector<double>{1, 1});
  CHECK(seen.series("of1").values == std::vector<double>{2});
}

TEST_CASE("log() is the mean over the ranks that call it", "[dist]") {
  CHECK(run_ranks("rank body: log() is the mean over the ranks that call it") == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
