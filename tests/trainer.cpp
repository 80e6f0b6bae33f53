#include <tutti/trainer.hpp>

#include <memory>
#include <string>
#include <vector>

#include <torch/optim/sgd.h>

#include <tutti/core/trace.hpp>
#include <tutti/optim/schedules.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Lines = std::vector<std::string>;

namespace {

TrainerOptions options(int batches = 2, Time length = "2ep") {
  return {.train = tiny::batches(batches),
          .max_duration = length,
          .optimizer = SGD{.lr = 0.1},
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

Lines operator+(Lines a, const Lines& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
const Lines microbatch{"before_forward", "after_forward",   "before_loss",
                       "after_loss",     "before_backward", "after_backward"};
const Lines fetch{"before_dataloader", "after_dataloader", "batch_start", "before_train_batch"};
const Lines close_batch{"after_train_batch", "batch_end", "batch_checkpoint"};
const Lines batch = fetch + microbatch + close_batch;

struct Halve final {
  int closed = 0;
  void apply(AfterBackward, State& state) const {
    for (auto& parameter : state.model->parameters()) {
      parameter.mutable_grad().mul_(0.5);
    }
  }
  void close(State&) { ++closed; }
};
struct StopAt final {
  std::int64_t batch = 3;
  void apply(BatchEnd, State& state) const {
    if (state.timestamp.batch == batch) {
      state.stop_training();
    }
  }
};
struct FailAt final {
  std::int64_t batch = 1;
  void apply(BatchStart, State& state) const {
    TORCH_CHECK(state.timestamp.batch != batch, "no more");
  }
};
struct Losses final {
  std::vector<double> train;
  void apply(BatchEnd, const State& state) {
    train.push_back(state.total_loss.at("total").item<double>());
  }
};
struct Rates final {
  std::vector<double> used;
  void apply(BatchStart, const State& state) {
    used.push_back(state.optimizers[0]->param_groups()[0].options().get_lr());
  }
};
struct Noise final {  // draws from its own stream and from LibTorch's
  Rng rng{};
  std::vector<double> drawn;
  void apply(BeforeForward, State& state) {
    drawn.push_back(rng.uniform());
    state.batch.inputs() = state.batch.inputs() + at::randn({1}) * drawn.back();
  }
};

}  // namespace

TEST_CASE("fit fires the events of two epochs in the documented order", "[trainer][trace]") {
  TrainerOptions with_eval = options();
  with_eval.eval = {{"test", tiny::batches(1)}};
  Trainer<Trace> trainer(tiny::net(), with_eval);
  trainer.fit();
  const Lines eval{
      "eval_before_all",    "eval_start",     "eval_batch_start", "eval_before_forward",
      "eval_after_forward", "eval_batch_end", "eval_end",         "eval_after_all"};
  const Lines epoch = Lines{"epoch_start"} + batch + batch +
                      Lines{"before_dataloader", "epoch_end"} + eval + Lines{"epoch_checkpoint"};
  CHECK(trainer.get<Trace>().lines ==
        Lines{"init", "before_load", "after_load", "fit_start", "iteration_start"} + epoch + epoch +
            Lines{"fit_end"});
}

TEST_CASE("the trainer's steps are those of a loop written by hand", "[trainer][law]") {
  auto ours = tiny::net();
  auto theirs = tiny::net();
  Trainer<> trainer(ours, options());
  trainer.fit();
  torch::optim::SGD sgd(theirs->parameters(), 0.1);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const auto& b : tiny::batches(2)) {
      sgd.zero_grad();
      theirs->loss(theirs->forward(b), b).total().backward();
      sgd.step();
    }
  }
  CHECK(at::allclose(tiny::flat(*ours), tiny::flat(*theirs), 1e-6, 1e-7));
}

TEST_CASE("fit again with a duration goes on where the first ended", "[trainer]") {
  auto once = tiny::net();
  auto twice = tiny::net();
  Trainer<> a(once, options(2, "3ep"));
  a.fit();
  Trainer<> b(twice, options(2, "2ep"));
  b.fit();
  CHECK_THROWS_WITH(b.fit(), ContainsSubstring("nothing is left to train") &&
                                 ContainsSubstring("FitOptions::duration"));
  Trainer<> c(twice = tiny::net(), options(2, "2ep"));
  c.fit();
  c.fit("1ba");
  c.fit({.duration = "1ba"});
  CHECK(c.state().timestamp.batch == 6);
  CHECK(c.state().timestamp.epoch == 3);
  CHECK(at::equal(tiny::flat(*once), tiny::flat(*twice)));
}

TEST_CASE("a policy ends the run and every policy still sees the event", "[trainer]") {
  Trainer<StopAt, Trace, Losses> trainer(tiny::net(), options(2, "9ep"));
  trainer.fit();
  CHECK(trainer.state().timestamp.batch == 3);
  CHECK(trainer.get<Losses>().train.size() == 3);
  CHECK(trainer.get<Trace>().lines.back() == "fit_end");
}

TEST_CASE("an exception closes every policy and the trainer says so afterwards", "[trainer]") {
  Trainer<Halve, FailAt> trainer(tiny::net(), options());
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("no more"));
  CHECK(trainer.get<Halve>().closed == 1);
  CHECK_THROWS_WITH(trainer.fit(),
                    ContainsSubstring("has been closed") && ContainsSubstring("load_path"));
  trainer.close();
  CHECK(trainer.get<Halve>().closed == 1);
}

