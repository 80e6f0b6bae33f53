#include <tutti/algorithms/ema.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <tutti/core/recipe.hpp>

#include "nn/golden_model.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti::literals;
using Catch::Matchers::ContainsSubstring;
using tutti::EMA;
using tutti::Time;
using tutti::functional::compute_ema;
using tutti::functional::EMAParameters;

static_assert(tutti::Algorithm<EMA>);
static_assert(tutti::Recipe<EMA>::valid);
static_assert(std::is_aggregate_v<EMA>);

struct Surgeon final {
  static constexpr tutti::Rules rules{.tags = {tutti::id<tutti::changes_model>}};
  void apply(tutti::Init, tutti::State&) const {}
};
static_assert(
    std::is_same_v<tutti::Recipe<EMA, Surgeon>::order<tutti::Init>, tutti::types<Surgeon, EMA>>);

struct OneWeight : torch::nn::Module {
  explicit OneWeight(float value) {
    w = register_parameter("w", at::full({3}, value));
    frozen = register_parameter("frozen", at::full({2}, value), /*requires_grad=*/false);
    count = register_buffer("count", at::zeros({}, at::kLong));
  }
  void set(double value) {
    const torch::NoGradGuard no_grad;
    w.fill_(value);
  }
  at::Tensor w, frozen, count;
};

// A run without a trainer: fires events at one policy in the loop's order.
struct Run {
  explicit Run(EMA policy) : ema(policy) {
    state.model = model;
    state.max_duration = "10ba";
    ema.validate();
    fire(tutti::Init{});
  }
  template <class E>
  void fire(E event) {
    if constexpr (tutti::Matches<EMA, E>) {
      if (!ema.match(event, state)) {
        return;
      }
    }
    ema.apply(event, state);
  }
  void train_batch(double weight) {
    model->set(weight);
    state.previous_timestamp = state.timestamp;
    state.timestamp = state.timestamp.to_next_batch(1);
    fire(tutti::BatchEnd{});
  }
  double weight() const { return model->w[0].item<double>(); }
  double average() const { return ema.averages()[0].second[0].item<double>(); }
  double training() const { return ema.training_weights()[0].second[0].item<double>(); }

  std::shared_ptr<OneWeight> model = std::make_shared<OneWeight>(0.0F);
  EMA ema;
  tutti::State state;
};

bool bits_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i])) {
      return false;
    }
  }
  return a.size() == b.size();
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const auto& tensor : tensors) {
    out.push_back(tensor.detach().clone());
  }
  return out;
}

}  // namespace

TEST_CASE("compute_ema agrees with the reference, truncated integers included",
          "[functional][ema][golden]") {
  for (const golden::Case& c : golden::cases("compute_ema")) {
    auto model = golden::build_model(c.params["model"], golden::Layers::plain);
    auto average = golden::build_model(c.params["model"], golden::Layers::plain);
    golden::load_state(*average, c.ins("init."));
    EMAParameters store(*average);
    const double smoothing = c.params["smoothing"].number();
    for (std::int64_t step = 0; step < c.params["steps"].integer(); ++step) {
      golden::load_state(*model, c.ins("m" + std::to_string(step) + "."));
      golden::Tensors got;
      if (c.params["kind"].string() == "module") {
        compute_ema(*model, *average, smoothing, /*average_integers=*/true);
        got = golden::state_of(*average);
      } else {
        compute_ema(*model, store, smoothing, /*average_integers=*/true);
        for (std::size_t i = 0; i < store.size(); ++i) {
          got[store.names()[i]] = store.stored()[i];
        }
      }
      const std::string prefix = "step" + std::to_string(step) + ".";
      REQUIRE_FALSE(c.outs(prefix).empty());
      for (const auto& [name, tensor] : c.outs(prefix)) {
        CHECK_GOLDEN(c, prefix + name, got.at(name));
      }
    }
  }
}

