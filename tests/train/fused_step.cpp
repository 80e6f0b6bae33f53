#include <tutti/train/fused_step.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/cuda.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/layer_freezing.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/callbacks/memory_monitor.hpp>
#include <tutti/callbacks/optimizer_monitor.hpp>
#include <tutti/core/switch.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// Clipping and averaging inside the optimizer's pass over memory: the same run, bit for bit.

namespace {

using namespace tutti;

constexpr GradientClipping tight{.clipping_type = ClippingType::norm, .clipping_threshold = 0.05};

// With buffers, floating and not, and a layer that is normalised.
struct Net : torch::nn::Module {
  Net() {
    in = register_module("in", torch::nn::Linear(4, 19));
    norm = register_module("norm", torch::nn::BatchNorm1d(19));
    out = register_module("out", torch::nn::Linear(19, 2));
  }
  Outputs forward(const Batch& batch) {
    return out->forward(norm->forward(in->forward(batch.inputs())).tanh());
  }
  Loss loss(const Outputs& outputs, const Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

std::shared_ptr<Net> net() {
  at::manual_seed(5);
  return std::make_shared<Net>();
}

TrainerOptions options(OptimizerSpec optimizer) {
  return {.train = tiny::batches(4),
          .eval = {{"test", tiny::batches(1)}},
          .max_duration = "3ep",
          .optimizer = std::move(optimizer),
          .schedule = LinearWithWarmup{.t_warmup = "2ba", .alpha_f = 0.1},
          .device = "cpu",
          .seed = 17,
          .progress_bar = false};
}

// An optimizer that notes what is left to it and passes it on.
struct Spy final : torch::optim::Optimizer, optim::FusedStepOptimizer {
  explicit Spy(std::shared_ptr<optim::Fused<AdamW>> made)
      : Optimizer(made->param_groups(), std::make_unique<optim::GroupOptions<AdamW>>(AdamW{})),
        inner(std::move(made)) {}
  at::Tensor step(LossClosure) override {
    ++plain;
    return inner->step();
  }
  void step(const optim::FusedStep& fused) override {
    received.push_back(fused);
    inner->step(fused);
  }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

  std::shared_ptr<optim::Fused<AdamW>> inner;
  int plain = 0;
  std::vector<optim::FusedStep> received;
};

// What a run leaves.
struct Result {
  at::Tensor weights;
  at::Tensor averages;
  std::vector<std::pair<std::string, double>> logged;
};

bool operator==(const Result& a, const Result& b) {
  return a.weights.equal(b.weights) && a.logged == b.logged &&
         a.averages.defined() == b.averages.defined() &&
         (!a.averages.defined() || a.averages.equal(b.averages));
}

template <class T>
Result result_of(T& trainer, const torch::nn::Module& model) {
  Result out{.weights = tiny::flat(model), .averages = {}, .logged = {}};
  if constexpr (T::recipe::template has<EMA>) {
    std::vector<at::Tensor> parts;
    for (const auto& [name, average] : trainer.template get<EMA>().averages()) {
      parts.push_back(average.flatten().to(at::kDouble));
    }
    out.averages = at::cat(parts);
  }
  const auto& logger = trainer.template get<InMemoryLogger>();
  for (const char* name : {"loss/train/total", "gradient_clipping/norm", "l2_norm/grad/global"}) {
    if (const auto found = logger.data.find(name); found != logger.data.end()) {
      for (const double value : found->second.values) {
        out.logged.emplace_back(name, value);
      }
    }
  }
  return out;
}

template <class... Ps>
Result run(bool fold, TrainerOptions how, Ps... policies) {
  auto model = net();
  how.fold_into_optimizer = fold;
  Trainer trainer{model, std::move(how), InMemoryLogger{}, std::move(policies)...};
  trainer.fit();
  return result_of(trainer, *model);
}

template <class... Ps>
void same_apart(const TrainerOptions& how, const Ps&... policies) {
  const Result folded = run(true, how, policies...);
  CHECK(folded == run(false, how, policies...));
  CHECK(folded.weights.isfinite().all().item<bool>());
}

template <class... Ps>
using FoldsOf = train::detail::Folding<Engine<Ps...>, true>;

// Writes at its event, so that nothing may be left to a later moment.
struct ShrinkWeights final {
  static constexpr Rules rules{.runs_before = {{id<EMA>}}};
  void apply(BatchEnd, State& state) const {
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : state.model->parameters()) {
      parameter.mul_(0.99);
    }
  }
};
struct NegateGradients final {
  static constexpr Rules rules{.runs_after = {{id<GradientClipping>}}};
  void apply(AfterTrainBatch, State& state) const {
    for (const auto& parameter : state.model->parameters()) {
      parameter.grad().neg_();
    }
  }
};
struct SeeGradients final {
  std::shared_ptr<std::vector<double>> norms = std::make_shared<std::vector<double>>();
  void see(const State& state) const {
    double sum = 0;
    for (const auto& parameter : state.model->parameters()) {
      sum += parameter.grad().pow(2).sum().item<double>();
    }
    norms->push_back(std::sqrt(sum));
  }
  void apply(AfterTrainBatch, const State& state) const { see(state); }
  void apply(BatchEnd, const State& state) const { see(state); }
};

}  // namespace

TEST_CASE("what folds is decided by the recipe", "[train][fused_step]") {
  STATIC_REQUIRE(FoldsOf<GradientClipping, EMA>::plan.gradients);
  STATIC_REQUIRE(FoldsOf<GradientClipping, EMA>::plan.averages);
  STATIC_REQUIRE(FoldsOf<EMA>::plan.averages);
  STATIC_REQUIRE_FALSE(FoldsOf<EMA>::plan.gradients);
  STATIC_REQUIRE_FALSE(FoldsOf<InMemoryLogger>::plan.averages);
  STATIC_REQUIRE(FoldsOf<GradientClipping, MemoryMonitor>::plan.gradients);
  STATIC_REQUIRE_FALSE(FoldsOf<GradientClipping, SeeGradients>::plan.gradients);
  STATIC_REQUIRE_FALSE(FoldsOf<GradientClipping, NegateGradients>::plan.gradients);
  STATIC_REQUIRE_FALSE(FoldsOf<EMA, ShrinkWeights>::plan.averages);
  STATIC_REQUIRE(FoldsOf<GradientClipping, EMA, ShrinkWeights>::plan.gradients);
  using WithSam = train::detail::Folding<Engine<GradientClipping, EMA, SAM>, false>;
  STATIC_REQUIRE_FALSE(WithSam::plan.gradients);
  STATIC_REQUIRE_FALSE(WithSam::plan.averages);
}

TEST_CASE("the optimizer gets the scale and the averages", "[train][fused_step]") {
  for (const bool fold : {true, false}) {
    auto model = net();
    TrainerOptions how = options(nullptr);
    std::shared_ptr<Spy> spy;
    how.optimizer = [&](torch::nn::Module& m) {
      return spy = std::make_shared<Spy>(AdamW{}.build(m.parameters()));
    };
    how.fold_into_optimizer = fold;
    Trainer trainer{model, how, tight, EMA{.half_life = "10ba", .update_interval = "2ba"}};
    trainer.fit();
    CHECK(spy->plain == (fold ? 0 : 12));
    REQUIRE(spy->received.size() == (fold ? 12 : 0));
    for (std::size_t i = 0; i < spy->received.size(); ++i) {
      CHECK(spy->received[i].scale < 1);
      CHECK_FALSE(spy->received[i].keep_gradients);
      CHECK((spy->received[i].averaging.averages != nullptr) == (i > 0 && i % 2 == 1));
    }
  }
}

TEST_CASE("a run with clipping and averages folded is the run with them apart",
          "[train][fused_step][law]") {
  const EMA ema{.half_life = "5ba"};
  for (const OptimizerSpec& optimizer :
       {OptimizerSpec(DecoupledAdamW{.lr = 0.01, .weight_decay = 1e-4}),
        OptimizerSpec(Adam{.lr = 0.01, .weight_decay = 0.1, .amsgrad = true}),
        OptimizerSpec(AdamW{.lr = 0.01, .maximize = true}),
        OptimizerSpec(DecoupledSGDW{.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4}),
        OptimizerSpec(SGD{.lr = 0.1, .momentum = 0.9, .nesterov = true}),
        OptimizerSpec([](torch::nn::Module& model) {
          return std::make_shared<torch::optim::SGD>(model.parameters(), 0.1);
        })}) {
    same_apart(options(optimizer), tight, ema);
    same_apart(options(optimizer), ema, tight);
    same_apart(options(optimizer), tight);
    same_apart(options(optimizer), ema);
  }
}

TEST_CASE("every way of clipping and averaging gives the same run folded",
          "[train][fused_step][law]") {
  const TrainerOptions how = options(DecoupledAdamW{.lr = 0.01});
  const EMA ema{.half_life = "5ba"};
  using enum ClippingType;
  same_apart(how, GradientClipping{.clipping_type = norm, .clipping_threshold = 1e6}, ema);
  same_apart(how, GradientClipping{.clipping_type = value, .clipping_threshold = 0.01}, ema);
  same_apart(how, GradientClipping{.clipping_type = adaptive, .clipping_threshold = 0.01}, ema);
  same_apart(
      how,
      GradientClipping{.clipping_type = norm, .clipping_threshold = 0.05, .exclude = {"out.*"}},
      ema);
  for (const EMA& other :
       {EMA{.smoothing = 0.3}, EMA{.smoothing = 0.999, .update_interval = "3ba"},
        EMA{.half_life = "1ep"}, EMA{.half_life = "4ba", .ema_start = "1ep"},
        EMA{.half_life = "4ba", .ema_start = "0.3dur", .average_integers = true}}) {
    same_apart(how, tight, other);
  }
}

TEST_CASE("microbatches, evaluation between batches and bfloat16 give the same run folded",
          "[train][fused_step][law]") {
  TrainerOptions how = options(DecoupledAdamW{.lr = 0.01});
  how.device_train_microbatch_size = 2;
  how.eval_interval = "1ba";
  same_apart(how, tight, EMA{.half_life = "5ba"});
  how.device_train_microbatch_size = 0;
  how.precision = Precision::amp_bf16;
  same_apart(how, tight, EMA{.half_life = "5ba"});
}

TEST_CASE("beside policies that come between, the run is the same", "[train][fused_step][law]") {
  const TrainerOptions how = options(DecoupledAdamW{.lr = 0.01});
  const EMA ema{.half_life = "5ba"};
  same_apart(how, tight, ema, ShrinkWeights{});
  same_apart(how, tight, ema, NegateGradients{});
  same_apart(how, tight, ema, SAM{.rho = 0.1, .interval = 2});
  same_apart(how, tight, ema, OptimizerMonitor{}, MemoryMonitor{});
  same_apart(how, accept<GradientClipping, LayerFreezing>{}, accept<EMA, LayerFreezing>{}, tight,
             ema, LayerFreezing{.freeze_start = 0.3, .freeze_level = 0.6});
}

TEST_CASE("whoever looks at gradients sees clipped ones", "[train][fused_step]") {
  for (const bool fold : {true, false}) {
    const SeeGradients eyes;
    run(fold, options(DecoupledAdamW{.lr = 0.01}), tight, eyes);
    REQUIRE(eyes.norms->size() == 24);
    for (const double norm : *eyes.norms) {
      CHECK(norm == Approx(0.05).epsilon(1e-3));
    }
  }
}

TEST_CASE("OptimizerMonitor reports clipped gradients from a folded step", "[train][fused_step]") {
  const Result got = run(true, options(DecoupledAdamW{.lr = 0.01}), tight, OptimizerMonitor{});
  int seen = 0;
  for (const auto& [name, value] : got.logged) {
    if (name.starts_with("l2_norm/grad/global")) {
      CHECK(value == Approx(0.05).epsilon(1e-3));
      ++seen;
    }
  }
  CHECK(seen > 0);
}

TEST_CASE("a resumed run goes on the same, folded or not", "[train][fused_step][resume]") {
  const EMA ema{.half_life = "5ba"};
  const OptimizerSpec optimizer = DecoupledAdamW{.lr = 0.01, .weight_decay = 1e-4};
  const Result whole = run(true, options(optimizer), tight, ema);
  for (const bool before : {true, false}) {
    for (const bool after : {true, false}) {
      const TemporaryFolder folder;
      TrainerOptions first = options(optimizer);
      first.save_folder = folder.path().string();
      first.save_filename = "ba{batch}";
      first.save_interval = "2ba";
      run(before, first, tight, ema);
      TrainerOptions second = options(optimizer);
      second.load_path = (folder / "ba6").string();
      const Result resumed = run(after, second, tight, ema);
      CHECK(resumed.weights.equal(whole.weights));
      CHECK(resumed.averages.equal(whole.averages));
    }
  }
}

TEST_CASE("switches fold as their policies do, and what is off leaves nothing to the pass",
          "[train][fused_step][switch]") {
  STATIC_REQUIRE(FoldsOf<Switch<GradientClipping>, Switch<EMA>>::plan.gradients);
  STATIC_REQUIRE(FoldsOf<Switch<GradientClipping>, Switch<EMA>>::plan.averages);
  const EMA ema{.half_life = "5ba"};
  const auto weights_after = [](auto... policies) {
    const auto model = net();
    Trainer trainer{model, options(AdamW{.lr = 0.01}), std::move(policies)...};
    trainer.fit();
    return tiny::flat(*model);
  };
  const at::Tensor bare = weights_after();
  const at::Tensor both = weights_after(tight, ema);
  CHECK(weights_after(Switch(tight), Switch(ema)).equal(both));
  CHECK(weights_after(Switch(tight, false), Switch(ema, false)).equal(bare));
  CHECK(weights_after(Switch(tight, false), Switch(ema)).equal(weights_after(ema)));
  CHECK_FALSE(weights_after(tight).equal(bare));
}

TEST_CASE("a folded run on a GPU is the run apart but for roundings, and resumes bit for bit",
          "[train][fused_step][cuda][gpu][resume]") {
  if (!torch::cuda::is_available()) {
    return tutti_test::skip("there is no CUDA device");
  }
  const EMA ema{.half_life = "5ba"};
  const GradientClipping by_value{.clipping_type = ClippingType::value, .clipping_threshold = 0.01};
  const auto on_gpu = [](const OptimizerSpec& optimizer) {
    TrainerOptions out = options(optimizer);
    out.device = "cuda";
    return out;
  };
  const auto far = [](const at::Tensor& a, const at::Tensor& b) {
    return (a - b).abs().max().item<double>();
  };
  // What a gradient of 0 rounds to would become a step with a smaller eps.
  for (const OptimizerSpec& optimizer :
       {OptimizerSpec(DecoupledAdamW{.lr = 0.01, .eps = 1e-4, .weight_decay = 1e-4}),
        OptimizerSpec(SGD{.lr = 0.1, .momentum = 0.9, .nesterov = true})}) {
    const TrainerOptions how = on_gpu(optimizer);
    const auto close = [&](const auto& clipping) {
      const Result folded = run(true, how, clipping, ema);
      const Result apart = run(false, how, clipping, ema);
      CHECK(folded.weights.is_cuda());
      CHECK(far(folded.weights, apart.weights) < 1e-5);
      CHECK(far(folded.averages, apart.averages) < 1e-5);
      REQUIRE(folded.logged.size() == apart.logged.size());
      for (std::size_t i = 0; i < folded.logged.size(); ++i) {
        CHECK(folded.logged[i].second == Approx(apart.logged[i].second).epsilon(1e-4));
      }
      return folded;
    };
    close(by_value);
    const Result whole = close(tight);
    CHECK(far(whole.weights, run(true, how, ema).weights) > 1e-3);  // it does clip
    const TemporaryFolder folder;
    TrainerOptions first = how;
    first.save_folder = folder.path().string();
    first.save_filename = "ba{batch}";
    first.save_interval = "2ba";
    run(true, first, tight, ema);
    TrainerOptions second = how;
    second.load_path = (folder / "ba6").string();
    const Result resumed = run(true, second, tight, ema);
    CHECK(resumed.weights.equal(whole.weights));
    CHECK(resumed.averages.equal(whole.averages));
  }
}

TEST_CASE("the optimizer gets the scale where the gradients are",
          "[train][fused_step][cuda][gpu]") {
  if (!torch::cuda::is_available()) {
    return tutti_test::skip("there is no CUDA device");
  }
  auto model = net();
  TrainerOptions how = options(nullptr);
  how.device = "cuda";
  std::shared_ptr<Spy> spy;
  how.optimizer = [&](torch::nn::Module& m) {
    return spy = std::make_shared<Spy>(AdamW{}.build(m.parameters()));
  };
  Trainer trainer{model, how, tight, EMA{.half_life = "10ba"}};
  trainer.fit();
  CHECK(spy->plain == 0);
  REQUIRE(spy->received.size() == 12);
  for (const optim::FusedStep& fused : spy->received) {
    CHECK(fused.scale == 1);
    REQUIRE(fused.device_scale.defined());
    CHECK(fused.device_scale.is_cuda());
    CHECK(fused.device_scale.item<double>() < 1);
  }
}

TEST_CASE("behind a gradient scaler a step folds unless it is left out",
          "[train][fused_step][cuda][gpu]") {
  if (!torch::cuda::is_available()) {
    return tutti_test::skip("there is no CUDA device");
  }
  struct Steep : Net {  // its first gradients are infinite in half precision
    Loss loss(const Outputs& outputs, const Batch& batch) {
      return (outputs.tensor() - batch.targets()).pow(2).mean() * 100;
    }
  };
  std::size_t steps = 0;
  const auto weights_after = [&](bool fold) {
    at::manual_seed(5);
    const auto model = std::make_shared<Steep>();
    TrainerOptions how = options(nullptr);
    how.device = "cuda";
    how.precision = Precision::amp_fp16;
    how.fold_into_optimizer = fold;
    std::shared_ptr<Spy> spy;
    how.optimizer = [&](torch::nn::Module& m) {
      return spy = std::make_shared<Spy>(AdamW{.lr = 0.01, .eps = 1e-4}.build(m.parameters()));
    };
    Trainer trainer{model, how, tight, EMA{.half_life = "10ba"}};
    trainer.fit();
    steps = fold ? spy->received.size() : static_cast<std::size_t>(spy->plain);
    CHECK((fold ? static_cast<std::size_t>(spy->plain) : spy->received.size()) == 0);
    return at::cat(
        {tiny::flat(*model), trainer.template get<EMA>().averages().front().second.flatten()});
  };
  const at::Tensor folded = weights_after(true);
  const std::size_t taken = steps;
  CHECK(taken > 3);
  CHECK(taken < 12);
  const at::Tensor apart = weights_after(false);
  CHECK(steps == taken);
  CHECK(folded.isfinite().all().item<bool>());
  CHECK((folded - apart).abs().max().item<double>() < 1e-4);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
