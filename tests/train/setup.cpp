#include <tutti/train/setup.hpp>

#include <algorithm>
#include <cctype>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/sgd.h>

#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/core/engine.hpp>
#include <tutti/core/switch.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/metrics/loss_metric.hpp>
#include <tutti/metrics/make_metrics.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/annealing.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/optim/step.hpp>

#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/message.hpp"
#include "support/other_rank.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr const char* run_name = "RUN_NAME";

struct Drops final {  // some parameters get no gradient, when it says so
  bool drops = true;
  void apply(BeforeForward, State&) {}
  [[nodiscard]] bool leaves_parameters_unused() const { return drops; }
};
struct Keeps final {
  void apply(BeforeForward, State&) {}
};

void set_length(Time length, double ratio = 1, std::int64_t subset = -1) {
  State state;
  train::Run run;
  run.train_subset = subset;
  train::set_length(state, run, length, ratio);
}

struct Microbatching {
  std::int64_t size;
  std::int64_t chunks;
  bool automatic;
  bool operator==(const Microbatching&) const = default;
};
Microbatching microbatching(CountOrAuto size, CountOrAuto chunks = {},
                            std::optional<dist::SyncStrategy> sync = {}) {
  TrainerOptions options;
  options.device_train_microbatch_size = size;
  options.grad_accum = chunks;
  options.data_parallel.sync_strategy = sync;
  State state;
  train::Run run;
  train::set_microbatching(state, run, options);
  return {state.device_train_microbatch_size, run.grad_accum, state.auto_microbatching};
}

// While it lives, gradients are averaged by something that remembers its options alone.
struct Averaging {
  struct Nothing final : dist::DataParallel {
    void before_forward(bool) override {}
    void before_backward(const at::Tensor&) override {}
    void after_backward() override {}
    void broadcast_buffers() override {}
    void reset() override {}
  };
  static inline dist::DataParallelOptions asked;

  explicit Averaging(bool there) : was_(dist::backend()) {
    dist::backend().wrap = nullptr;
    if (there) {
      dist::backend().wrap =
          [](const torch::nn::Module&, std::shared_ptr<dist::Communicator>,
             const dist::DataParallelOptions& options) -> std::unique_ptr<dist::DataParallel> {
        asked = options;
        return std::make_unique<Nothing>();
      };
    }
  }
  ~Averaging() { dist::backend() = was_; }
  Averaging(const Averaging&) = delete;
  Averaging& operator=(const Averaging&) = delete;

 private:
  dist::Backend was_;
};

// What is asked of the averaging of gradients on two ranks.
template <class... Ps>
dist::DataParallelOptions asked(State& state, train::Run& run, Ps... policies) {
  state.model = tiny::net();
  state.world_size = 2;
  const Engine<Ps...> engine(std::move(policies)...);
  CHECK(train::make_parallel(engine, state, run) != nullptr);
  return Averaging::asked;
}

using Sets = std::vector<train::EvalSet>;

// A set of five batches. subset, interval: the trainer's.
void add(Sets& sets, const std::string& label, EvaluatorOptions own = {}, std::int64_t subset = -1,
         Time interval = "1ep") {
  TrainerOptions options;
  options.eval_subset_num_batches = subset;
  options.eval_interval = interval;
  const Metrics metrics = make_metrics(LossMetric(
      [](const at::Tensor& outputs, const at::Tensor&) { return outputs.sum(); }, "Sum"));
  const DataSpec data = label == "no data" ? DataSpec() : DataSpec(tiny::batches(5));
  train::add_set(sets, Evaluator(label, data, std::move(own)), metrics, options);
}

}  // namespace