TEST_CASE("options mean what they mean in the reference", "[ema][golden]") {
  const auto cases = golden::cases("EMA_init");
  const golden::Json& args = cases[0].params["args"];
  const golden::Json& results = cases[0].expect["results"];
  int compared = 0;
  for (std::size_t i = 0; i < args.size(); ++i) {
    EMA ema;
    bool differs = false;  // where this library is more lenient, see the method card
    if (const auto* half_life = args[i].find("half_life")) {
      if (half_life->is_string()) {
        ema.half_life = Time::parse(half_life->string());
      } else {
        differs = !args[i].contains("smoothing") || !args[i].contains("update_interval");
      }
    }
    if (const auto* smoothing = args[i].find("smoothing")) {
      ema.smoothing = smoothing->number();
    }
    if (const auto* every = args[i].find("update_interval")) {
      ema.update_interval =
          every->is_string() ? Time::parse(every->string()) : Time(every->integer());
    }
    INFO("case " << i);
    if (differs) {
      ema.validate();
    } else if (results[i].is_object()) {
      CHECK_THROWS_AS(ema.validate(), c10::ValueError);
    } else {
      ema.validate();
      CHECK(std::abs(ema.factor() - results[i][0].number()) < 1e-12);
      CHECK(to_string(ema.interval()) == results[i][1].string());
      const bool batches = ema.interval().unit() == tutti::TimeUnit::batch;
      CHECK((batches ? "batch_end" : "epoch_end") == results[i][2].string());
    }
    ++compared;
  }
  CHECK(compared == 11);
}

TEST_CASE("a half life of updates brings the average half way", "[ema][law]") {
  CHECK(std::abs(EMA{.half_life = "1000ba", .update_interval = "10ba"}.factor() - 0.99309250) <
        1e-8);
  OneWeight model(1.0F);
  OneWeight average(0.0F);
  const double smoothing = tutti::functional::ema_smoothing("20ba", "2ba");
  for (int i = 0; i < 10; ++i) {
    compute_ema(model, average, smoothing);
  }
  CHECK(average.w.allclose(at::full({3}, 0.5), 1e-6, 1e-6));
}

TEST_CASE("smoothing 0 takes the weights, 1 keeps the averages, and equal sides stay equal",
          "[functional][ema][law]") {
  auto model = tiny::net(1);
  auto average = tiny::net(2);
  const at::Tensor before = tiny::flat(*average);
  compute_ema(*model, *average, 1.0);
  CHECK(tiny::flat(*average).equal(before));
  compute_ema(*model, *average, 0.0);
  CHECK(tiny::flat(*average).equal(tiny::flat(*model)));
  const at::Tensor weights = tiny::flat(*model);
  compute_ema(*model, *average, 0.9);
  CHECK(tiny::flat(*average).equal(weights));
  CHECK(tiny::flat(*model).equal(weights));
}

TEST_CASE("tensors that cannot be walked side by side are averaged all the same",
          "[functional][ema]") {
  struct Transposed : torch::nn::Module {
    explicit Transposed(const at::Tensor& value) { w = register_parameter("w", value); }
    at::Tensor w;
  };
  const at::Tensor plain = at::randn({3, 4});
  const at::Tensor turned = at::randn({4, 3}).t();
  Transposed model(plain.clone());
  Transposed average(turned.clone());
  compute_ema(model, average, 0.75);
  CHECK(average.w.allclose(turned * 0.75 + plain * 0.25, 1e-6, 1e-6));
}

TEST_CASE("averages in a module of their own have the frozen parameters too", "[functional][ema]") {
  OneWeight model(1.0F);
  OneWeight average(3.0F);
  compute_ema(model, average, 0.5);
  CHECK(average.w[0].item<double>() == 2);
  CHECK(average.frozen[0].item<double>() == 2);
}

TEST_CASE("infinities in a buffer stay what they are", "[ema]") {
  struct Masked : torch::nn::Module {
    Masked() {
      w = register_parameter("w", at::ones({3}));
      mask = register_buffer("mask", at::full({4}, 0.1));
      mask[1] = -INFINITY;
      mask[2] = INFINITY;
      mask[3] = -INFINITY;
    }
    at::Tensor w, mask;
  };
  for (const double smoothing : {0.0, 0.25, 0.75, 1.0}) {
    INFO(smoothing);
    Masked model;
    const EMAParameters ema(model);
    Masked module;
    for (int i = 0; i < 2; ++i) {
      ema.update(smoothing);
      compute_ema(model, module, smoothing);
    }
    REQUIRE(ema.names() == std::vector<std::string>{"w", "mask"});
    CHECK(ema.stored()[1].equal(model.mask));
    CHECK(module.mask.equal(model.mask));
  }
  // Once infinite, an average stays so, as the formula says.
  Masked model;
  const EMAParameters ema(model);
  model.mask.fill_(0.5);
  ema.update(0.75);
  CHECK(ema.stored()[1].slice(0, 1).equal(at::tensor({-INFINITY, INFINITY, -INFINITY})));
  CHECK(ema.stored()[1][0].item<double>() == Approx(0.75 * 0.1 + 0.25 * 0.5));
}

