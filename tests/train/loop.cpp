#include <tutti/train/loop.hpp>

#include <tutti/trainer.hpp>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numbers>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/swa.hpp>
#include <tutti/callbacks/checkpoint_saver.hpp>
#include <tutti/callbacks/early_stopper.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/dist/launch.hpp>
#include <tutti/dist/process_group.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/optim/schedules.hpp>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Trainer;

/// Gives two batches once: start() forgets to begin anew.
struct UsedUp {
  int given = 0;
  void start(std::int64_t, std::int64_t) {}
  std::optional<tutti::Batch> next() {
    return given++ < 2 ? std::optional(tiny::batches(1).front()) : std::nullopt;
  }
};

tutti::TrainerOptions options(tutti::DataSpec data, const char* length) {
  return {.train = std::move(data),
          .max_duration = tutti::Time::parse(length),
          .optimizer = tutti::SGD{.lr = 0.1},
          .progress_bar = false};
}

/// Measures how large the weights of the last layer are, and draws a random number for it.
struct Measured : tiny::Net {
  using tiny::Net::Net;

  struct Size final : tutti::Metric {
    at::Tensor weights;
    explicit Size(at::Tensor w) : weights(std::move(w)) {}
    void update(const at::Tensor&, const at::Tensor&) override { at::rand({1}); }
    [[nodiscard]] double compute(const std::vector<at::Tensor>&) const override {
      return weights.norm().item<double>();
    }
    [[nodiscard]] std::vector<at::Tensor> states() const override { return {at::zeros({})}; }
    void set_states(std::vector<at::Tensor>) override {}
    void reset() override {}
    [[nodiscard]] std::unique_ptr<Metric> clone() const override {
      return std::make_unique<Size>(*this);
    }
    [[nodiscard]] std::string name() const override { return "Size"; }
  };
  [[nodiscard]] tutti::Metrics metrics(bool train) const {
    return train ? tutti::Metrics{} : tutti::Metrics{std::make_shared<Size>(out->weight)};
  }
};

struct SignalAt final {
  std::int64_t batch = -1;
  void apply(tutti::BeforeForward, const tutti::State& state) const {
    if (state.timestamp.batch == batch) {
      std::raise(SIGTERM);
    }
  }
};

/// Notes what happens, with the weights and the batch.
struct Notes final {
  std::vector<std::string>* lines = nullptr;

  void apply(tutti::EvalEnd, const tutti::State& state) const { note("eval", state); }
  void apply(tutti::IterationEnd, const tutti::State& state) const { note("iteration", state); }
  void apply(tutti::EpochEnd, const tutti::State& state) const { note("epoch", state); }
  void apply(tutti::FitEnd, const tutti::State& state) const { note("fit", state); }
  void note(const char* what, const tutti::State& state) const {
    lines->push_back(c10::str(what, " at ", state.timestamp.batch, ": ",
                              tiny::flat(*state.model).sum().item<double>()));
  }
};

/// What happens in a run of 2 epochs and what it saves, stopped in a batch and taken up again.
std::vector<std::string> story(std::int64_t stop_in, tutti::TrainerOptions options,
                               tutti::Time patience) {
  const TemporaryFolder folder;
  const tutti::CheckpointSaver best{.folder = (folder / "best").string(),
                                    .num_checkpoints_to_keep = 100,
                                    .monitor = "Size",
                                    .dataloader_label = "eval"};
  options.save_folder = (folder / "saved").string();
  std::vector<std::string> lines;
  const Warnings warnings;
  for (int signal = SIGTERM; signal != 0; stop_in = -1) {
    at::manual_seed(1);
    Trainer trainer{
        std::make_shared<Measured>(0.5),
        options,
        SignalAt{stop_in},
        tutti::EMA{.half_life = "1ba"},
        tutti::EarlyStopper{.monitor = "Size", .dataloader_label = "eval", .patience = patience},
        best,
        Notes{&lines}};
    trainer.fit();
    signal = trainer.stop_signal();
  }
  std::set<std::string> saved;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "best")) {
    double sum = 0;
    tutti::checkpoint::read_snapshot(entry.path())
        .model.each_leaf([&](const std::string&, const tutti::Archive::Leaf& leaf) {
          sum += leaf.tensor()->sum().item<double>();
        });
    saved.insert(c10::str(entry.path().filename().string(), ": ", sum));
  }
  lines.insert(lines.end(), saved.begin(), saved.end());
  return lines;
}

}  // namespace

TEST_CASE("an epoch without a batch is an error, not an epoch that goes round for ever",
          "[train][loop]") {
  Trainer<> used_up{tiny::net(), options(UsedUp{}, "5ba")};
  CHECK_THROWS_WITH(used_up.fit(), ContainsSubstring("gave no batch in epoch 1") &&
                                       ContainsSubstring("begin anew at every start("));
  CHECK(used_up.state().timestamp.batch == 2);
  Trainer<> empty{tiny::net(), options(tiny::batches(0), "1ep")};
  CHECK_THROWS_WITH(empty.fit(), ContainsSubstring("the training loader has no batch"));
}

