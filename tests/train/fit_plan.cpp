#include <tutti/train/fit_plan.hpp>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/trace.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Closes final {
  int closed = 0;
  void close(State&) { ++closed; }
  void apply(BatchStart, State&) {}
};

// Only evaluated, never trained.
struct OnEvaluation final {
  void apply(EvalStart, State&) {}
};

TrainerOptions options(Time length = "1ep") {
  return {.train = tiny::batches(2),
          .max_duration = length,
          .optimizer = SGD{.lr = 0.1},
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

// Calls with wrong arguments and a part of what they say.
template <class T>
using Calls = std::vector<std::pair<void (*)(T&), const char*>>;

// Every call is refused and leaves the trainer open; then fit() trains as if there had been none.
template <class T>
void refuses(T& trainer, const Calls<T>& calls) {
  for (const auto& [call, text] : calls) {
    INFO(text);
    const Timestamp before = trainer.state().timestamp;
    const Time length = trainer.state().max_duration;
    CHECK_THROWS_WITH(call(trainer), ContainsSubstring(text));
    CHECK(trainer.template get<Closes>().closed == 0);
    CHECK(trainer.state().timestamp.batch == before.batch);
    CHECK(trainer.state().max_duration == length);
  }
}

double only_early(const Progress& progress) {
  if (progress.max_duration > Time("3ep")) {
    throw std::invalid_argument("too long for this schedule");
  }
  return 1.0;
}

}  // namespace

TEST_CASE("calls that are refused for their arguments leave the trainer as it was",
          "[train][fit_plan]") {
  using T = Trainer<Closes>;
  auto model = tiny::net();
  T trainer(model, options());
  refuses<T>(
      trainer,
      {{[](T& t) { t.eval(); }, "eval: there is no evaluation set"},
       {[](T& t) { t.eval({}); }, "eval: there is no evaluation set"},
       {[](T& t) { t.eval({{"test", tiny::batches(0)}}); }, "\"test\" has no batch"},
       {[](T& t) { t.eval({{"a", tiny::batches(1)}, {"a", tiny::batches(1)}}); }, "label \"a\""},
       {[](T& t) { t.eval({{"none", DataSpec{}}}); }, "has no data"},
       {[](T& t) { t.predict(DataSpec{}); }, "predict: there is no data"},
       {[](T& t) { t.fit("0ep"); }, "fit: duration is 0ep"},
       {[](T& t) { t.fit({.duration = "0.5dur"}); }, "fit: duration is 0.5dur"},
       {[](T& t) { t.fit("1iter"); }, "iteration_length is not set"},
       {[](T& t) { t.fit({.scale_schedule_ratio = 2}); }, "no schedule was given"},
       {[](T& t) { t.fit({.schedule = CosineAnnealing{}, .scale_schedule_ratio = 0}); },
        "scale_schedule_ratio is 0"},
       {[](T& t) { t.fit({.duration = "9ep", .schedule = only_early}); }, "too long"},
       {[](T& t) { t.fit({.reset_time = true, .train = tiny::batches(0)}); },
        "the training loader has no batch"},
       {[](T& t) { t.fit({.step_schedule_every_batch = false}); },
        "step_schedule_every_batch is false but no schedule was given"},
       {[](T& t) { t.fit({.train_subset_num_batches = 0}); }, "train_subset_num_batches is 0"},
       {[](T& t) { t.fit({.device_train_microbatch_size = -1}); },
        "device_train_microbatch_size is -1"},
       {[](T& t) { t.fit({.precision = Precision::bf16_true}); },
        "precision is bf16_true, and the trainer's is fp32"},
       {[](T& t) { t.fit({.precision = Precision::amp_fp16}); }, "amp_fp16"},
       {[](T& t) { t.fit({.eval = {{"train", tiny::batches(1)}}}); }, "has the label \"train\""},
       {[](T& t) { t.save_checkpoint("/dev/null/nowhere"); }, "/dev/null"}});
  trainer.fit();
  CHECK(trainer.state().timestamp.batch == 2);
  refuses<T>(trainer, {{[](T& t) { t.fit(); }, "nothing is left to train"}});
  trainer.fit("1ep");
  CHECK(trainer.state().timestamp.batch == 4);
  auto undisturbed = tiny::net();
  T other(undisturbed, options("2ep"));
  other.fit();
  CHECK(at::equal(tiny::flat(*model), tiny::flat(*undisturbed)));
}

// How a fit made its steps.
struct Steps final {
  std::vector<std::int64_t> epochs{};  // batches of each
  int passes = 0;
  std::vector<double> rates{};
  bool low = false;
  void apply(EpochStart, State&) { epochs.push_back(0); }
  void apply(BatchStart, State& state) {
    ++epochs.back();
    rates.push_back(state.optimizers[0]->param_groups()[0].options().get_lr());
  }
  void apply(AfterForward, State& state) {
    ++passes;
    low = state.outputs.tensor().scalar_type() == at::kBFloat16;
  }
};

TEST_CASE("a call of fit() may take its steps in another way", "[train][fit_plan]") {
  Trainer<Steps> trainer(tiny::net(), options());
  const auto fit = [&](FitOptions with) -> const Steps& {
    trainer.get<Steps>() = {};
    trainer.fit(std::move(with));
    return trainer.get<Steps>();
  };
  const Steps& seen = fit({});
  CHECK(seen.epochs == std::vector<std::int64_t>{2});
  CHECK(seen.passes == 2);
  CHECK_FALSE(seen.low);

  fit({.duration = "2ep",
       .train_subset_num_batches = 1,
       .device_train_microbatch_size = 2,
       .precision = Precision::amp_bf16});
  CHECK(seen.epochs == std::vector<std::int64_t>{1, 1});
  CHECK(seen.passes == 2 * 3);
  CHECK(seen.low);

  fit({.duration = "1ep"});  // which stays so
  CHECK(seen.epochs == std::vector<std::int64_t>{1});
  CHECK(seen.low);

  fit({.duration = "2ep",
       .schedule = [](const Progress& at) { return at.timestamp.batch % 2 == 0 ? 1.0 : 0.5; },
       .step_schedule_every_batch = false,
       .train_subset_num_batches = -1,
       .device_train_microbatch_size = 0,
       .precision = Precision::fp32});
  CHECK(seen.epochs == std::vector<std::int64_t>{2, 2});
  CHECK(seen.passes == 4);
  CHECK_FALSE(seen.low);
  REQUIRE(seen.rates.size() == 4);
  CHECK(seen.rates[0] == seen.rates[1]);
  CHECK(seen.rates[2] == seen.rates[3]);
}

TEST_CASE("what a trainer lacks can be given to the next call", "[train][fit_plan]") {
  using T = Trainer<Closes>;
  TrainerOptions none = options({});
  none.train = {};
  T trainer(tiny::net(), none);
  refuses<T>(trainer,
             {{[](T& t) { t.fit("1ep"); }, "fit: there is no training data"},
              {[](T& t) { t.fit({.train = tiny::batches(3)}); }, "fit: max_duration is not set"}});
  trainer.fit({.duration = "1ep", .train = tiny::batches(3)});
  CHECK(trainer.state().timestamp.batch == 3);
}

TEST_CASE("a fit whose policy would never act may be made again with what it lacks",
          "[train][fit_plan]") {
  Trainer<OnEvaluation> trainer(tiny::net(), options());
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("acts only on events of evaluation"));
  trainer.fit({.eval = {{"test", tiny::batches(1)}}});
  CHECK(trainer.state().timestamp.batch == 2);
}