TEST_CASE("integer buffers are copied", "[ema]") {
  OneWeight model(1.0F);
  EMAParameters store(model);
  model.count.fill_(7);
  compute_ema(model, store, 0.99);
  CHECK(store.stored()[1].item<std::int64_t>() == 7);
}

TEST_CASE("the store has the trainable parameters, the buffers, and tied ones once", "[ema]") {
  OneWeight model(1.0F);
  CHECK(EMAParameters(model).names() == std::vector<std::string>{"w", "count"});

  struct Tied : torch::nn::Module {
    Tied() {
      a = register_module("a", torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)));
      b = register_module("b", torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)));
      b->weight = b->register_parameter("weight_of_a", a->weight);
    }
    torch::nn::Linear a{nullptr}, b{nullptr};
  } tied;
  const EMAParameters store(tied);
  CHECK(store.size() == 2);  // a.weight and the first weight of b
  const at::Tensor before = tied.a->weight.detach().clone();
  {
    const torch::NoGradGuard no_grad;
    tied.a->weight.add_(1);
  }
  store.swap();
  CHECK(tied.a->weight.equal(before));
  store.swap();
  CHECK(tied.a->weight.allclose(before + 1));
}

TEST_CASE("swapping twice restores both sides bit for bit and moves memory, not numbers",
          "[ema][law]") {
  auto model = tiny::net(3);
  EMAParameters store(*model);
  auto other = tiny::net(4);
  compute_ema(*other, store, 0.3);
  store.link(*model);
  const auto stored = copies(store.stored());
  const auto weights = copies(store.weights());
  const void* memory = model->in->weight.const_data_ptr();
  const at::Tensor alias = model->in->weight.detach();

  store.swap();
  CHECK(bits_equal(store.weights(), stored));
  CHECK(bits_equal(store.stored(), weights));
  CHECK(alias.equal(model->in->weight));
  CHECK(model->in->weight.const_data_ptr() != memory);
  store.swap();
  CHECK(bits_equal(store.stored(), stored));
  CHECK(bits_equal(store.weights(), weights));
  CHECK(model->in->weight.const_data_ptr() == memory);
}

TEST_CASE("weights that share one piece of memory are exchanged by value", "[ema]") {
  struct Flat : torch::nn::Module {
    Flat() {
      const at::Tensor all = at::arange(6, at::kFloat);
      a = register_parameter("a", all.slice(0, 0, 4));
      b = register_parameter("b", all.slice(0, 4, 6));
    }
    at::Tensor a, b;
  } model;
  EMAParameters store(model);
  const void* memory = model.b.const_data_ptr();
  {
    const torch::NoGradGuard no_grad;
    model.a.zero_();
    model.b.zero_();
  }
  store.swap();
  CHECK(model.a.equal(at::arange(4, at::kFloat)));
  CHECK(model.b.equal(at::arange(4, 6, at::kFloat)));
  CHECK(model.b.const_data_ptr() == memory);
  store.swap();
  CHECK(model.a.equal(at::zeros({4})));
}

TEST_CASE("averages follow the weights and evaluation uses them", "[ema]") {
  Run run(EMA{.smoothing = 0.5});
  run.train_batch(8);  // averaging begins with a copy
  CHECK(run.average() == 8);
  run.train_batch(4);
  CHECK(run.average() == 6);
  for (int set = 0; set < 2; ++set) {
    run.fire(tutti::EvalStart{});
    CHECK(run.weight() == 6);
    CHECK(run.training() == 4);
    run.fire(tutti::EvalEnd{});
    CHECK(run.weight() == 4);
  }
  run.fire(tutti::PredictStart{});
  CHECK(run.weight() == 6);
  run.fire(tutti::PredictEnd{});
  CHECK(run.weight() == 4);
}