TEST_CASE("a name of a device is refused unless it is one that is there", "[train][setup]") {
  const auto count = static_cast<int>(torch::cuda::device_count());
  CHECK(train::resolve_device("cpu", 3) == at::Device(at::kCPU));
  for (const char* name : {"gqu", "", "CPU", "mps"}) {
    CHECK_THROWS_WITH(train::resolve_device(name, 0),
                      ContainsSubstring("device is \"" + std::string(name) +
                                        "\", expected \"auto\", \"cpu\", \"cuda\" or \"cuda:N\""));
  }
  for (const char* name : {"cuda:", "cuda:x", "cuda:-1"}) {
    CHECK_THROWS_AS(train::resolve_device(name, 0), c10::Error);
  }
  CHECK_THROWS_WITH(
      train::resolve_device("cuda:99", 0),
      ContainsSubstring("device is \"cuda:99\", but LibTorch sees " + std::to_string(count)) &&
          ContainsSubstring("set device to \"cpu\""));
  CHECK_THROWS_WITH(train::resolve_device("cuda", count), ContainsSubstring("LibTorch sees"));
  CHECK_THROWS_WITH(train::resolve_device("cuda", 256),  // more than a Device can hold
                    ContainsSubstring("device is \"cuda:256\", but LibTorch sees"));
  CHECK_THROWS_WITH(train::resolve_device("cuda:99999999999999999999", 0),
                    ContainsSubstring("99999999999999999999\", but LibTorch sees"));
  CHECK(train::resolve_device("auto", 0).is_cpu() == (count == 0));
}

TEST_CASE("a rank takes its own device of the node", "[train][setup][cuda][gpu]") {
  if (torch::cuda::device_count() == 0) {
    return tutti_test::skip("there is no CUDA device");
  }
  for (const char* name : {"auto", "cuda", "gpu", "cuda:0"}) {
    CHECK(train::resolve_device(name, 0) == at::Device(at::kCUDA, 0));
  }
}

TEST_CASE("a run's name is the given one, else the environment's, else rank 0's choice",
          "[train][setup]") {
  dist::SingleProcess alone;
  {
    const EnvironmentVariable set(run_name, "calm-motet");
    CHECK(train::resolve_run_name("mine", alone) == "mine");
    CHECK(train::resolve_run_name("", alone) == "calm-motet");
    const EnvironmentVariable first("COMPOSER_RUN_NAME", "brisk-otter");
    CHECK(train::resolve_run_name("", alone) == "brisk-otter");
    CHECK_THROWS_WITH(train::resolve_run_name("../mine", alone),
                      ContainsSubstring("run_name is \"../mine\", expected a name that stays"));
  }
  {
    const EnvironmentVariable set(run_name, "/tmp/mine");
    CHECK_THROWS_WITH(train::resolve_run_name("", alone), ContainsSubstring("/tmp/mine"));
  }
  for (const char* unset : {static_cast<const char*>(nullptr), ""}) {
    const EnvironmentVariable set(run_name, unset);
    const std::string made = train::resolve_run_name("", alone);  // 1763819000-calm-motet
    CHECK(made.find_first_not_of("0123456789") >= 10);
    CHECK(std::count(made.begin(), made.end(), '-') == 2);
    CHECK(std::isalpha(static_cast<unsigned char>(made.back())));
    OtherRank second(0, "17-warm-etude", /*own_rank=*/1);
    CHECK(train::resolve_run_name("", second) == "17-warm-etude");
  }
}

TEST_CASE("fp16 is refused where there is no GPU", "[train][setup]") {
  CHECK_THROWS_WITH(train::check_precision(Precision::amp_fp16, at::kCPU),
                    ContainsSubstring("amp_fp16 on cpu") && ContainsSubstring("use amp_bf16"));
  CHECK_NOTHROW(train::check_precision(Precision::amp_bf16, at::kCPU));
  CHECK_NOTHROW(train::check_precision(Precision::amp_fp16, at::Device("cuda:0")));
}