TEST_CASE("the schedule steps before the clock, as the reference's", "[trainer][schedule]") {
  TrainerOptions linear = options(5, "5ba");
  linear.optimizer = SGD{.lr = 2.0};
  linear.schedule = Linear{};
  Trainer<Rates> trainer(tiny::net(), linear);
  trainer.fit();
  const std::vector<double> expected{2.0, 2.0, 1.6, 1.2, 0.8};
  REQUIRE(trainer.get<Rates>().used.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(trainer.get<Rates>().used[i] == Approx(expected[i]));
  }
}

TEST_CASE("evaluation sets have their own labels, intervals and clean-up", "[trainer][eval]") {
  TrainerOptions two = options(2, "2ep");
  two.eval = {{"a", tiny::batches(3)}, {"b", tiny::batches(2), {.interval = "1ba"}}};
  auto model = tiny::net(1, 0.5);
  Trainer<Trace> trainer(model, two);
  trainer.fit();
  const auto& lines = trainer.get<Trace>().lines;
  CHECK(std::count(lines.begin(), lines.end(), "eval_batch_end") == 2 * 3 + 4 * 2);
  CHECK(model->dropout->is_training());
  CHECK(trainer.state().dataloader_label == "train");
  trainer.eval({{"c", tiny::batches(1)}});
  CHECK(lines.back() == "eval_standalone_end");
  CHECK(trainer.state().eval_timestamp.batch == 1);
}

TEST_CASE("predict returns the outputs of every batch on the host", "[trainer][predict]") {
  auto model = tiny::net(1, 0.5);
  Trainer<> trainer(model, options());
  const auto data = tiny::batches(3);
  const auto outputs = trainer.predict(data);
  REQUIRE(outputs.size() == 3);
  model->eval();
  CHECK(at::equal(outputs[2].tensor(), model->forward(data[2]).tensor()));
  CHECK(trainer.predict(data, 2).size() == 2);
  CHECK(trainer.predict(data, -1, false).empty());
}

TEST_CASE("predict_tensors joins the outputs of all batches in their order", "[trainer][predict]") {
  struct Two final : tiny::Net {
    Outputs forward(const Batch& batch) {
      const at::Tensor y = tiny::Net::forward(batch).tensor();
      return {{"logits", y}, {"mean", y.mean()}, {"twice", y.add(y)}};
    }
  };
  const std::vector<Batch> data{tiny::batches(1, 6)[0], tiny::batches(1, 1)[0]};
  const auto model = std::make_shared<Two>();
  Trainer<> trainer(model, options());
  const std::vector<Outputs> apart = trainer.predict(data);
  const Outputs joined = trainer.predict_tensors(data);
  CHECK(joined.names() == "logits, mean, twice");
  CHECK(at::equal(joined.tensor(), at::cat({apart[0].at("logits"), apart[1].at("logits")})));
  CHECK(at::equal(joined.at("mean"), at::stack({apart[0].at("mean"), apart[1].at("mean")})));
  CHECK(trainer.predict_tensors(data, 1).tensor().size(0) == 6);
  CHECK_THROWS_WITH(trainer.predict_tensors(std::vector<Batch>{}),
                    ContainsSubstring("the loader gave no batch"));
  CHECK_THROWS_WITH(trainer.predict(data, -2), ContainsSubstring("subset_num_batches is -2"));
}