TEST_CASE("averaging begins at ema_start and follows its interval", "[ema]") {
  Run run(EMA{.smoothing = 0.5, .ema_start = "0.3dur", .update_interval = "2ba"});
  run.train_batch(1);
  run.train_batch(2);
  run.fire(tutti::EvalStart{});
  CHECK(run.weight() == 2);
  CHECK_FALSE(run.ema.run.started);
  run.fire(tutti::EvalEnd{});
  run.train_batch(3);
  CHECK(run.ema.run.started);
  CHECK(run.average() == 3);
  run.train_batch(5);  // batch 4 is a multiple of 2
  CHECK(run.average() == 4);
  run.train_batch(9);
  CHECK(run.average() == 4);

  Run late(EMA{.half_life = "1ep", .ema_start = "1ep"});
  late.train_batch(1);
  CHECK_FALSE(late.ema.run.started);
  late.state.timestamp = late.state.timestamp.to_next_epoch();
  late.fire(tutti::EpochEnd{});
  CHECK(late.ema.run.started);
  CHECK(late.average() == 1);
}

TEST_CASE("only batches and epochs at which an average begins or is taken are matched", "[ema]") {
  Run run(EMA{.smoothing = 0.5, .ema_start = "3ba", .update_interval = "2ba"});
  std::vector<std::int64_t> matched;
  for (std::int64_t batch = 1; batch <= 8; ++batch) {
    run.state.timestamp.batch = batch;
    if (run.ema.match(tutti::BatchEnd{}, run.state)) {
      matched.push_back(batch);
      run.fire(tutti::BatchEnd{});
    }
    CHECK_FALSE(run.ema.match(tutti::EpochEnd{}, run.state));
  }
  CHECK(matched == std::vector<std::int64_t>{3, 4, 6, 8});

  Run epochs(EMA{.half_life = "4ep", .update_interval = "2ep"});
  matched.clear();
  for (std::int64_t epoch = 1; epoch <= 5; ++epoch) {
    epochs.state.timestamp.epoch = epoch;
    if (epochs.ema.match(tutti::EpochEnd{}, epochs.state)) {
      matched.push_back(epoch);
      epochs.fire(tutti::EpochEnd{});
    }
  }
  CHECK(matched == std::vector<std::int64_t>{1, 2, 4});
}

TEST_CASE("a start in dur counts batches inside an epoch", "[ema]") {
  Run run(EMA{.smoothing = 0.5, .ema_start = "0.5dur"});
  run.state.max_duration = "1ep";
  run.state.train_dataloader_len = 4;
  run.train_batch(1);
  CHECK_FALSE(run.ema.run.started);
  run.train_batch(2);
  CHECK(run.ema.run.started);
}

TEST_CASE("a checkpoint holds the averages and training goes on with its own weights", "[ema]") {
  Run run(EMA{.smoothing = 0.5});
  run.train_batch(8);
  run.train_batch(4);
  run.ema.enter_checkpoint(run.state);
  CHECK(run.weight() == 6);
  CHECK(run.training() == 4);
  run.ema.leave_checkpoint(run.state);
  CHECK(run.weight() == 4);

  run.fire(tutti::EvalStart{});
  run.ema.enter_checkpoint(run.state);
  CHECK(run.weight() == 6);
  run.ema.leave_checkpoint(run.state);
  CHECK(run.weight() == 6);  // the evaluation goes on
  run.fire(tutti::EvalEnd{});
  CHECK(run.weight() == 4);

  run.ema.enter_checkpoint(run.state);
  run.ema.close(run.state);
  CHECK(run.weight() == 4);
}

TEST_CASE("a checkpoint from before averaging begins holds the weights", "[ema]") {
  Run run(EMA{.smoothing = 0.5, .ema_start = "5ba"});
  run.train_batch(8);
  run.ema.enter_checkpoint(run.state);
  CHECK(run.weight() == 8);
  CHECK_FALSE(run.ema.run.averages_in_use);
  run.ema.leave_checkpoint(run.state);
  CHECK(run.weight() == 8);
}