TEST_CASE("a tensor of two names is trained once", "[train][setup]") {
  struct Tied : torch::nn::Module {
    at::Tensor weight = register_parameter("embedding", at::ones({2}));
    Tied() { register_parameter("head", weight); }
  };
  const Tied net;
  REQUIRE(net.parameters().size() == 2);
  CHECK(train::trainable(net).size() == 1);
  Tied other;
  CHECK(train::build_optimizer(SGD{.lr = 0.1}, other)->param_groups()[0].params().size() == 1);
  const auto twice = std::make_shared<torch::optim::SGD>(other.parameters(), 0.1);
  CHECK_THROWS_WITH(train::build_optimizer(twice, other),
                    ContainsSubstring("a parameter of shape [2] twice") &&
                        ContainsSubstring("leave out doubles"));
}

TEST_CASE("the optimizer gets what requires a gradient, and has to train some of it",
          "[train][setup]") {
  const auto net = tiny::net();
  net->in->weight.requires_grad_(false);
  CHECK(train::trainable(*net).size() == 3);
  CHECK(train::build_optimizer(SGD{.lr = 0.1}, *net)->param_groups()[0].params().size() == 3);

  const auto other = tiny::net(2);
  const auto ready = std::make_shared<torch::optim::SGD>(other->parameters(), 0.1);
  CHECK_THROWS_WITH(train::build_optimizer(ready, *net),
                    ContainsSubstring("none of the model's parameters"));
  ready->add_param_group({{net->out->bias}});  // one is enough, in whatever group
  CHECK(train::build_optimizer(ready, *net) == ready);
  CHECK_THROWS_WITH(train::build_optimizer({}, *net), ContainsSubstring("none was given"));

  for (auto& parameter : net->parameters()) {
    parameter.requires_grad_(false);
  }
  CHECK_THROWS_WITH(train::build_optimizer(SGD{.lr = 0.1}, *net),
                    ContainsSubstring("no parameter that requires a gradient"));
}

TEST_CASE("times below 0 and waiting for no time are refused", "[train][setup]") {
  const auto refused = [](TrainerOptions options) {
    return message([&] { train::check_options(options); });
  };
  CHECK(refused({}) == "nothing");
  for (const double timeout : {std::numeric_limits<double>::quiet_NaN(), -1.0, 0.0,
                               std::numeric_limits<double>::infinity(), 1e300}) {
    CHECK_THAT(refused({.dist_timeout = timeout}),
               ContainsSubstring("expected more than 0 seconds and at most 1e9"));
  }
  CHECK_THAT(refused({.max_duration = "-5ep"}),
             ContainsSubstring("max_duration is -5ep, expected a time like 10ep or 500ba"));
  CHECK_THAT(refused({.eval_interval = "-1ba"}), ContainsSubstring("eval_interval is -1ba"));
  CHECK_THAT(refused({.iteration_length = "-1ep"}), ContainsSubstring("iteration_length is -1ep"));
  CHECK_THAT(refused({.save_interval = "-0.5dur"}), ContainsSubstring("save_interval is -0.5dur"));
}

TEST_CASE("what is constant in a run is logged, the program's own last", "[train][setup]") {
  State state;
  InMemoryLogger logger;
  train::Constants constants;
  state.logger.add(logger);
  state.logger.add(constants);
  state.run_name = "calm-motet";
  state.rank_zero_seed = 17;
  state.world_size = 4;
  state.precision = Precision::amp_bf16;
  train::log_hyperparameters(state,
                             {.hyperparameters = {{"lr", 0.1}, {"run_name", "called so here"}}});
  CHECK(logger.hyperparameters.at("tutti_version") == HyperparameterValue(TUTTI_VERSION));
  CHECK(logger.hyperparameters.at("rank_zero_seed") == HyperparameterValue(std::int64_t{17}));
  CHECK(logger.hyperparameters.at("world_size") == HyperparameterValue(std::int64_t{4}));
  CHECK(logger.hyperparameters.at("device") == HyperparameterValue("cpu"));
  CHECK(logger.hyperparameters.at("precision") == HyperparameterValue("amp_bf16"));
  CHECK(logger.hyperparameters.at("lr") == HyperparameterValue(0.1));
  // In the order logged, a name once with its latest value.
  REQUIRE(constants.values.size() == 7);
  CHECK(constants.values[1].first == "run_name");
  CHECK(constants.values[1].second == HyperparameterValue("called so here"));
  CHECK(constants.values[6].first == "lr");
}