TEST_CASE("a length in a unit that never passes is refused, not trained for ever",
          "[train][loop]") {
  CHECK_THROWS_WITH((Trainer<>{tiny::net(), options(tiny::batches(3), "1iter")}),
                    ContainsSubstring("max_duration is 1iter, but iteration_length is not set"));
  tutti::TrainerOptions iterations = options(tiny::batches(3), "2iter");
  iterations.iteration_length = "2ep";
  Trainer<> four{tiny::net(), iterations};
  four.fit();
  CHECK(four.state().timestamp.epoch == 4);
  Trainer<> tokens{tiny::net(), options(tiny::batches(3), "100tok")};
  CHECK_THROWS_WITH(tokens.fit(), ContainsSubstring("max_duration is 100tok, and the batches have "
                                                    "no tokens; give DataSpec a num_tokens"));
  tutti::TrainerOptions intervals = options(tiny::batches(3), "1ep");
  intervals.eval = {{"test", tiny::batches(1), {.interval = "5tok"}}};
  const TemporaryFolder folder;
  intervals.save_folder = folder.path().string();
  intervals.save_interval = "7tok";
  const auto said = [&] {
    const Warnings warnings;
    Trainer<>{tiny::net(), intervals}.fit();
    return warnings.texts;
  };
  const std::vector<std::string> texts = said();
  REQUIRE(texts.size() == 1);
  CHECK_THAT(texts[0], ContainsSubstring("these never come due before the end: evaluations of "
                                         "test, checkpoints in " +
                                         intervals.save_folder + "; "));
  intervals.eval = {{"test", tiny::batches(1), {.interval = "1ep"}}};
  intervals.save_folder.clear();
  CHECK(said().empty());
  Trainer<> examples{
      tiny::net(),
      options({tiny::batches(3), {.num_samples = [](const tutti::Batch&) { return 0; }}}, "9sp")};
  CHECK_THROWS_WITH(examples.fit(), ContainsSubstring("the batches have no examples"));
}

TEST_CASE("parameters that are unfrozen behind the trainer's back are warned of once",
          "[train][loop]") {
  const auto net = tiny::net();
  net->in->weight.requires_grad_(false);
  net->in->bias.requires_grad_(false);
  Trainer<> trainer{net,
                    {.train = tiny::batches(2),
                     .max_duration = "4ep",
                     .optimizer = tutti::SGD{.lr = 0.1},
                     .progress_bar = false}};
  const auto said = [&] {
    const Warnings warnings;
    trainer.fit({.duration = "1ep"});
    return warnings.texts;
  };
  CHECK(said().empty());
  net->in->weight.requires_grad_(true);
  const std::vector<std::string> first = said();
  REQUIRE(first.size() == 1);
  CHECK_THAT(first[0], ContainsSubstring("1 parameters that were frozen when the trainer was made "
                                         "require a gradient now, and are in no optimizer, so they "
                                         "are not trained: in.weight; unfreeze"));
  CHECK(said().empty());
  net->in->bias.requires_grad_(true);
  trainer.state().optimizers.front()->param_groups()[0].params().push_back(net->in->bias);
  CHECK(said().empty());
}

TEST_CASE("a loss that is not a number is told of once, with its batch", "[train][loop]") {
  struct Breaks final : tiny::Net {
    tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
      const at::Tensor loss = tiny::Net::loss(outputs, batch).total();
      return (calls++ < 3 ? loss : loss * std::nan("")).to(type);
    }
    int calls = 0;
    at::ScalarType type = at::kFloat;
  };
  const bool logs = GENERATE(false, true);
  const auto model = std::make_shared<Breaks>();
  model->type = GENERATE(at::kFloat, at::kDouble);
  const Warnings warnings;
  tutti::TrainerOptions given = options(tiny::batches(2), "3ep");
  given.device = "cpu";
  if (logs) {
    Trainer(model, given, tutti::InMemoryLogger{}).fit();
  } else {
    Trainer<>(model, given).fit();
  }
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("is not a number (nan) in batch 3 of the run, epoch 1; "));
}

TEST_CASE("an infinite loss is a number", "[train][loop]") {
  struct Grows final : tiny::Net {
    tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
      return tiny::Net::loss(outputs, batch).total().detach() + HUGE_VAL * out->bias.sum().abs();
    }
  };
  const Warnings warnings;
  Trainer<>(std::make_shared<Grows>(), options(tiny::batches(1), "1ba")).fit();
  CHECK(warnings.texts.empty());
}