TEST_CASE("predict_tensors refuses outputs that are no rows of one tensor", "[trainer][predict]") {
  struct Texts final : tiny::Net {
    Outputs forward(const Batch& batch) {
      const at::Tensor y = tiny::Net::forward(batch).tensor();
      return names ? Outputs{{y.size(0) == 6 ? "six" : "few", y}} : Outputs(y.t());
    }
    bool names = false;
  };
  const std::vector<Batch> data{tiny::batches(1, 6)[0], tiny::batches(1, 4)[0]};
  const auto model = std::make_shared<Texts>();
  Trainer<> trainer(model, options());
  CHECK_THROWS_WITH(
      trainer.predict_tensors(data),
      ContainsSubstring("the output \"outputs\" of batch 1 is [2, 4], that of batch 0 "
                        "[2, 6]") &&
          ContainsSubstring("call predict()"));
  model->names = true;
  CHECK_THROWS_WITH(trainer.predict_tensors(data),
                    ContainsSubstring("batch 1 has outputs called few, batch 0 has six"));
}

TEST_CASE("a missing optimizer is told of when it would train, and once", "[trainer]") {
  Warnings warnings;
  TrainerOptions given = options(2, "1ep");
  given.optimizer = nullptr;
  given.eval = {{"test", tiny::batches(1)}};
  Trainer<> trainer(tiny::net(), given);
  trainer.eval();
  trainer.predict(tiny::batches(1));
  CHECK(warnings.texts.empty());
  trainer.fit();
  trainer.fit("1ep");
  CHECK(warnings.texts == Lines{"no optimizer was given; training with DecoupledSGDW{.lr = 0.1}"});
}

TEST_CASE("a run that is complete is not trained when it is started again", "[trainer][resume]") {
  const TemporaryFolder folder;
  TrainerOptions given = options(2, "1ep");
  given.run_name = "run";
  given.save_folder = folder.path().string();
  given.autoresume = true;
  given.save_metrics = true;
  given.eval = {{"test", tiny::batches(1)}};
  given.eval_interval = 0;
  Trainer<> first(tiny::net(), given);
  first.fit();
  CHECK(first.state().eval_metric_values.empty());
  Warnings warnings;
  Trainer<> second(tiny::net(), given);
  second.fit();
  CHECK(second.state().timestamp.batch == 2);
  CHECK(second.state().eval_metric_values.empty());
  CHECK(warnings.texts ==
        Lines{"fit: the run that was resumed is complete; there is nothing left to train"});
  second.eval();
}

TEST_CASE("a resumed run equals the uninterrupted one bit for bit", "[trainer][resume]") {
  const TemporaryFolder temporary;
  const auto folder = temporary / "checkpoints";
  TrainerOptions all = options(3, "2ep");
  all.optimizer = DecoupledSGDW{.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4};
  all.schedule = CosineAnnealing{};
  all.save_folder = folder.string();
  all.save_interval = "1ba";
  auto uninterrupted = tiny::net(1, 0.5);
  Trainer<Noise, Losses> a(uninterrupted, all);
  a.fit();
  for (const char* name : {"ep0-ba1", "ep0-ba2", "ep1-ba4"}) {  // inside both epochs
    TrainerOptions rest = all;
    rest.save_folder = "";
    rest.load_path = (folder / name).string();
    rest.seed = 99;  // the checkpoint's seed counts
    auto resumed = tiny::net(5, 0.5);
    Trainer<Noise, Losses> b(resumed, rest);
    b.fit();
    const auto& whole = a.get<Losses>().train;
    const auto& part = b.get<Losses>().train;
    CHECK(std::vector(whole.end() - static_cast<std::ptrdiff_t>(part.size()), whole.end()) == part);
    CHECK(at::equal(tiny::flat(*uninterrupted), tiny::flat(*resumed)));
  }
}

TEST_CASE("the same seed gives the same run", "[trainer][reproducibility]") {
  auto first = tiny::net(1, 0.5);
  auto second = tiny::net(1, 0.5);
  Trainer<Noise>(first, options()).fit();
  Trainer<Noise>(second, options()).fit();
  CHECK(at::equal(tiny::flat(*first), tiny::flat(*second)));
}

