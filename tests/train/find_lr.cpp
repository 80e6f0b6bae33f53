#include <tutti/train/find_lr.hpp>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/optim/lbfgs.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/unfreeze.hpp>
#include <tutti/checkpoint/rng_state.hpp>
#include <tutti/core/on.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

// Moves its random stream at every batch, counts, and remembers what it has drawn.
struct Draws final {
  static constexpr std::string_view name = "Draws";
  Rng rng{};
  std::int64_t batches = 0;
  void apply(BatchStart, State& state) {
    ++batches;
    state.batch = Batch(state.batch.inputs() + 0.01 * rng.uniform(), state.batch.targets());
  }
  void save(Archive& archive) const { archive.put("batches", batches); }
  void load(const Archive& archive) { batches = archive.get<std::int64_t>("batches"); }
};
// A callback, which is to see nothing.
struct Watches final {
  static constexpr std::string_view name = "Watches";
  static constexpr Role role = Role::callback;
  std::int64_t batches = 0;
  void apply(BatchEnd, const State&) { ++batches; }
};
using Run = Trainer<Draws, EMA, Watches>;

TrainerOptions options() {
  at::manual_seed(11);
  const at::Tensor inputs = at::randn({24, 4});
  return {.train = TensorLoader(inputs, inputs.slice(1, 0, 2).mul(2).contiguous(),
                                {.batch_size = 4, .shuffle = true}),
          .max_duration = "3ep",
          .optimizer = SGD{.lr = 0.05, .momentum = 0.9},
          .schedule = CosineAnnealing{},
          .device = "cpu",
          .seed = 5,
          .progress_bar = false};
}

std::unique_ptr<Run> make(TrainerOptions with = options()) {
  return std::make_unique<Run>(tiny::net(1, /*drop=*/0.2), std::move(with), Draws{},
                               EMA{.half_life = "2ba"}, Watches{});
}

at::Tensor weights_of(Run& run) {
  return tiny::flat(*run.state().model);
}

}  // namespace

TEST_CASE("what find_lr tries is taken back bit for bit, before a run and inside one",
          "[train][find_lr]") {
  auto plain = make();
  plain->fit("4ba");
  plain->fit("14ba");
  for (const bool inside : {false, true}) {
    CAPTURE(inside);
    auto run = make();
    if (inside) {
      run->fit("4ba");  // in the middle of an epoch, with momentum and averages
    }
    const at::Tensor before = weights_of(*run);
    Archive generators;
    checkpoint::save_rng(generators);
    const LrFinding found = run->find_lr({.min_lr = 1e-4, .max_lr = 10, .num_steps = 30});
    CHECK(found.lrs.size() > 10);
    Archive after;
    checkpoint::save_rng(after);
    CHECK(after.tensor("cpu").equal(generators.tensor("cpu")));
    CHECK(weights_of(*run).equal(before));
    CHECK(run->state().timestamp.batch == (inside ? 4 : 0));
    CHECK(run->get<Draws>().batches == (inside ? 4 : 0));
    CHECK(run->get<Watches>().batches == (inside ? 4 : 0));
    if (!inside) {
      run->fit("4ba");
    }
    run->fit("14ba");
    CHECK(weights_of(*run).equal(weights_of(*plain)));
    CHECK(run->get<EMA>().averages()[0].second.equal(plain->get<EMA>().averages()[0].second));
    CHECK(run->get<Watches>().batches == 18);
  }
}

TEST_CASE("rates rise by one ratio, groups keep theirs, and a loss that diverges ends it",
          "[train][find_lr]") {
  TrainerOptions two = options();
  two.optimizer = [](torch::nn::Module& model) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    const auto parameters = model.parameters();
    groups.emplace_back(std::vector<at::Tensor>(parameters.begin(), parameters.begin() + 2));
    groups.emplace_back(std::vector<at::Tensor>(parameters.begin() + 2, parameters.end()));
    auto optimizer = SGD{.lr = 0.1}.build(std::move(groups));
    optimizer->param_groups()[1].options().set_lr(0.01);
    return optimizer;
  };
  std::vector<double> first, second;
  Trainer trainer{tiny::net(), two, on<AfterTrainBatch>([&](State& state) {
                    const auto& groups = state.optimizers.front()->param_groups();
                    first.push_back(groups[0].options().get_lr());
                    second.push_back(groups[1].options().get_lr());
                  })};
  const LrFinding found = trainer.find_lr({.min_lr = 1e-3, .max_lr = 1e3, .num_steps = 61});
  REQUIRE(found.lrs.size() > 20);
  REQUIRE(found.lrs.size() < 61);
  CHECK(found.diverged);
  CHECK(first == found.lrs);
  for (std::size_t i = 0; i < first.size(); ++i) {
    CHECK(second[i] == Approx(first[i] / 10));
    CHECK(first[i] == Approx(1e-3 * std::pow(10, 0.1 * static_cast<double>(i))));
  }
  CHECK(found.suggestion > 1e-3);
  CHECK(found.suggestion < found.lrs.back());
  CHECK(found.losses.front() > found.smoothed[found.smoothed.size() / 2]);
  const auto& groups = trainer.state().optimizers.front()->param_groups();
  CHECK(groups[1].options().get_lr() == 0.01);
}

