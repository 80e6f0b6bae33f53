#include <tutti/algorithms/skip_spikes.hpp>
#include <tutti/train/find_lr.hpp>
#include <tutti/train/several.hpp>
#include <tutti/trainer.hpp>

#include <limits>
#include <string>
#include <vector>

#include <tutti/core/switch.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/ddp.hpp>

#include "dist/alone.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// Several optimizers, find_lr, SkipSpikes and step() on two ranks.

using namespace tutti;
using tutti_test::all_passed;
using tutti_test::run_ranks;

namespace {

using Run = Trainer<Switch<SkipSpikes>>;

TrainerOptions options(std::int64_t batch_size, bool several = true) {
  at::manual_seed(7);
  TrainerOptions out{.train = TensorLoader{at::randn({32, 4}),
                                           at::randn({32, 2}),
                                           {.batch_size = batch_size, .shuffle = false}},
                     .max_duration = "2ep",
                     .device = "cpu",
                     .seed = 3,
                     .progress_bar = false};
  if (several) {
    out.optimizers = {{"in", SGD{.lr = 0.1, .momentum = 0.9}, {"in.*"}},
                      {"out", SGD{.lr = 0.05}, {"out.*"}}};
  } else {
    out.optimizer = SGD{.lr = 0.1, .momentum = 0.9};
  }
  return out;
}

bool equal_on_all_ranks(const at::Tensor& tensor) {
  const auto all = dist::default_group()->all_gather(tensor);
  return all[0].equal(all[1]);
}

}  // namespace

TEST_CASE("rank body: several optimizers on two ranks train as one process with the whole batch",
          "[.rank]") {
  Run both{tiny::net(), options(4), Switch<SkipSpikes>(SkipSpikes{}, false)};
  both.fit();
  const at::Tensor weights = tiny::flat(*both.state().model);
  CHECK(equal_on_all_ranks(weights));
  const at::Tensor whole = tutti_test::alone([] {
    Run one{tiny::net(), options(8), Switch<SkipSpikes>(SkipSpikes{}, false)};
    one.fit();
    return tiny::flat(*one.state().model);
  });
  CHECK(weights.allclose(whole, 1e-5, 1e-6));
}

TEST_CASE("rank body: find_lr finds the same on both ranks and leaves nothing", "[.rank]") {
  Run run{tiny::net(), options(4, false), Switch<SkipSpikes>(SkipSpikes{}, false)};
  const at::Tensor before = tiny::flat(*run.state().model);
  const LrFinding found = run.find_lr({.min_lr = 1e-4, .max_lr = 1, .num_steps = 20});
  CHECK(found.lrs.size() == 20);
  CHECK(tiny::flat(*run.state().model).equal(before));
  CHECK(equal_on_all_ranks(at::tensor(found.losses)));
  CHECK(equal_on_all_ranks(at::tensor(found.suggestion)));
  run.fit();
  CHECK(equal_on_all_ranks(tiny::flat(*run.state().model)));
}

TEST_CASE("rank body: a spike of one rank is left out on both", "[.rank]") {
  const Warnings warnings;
  Run run{tiny::net(), options(4, false),
          Switch<SkipSpikes>(SkipSpikes{.min_rise = 5, .min_values = 3}, true)};
  for (int i = 0; i < 8; ++i) {
    const bool spike = i == 5 && run.state().rank == 1;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    run.step(Batch(at::randn({4, 4}), spike ? at::full({4, 2}, nan) : at::randn({4, 2})));
  }
  run.end_fit();
  CHECK(run.get<Switch<SkipSpikes>>().policy.run.skipped == 1);
  const at::Tensor weights = tiny::flat(*run.state().model);
  CHECK(weights.isfinite().all().item<bool>());
  CHECK(equal_on_all_ranks(weights));
}

TEST_CASE("several optimizers take turns on two ranks", "[dist][several]") {
  CHECK(run_ranks("rank body: several optimizers on two ranks train as one process with the whole "
                  "batch") == all_passed);
}
TEST_CASE("a learning rate is found on two ranks", "[dist][find_lr]") {
  CHECK(run_ranks("rank body: find_lr finds the same on both ranks and leaves nothing") ==
        all_passed);
}
TEST_CASE("spikes are left out on two ranks alike", "[dist][skip_spikes]") {
  CHECK(run_ranks("rank body: a spike of one rank is left out on both") == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
