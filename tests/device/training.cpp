#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/data_loader.hpp>
#include "device/run.hpp"
#include "support/temporary_folder.hpp"

namespace {

using namespace tutti;
using device_tests::options;
using device_tests::SpareMemory;
using device_tests::wide;

// Pairs of an example and its target that say of each batch where it is.
struct Rows {
  at::Tensor x = at::randn({12, 4});
  [[nodiscard]] std::int64_t size() const { return x.size(0); }
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> get(std::int64_t i) const {
    return {x[i], x[i].slice(0, 0, 2)};
  }
};

struct Places final {
  std::vector<std::string> devices{};
  void apply(BeforeForward, const State& state) {
    devices.push_back(state.batch.inputs().device().str());
  }
};

}  // namespace

TEST_CASE("a device's memory that runs out shrinks the microbatches to what fits", "[device]") {
  const std::vector<Batch> batches = tiny::batches(3, 64);
  TrainerOptions automatic = options(batches);
  automatic.device_train_microbatch_size = "auto";
  const auto model = wide();
  std::int64_t found = 0;
  {
    Trainer trainer{model, automatic};
    const SpareMemory limit(std::size_t{40} << 20);
    trainer.fit();
    found = trainer.state().device_train_microbatch_size;
    CHECK(trainer.state().timestamp.batch == 6);
  }
  CHECK(found < 64);
  CHECK(found >= 8);
  const auto same = wide();
  TrainerOptions fixed = options(batches);
  fixed.device_train_microbatch_size = found;
  Trainer{same, fixed}.fit();
  CHECK(tiny::flat(*model).equal(tiny::flat(*same)));
}

TEST_CASE("memory of a device that no size fits ends the run with its own words", "[device]") {
  TrainerOptions automatic = options(tiny::batches(1, 4));
  automatic.device_train_microbatch_size = "auto";
  Trainer trainer{wide(), automatic};
  const SpareMemory limit(1024);
  CHECK_THROWS_WITH(trainer.fit(), Catch::Matchers::ContainsSubstring("microbatch"));
}

TEST_CASE("pinned batches of a loader are trained on the device", "[device]") {
  const auto model = tiny::net();
  TrainerOptions given = options({});
  given.train = DataLoader{Rows{}, {.batch_size = 4, .num_workers = 1, .pin_memory = true}};
  Trainer trainer{model, given, Places{}};
  trainer.fit();
  CHECK(trainer.get<Places>().devices == std::vector<std::string>(6, "cuda:0"));
  CHECK(model->in->weight.is_cuda());
}

TEST_CASE("a checkpoint written behind a run on the device is the one written in it", "[device]") {
  const TemporaryFolder folder;
  const auto saved = [&](bool background) {
    TrainerOptions saving = options(tiny::batches(3));
    saving.save_folder = (folder.path() / (background ? "behind" : "within")).string();
    saving.save_interval = "1ba";
    saving.save_async = background;
    const auto model = tiny::net(1, /*drop=*/0.5);
    Trainer{model, saving}.fit();
    TrainerOptions going_on = options(tiny::batches(3));
    going_on.load_path = saving.save_folder + "/ep1-ba4";
    const auto resumed = tiny::net(2, /*drop=*/0.5);
    Trainer{resumed, going_on}.fit();
    CHECK(tiny::flat(*resumed).equal(tiny::flat(*model)));
    return tiny::flat(*resumed);
  };
  CHECK(saved(true).equal(saved(false)));
}