TEST_CASE("the suggestion is where the average falls most steeply", "[train][find_lr]") {
  const FindLrOptions plain{.smoothing = 0, .divergence = 0, .skip_begin = 0, .skip_end = 0};
  LrFinding found;
  const std::vector<double> losses{5, 5, 4.9, 4.5, 3, 1.5, 1.2, 1.1, 2, 9};
  for (std::size_t i = 0; i < losses.size(); ++i) {
    CHECK(train::take_loss(found, std::pow(10, -8.0 + static_cast<double>(i)), losses[i], plain));
  }
  CHECK(found.smoothed == losses);
  CHECK(train::suggest_lr(found, plain) == Approx(1e-4));  // numpy.gradient's least: -1.5 at 3
  CHECK(train::suggest_lr(found, {.skip_begin = 6, .skip_end = 2}) == Approx(1e-2));
  CHECK(train::suggest_lr(found, {.skip_begin = 9, .skip_end = 1}) == 0);

  // Lightning's average: beta = 0.98, without the bias of its start
  LrFinding smooth;
  const FindLrOptions usual;
  train::take_loss(smooth, 1, 2.0, usual);
  train::take_loss(smooth, 2, 1.0, usual);
  CHECK(smooth.smoothed[0] == Approx(2.0));
  CHECK(smooth.smoothed[1] == Approx((0.98 * 0.02 * 2.0 + 0.02 * 1.0) / (1 - 0.98 * 0.98)));
  CHECK_FALSE(train::take_loss(smooth, 3, std::nan(""), usual));
  CHECK(smooth.diverged);
}

TEST_CASE("a finding is a table and a picture", "[train][find_lr]") {
  LrFinding found{.lrs = {1e-3, 1e-2, 1e-1},
                  .losses = {2, 1, std::nan("")},
                  .smoothed = {2, 1.5, std::nan("")},
                  .diverged = true,
                  .suggestion = 1e-2};
  CHECK(found.table() ==
        "          lr         loss     smoothed\n"
        "       0.001            2            2\n"
        "        0.01            1          1.5  <- suggestion\n"
        "         0.1          nan          nan\n");
  const std::string svg = found.svg();
  CHECK(svg.starts_with("<svg xmlns="));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK_THAT(svg, ContainsSubstring("points=\"70.0,20.0 620.0,350.0 \""));
  CHECK_THAT(svg, ContainsSubstring(">1e-2</text>"));
  CHECK_THAT(svg, ContainsSubstring("<circle cx=\"620.0\" cy=\"350.0\""));
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(LrFinding{}.svg().ends_with("</svg>\n"));
  const TemporaryFolder folder;
  found.save_svg((folder / "lr.svg").string());
  CHECK(read_bytes(folder / "lr.svg") == svg);
  CHECK_THROWS_WITH(found.save_svg((folder / "none" / "lr.svg").string()),
                    ContainsSubstring("the picture cannot be written to"));
}

TEST_CASE("find_lr goes with Unfreeze until its time comes", "[train][find_lr]") {
  const auto find = [](std::int64_t num_steps) {
    Trainer<Unfreeze> trainer{tiny::net(), options(), Unfreeze{.at = "5ba"}};
    const at::Tensor before = tiny::flat(*trainer.state().model);
    const LrFinding found = trainer.find_lr({.num_steps = num_steps, .divergence = 0});
    CHECK(found.lrs.size() == static_cast<std::size_t>(num_steps));
    CHECK(tiny::flat(*trainer.state().model).equal(before));
  };
  find(4);
  CHECK_THROWS_WITH(find(8),
                    "find_lr: after 5 of its batches a policy has given frozen layers "
                    "back to training (Unfreeze, BackboneFinetuning) or other parameters "
                    "to the model (Factorize), which cannot be taken back; set num_steps "
                    "to 4 or less, have the policy act later, or remove it to look for a "
                    "rate");
}

TEST_CASE("what find_lr cannot do is refused", "[train][find_lr]") {
  auto run = make();
  CHECK_THROWS_WITH(run->find_lr({.min_lr = 1, .max_lr = 0.1}),
                    ContainsSubstring("the rates go from min_lr 1 to max_lr 0.1"));
  CHECK_THROWS_WITH(run->find_lr({.num_steps = 2}), ContainsSubstring("num_steps is 2"));
  CHECK_THROWS_WITH(run->find_lr({.smoothing = 1}), ContainsSubstring("smoothing is 1"));
  CHECK_THROWS_WITH(run->find_lr({.divergence = 0.5}), ContainsSubstring("divergence is 0.5"));
  TrainerOptions none = options();
  none.train = {};
  none.schedule = {};
  CHECK_THROWS_WITH(make(none)->find_lr(), ContainsSubstring("there is no training data"));
  TrainerOptions closure = options();
  closure.optimizer = [](torch::nn::Module& net) {
    return std::make_unique<torch::optim::LBFGS>(net.parameters());
  };
  CHECK_THROWS_WITH(make(closure)->find_lr(), ContainsSubstring("LBFGS calls a closure"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