TEST_CASE("policies, optimizer, schedule and loaders are logged with all their options",
          "[train][setup]") {
  struct Plain final {
    double rate = 0.25;
    Maybe<int> every{};
    Time from = "2ep";
    at::Tensor mean{};  // no text
    void apply(BatchEnd, State&) {}
  };
  class Hidden final {
   public:
    void apply(BatchEnd, const State&) const {}

   private:
    double rate_ = 0.5;
  };
  const Engine<Plain, Switch<LabelSmoothing>, Hidden> engine(
      Plain{.every = 3}, Switch(LabelSmoothing{}, false), Hidden{});
  State state;
  InMemoryLogger logger;
  state.logger.add(logger);
  const auto net = std::make_shared<torch::nn::LinearImpl>(2, 2);
  const DecoupledSGDW sgd{.lr = 0.2, .momentum = 0.9, .nesterov = true};
  state.optimizers = {train::build_optimizer(sgd, *net)};
  const at::Tensor x = torch::zeros({8, 2});
  train::log_hyperparameters(state,
                             {.train = TensorLoader{x, x, {.batch_size = 4, .shuffle = true}},
                              .eval = {{"test", TensorLoader{x, x, {.batch_size = 8}}}},
                              .optimizer = sgd,
                              .schedule = CosineAnnealing{.t_max = "3ep"}},
                             train::policy_constants(engine));
  const auto& seen = logger.hyperparameters;
  CHECK(seen.at("Plain/rate") == HyperparameterValue(0.25));
  CHECK(seen.at("Plain/every") == HyperparameterValue(3));
  CHECK(seen.at("Plain/from") == HyperparameterValue("2ep"));
  CHECK_FALSE(seen.contains("Plain/mean"));
  CHECK_FALSE(seen.contains("LabelSmoothing/smoothing"));
  CHECK(seen.at("policies") == HyperparameterValue("Plain, Hidden"));
  CHECK(seen.at("optimizer") == HyperparameterValue("DecoupledSGDW"));
  CHECK(seen.at("optimizer/lr") == HyperparameterValue(0.2));
  CHECK(seen.at("optimizer/nesterov") == HyperparameterValue(true));
  CHECK(seen.at("schedule") == HyperparameterValue("CosineAnnealing"));
  CHECK(seen.at("schedule/t_max") == HyperparameterValue("3ep"));
  CHECK(seen.at("train_loader") == HyperparameterValue("TensorLoader"));
  CHECK(seen.at("train_loader/batch_size") == HyperparameterValue(4));
  CHECK(seen.at("train_loader/shuffle") == HyperparameterValue(true));
  CHECK(seen.at("eval_loader/test/batch_size") == HyperparameterValue(8));
}

TEST_CASE("lists among the options are logged with commas between their entries",
          "[train][setup]") {
  State state;
  InMemoryLogger logger;
  state.logger.add(logger);
  const auto net = std::make_shared<torch::nn::LinearImpl>(2, 2);
  const DecoupledAdamW adamw{.betas = {0.9, 0.95}};
  state.optimizers = {train::build_optimizer(adamw, *net)};
  train::log_hyperparameters(
      state, {.optimizer = adamw, .schedule = MultiStep{.milestones = {"30ep", "0.9dur"}}});
  const auto& seen = logger.hyperparameters;
  CHECK(seen.at("optimizer/betas") == HyperparameterValue("0.9,0.95"));
  CHECK(seen.at("schedule/milestones") == HyperparameterValue("30ep,0.9dur"));
}