TEST_CASE("a folder with later checkpoints can be cleared and the fit made again",
          "[train][fit_plan]") {
  const TemporaryFolder folder;
  TrainerOptions saving = options();
  saving.save_folder = (folder / "run").string();
  Trainer<>(tiny::net(), saving).fit();
  Trainer<> again(tiny::net(), saving);
  CHECK_THROWS(again.fit());
  std::filesystem::remove_all(folder / "run");
  again.fit();
  CHECK(std::filesystem::exists(folder / "run/ep1-ba2"));
}

TEST_CASE("an exception of work that has begun still closes", "[train][fit_plan]") {
  Trainer<Closes> trainer(tiny::net(), options());
  const auto predict = [&] {
    trainer.predict(std::vector<Batch>{Batch(at::ones({2, 3}), at::ones({2, 2}))});
  };
  CHECK_THROWS(predict());
  CHECK(trainer.get<Closes>().closed == 1);
  CHECK_THROWS_WITH(predict(), ContainsSubstring("has been closed"));
  CHECK_THROWS_WITH(trainer.eval(), ContainsSubstring("has been closed"));
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("has been closed"));
}

TEST_CASE("a plan says how long and whether anything is left", "[train][fit_plan]") {
  State state;
  train::Run run;
  run.train = tiny::batches(5);
  state.max_duration = "2ep";
  train::FitPlan plan = train::plan_fit(state, run, {});
  CHECK(plan.max_duration == Time("2ep"));
  CHECK(plan.dataloader_len == 5);
  CHECK_FALSE(plan.complete);
  state.timestamp.epoch = 2;
  CHECK(train::plan_fit(state, run, {}).complete);
  CHECK_FALSE(train::plan_fit(state, run, {.reset_time = true}).complete);
  plan = train::plan_fit(state, run, {.duration = "3ep", .train = tiny::batches(4)});
  CHECK(plan.max_duration == Time("5ep"));
  CHECK(plan.dataloader_len == 4);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
