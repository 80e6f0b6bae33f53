#include <tutti/algorithms/swa.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::SWA;

struct Surgeon final {
  static constexpr tutti::Rules rules{.tags = {tutti::id<tutti::changes_model>}};
  void apply(tutti::EpochEnd, tutti::State&) const {}
};
struct OtherAverage final {
  static constexpr tutti::Rules rules{.tags = {tutti::id<tutti::averages_weights>}};
  void apply(tutti::EpochEnd, tutti::State&) const {}
};

static_assert(tutti::Algorithm<SWA>);
static_assert(tutti::Recipe<SWA>::valid);
static_assert(sizeof(tutti::With<SWA{.swa_start = "0.5dur", .update_interval = "5ba"}>) > 0);
static_assert(std::is_same_v<tutti::Recipe<SWA, Surgeon>::order<tutti::EpochEnd>,
                             tutti::types<Surgeon, SWA>>);
static_assert(!tutti::detail::can_be_combined<SWA, OtherAverage>);

struct OneWeight : torch::nn::Module {
  OneWeight() {
    w = register_parameter("w", at::zeros({3}));
    frozen = register_parameter("frozen", at::zeros({2}), /*requires_grad=*/false);
    buffer = register_buffer("buffer", at::zeros({}));
    count = register_buffer("count", at::zeros({}, at::kLong));
  }
  void set(double value) {
    const torch::NoGradGuard no_grad;
    for (auto& tensor : {w, frozen, buffer, count}) {
      tensor.fill_(value);
    }
  }
  at::Tensor w, frozen, buffer, count;
};

// A run without a trainer: `batches_per_epoch` batches an epoch, weights as the test sets them.
struct Run {
  explicit Run(SWA policy, const tutti::Time& length = "10ep", std::int64_t batches_per_epoch = 2)
      : swa(policy), per_epoch(batches_per_epoch) {
    swa.validate();
    state.model = model;
    state.max_duration = length;
    state.train_dataloader_len = batches_per_epoch;
    state.optimizers = {
        std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.1))};
  }
  template <class E>
  void fire(E event) {
    if (swa.match(event, state)) {
      swa.apply(event, state);
    }
  }
  void batch(double weight) {
    model->set(weight);
    state.previous_timestamp = state.timestamp;
    state.timestamp = state.timestamp.to_next_batch(1);
    fire(tutti::BatchEnd{});
    if (state.timestamp.batch_in_epoch == per_epoch) {
      state.timestamp = state.timestamp.to_next_epoch();
      fire(tutti::EpochEnd{});
    }
  }
  double lr() const { return state.optimizers[0]->param_groups()[0].options().get_lr(); }
  void set_lr(double lr) { state.optimizers[0]->param_groups()[0].options().set_lr(lr); }
  double mean() const { return swa.run.mean->means().at(0).second[0].item<double>(); }
  double weight() const { return model->w[0].item<double>(); }

  std::shared_ptr<OneWeight> model = std::make_shared<OneWeight>();
  SWA swa;
  tutti::State state;
  std::int64_t per_epoch;
};