TEST_CASE("an optimizer of LibTorch and a function as schedule are logged by what they say",
          "[train][setup]") {
  State state;
  InMemoryLogger logger;
  state.logger.add(logger);
  const auto net = std::make_shared<torch::nn::LinearImpl>(2, 2);
  const OptimizerSpec spec =
      std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.3));
  state.optimizers = {train::build_optimizer(spec, *net)};
  train::log_hyperparameters(
      state, {.train = std::vector<Batch>{Batch(torch::ones({2, 2}), torch::ones({2}))},
              .optimizer = spec,
              .schedule = [](const Progress&) { return 1.0; }});
  CHECK(logger.hyperparameters.at("optimizer") == HyperparameterValue("SGD"));
  CHECK(logger.hyperparameters.at("optimizer/lr") == HyperparameterValue(0.3));
  CHECK_FALSE(logger.hyperparameters.contains("schedule"));
  CHECK_FALSE(logger.hyperparameters.contains("train_loader/batch_size"));
}

TEST_CASE("of one name one value is logged", "[train][setup]") {
  struct Names final {
    std::vector<std::string> seen{};
    void log_hyperparameters(std::span<const Hyperparameter> values) {
      for (const Hyperparameter& one : values) {
        seen.emplace_back(one.name);
      }
    }
  } names;
  InMemoryLogger logger;
  State state;
  state.run_name = "resolved";
  state.logger.add(logger);
  state.logger.add(names);
  train::log_hyperparameters(
      state, {.hyperparameters = {{"device", "auto"}, {"run_name", "mine"}, {"own", 1}}});
  CHECK(logger.hyperparameters.at("device") == HyperparameterValue("cpu"));
  CHECK(logger.hyperparameters.at("run_name") == HyperparameterValue("mine"));
  CHECK(logger.hyperparameters.at("own") == HyperparameterValue(1));
  std::sort(names.seen.begin(), names.seen.end());
  CHECK(std::adjacent_find(names.seen.begin(), names.seen.end()) == names.seen.end());
}

TEST_CASE("a length that makes no sense is refused", "[train][setup]") {
  for (const double ratio : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_WITH(set_length("1ep", ratio), ContainsSubstring("scale_schedule_ratio is ") &&
                                                    ContainsSubstring("expected more than 0"));
  }
  CHECK_THROWS_WITH(set_length("10ba", 0.01),
                    ContainsSubstring("scale_schedule_ratio 0.01 makes max_duration 0"));
  CHECK_THROWS_WITH(set_length("0.5dur"), ContainsSubstring("a fraction of itself"));
  CHECK_THROWS_WITH(set_length("1iter"),
                    ContainsSubstring("max_duration is 1iter, but iteration_length is not set"));
  CHECK_NOTHROW(set_length({}, 0.01));  // it may come later
}

TEST_CASE("a fit trains up to max_duration or for as long as it is told, which is some time",
          "[train][setup]") {
  State state;
  state.max_duration = "9ep";
  state.timestamp.epoch = 2;
  state.timestamp.batch = 20;
  CHECK(train::fit_until(state.timestamp, state.max_duration, FitOptions{}.duration) ==
        Time("9ep"));
  CHECK(train::fit_until(state.timestamp, state.max_duration, "3ep") == Time("5ep"));
  CHECK(train::fit_until(state.timestamp, state.max_duration, "3ba") == Time("23ba"));
  for (const Time none : {Time("0ep"), Time("-1ba"), Time("0.5dur"), Time()}) {
    CHECK_THROWS_WITH(train::fit_until(state.timestamp, state.max_duration, none),
                      ContainsSubstring("fit: duration is " + to_string(none)) &&
                          ContainsSubstring("leave it out to train up to max_duration"));
  }
}

TEST_CASE("an epoch of no batches is refused by the number that was set", "[train][setup]") {
  for (const std::int64_t count : {0, -5}) {
    CHECK_THROWS_WITH(set_length("2ba", 1, count),
                      ContainsSubstring("train_subset_num_batches is " + std::to_string(count) +
                                        ", expected -1 (all) or a number of batches"));
  }
}