TEST_CASE("a run that a signal has stopped before an evaluation goes on as one that was not",
          "[train][loop][resume]") {
  tutti::TrainerOptions often = options(tiny::batches(3), "2ep");
  often.device = "cpu";
  often.seed = 3;
  often.run_name = "calm-motet";
  often.save_interval = "100ba";
  often.autoresume = true;
  often.replace_signal_handlers = true;
  often.iteration_length = "1ep";
  often.eval = {{"eval", tiny::batches(1), {.interval = "1ba"}}};
  for (const tutti::Time patience : {tutti::Time("100ba"), tutti::Time("1ba")}) {
    const auto whole = story(-1, often, patience);
    for (const std::int64_t batch : {0, 1, 2, 3, 4}) {
      INFO("stopped in batch " << batch << ", patience " << to_string(patience));
      CHECK(story(batch, often, patience) == whole);
    }
  }
}

TEST_CASE("a run that goes on at the end of an epoch draws what it would have drawn",
          "[train][loop][resume]") {
  const TemporaryFolder folder;
  tutti::TrainerOptions now = options(tiny::batches(3), "2ep");
  now.device = "cpu";
  now.seed = 3;
  now.save_folder = folder.path().string();
  now.save_interval = "3ba";
  now.eval = {{"eval", tiny::batches(1)}};  // at EpochEnd, behind the checkpoint
  std::vector<std::string> whole;
  Trainer first{std::make_shared<Measured>(0.5), now, Notes{&whole}};
  first.fit();
  now.load_path = (folder / "ep0-ba3").string();
  now.save_folder = "";
  std::vector<std::string> rest;
  Trainer second{std::make_shared<Measured>(0.5), now, Notes{&rest}};
  second.fit();
  CHECK(rest == whole);
}

namespace {

/// Three batches an epoch, each drawn from LibTorch's generator when it is asked for.
struct DrawnBatches {
  std::int64_t given = 0;
  void start(std::int64_t, std::int64_t first_batch) { given = first_batch; }
  std::optional<tutti::Batch> next() {
    return given++ < 3 ? std::optional(tutti::Batch(at::randn({6, 4}), at::zeros({6, 2})))
                       : std::nullopt;
  }
};

struct Draws final {
  std::vector<double>* drawn = nullptr;
  void apply(tutti::IterationStart, const tutti::State&) const { draw(); }
  void apply(tutti::EpochStart, const tutti::State&) const { draw(); }
  void apply(tutti::BeforeDataloader, const tutti::State&) const { draw(); }
  void draw() const { drawn->push_back(at::rand({1}).item<double>()); }
};

}  // namespace

TEST_CASE("a run that goes on draws what it would have drawn, ahead of its first batch, too",
          "[train][loop][resume]") {
  struct Case {
    tutti::Time interval;
    const char* name;
    std::ptrdiff_t before;  // draws: at the start of both epochs, and ahead of 3 batches and an end
  };
  for (const Case& one :
       {Case{"1ba", "ep0-ba1", 3}, Case{"1ba", "ep0-ba3", 5}, Case{"1ep", "ep1-ba3", 6}}) {
    INFO(one.name);
    const TemporaryFolder folder;
    tutti::TrainerOptions now = options(DrawnBatches{}, "2ep");
    now.device = "cpu";
    now.seed = 3;
    now.save_folder = folder.path().string();
    now.save_interval = one.interval;
    std::vector<double> whole;
    auto net = tiny::net();
    Trainer first{net, now, Draws{&whole}};
    first.fit();
    REQUIRE(whole.size() == 11);
    now.load_path = (folder / one.name).string();
    now.save_folder = "";
    std::vector<double> rest;
    auto other = tiny::net(2);
    Trainer second{other, now, Draws{&rest}};
    second.fit();
    CHECK(rest == std::vector<double>(whole.begin() + one.before, whole.end()));
    CHECK(tiny::flat(*other).equal(tiny::flat(*net)));
  }
}

TEST_CASE("a run that ends within an epoch is evaluated behind FitEnd, and saved for that",
          "[train][loop]") {
  const TemporaryFolder folder;
  tutti::TrainerOptions now = options(tiny::batches(3), "5ba");
  now.eval = {{"eval", tiny::batches(1)}};
  std::vector<std::string> lines;
  Trainer trainer{std::make_shared<Measured>(), now,
                  tutti::CheckpointSaver{.folder = folder.path().string(),
                                         .num_checkpoints_to_keep = 100,
                                         .monitor = "Size",
                                         .dataloader_label = "eval"},
                  Notes{&lines}};
  trainer.fit();
  std::vector<std::string> events;
  for (const std::string& line : lines) {
    events.push_back(line.substr(0, line.find(':')));
  }
  CHECK(events == std::vector<std::string>{"epoch at 3", "eval at 3", "fit at 5", "eval at 5"});
  CHECK(sorted_names(folder.path()) == std::vector<std::string>{"best", "ep1-ba3", "ep1-ba5"});
}