TEST_CASE("options out of range are refused with what was got and what is expected", "[trainer]") {
  const auto refuse = [](TrainerOptions bad) { Trainer<> trainer(tiny::net(), std::move(bad)); };
  TrainerOptions bad = options();
  bad.device = "gqu";
  CHECK_THROWS_WITH(refuse(bad), ContainsSubstring("device is \"gqu\", expected"));
  bad = options();
  bad.seed = std::uint64_t{1} << 32;
  CHECK_THROWS_WITH(refuse(bad), ContainsSubstring("seed is 4294967296"));
  bad = options();
  bad.precision = Precision::amp_fp16;
  CHECK_THROWS_WITH(refuse(bad), ContainsSubstring("amp_fp16 on cpu"));
  bad = options();
  bad.device_train_microbatch_size = -1;
  CHECK_THROWS_WITH(refuse(bad), ContainsSubstring("device_train_microbatch_size is -1"));
  bad = options();
  bad.dist_timeout = -1;
  CHECK_THROWS_WITH(refuse(bad), ContainsSubstring("dist_timeout is -1, expected more than 0"));
  bad = options();
  bad.scale_schedule_ratio = 0;
  CHECK_THROWS_WITH(refuse(bad), ContainsSubstring("scale_schedule_ratio is 0"));
  bad = options();
  bad.max_duration = "0.5dur";
  CHECK_THROWS_WITH(refuse(bad), ContainsSubstring("a fraction of itself"));
  CHECK_THROWS_WITH(Trainer<>(std::shared_ptr<tiny::Net>(), options()),
                    ContainsSubstring("was given no model"));
  const auto other = tiny::net(2);
  bad = options();
  bad.optimizer = std::make_shared<torch::optim::SGD>(other->parameters(), 0.1);
  CHECK_THROWS_WITH(refuse(bad), ContainsSubstring("none of the model's parameters"));
  Trainer<> no_data(tiny::net(), {.optimizer = SGD{.lr = 0.1}, .progress_bar = false});
  CHECK_THROWS_WITH(no_data.fit(), ContainsSubstring("there is no training data"));
  Trainer<> no_length(tiny::net(), options(1, Time{}));
  CHECK_THROWS_WITH(no_length.fit(), ContainsSubstring("max_duration is not set"));
  Trainer<> no_sets(tiny::net(), options());
  CHECK_THROWS_WITH(no_sets.eval(), ContainsSubstring("there is no evaluation set"));
}

TEST_CASE("policies given to the constructor deduce the trainer's type", "[trainer]") {
  Trainer trainer{tiny::net(), options(), StopAt{.batch = 1}, Halve{}};
  static_assert(std::is_same_v<decltype(trainer), Trainer<StopAt, Halve>>);
  trainer.fit();
  CHECK(trainer.state().timestamp.batch == 1);
}

namespace {

struct Plain final {
  double rate = 1;
  constexpr void validate() const {
    if (rate < 0) {
      throw "rate is negative";
    }
  }
  void apply(tutti::BatchEnd, const State&) {}
};

struct NeedsTokens final {
  template <class M>
  static constexpr bool supports = tutti::offers<M, tutti::takes_tokens>;
  void apply(tutti::BatchEnd, const State&) {}
};
struct Images : tiny::Net {
  using model_features = tutti::types<tutti::takes_images>;
};

struct Opposed final {
  static constexpr tutti::Rules rules{.warns_with = {{tutti::id<Plain>, "one undoes the other"}}};
  void apply(tutti::BatchEnd, const State&) {}
};

}  // namespace

TEST_CASE("hyperparameters can be part of the trainer's type", "[trainer][with]") {
  Trainer<tutti::With<Plain{.rate = 3}>> trainer{tiny::net(), options()};
  CHECK(trainer.get<Plain>().rate == 3);
  Trainer deduced{tiny::net(), options(), tutti::With<Plain{.rate = 4}>{}};
  CHECK(deduced.get<Plain>().rate == 4);
}

TEST_CASE("a model that says nothing of its features is left to the run", "[trainer]") {
  STATIC_REQUIRE(tutti::Supports<NeedsTokens, tiny::Net>);
  STATIC_REQUIRE(tutti::Supports<NeedsTokens, std::shared_ptr<tiny::Net>>);
  STATIC_REQUIRE(!tutti::Supports<NeedsTokens, Images>);
  STATIC_REQUIRE(!tutti::Supports<NeedsTokens, std::shared_ptr<Images>>);
  STATIC_REQUIRE(tutti::Supports<Plain, Images>);
}

TEST_CASE("an accepted pair makes no warning", "[trainer]") {
  Trainer trainer{tiny::net(), options(), Opposed{}, Plain{}, tutti::accept<Opposed, Plain>{}};
  trainer.fit();
}

}  // namespace UNITY_BUILD_UNIQUE_ID