TEST_CASE("a run is as long as it is told times the ratio, its epochs as the loader or less",
          "[train][setup]") {
  State state;
  train::Run run;
  run.train = tiny::batches(5);
  train::set_length(state, run, "10ep", 0.5);
  CHECK(state.max_duration == Time("5ep"));
  CHECK(state.train_dataloader_len == 5);
  run.train_subset = 3;
  run.iteration_length = "2ep";
  train::set_length(state, run, "2iter", 1);
  CHECK(state.max_duration == Time("2iter"));
  CHECK(state.train_dataloader_len == 3);
}

TEST_CASE("microbatches are given by size, by number or not at all", "[train][setup]") {
  CHECK(microbatching(0) == Microbatching{0, 0, false});
  CHECK(microbatching(4) == Microbatching{4, 0, false});
  CHECK(microbatching(0, 3) == Microbatching{0, 3, false});
  CHECK(microbatching("auto") == Microbatching{0, 0, true});
  CHECK(microbatching(0, "auto") == Microbatching{0, 0, true});
  CHECK_THROWS_WITH(microbatching(-1), ContainsSubstring("device_train_microbatch_size is -1"));
  CHECK_THROWS_WITH(microbatching(0, -2), ContainsSubstring("grad_accum is -2"));
  CHECK_THROWS_WITH(microbatching(4, 2), ContainsSubstring("grad_accum are both set"));
}

TEST_CASE("sizes found by trial send gradients after the last backward pass", "[train][setup]") {
  using enum dist::SyncStrategy;
  CHECK_THROWS_WITH(microbatching("auto", 0, multi_auto_sync),
                    ContainsSubstring("leave data_parallel.sync_strategy"));
  CHECK(microbatching("auto", 0, forced_sync).automatic);
  CHECK_NOTHROW(microbatching(2, 0, multi_auto_sync));
}

TEST_CASE("autoresume says what it lacks", "[train][setup][autoresume]") {
  TrainerOptions good{.run_name = "calm-motet", .autoresume = true};
  good.save_folder += "run";  // without the code for checkpoints, which an assignment brings
  CHECK_NOTHROW(train::check_autoresume(good));
  TrainerOptions bad = good;
  bad.save_folder.clear();
  CHECK_THROWS_WITH(train::check_autoresume(bad), ContainsSubstring("save_folder is empty"));
  bad = good;
  bad.save_latest_filename = "";
  CHECK_THROWS_WITH(train::check_autoresume(bad),
                    ContainsSubstring("save_latest_filename is empty"));
  bad = good;
  bad.save_weights_only = true;
  CHECK_THROWS_WITH(train::check_autoresume(bad), ContainsSubstring("weights alone"));
  bad = good;
  bad.run_name = "";
  for (const char* unset : {static_cast<const char*>(nullptr), ""}) {
    const EnvironmentVariable set(run_name, unset);
    CHECK_THROWS_WITH(train::check_autoresume(bad), ContainsSubstring("run_name is not"));
  }
  const EnvironmentVariable set(run_name, "calm-motet");
  CHECK_NOTHROW(train::check_autoresume(bad));
  CHECK_NOTHROW(train::check_autoresume({}));  // it is not asked for
}

TEST_CASE("a run that a signal ended says so once, at rank 0", "[train][setup]") {
  State state;
  state.timestamp.batch = 12;
  Warnings warnings;
  train::say_stopped(state, 15);
  state.rank = 1;
  train::say_stopped(state, 15);
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("signal 15 ended the run after batch 12"));
}