TEST_CASE("fit trains a model that was left in evaluation mode", "[train][loop]") {
  const auto trained = [](bool training) {
    const auto net = tiny::net(1, 0.5);
    net->train(training);
    tutti::TrainerOptions now = options(tiny::batches(2), "1ep");
    now.seed = 3;
    Trainer<> trainer{net, now};
    trainer.fit();
    return tiny::flat(*net);
  };
  CHECK(trained(false).equal(trained(true)));
}

TEST_CASE("an epoch of some batches is one of a loader that has no more", "[train][loop]") {
  struct Fetches final {
    int count = 0;
    void apply(tutti::BeforeDataloader, const tutti::State&) { ++count; }
  };
  const auto trained = [](int batches, std::int64_t subset) {
    const auto net = tiny::net();
    tutti::TrainerOptions now = options(tiny::batches(batches), "2ep");
    now.train_subset_num_batches = subset;
    Trainer<Fetches> trainer{net, now};
    trainer.fit();
    CHECK(trainer.get<Fetches>().count == 6);  // the end of an epoch, too
    CHECK(trainer.state().train_dataloader_len == 2);
    CHECK(trainer.state().timestamp.batch == 4);
    CHECK(trainer.state().timestamp.epoch == 2);
    return tiny::flat(*net);
  };
  const at::Tensor whole = trained(2, -1);
  CHECK(trained(3, 2).equal(whole));
  const Warnings warnings;
  CHECK(trained(2, 9).equal(whole));
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("the training loader: the subset is to have 9 batches, but the "
                               "loader has 2, which are all taken"));
}

namespace {

/// The learning rates with which batches are trained.
struct Rates final {
  std::vector<double> used{};
  void apply(tutti::BatchStart, const tutti::State& state) {
    used.push_back(state.optimizers[0]->param_groups()[0].options().get_lr());
  }
};

template <class... Policies>
std::vector<double> rates_of(const tutti::TrainerOptions& how, Policies... policies) {
  Trainer trainer{tiny::net(), how, Rates{}, std::move(policies)...};
  trainer.fit();
  return trainer.template get<Rates>().used;
}

/// 3 epochs of 4 batches with a rate of 1.
tutti::TrainerOptions scheduled(tutti::Schedule schedule, bool ahead) {
  tutti::TrainerOptions now = options(tiny::batches(4), "3ep");
  now.optimizer = tutti::SGD{.lr = 1};
  now.schedule = std::move(schedule);
  now.schedule_ahead = ahead;
  return now;
}

std::vector<double> by_formula(double (*of)(int batch)) {
  std::vector<double> out;
  for (int batch = 0; batch < 12; ++batch) {
    out.push_back(of(batch));
  }
  return out;
}

void check_close(const std::vector<double>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("batch " << i);
    CHECK(std::abs(got[i] - want[i]) < 1e-12);
  }
}

/// A number that says where in the run a batch begins.
double place(const tutti::Progress& p) {
  const tutti::Timestamp& t = p.timestamp;
  return static_cast<double>(t.iteration * 1000000 + t.epoch_in_iteration * 10000 + t.epoch * 100 +
                             t.batch_in_epoch);
}

}  // namespace

TEST_CASE("a rate is used one batch late, or ahead at its own batch as PyTorch's schedulers do",
          "[train][loop][schedule]") {
  using tutti::Step;
  // Of PyTorch's StepLR(step_size = 3, gamma = 0.1), stepped after each of 12 batches.
  const auto formula = by_formula([](int batch) { return std::pow(0.1, batch / 3); });
  check_close(rates_of(scheduled(Step{.step_size = "3ba"}, true)), formula);
  std::vector<double> late = formula;
  late.insert(late.begin(), late.front());
  late.pop_back();
  check_close(rates_of(scheduled(Step{.step_size = "3ba"}, false)), late);

  // Of PyTorch's StepLR(step_size = 2, gamma = 0.1), stepped after each of 3 epochs of 4 batches.
  const auto by_epoch = by_formula([](int batch) { return std::pow(0.1, batch / 4 / 2); });
  check_close(rates_of(scheduled(Step{.step_size = "2ep"}, true)), by_epoch);
  tutti::TrainerOptions epochwise = scheduled(Step{.step_size = "2ep"}, true);
  epochwise.step_schedule_every_batch = false;
  check_close(rates_of(epochwise), by_epoch);

  const auto cosine = [](int t) { return (1 + std::cos(std::numbers::pi * t / 12)) / 2; };
  check_close(rates_of(scheduled(tutti::CosineAnnealing{}, true)), by_formula(cosine));
  epochwise.schedule = tutti::CosineAnnealing{};
  check_close(rates_of(epochwise), by_formula([](int batch) {
                return (1 + std::cos(std::numbers::pi * (batch / 4) / 3)) / 2;
              }));
  check_close(rates_of(scheduled(tutti::Product{tutti::Linear{1, 0, "12ba"}, Step{"5ba"}}, true)),
              by_formula([](int t) { return (1 - t / 12.0) * std::pow(0.1, t / 5); }));
}