TEST_CASE("an update right after a checkpoint averages the training weights", "[ema]") {
  Run run(EMA{.half_life = "1ep"});
  run.model->set(0);
  run.state.timestamp = run.state.timestamp.to_next_epoch();
  run.fire(tutti::EpochEnd{});
  run.train_batch(10);
  run.ema.enter_checkpoint(run.state);
  run.ema.leave_checkpoint(run.state);
  run.state.timestamp = run.state.timestamp.to_next_epoch();
  run.fire(tutti::EpochEnd{});
  CHECK(run.weight() == 10);
  CHECK(run.average() == 5);
}

TEST_CASE("EMA: a resumed run goes on as the saved one", "[ema][resume]") {
  for (const bool in_use : {false, true}) {
    Run first(EMA{.smoothing = 0.5});
    first.train_batch(8);
    first.train_batch(4);
    if (in_use) {
      first.ema.enter_checkpoint(first.state);
    }
    tutti::Archive archive;
    first.ema.save(archive);

    Run second(EMA{.smoothing = 0.5});
    second.model->set(first.weight());  // what the checkpoint's weights do
    second.state.timestamp = first.state.timestamp;
    second.ema.load(archive);
    second.fire(tutti::AfterLoad{});
    first.ema.leave_checkpoint(first.state);  // by now a run has copied what it writes
    CHECK(second.ema.run.started);
    CHECK(second.weight() == 4);
    CHECK(second.average() == 6);
    for (Run* run : {&first, &second}) {
      run->train_batch(2);
    }
    CHECK(second.average() == first.average());
    CHECK(second.weight() == first.weight());
    first.train_batch(100);
    CHECK(second.average() != first.average());  // nothing is shared
  }
}

TEST_CASE("a checkpoint of another model is refused with what is missing", "[ema]") {
  Run run(EMA{});
  run.train_batch(1);
  tutti::Archive archive;
  run.ema.save(archive);
  EMA ema;
  tutti::State state;
  state.model = tiny::net();
  ema.apply(tutti::Init{}, state);
  ema.load(archive);
  CHECK_THROWS_WITH(ema.apply(tutti::AfterLoad{}, state),
                    ContainsSubstring("the model has no tensor \"w\""));
}

TEST_CASE("averages can be copied into a model of their own", "[ema]") {
  Run run(EMA{.smoothing = 0.5});
  run.train_batch(8);
  run.train_batch(4);
  OneWeight copy(0.0F);
  run.ema.run.store->copy_to(copy);
  CHECK(copy.w[0].item<double>() == 6);
  CHECK(run.weight() == 4);
}

TEST_CASE("options that contradict each other or are out of range are refused", "[ema]") {
  const auto refused = [](const EMA& ema, const char* why) {
    CHECK_THROWS_WITH(ema.validate(), ContainsSubstring(why));
  };
  EMA{.smoothing = 0.9}.validate();
  EMA{}.validate();
  refused({.half_life = "10ba", .smoothing = 0.5}, "set one of them only");
  refused({.half_life = "0ba"}, "half_life is 0ba, expected more than 0");
  refused({.half_life = "10sp"}, "half_life is 10sp, expected a time in ba or ep");
  refused({.half_life = "10ba", .update_interval = "1ep"},
          "update_interval is 1ep, expected a time in the unit of half_life");
  refused({.smoothing = 0.5, .update_interval = "5tok"}, "update_interval is 5tok");
  refused({.update_interval = "-1ba"}, "update_interval is -1ba, expected more than 0");
  refused({.smoothing = 1.0}, "smoothing is 1, expected a number between 0 and 1");
  refused({.smoothing = 0.0}, "smoothing is 0");
  refused({.ema_start = "10sp"}, "ema_start is 10sp, expected 0 or more in dur, ba or ep");
  OneWeight model(1.0F);
  OneWeight average(3.0F);
  EMAParameters store(model);
  CHECK_THROWS_AS(compute_ema(model, store, 1.5), c10::ValueError);
  CHECK_THROWS_AS(compute_ema(model, average, 1.5), c10::ValueError);
}