// Batch normalisation whose statistics depend on the weights before it.
struct Normed : torch::nn::Module {
  Normed() {
    in = register_module("in", torch::nn::Linear(4, 5));
    dropout = register_module("dropout", torch::nn::Dropout(0.5));
    norm = register_module("norm", torch::nn::BatchNorm1d(5));
    out = register_module("out", torch::nn::Linear(5, 2));
  }
  tutti::Outputs forward(const tutti::Batch& batch) {
    return out(norm(dropout(in(batch.inputs()))));
  }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

tutti::TrainerOptions options(const char* length, tutti::OptimizerSpec optimizer) {
  return {.train = tiny::batches(4),
          .max_duration = tutti::Time::parse(length),
          .optimizer = std::move(optimizer),
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

}  // namespace

TEST_CASE("the mean counts every moment the same and copies buffers", "[functional][swa][law]") {
  OneWeight model;
  tutti::functional::WeightMean mean;
  for (const double value : {1.0, 2.0, 6.0}) {
    model.set(value);
    mean.update(model);
  }
  CHECK(mean.count() == 3);
  model.set(100);
  mean.copy_to(model);
  CHECK(model.w.allclose(at::full({3}, 3.0)));
  CHECK(model.frozen.equal(at::full({2}, 100.0)));  // not trained, not touched
  CHECK(model.buffer.item<double>() == 6);
  CHECK(model.count.item<std::int64_t>() == 6);

  tutti::functional::WeightMean all;
  for (const double value : {1.0, 2.0, 6.0}) {
    model.set(value);
    all.update(model, /*average_buffers=*/true);
  }
  all.copy_to(model);
  CHECK(std::abs(model.buffer.item<double>() - 3) < 1e-6);
  CHECK(model.count.item<std::int64_t>() == 6);
}

TEST_CASE("infinities in a buffer stay so, averaged or copied", "[functional][swa]") {
  struct Masked : torch::nn::Module {
    Masked() {
      w = register_parameter("w", at::ones({3}));
      mask = register_buffer("mask", at::zeros({2}));
      mask[1] = -INFINITY;
    }
    at::Tensor w, mask;
  } model;
  for (const bool average_buffers : {false, true}) {
    tutti::functional::WeightMean mean;
    for (int i = 0; i < 3; ++i) {
      mean.update(model, average_buffers);
    }
    CHECK(mean.means()[1].first == "mask");
    CHECK(mean.means()[1].second.equal(model.mask));
  }
}

TEST_CASE("a mean of one model is refused by another", "[functional][swa]") {
  OneWeight model;
  tutti::functional::WeightMean mean;
  mean.update(model);
  const auto other = tiny::net();
  CHECK_THROWS_WITH(mean.update(*other), ContainsSubstring("as when averaging began"));
  CHECK_THROWS_WITH(mean.copy_to(*other), ContainsSubstring("as when averaging began"));
}

TEST_CASE("epochs 70 to 97 of 100 are averaged, then the model has the mean", "[swa]") {
  Run run(SWA{}, "100ep");
  std::vector<std::int64_t> updates;
  std::int64_t swapped = 0;
  for (int i = 0; i < 200; ++i) {
    const std::int64_t before = run.swa.run.mean->count();
    const bool was_completed = run.swa.run.completed;
    run.batch(i);
    if (run.swa.run.mean->count() != before) {
      updates.push_back(run.state.timestamp.epoch);
    }
    if (!was_completed && run.swa.run.completed) {
      swapped = run.state.timestamp.epoch;
      CHECK(run.weight() == run.mean());
    }
  }
  CHECK(updates.size() == 28);
  CHECK(updates.front() == 70);
  CHECK(updates.back() == 97);
  CHECK(swapped == 97);
  CHECK(run.weight() == 199);
}

TEST_CASE("an interval in batches counts from the first batch of averaging", "[swa]") {
  Run run({.swa_start = "2ep", .swa_end = "9ep", .update_interval = "5ba"}, "10ep", 4);
  std::vector<std::int64_t> updates;
  for (int i = 0; i < 40; ++i) {
    const std::int64_t before = run.swa.run.mean->count();
    run.batch(i);
    if (run.swa.run.mean->count() != before) {
      updates.push_back(run.state.timestamp.batch);
    }
  }
  CHECK(updates == std::vector<std::int64_t>{9, 14, 19, 24, 29, 34});
  CHECK(run.swa.run.completed);
}

TEST_CASE("a run of one epoch is averaged by batches, and to its end", "[swa]") {
  Run run({.swa_start = "0.5dur", .swa_end = "1dur", .update_interval = "1ba"}, "1ep", 10);
  for (int i = 1; i <= 10; ++i) {
    run.batch(i);
  }
  CHECK(run.swa.run.mean->count() == 6);  // batches 5 to 10
  CHECK(run.weight() == 7.5);
  CHECK(run.model->count.item<std::int64_t>() == 10);
}

TEST_CASE("weights that froze on the way keep their value at the end of averaging", "[swa]") {
  Run run({.swa_start = "0.2dur", .swa_end = "0.8dur", .update_interval = "1ba"}, "10ba", 10);
  for (int i = 1; i <= 5; ++i) {
    run.batch(i);
  }
  run.model->w.set_requires_grad(false);
  for (int i = 6; i <= 8; ++i) {
    run.batch(5);
  }
  CHECK(run.swa.run.completed);
  CHECK(run.weight() == 5);
}

TEST_CASE("the learning rate goes to swa_lr whatever a schedule writes meanwhile", "[swa]") {
  using tutti::functional::swa_learning_rate;
  CHECK(swa_learning_rate(0.1, 0.02, 0, 4) == 0.1);
  CHECK(std::abs(swa_learning_rate(0.1, 0.02, 2, 4) - 0.06) < 1e-12);
  CHECK(std::abs(swa_learning_rate(0.1, 0.02, 1, 3, tutti::Anneal::cosine) - 0.08) < 1e-12);
  CHECK(swa_learning_rate(0.1, 0.02, 9, 4) == 0.02);
  CHECK_THROWS_AS(swa_learning_rate(0.1, 0.02, 1, 0), c10::ValueError);

  Run run({.swa_start = "2ep",
           .swa_end = "8ep",
           .schedule_swa_lr = true,
           .anneal_steps = 4,
           .swa_lr = 0.02});
  std::vector<double> rates;
  for (int i = 0; i < 20; ++i) {
    run.set_lr(0.1);  // a schedule's step
    run.batch(1);
    rates.push_back(std::round(run.lr() * 1000) / 1000);
  }
  CHECK(rates == std::vector<double>{.1,  .1,  .1,  .08, .08, .06, .06, .04, .04, .02,
                                     .02, .02, .02, .02, .02, .02, .1,  .1,  .1,  .1});
}

TEST_CASE("without swa_lr each group keeps the learning rate of swa_start", "[swa]") {
  Run run({.swa_start = "1ep", .swa_end = "5ep", .schedule_swa_lr = true});
  auto& groups = run.state.optimizers[0]->param_groups();
  groups.push_back(groups[0]);
  groups[1].options().set_lr(0.5);
  run.batch(1);
  run.batch(1);
  CHECK(run.swa.run.started);
  groups[0].options().set_lr(0.01);
  groups[1].options().set_lr(0.01);
  run.batch(1);
  CHECK(groups[0].options().get_lr() == 0.1);
  CHECK(groups[1].options().get_lr() == 0.5);
}

TEST_CASE("statistics are those of the mean once they are refreshed, and nothing is drawn",
          "[functional][swa]") {
  at::manual_seed(1);
  const auto model = std::make_shared<Normed>();
  model->train();
  model->dropout->eval();
  const auto batches = tiny::batches(3, 8);
  for (int i = 0; i < 5; ++i) {
    model->forward(tutti::Batch(at::randn({8, 4}) + 5));
  }
  const auto generator = at::detail::getDefaultCPUGenerator().get_state();
  tutti::functional::refresh_batch_statistics(
      *model, batches, [&](const tutti::Batch& batch) { model->forward(batch); });
  CHECK(at::detail::getDefaultCPUGenerator().get_state().equal(generator));
  CHECK(model->norm->is_training());
  CHECK_FALSE(model->dropout->is_training());
  CHECK(model->norm->options.momentum() == 0.1);
  at::Tensor mean = at::zeros({5});
  for (const auto& batch : batches) {
    mean += model->in(batch.inputs()).mean(0) / 3;
  }
  CHECK(model->norm->running_mean.allclose(mean.detach(), 1e-5, 1e-6));
}

TEST_CASE("a run that ends with the mean refreshes its statistics when asked", "[swa][trainer]") {
  at::manual_seed(2);
  const auto model = std::make_shared<Normed>();
  const tutti::DecoupledSGDW sgd{.lr = 0.05};
  tutti::Trainer trainer{model, options("3ep", sgd),
                         SWA{.swa_start = "0.3dur",
                             .swa_end = "1dur",
                             .update_interval = "2ba",
                             .refresh_batches = 3}};
  const Warnings none;
  trainer.fit();
  CHECK(none.texts.empty());
  CHECK(trainer.get<SWA>().run.completed);
  CHECK(trainer.get<SWA>().run.mean->count() == 5);
  CHECK(model->is_training());
  at::Tensor mean = at::zeros({5});
  const auto batches = tiny::batches(4);
  for (std::size_t i = 1; i < 4; ++i) {  // the last three of the run
    mean += model->in(batches[i].inputs()).mean(0) / 3;
  }
  CHECK(model->norm->running_mean.allclose(mean.detach(), 1e-4, 1e-5));
}

TEST_CASE("statistics of other weights than the mean's at the end of a run are warned of",
          "[swa][trainer]") {
  const tutti::DecoupledSGDW sgd{.lr = 0.05};
  const auto warnings_of = [&](const char* end, bool average_buffers) {
    tutti::Trainer trainer{std::make_shared<Normed>(), options("3ep", sgd),
                           SWA{.swa_start = "0.3dur",
                               .swa_end = tutti::Time::parse(end),
                               .average_buffers = average_buffers}};
    const Warnings warnings;
    trainer.fit();
    return warnings.texts;
  };
  const auto warned = warnings_of("1dur", false);
  REQUIRE(warned.size() == 1);
  CHECK_THAT(warned[0], ContainsSubstring("set refresh_batches, or swa_end so that an epoch"));
  CHECK(warnings_of("1dur", true).empty());
  CHECK(warnings_of("0.6dur", false).empty());
}

TEST_CASE("SWA: a run resumed in the middle of averaging goes on as the saved one",
          "[swa][resume]") {
  const TemporaryFolder folder;
  const tutti::DecoupledSGDW sgd{.lr = 0.05, .momentum = 0.9};
  const SWA swa{.swa_start = "0.25dur",
                .swa_end = "0.75dur",
                .update_interval = "1ba",
                .schedule_swa_lr = true,
                .anneal_steps = 3,
                .swa_lr = 0.01};
  const auto with_saves = [&](const char* load) {
    auto o = options("4ep", sgd);
    o.schedule = tutti::CosineAnnealing{};
    if (load == nullptr) {
      o.save_folder = folder.path().string();
      o.save_interval = "1ba";
    } else {
      o.load_path = folder.path().string() + load;
    }
    return o;
  };
  const auto whole = tiny::net(5);
  tutti::Trainer first{whole, with_saves(nullptr), swa};
  first.fit();
  for (const char* checkpoint : {"/ep0-ba3", "/ep1-ba6", "/ep3-ba13"}) {
    const auto part = tiny::net(9);
    tutti::Trainer second{part, with_saves(checkpoint), swa};
    second.fit();
    INFO(checkpoint);
    CHECK(tiny::flat(*part).equal(tiny::flat(*whole)));
    CHECK(second.get<SWA>().run.mean->count() == first.get<SWA>().run.mean->count());
  }
}

TEST_CASE("SWA refuses options that contradict each other or are out of range", "[swa]") {
  const auto refused = [](const SWA& swa, const char* why) {
    CHECK_THROWS_WITH(swa.validate(), ContainsSubstring(why));
  };
  SWA{}.validate();
  refused({.swa_start = "3ep"}, "swa_end is 0.97dur, expected a time in the unit of swa_start");
  refused({.swa_start = "0.9dur", .swa_end = "0.5dur"}, "expected later than swa_start");
  refused({.swa_start = "0.9dur", .swa_end = "0.9dur"}, "expected later than swa_start");
  refused({.swa_end = "1.2dur"}, "swa_end is 1.2dur");
  refused({.swa_start = "10ba", .swa_end = "20ba"}, "swa_start is 10ba");
  refused({.update_interval = "10sp"}, "update_interval is 10sp, expected a time in ba or ep");
  refused({.update_interval = "0ba"}, "update_interval is 0ba, expected more than 0");
  refused({.anneal_steps = 0}, "anneal_steps is 0, expected 1 or more");
  refused({.swa_lr = 0.1}, "so it would do nothing");
  refused({.schedule_swa_lr = true, .swa_lr = -0.1}, "swa_lr is -0.1");
  refused({.refresh_batches = -1}, "refresh_batches is -1");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
