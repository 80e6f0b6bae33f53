#include <tutti/algorithms/skip_spikes.hpp>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/optim/lbfgs.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Values = std::vector<double>;

static_assert(role_of<SkipSpikes> == Role::algorithm);
static_assert(std::is_same_v<Recipe<GradientClipping, SkipSpikes>::order<AfterTrainBatch>,
                             types<SkipSpikes, GradientClipping>>);

namespace {

using Run = Trainer<SkipSpikes, GradientClipping, EMA, InMemoryLogger>;

// Batches of which some are so large that their gradients are.
std::vector<Batch> batches(int count, const std::vector<int>& spikes,
                           float size = std::numeric_limits<float>::quiet_NaN()) {
  std::vector<Batch> out = tiny::batches(count);
  for (const int at : spikes) {
    const Batch& plain = out[static_cast<std::size_t>(at)];
    out[static_cast<std::size_t>(at)] =
        Batch(plain.inputs().clone(), at::full_like(plain.targets(), size));
  }
  return out;
}

TrainerOptions options(std::vector<Batch> data, Time length = "1ep") {
  return {.train = std::move(data),
          .max_duration = length,
          .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

std::unique_ptr<Run> make(TrainerOptions with, SkipSpikes spikes = {.min_values = 3}) {
  return std::make_unique<Run>(
      tiny::net(), std::move(with), spikes,
      GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 1.0},
      EMA{.half_life = "2ba"}, InMemoryLogger{});
}

at::Tensor weights_of(Run& run) {
  return tiny::flat(*run.state().model);
}

}  // namespace

TEST_CASE("a value is out of line far above the mean of the latest ones",
          "[functional][skip_spikes]") {
  const Values even{2, 2, 2, 2};  // no deviation: the rise decides
  CHECK_FALSE(functional::is_spike(even, 2.9, 6, 0.5));
  CHECK(functional::is_spike(even, 3.1, 6, 0.5));
  const Values wide{1, 3, 1, 3};  // mean 2, deviation 1
  CHECK_FALSE(functional::is_spike(wide, 7.9, 6, 0.5));
  CHECK(functional::is_spike(wide, 8.1, 6, 0.5));
  CHECK_FALSE(functional::is_spike(wide, -100, 6, 0.5));  // lower is no spike
  CHECK_FALSE(functional::is_spike({}, 1e30, 6, 0.5));
  CHECK(functional::is_spike({}, std::nan(""), 6, 0.5));
  CHECK(functional::is_spike(even, std::numeric_limits<double>::infinity(), 6, 0.5));
  const Values below{-2, -2};  // a loss below 0 rises by its magnitude
  CHECK_FALSE(functional::is_spike(below, -1.1, 6, 0.5));
  CHECK(functional::is_spike(below, -0.9, 6, 0.5));
}

TEST_CASE("the step of a batch that is out of line is left out, and no other",
          "[algorithms][skip_spikes]") {
  for (const float size : {std::numeric_limits<float>::quiet_NaN(), 1e4F}) {
    CAPTURE(size);
    const Warnings warnings;
    // the same batches without the spike, in a run of as many steps
    std::vector<Batch> with = batches(8, {5}, size);
    std::vector<Batch> without = with;
    without.erase(without.begin() + 5);
    auto skips = make(options(with));
    skips->fit();
    CHECK(skips->state().timestamp.batch == 8);
    CHECK(skips->get<SkipSpikes>().run.skipped == 1);
    CHECK(skips->get<SkipSpikes>().run.in_a_row == 0);
    auto plain = make(options(without));
    plain->fit();
    CHECK(weights_of(*skips).equal(weights_of(*plain)));
    CHECK_FALSE(
        skips->get<EMA>().averages()[0].second.equal(plain->get<EMA>().averages()[0].second));
    CHECK(skips->get<EMA>().averages()[0].second.isfinite().all().item<bool>());
    const auto& logged = skips->get<InMemoryLogger>();
    CHECK(logged.data.at("skip_spikes/skipped").values.size() == 1);
    REQUIRE_FALSE(warnings.texts.empty());
    CHECK_THAT(
        warnings.texts.front(),
        ContainsSubstring("SkipSpikes: the step of batch 5 of the run, epoch 0, is left out"));
  }
}

TEST_CASE("a finite value counts as a spike only when enough are known",
          "[algorithms][skip_spikes]") {
  const Warnings warnings;
  auto early = make(options(batches(4, {2}, 1e4F)), {.min_values = 3});
  early->fit();
  CHECK(early->get<SkipSpikes>().run.skipped == 0);
  auto one = make(options(batches(4, {2}, 1e4F)),
                  {.monitor = SpikeOf::loss, .min_rise = 5, .min_values = 2});
  one->fit();
  CHECK(one->get<SkipSpikes>().run.skipped == 1);
  CHECK(one->get<SkipSpikes>().run.norms->empty());
  CHECK(one->get<SkipSpikes>().run.losses->size() == 3);
}

TEST_CASE("after too many the run goes on from its last checkpoint, with the data that come next",
          "[algorithms][skip_spikes]") {
  const Warnings warnings;
  const TemporaryFolder folder;
  const std::vector<Batch> data = batches(12, {6, 7, 8}, 1e4F);
  TrainerOptions saves = options(data);
  saves.save_folder = folder.path().string();
  saves.save_interval = "4ba";
  auto run = make(saves, {.min_values = 3, .reload_after = 3});
  run->fit();
  CHECK(run->state().timestamp.batch == 12);
  CHECK(run->get<SkipSpikes>().run.skipped == 3);

  // the same steps: batches 0 to 3, then 9 to 11
  std::vector<Batch> seen(data.begin(), data.begin() + 4);
  seen.insert(seen.end(), data.begin() + 9, data.end());
  auto plain = make(options(seen));
  plain->fit();
  CHECK(weights_of(*run).equal(weights_of(*plain)));
  CHECK(run->get<EMA>().averages()[0].second.equal(plain->get<EMA>().averages()[0].second));
}

TEST_CASE("a run that cannot go back, or that going back does not help, ends with a sentence",
          "[algorithms][skip_spikes]") {
  const Warnings warnings;
  const std::vector<Batch> data = batches(12, {4, 5, 6, 7, 8, 9}, 1e4F);
  CHECK_THROWS_WITH(make(options(data), {.min_values = 3, .reload_after = 2})->fit(),
                    ContainsSubstring("there is none; set save_folder"));
  const TemporaryFolder folder;
  TrainerOptions saves = options(data);
  saves.save_folder = folder.path().string();
  saves.save_interval = "2ba";
  CHECK_THROWS_WITH(make(saves, {.min_values = 3, .reload_after = 2})->fit(),
                    ContainsSubstring("and has left out 2 steps since without making one"));
  auto never = make(options(data), {.min_values = 3, .reload_after = 0});
  never->fit();
  CHECK(never->get<SkipSpikes>().run.skipped == 6);
}

TEST_CASE("a resumed run leaves out what a whole one does", "[algorithms][skip_spikes][resume]") {
  const Warnings warnings;
  const TemporaryFolder folder;
  const std::vector<Batch> data = batches(8, {6}, 1e4F);
  auto whole = make(options(data));
  whole->fit();
  TrainerOptions first = options(data, "5ba");
  first.save_folder = folder.path().string();
  make(first)->fit();
  TrainerOptions second = options(data);
  second.load_path = (folder / "latest").string();
  auto resumed = make(second);
  resumed->fit();
  CHECK(resumed->get<SkipSpikes>().run.skipped == 1);
  CHECK(weights_of(*resumed).equal(weights_of(*whole)));
  CHECK(*resumed->get<SkipSpikes>().run.norms == *whole->get<SkipSpikes>().run.norms);
}

TEST_CASE("what SkipSpikes cannot do is refused", "[algorithms][skip_spikes]") {
  CHECK_THROWS_WITH(make(options(batches(2, {})), {.deviations = 0}),
                    ContainsSubstring("SkipSpikes: deviations is 0"));
  CHECK_THROWS_WITH(make(options(batches(2, {})), {.window = 5, .min_values = 9}),
                    ContainsSubstring("SkipSpikes: min_values is 9"));
  TrainerOptions closure = options(batches(2, {}));
  closure.optimizer = [](torch::nn::Module& net) {
    return std::make_unique<torch::optim::LBFGS>(net.parameters());
  };
  CHECK_THROWS_WITH(make(closure)->fit(),
                    ContainsSubstring("computes them inside of its step; remove it"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