TEST_CASE("ahead, a schedule sees the timestamp with which a batch or an epoch begins",
          "[train][loop][schedule]") {
  struct Places final {
    std::vector<double> begun{};
    void apply(tutti::BatchStart, const tutti::State& state) {
      begun.push_back(place(state.progress()));
    }
  };
  for (const char* length : {"0ep", "2ep", "60tok"}) {
    for (const std::int64_t microbatch : {0, 4}) {
      tutti::TrainerOptions now = scheduled(place, true);
      now.optimizer = tutti::SGD{.lr = 1e-9};
      now.train.hooks.num_tokens = [](const tutti::Batch&) { return tutti::TokenCount(12); };
      now.iteration_length = tutti::Time::parse(length);
      now.device_train_microbatch_size = microbatch;
      Trainer trainer{tiny::net(), now, Rates{}, Places{}};
      trainer.fit();
      std::vector<double> got = trainer.get<Rates>().used;
      for (double& rate : got) {
        rate = std::round(rate * 1e9);
      }
      CHECK(got == trainer.get<Places>().begun);
      CHECK(got.size() >= 12);
    }
  }
  tutti::TrainerOptions now = scheduled(place, true);
  now.optimizer = tutti::SGD{.lr = 1e-9};
  now.step_schedule_every_batch = false;
  now.iteration_length = "2ep";
  std::vector<double> got = rates_of(now);
  CHECK(std::round(got[3] * 1e9) == 0);
  CHECK(std::round(got[7] * 1e9) == 10100);
  CHECK(std::round(got[11] * 1e9) == 1000200);
}

TEST_CASE("ahead, a resumed run, a longer one and one from the start have their own rates",
          "[train][loop][schedule][resume]") {
  for (const bool every_batch : {true, false}) {
    for (const bool saved_ahead : {true, false}) {
      tutti::TrainerOptions ahead = scheduled(tutti::Linear{}, true);
      ahead.step_schedule_every_batch = every_batch;
      const std::vector<double> whole = rates_of(ahead);
      const TemporaryFolder folder;
      tutti::TrainerOptions saving = ahead;
      saving.schedule_ahead = saved_ahead;
      saving.save_folder = folder.path().string();
      saving.save_interval = "1ba";
      rates_of(saving);
      for (const auto& [name, done] :
           {std::pair("ep0-ba2", 2), std::pair("ep0-ba4", 4), std::pair("ep1-ba7", 7)}) {
        INFO(name << (every_batch ? ", every batch" : ", every epoch"));
        tutti::TrainerOptions rest = ahead;
        rest.load_path = (folder / name).string();
        check_close(rates_of(rest), {whole.begin() + done, whole.end()});
      }
    }
  }
  Trainer<Rates> trainer{tiny::net(), scheduled(tutti::Linear{1, 0, "24ba"}, true)};
  trainer.fit();
  trainer.fit("1ep");
  trainer.fit({.reset_time = true});
  std::vector<double> want;
  for (int i = 0; i < 32; ++i) {
    want.push_back(1 - i % 16 / 24.0);
  }
  check_close(trainer.get<Rates>().used, want);
}

TEST_CASE("a schedule that fit() is given begins with the rate of that moment",
          "[train][loop][schedule]") {
  Trainer trainer{tiny::net(), scheduled({}, false), Rates{}};
  trainer.fit();
  trainer.get<Rates>().used.clear();
  trainer.fit({.duration = "2ba", .schedule = [](const tutti::Progress& p) {
                 return p.timestamp.batch < 12 ? 1.0 : 0.5;
               }});
  CHECK(trainer.get<Rates>().used == std::vector<double>{0.5, 0.5});
}

TEST_CASE("a schedule waits for data that comes with fit()", "[train][loop][schedule]") {
  tutti::TrainerOptions now = scheduled(tutti::CosineAnnealing{.t_max = "3ep"}, false);
  const std::vector<double> whole = rates_of(now);
  const tutti::DataSpec data = std::exchange(now.train, {});
  Trainer trainer{tiny::net(), now, Rates{}};
  trainer.fit({.train = data});
  CHECK(trainer.get<Rates>().used == whole);
}

