#include <tutti/callbacks/remote_uploader.hpp>

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>

#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/trainer.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using tutti_test::all_passed;
using tutti_test::run_ranks;
namespace fs = std::filesystem;

namespace {

TrainerOptions options(const std::string& folder, Time length) {
  at::manual_seed(7);
  return {.train = TensorLoader{at::randn({24, 4}), at::randn({24, 2}), {.batch_size = 3}},
          .max_duration = length,
          .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
          .device = "cpu",
          .seed = 3,
          .run_name = "two",
          .progress_bar = false,
          .save_folder = folder + "/checkpoints",
          .save_interval = "2ba",
          .autoresume = true};
}

}  // namespace

TEST_CASE("rank body: uploads and fetches", "[.rank]") {
  const TemporaryFolder mine;
  const auto group = dist::initialize();
  const std::string folder = group->broadcast_bytes(mine.path().string());
  const auto uploader = [&](const std::string& to) {
    return RemoteUploader{.object_store = LocalObjectStore{folder + "/" + to},
                          .num_attempts = 1,
                          .retry_wait = std::chrono::milliseconds(1)};
  };
  Trainer(tiny::net(), options(folder, "4ba"), uploader("remote")).fit();
  CHECK(fs::exists(folder + "/remote/two/checkpoints/ep0-ba4/manifest.json"));
  group->barrier();
  if (group->is_rank_zero()) {
    fs::rename(folder + "/checkpoints", folder + "/lost");
  }
  group->barrier();
  Trainer again(tiny::net(), options(folder, "6ba"), uploader("remote"));
  CHECK(again.state().timestamp.batch == 4);
  again.fit();
  TrainerOptions other = options(folder + "/other", "8ba");
  other.load_path = "file://" + folder + "/remote/two/checkpoints/latest";
  Trainer third(tiny::net(), other, uploader("remote"));
  CHECK(third.state().timestamp.batch == 6);

  if (group->is_rank_zero()) {
    write_bytes(folder + "/refusing", "no folder");
  }
  group->barrier();
  Trainer failing(tiny::net(), options(folder + "/third", "800ba"), uploader("refusing"));
  CHECK_THROWS_WITH(failing.fit(), ContainsSubstring("could not be uploaded in 1 attempt"));
  group->barrier();
}

TEST_CASE("two ranks upload once and fetch together, and a failure reaches both",
          "[dist][remote_uploader]") {
  CHECK(run_ranks("rank body: uploads and fetches") == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