TEST_CASE("parameters without a gradient are looked for when a policy says that there are some",
          "[train][setup][dist]") {
  CHECK(train::leaves_unused(Drops{}));
  CHECK_FALSE(train::leaves_unused(Drops{.drops = false}));
  CHECK_FALSE(train::leaves_unused(Keeps{}));
  CHECK(train::leaves_unused(Switch<Drops>(Drops{})));
  CHECK_FALSE(train::leaves_unused(Switch<Drops>(Drops{}, false)));
  const Averaging averaging(true);
  State state;
  train::Run run;
  CHECK(asked(state, run, Keeps{}, Drops{}).find_unused_parameters);
  CHECK_FALSE(asked(state, run, Keeps{}, Drops{.drops = false}).find_unused_parameters);
  run.data_parallel.find_unused_parameters = true;
  run.data_parallel.bucket_cap_mb = 3;
  CHECK(asked(state, run, Keeps{}).find_unused_parameters);
  CHECK(Averaging::asked.bucket_cap_mb == 3);
  CHECK_FALSE(Averaging::asked.sync_strategy.has_value());
  state.auto_microbatching = true;
  CHECK(asked(state, run, Keeps{}).sync_strategy == dist::SyncStrategy::forced_sync);
}

TEST_CASE("one process averages nothing, and several need the code for it",
          "[train][setup][dist]") {
  const Averaging averaging(false);
  State state;
  state.model = tiny::net();
  const Engine<> engine;
  train::Run run;
  CHECK(train::make_parallel(engine, state, run) == nullptr);
  state.world_size = 2;
  CHECK_THROWS_WITH(train::make_parallel(engine, state, run),
                    ContainsSubstring("add #include <tutti/dist/ddp.hpp>"));
}

TEST_CASE("evaluation sets need labels of their own, as their metrics have the same names",
          "[train][setup][eval]") {
  Sets sets;
  add(sets, "a");
  add(sets, "b");
  CHECK_THROWS_WITH(add(sets, "a"), ContainsSubstring("two evaluation sets have the label \"a\"") &&
                                        ContainsSubstring("a label of its own"));
  CHECK_THROWS_WITH(add(sets, "train"),
                    ContainsSubstring("share the names metrics/train/... with the training data"));
  CHECK_THROWS_WITH(add(sets, "no data"),
                    ContainsSubstring("the evaluation set \"no data\" has no data"));
  CHECK(sets.size() == 2);
}

TEST_CASE("an evaluation set takes what it does not say from the trainer", "[train][setup][eval]") {
  Sets sets;
  add(sets, "test", {}, 3, "2ep");
  CHECK(sets[0].label == "test");
  CHECK(sets[0].interval.every == Time("2ep"));
  CHECK(sets[0].interval.at_end == IntervalEnd::fit_end);
  CHECK(sets[0].subset == 3);
  CHECK_FALSE(sets[0].metrics.empty());
  add(sets, "own",
      {.interval = "4ba", .subset_num_batches = 2, .device_eval_microbatch_size = "auto"}, 3,
      "2ep");
  CHECK(sets[1].interval.every == Time("4ba"));
  CHECK(sets[1].subset == 2);
  CHECK(sets[1].microbatch.automatic);
  add(sets, "never", {.interval = "0ep"});
  CHECK(sets[2].interval.every == Time("0ep"));
  add(sets, "asked", {.interval = [](const State&, std::string_view) { return true; }});
  CHECK(sets[3].when.function() != nullptr);
}

TEST_CASE("an evaluation set that could never be evaluated is refused", "[train][setup][eval]") {
  Sets sets;
  CHECK_THROWS_WITH(add(sets, "a", {.metric_names = {"recall"}}),
                    ContainsSubstring("matches \"recall\"; it has: Sum"));
  CHECK_THROWS_WITH(add(sets, "b", {.subset_num_batches = 0}),
                    ContainsSubstring("evaluation set \"b\": it is to have 0 batches"));
  CHECK_THROWS_WITH(add(sets, "c", {}, -2),
                    ContainsSubstring("it is to have -2 batches, expected -1 (all) or 1 or more"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