TEST_CASE("an iteration that ends inside an epoch begins it anew, of which a warning tells",
          "[train][loop]") {
  const auto run = [](const char* length, const char* until) {
    tutti::TrainerOptions now = options(tiny::batches(4), until);
    now.train.hooks.num_tokens = [](const tutti::Batch&) { return tutti::TokenCount(10); };
    now.iteration_length = tutti::Time::parse(length);
    const Warnings warnings;
    Trainer<> trainer{tiny::net(), now};
    trainer.fit();
    return warnings.texts;
  };
  const std::vector<std::string> told = run("30tok", "3iter");
  REQUIRE(told.size() == 1);
  CHECK_THAT(told.front(), ContainsSubstring("iteration_length is 30tok, and iteration 0 ended in "
                                             "the middle of epoch 0, behind 3 of its 4 batches"));
  CHECK(run("50tok", "3ep").size() == 1);  // behind one batch of the second
  CHECK(run("40tok", "8ba").empty());
  CHECK_THROWS_WITH(
      run("30tok", "2ep"),
      ContainsSubstring("no epoch ever ends and max_duration (2ep) is never reached"));
}

TEST_CASE("a ratio for a schedule that there is not is refused", "[train][loop][schedule]") {
  tutti::TrainerOptions now = options(tiny::batches(2), "4ep");
  now.scale_schedule_ratio = 0.5;
  CHECK_THROWS_WITH(Trainer<>(tiny::net(), now),
                    ContainsSubstring("scale_schedule_ratio is 0.5, but there is no schedule"));
}

TEST_CASE("ahead, SWA holds its rate against the schedule", "[train][loop][schedule]") {
  for (const char* length : {"0ep", "1ep"}) {
    tutti::TrainerOptions now = scheduled(tutti::Linear{}, true);
    now.iteration_length = tutti::Time::parse(length);
    const std::vector<double> used = rates_of(now, tutti::SWA{.swa_start = "1ep",
                                                              .swa_end = "3ep",
                                                              .update_interval = "1ba",
                                                              .schedule_swa_lr = true});
    // From the end of batch 4 on, whose next rate is 1 - 5 / 12.
    check_close({used.begin() + 4, used.end()}, {1 - 4 / 12.0, 7 / 12.0, 7 / 12.0, 7 / 12.0,
                                                 7 / 12.0, 7 / 12.0, 7 / 12.0, 7 / 12.0});
  }
}

TEST_CASE("a schedule can be stepped at the end of each epoch alone", "[train][loop][schedule]") {
  tutti::TrainerOptions now = options(tiny::batches(2), "3ep");
  now.schedule = [](const tutti::Progress& p) { return p.timestamp.batch == 0 ? 1.0 : 0.5; };
  now.step_schedule_every_batch = false;
  Trainer<Rates> trainer{tiny::net(), now};
  trainer.fit();
  CHECK(trainer.get<Rates>().used == std::vector<double>{0.1, 0.1, 0.05, 0.05, 0.05, 0.05});
}

TEST_CASE("what is logged of the time is that at the start of each batch, and at the end",
          "[train][loop]") {
  const auto run = [](std::int64_t tokens) {
    tutti::DataSpec data = tiny::batches(2, 6);
    data.hooks.num_tokens = [=](const tutti::Batch&) { return tutti::TokenCount(tokens); };
    Trainer<tutti::InMemoryLogger> trainer{tiny::net(), options(data, "2ep")};
    trainer.fit();
    return trainer.get<tutti::InMemoryLogger>();
  };
  using Values = std::vector<double>;
  const tutti::InMemoryLogger logged = run(5);
  CHECK(logged.series("time/epoch").values == Values{0, 1, 2});
  CHECK(logged.series("time/batch").values == Values{0, 1, 2, 3, 4});
  CHECK(logged.series("time/sample").values == Values{0, 6, 12, 18, 24});
  CHECK(logged.series("time/token").values == Values{0, 5, 10, 15, 20});
  CHECK(logged.series("time/batch_in_epoch").values == Values{0, 1, 0, 1, 0});
  CHECK(logged.series("time/sample_in_epoch").values == Values{0, 6, 0, 6, 0});
  CHECK(logged.series("time/token_in_epoch").values == Values{0, 5, 0, 5, 0});
  CHECK(logged.series("loss/train/total").values.size() == 4);
  CHECK(run(0).data.count("time/token") == 0);
}