TEST_CASE("with a warm-up averages follow closely at first, as timm's do", "[ema][warmup]") {
  using tutti::functional::ema_warmup;
  CHECK(ema_warmup(0, 0.9) == 0);
  CHECK(std::abs(ema_warmup(1, 0.9) - 0.3700394750525634) < 1e-12);
  CHECK(ema_warmup(100, 0.9) == 0.9);
  CHECK(ema_warmup(1, 0.9, 0.5) == 0.5);
  CHECK(std::abs(ema_warmup(1, 0.98, 0.2, 2.0, 0.75) - 0.26221205353311894) < 1e-12);
  CHECK_THROWS_WITH(ema_warmup(1, 0.9, 0, 0), ContainsSubstring("warmup_gamma is 0"));

  Run run(EMA{.smoothing = 0.9, .ema_start = "3ba", .use_warmup = true});
  for (const double weight : {9.0, 9.0, 4.0}) {
    run.train_batch(weight);
  }
  CHECK(run.average() == 4);  // update_after_step = 2: the first update is a copy
  CHECK(run.ema.run.started_at == 3);
  run.train_batch(8);
  const double first = ema_warmup(1, 0.9);
  CHECK(std::abs(run.average() - (4 * first + 8 * (1 - first))) < 1e-6);
  const double second = ema_warmup(2, 0.9);
  CHECK(run.ema.factor_at(5) == second);
}

TEST_CASE("a warm-up goes on where it was after a resume", "[ema][warmup][resume]") {
  const EMA policy{.smoothing = 0.9, .ema_start = "2ba", .use_warmup = true};
  Run whole(policy);
  for (const double weight : {1.0, 2.0, 5.0, 3.0}) {
    whole.train_batch(weight);
  }
  Run first(policy);
  for (const double weight : {1.0, 2.0, 5.0}) {
    first.train_batch(weight);
  }
  tutti::Archive archive;
  first.ema.save(archive);
  Run second(policy);
  second.state.timestamp = first.state.timestamp;
  second.model->set(5);
  second.ema.load(archive);
  second.fire(tutti::AfterLoad{});
  second.train_batch(3);
  CHECK(second.ema.run.started_at == 2);
  CHECK(second.average() == whole.average());
}

TEST_CASE("excluded buffers are copied, others averaged", "[ema]") {
  torch::nn::BatchNorm1d norm(3);
  EMAParameters averaged(*norm);
  EMAParameters copied(*norm, /*exclude_buffers=*/true);
  {
    const torch::NoGradGuard no_grad;
    norm->weight.fill_(3);
    norm->running_mean.fill_(4);
  }
  compute_ema(*norm, averaged, 0.5);
  compute_ema(*norm, copied, 0.5);
  const auto value = [](const EMAParameters& store, const std::string& name) {
    for (std::size_t i = 0; i < store.size(); ++i) {
      if (store.names()[i] == name) {
        return store.stored()[i][0].item<double>();
      }
    }
    return -1.0;
  };
  CHECK(value(averaged, "running_mean") == 2);
  CHECK(value(copied, "running_mean") == 4);
  CHECK(value(copied, "weight") == 2);
}

TEST_CASE("options of a warm-up that contradict each other are refused", "[ema][warmup]") {
  EMA{.smoothing = 0.9, .use_warmup = true, .min_decay = 0.5}.validate();
  CHECK_THROWS_WITH((EMA{.min_decay = 0.5}.validate()),
                    ContainsSubstring("set without use_warmup"));
  CHECK_THROWS_WITH((EMA{.use_warmup = true, .warmup_gamma = 0}.validate()),
                    ContainsSubstring("warmup_gamma is 0, expected more than 0"));
  CHECK_THROWS_WITH((EMA{.use_warmup = true, .warmup_power = -1}.validate()),
                    ContainsSubstring("warmup_power is -1"));
  CHECK_THROWS_WITH((EMA{.smoothing = 0.5, .use_warmup = true, .min_decay = 0.75}.validate()),
                    ContainsSubstring("min_decay is 0.75, expected at most smoothing"));
  CHECK_THROWS_WITH((EMA{.average_integers = true, .exclude_buffers = true}.validate()),
                    ContainsSubstring("exclude_buffers and average_integers are both set"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