TEST_CASE("batches of step() are none of the loader's", "[train][loop]") {
  const TemporaryFolder folder;
  struct First final {
    std::vector<double> seen{};
    void apply(tutti::BatchStart, const tutti::State& state) {
      seen.push_back(state.batch.inputs().flatten()[0].item<double>());
    }
  };
  using Values = std::vector<double>;
  const at::Tensor rows = at::arange(8.).unsqueeze(1).expand({8, 4}).to(at::kFloat).contiguous();
  tutti::TrainerOptions now = options(
      tutti::TensorLoader{rows, at::zeros({8, 2}), {.batch_size = 2, .shuffle = false}}, "2ep");
  now.save_folder = folder.path().string();
  now.save_interval = "1ba";
  const tutti::Batch outside(at::full({2, 4}, 100.), at::zeros({2, 2}));
  Trainer<First> trainer{tiny::net(), now};
  for (int i = 0; i < 5; ++i) {
    trainer.step(outside);
  }
  trainer.fit({.duration = "1ba"});
  CHECK(trainer.get<First>().seen == Values{100, 100, 100, 100, 100, 0});
  CHECK(trainer.state().timestamp.batch_in_epoch == 6);
  trainer.fit("1ep");
  CHECK(trainer.get<First>().seen == Values{100, 100, 100, 100, 100, 0, 2, 4, 6});
  CHECK(trainer.state().timestamp.epoch == 1);
  trainer.step(outside);
  trainer.fit("1ep");
  CHECK(trainer.get<First>().seen == Values{100, 100, 100, 100, 100, 0, 2, 4, 6, 100, 0, 2, 4, 6});

  tutti::TrainerOptions again = options(now.train, "1ep");
  again.load_path = (folder.path() / "ep0-ba7").string();
  Trainer<First> resumed{tiny::net(), again};
  resumed.fit();
  CHECK(resumed.get<First>().seen == Values{4, 6});
}

TEST_CASE("an iteration's checkpoint is its end's", "[train][loop]") {
  const TemporaryFolder folder;
  struct Before final {
    std::vector<std::int64_t> epochs{};
    void apply(tutti::EpochEnd, const tutti::State& state) {
      epochs.push_back(state.previous_timestamp.batch_in_epoch);
    }
    void apply(tutti::IterationEnd, const tutti::State& state) {
      epochs.push_back(state.previous_timestamp.epoch_in_iteration);
    }
  };
  tutti::TrainerOptions now = options(tiny::batches(3), "4ep");
  now.iteration_length = "2ep";
  now.save_folder = folder.path().string();
  now.save_interval = "1iter";
  Trainer<Before> trainer{tiny::net(), now};
  trainer.fit();
  CHECK(sorted_names(folder.path()) == std::vector<std::string>{"ep2-ba6", "ep4-ba12", "latest"});
  CHECK(trainer.get<Before>().epochs == std::vector<std::int64_t>{3, 3, 2, 3, 3, 2});
}

TEST_CASE("the clock stands still during evaluations and ahead of the first batch",
          "[train][loop]") {
  struct Slow final {
    void apply(tutti::FitStart, const tutti::State&) const { wait(); }
    void apply(tutti::EvalStart, const tutti::State&) const { wait(); }
    static void wait() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }
  };
  tutti::TrainerOptions now = options(tiny::batches(2), "1ep");
  now.eval = {{"eval", tiny::batches(1), {.interval = "1ba"}}};
  Trainer<Slow> trainer{tiny::net(), now};
  const auto begin = std::chrono::steady_clock::now();
  trainer.fit();
  const auto all = std::chrono::steady_clock::now() - begin;
  CHECK(trainer.state().timestamp.total_wct <= all - 3 * std::chrono::milliseconds(50));
}

TEST_CASE("what policies take is training, also where there are evaluation sets", "[train][loop]") {
  struct Slow final {
    void apply(tutti::BatchEnd, const tutti::State&) const {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  };
  const TemporaryFolder folder;
  tutti::TrainerOptions now = options(tiny::batches(3), "1ep");
  now.eval = {{"eval", tiny::batches(1), {.interval = "1ba"}}};
  now.save_folder = folder.path().string();
  now.save_interval = "1ba";
  Trainer<Slow> trainer{tiny::net(), now};
  trainer.fit();  // the last batch's end is behind the last time that is taken
  CHECK(trainer.state().timestamp.total_wct >= 2 * std::chrono::milliseconds(50));
}

namespace {

/// Gives the same batches to all ranks; rank 1 waits for its third one.
struct Stuck {
  bool stops = false;
  std::int64_t given = 0;
  void start(std::int64_t, std::int64_t) { given = 0; }
  void shard(std::int64_t, std::int64_t) {}
  std::optional<tutti::Batch> next() {
    if (++given == 3 && stops && tutti::dist::here().rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(60));
    }
    return given <= 4 ? std::optional(tiny::batches(1).front()) : std::nullopt;
  }
};

/// Hangs on rank 1 at the first event that has that name.
struct Hangs final {
  using events = tutti::all_events;
  std::string at;
  template <tutti::Event E>
  void apply(E, const tutti::State& state) const {
    if (at == E::name && state.rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(60));
    }
  }
};

/// What rank 0 says of a run whose training data, whose evaluation's, or whose callbacks at an
/// event stop on rank 1.
std::string said_of(const char* stuck) {
  const TemporaryFolder folder;
  const EnvironmentVariable what("TUTTI_TEST_STUCK", stuck);
  const EnvironmentVariable where("TUTTI_TEST_SAID", (folder / "said").c_str());
  CHECK(tutti::dist::launch({.nproc = 2,
                             .stdout_file = (folder / "out").string(),
                             .stderr_file = (folder / "err").string(),
                             .cleanup_timeout = std::chrono::seconds(5),
                             .hang_timeout = std::chrono::seconds(1),
                             .flight_folder = (folder / "").string(),
                             .command = {"/proc/self/exe", "loop rank: data that stops"}}) ==
        128 + SIGKILL);
  return read_bytes(folder / "said");
}

}  // namespace

TEST_CASE("loop rank: data that stops", "[.rank]") {
  const auto group = tutti::dist::initialize();
  const std::string stuck = std::getenv("TUTTI_TEST_STUCK");
  tutti::TrainerOptions with = options(Stuck{stuck == "training"}, "1ep");
  with.eval.emplace_back("held out", Stuck{stuck == "evaluation"});
  try {
    Trainer<Hangs>(tiny::net(), std::move(with), Hangs{stuck}).fit();
  } catch (const std::exception& error) {
    std::ofstream(std::getenv("TUTTI_TEST_SAID")) << error.what();
    throw;
  }
}

TEST_CASE("a rank that gets no batch is noticed while it trains and evaluates", "[train][dist]") {
  for (const char* stuck : {"training", "evaluation"}) {
    CHECK_THAT(said_of(stuck), ContainsSubstring("The first failure of the run: rank 1 of 2 on ") &&
                                   ContainsSubstring("has got no batch from its loader for 1") &&
                                   ContainsSubstring("and was killed, behind all_reduce ("));
  }
}

TEST_CASE("a rank that hangs in a callback between batches is noticed, and the event named",
          "[train][dist]") {
  using Said = std::pair<const char*, const char*>;
  for (const auto& [event, where] :
       {Said("before_dataloader", "BeforeDataloader for 1"),
        Said("batch_start", "BatchStart for 1"), Said("batch_end", "BatchEnd of batch 0 for 1"),
        Said("epoch_end", "EpochEnd after batch 3 for 1"),
        Said("eval_batch_end", "EvalBatchEnd after batch 3 for 1")}) {
    CHECK_THAT(said_of(event), ContainsSubstring("The first failure of the run: rank 1 of 2 on ") &&
                                   ContainsSubstring("has not come out of the callbacks of " +
                                                     std::string(where)) &&
                                   ContainsSubstring("and was killed, behind "));
  }
}

namespace {

/// Takes its time where nobody looks, and where it says so.
struct TakesLong final {
  void apply(tutti::FitStart, const tutti::State&) const { wait(); }
  void apply(tutti::BatchEnd, const tutti::State& state) const {
    if (state.timestamp.batch == 2) {
      const tutti::dist::PhaseScope measuring(tutti::dist::Phase::unwatched);
      wait();
    }
  }
  void apply(tutti::BatchCheckpoint, const tutti::State& state) const {
    if (state.timestamp.batch == 3) {
      wait();
    }
  }
  void apply(tutti::FitEnd, const tutti::State&) const { wait(); }
  static void wait() {
    if (tutti::dist::here().rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    }
  }
};

}  // namespace

TEST_CASE("loop rank: callbacks that take long", "[.rank]") {
  const auto group = tutti::dist::initialize();
  Trainer<TakesLong>(tiny::net(), options(Stuck{}, "1ep"), TakesLong{}).fit();
}

namespace {

struct SleepsAtEpochEnd final {
  void apply(tutti::EpochEnd, const tutti::State&) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  }
};

}  // namespace

TEST_CASE("loop rank: a callback that nobody waits for", "[.rank]") {
  const auto group = tutti::dist::initialize();
  Trainer<SleepsAtEpochEnd>(tiny::net(), options(Stuck{}, "1ep")).fit();
}

TEST_CASE("a callback that nobody waits for is no hang", "[train][dist]") {
  const TemporaryFolder folder;
  CHECK(tutti::dist::launch(
            {.nproc = 1,
             .stdout_file = (folder / "out").string(),
             .stderr_file = (folder / "err").string(),
             .hang_timeout = std::chrono::seconds(1),
             .flight_folder = (folder / "").string(),
             .command = {"/proc/self/exe", "loop rank: a callback that nobody waits for"}}) == 0);
}

TEST_CASE("what may take long is no hang: FitStart, FitEnd, checkpoints and what says so",
          "[train][dist]") {
  const TemporaryFolder folder;
  CHECK(tutti::dist::launch(
            {.nproc = 2,
             .stdout_file = (folder / "out").string(),
             .stderr_file = (folder / "err").string(),
             .cleanup_timeout = std::chrono::seconds(5),
             .hang_timeout = std::chrono::seconds(1),
             .flight_folder = (folder / "").string(),
             .command = {"/proc/self/exe", "loop rank: callbacks that take long"}}) == 0);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
