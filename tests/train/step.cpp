#include <tutti/train/step.hpp>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/sgd.h>

#include <tutti/core/trace.hpp>
#include <tutti/metrics/loss_metric.hpp>

#include "support/catch.hpp"
#include "support/other_rank.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Lines = std::vector<std::string>;

namespace {

// A network with a loss of two parts, one of them a number for each example.
struct TwoLosses : tiny::Net {
  using tiny::Net::Net;
  Loss loss(const Outputs& outputs, const Batch& batch) {
    return {{"error", (outputs.tensor() - batch.targets()).pow(2).mean(1)},
            {"size", outputs.tensor().abs().mean()}};
  }
};

struct OneNamedLoss : tiny::Net {
  using tiny::Net::Net;
  Loss loss(const Outputs& outputs, const Batch& batch) {
    return {{"error", (outputs.tensor() - batch.targets()).pow(2).mean(1)}};
  }
};

// One optimizer and what a step of the trainer's needs; `Net` has weights that are always the same.
template <class Net, class... Ps>
struct Bench {
  std::shared_ptr<Net> net;
  Engine<Ps...> engine;
  State state;
  train::Run run;
  train::Step<Engine<Ps...>> step{engine, state, run};

  explicit Bench(double drop = 0) {
    at::manual_seed(1);
    net = std::make_shared<Net>(drop);
    state.model = net;
    state.task = net;
    state.communicator = std::make_shared<dist::SingleProcess>();
    state.optimizers = {std::make_shared<torch::optim::SGD>(net->parameters(), 0.1)};
  }

  Bench& on(const Batch& batch) {
    state.batch = batch;
    step();
    return *this;
  }
  // One step on a batch, in microbatches of so many examples.
  Bench& on(const Batch& batch, std::int64_t microbatch) {
    state.device_train_microbatch_size = microbatch;
    return on(batch);
  }
  at::Tensor gradients() const {
    std::vector<at::Tensor> out;
    for (const auto& parameter : net->parameters()) {
      out.push_back(parameter.grad().flatten());
    }
    return at::cat(out);
  }
  double loss(const char* part = "total") const {
    return state.total_loss.at(part).template item<double>();
  }
};
using Plain = Bench<tiny::Net>;

bool close_to(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a, b, 1e-5, 1e-7);
}

struct Noise final {  // draws from its own stream and from LibTorch's
  Rng rng{};
  std::vector<double> drawn{};
  void apply(BeforeForward, State& state) {
    drawn.push_back(rng.uniform());
    state.batch.inputs() = state.batch.inputs() + at::randn({1}) * drawn.back();
  }
};

// What a closure policy asks for, without SAM's arithmetic: one pass for each of `syncs`.
struct Passes final {
  std::vector<bool> syncs{false, true};
  bool steps = true;
  std::vector<bool> finite{};
  std::vector<bool> ascents{};  // of each pass, as AfterTrainBatch sees it
  template <class Closure, class Update>
  void step(State&, Closure&& closure, Update&& update) {
    for (const bool sync : syncs) {
      finite.push_back(closure(sync));
    }
    if (steps) {
      update();
    }
  }
  void apply(AfterTrainBatch, const State& state) { ascents.push_back(state.is_ascent); }
};

struct Seen final {  // of each microbatch
  std::vector<std::int64_t> sizes{};
  std::vector<bool> last{};
  void apply(BeforeForward, const State& state) {
    sizes.push_back(state.batch.num_samples());
    last.push_back(state.is_last_microbatch);
  }
};

// Graphs that note how they are asked.
struct Notes final : train::StepGraphs {
  struct Log {
    std::vector<double> shares{};
    int seen = 0;
    int forgotten = 0;
  };
  explicit Notes(Log& into) : log(into) {}
  void train(State&, train::GraphWork& work, double share) override {
    log.shares.push_back(share);
    work.eager(share);
  }
  void see(const Outputs& outputs) override { log.seen += outputs.tensor().defined() ? 1 : 0; }
  void forget() override { ++log.forgotten; }

  Log& log;
};

}  // namespace

TEST_CASE("every microbatch fires the inner events once", "[train][step][trace]") {
  const Lines inner{"before_forward", "after_forward",   "before_loss",
                    "after_loss",     "before_backward", "after_backward"};
  Lines expected{"before_train_batch"};
  for (int i = 0; i < 2; ++i) {
    expected.insert(expected.end(), inner.begin(), inner.end());
  }
  expected.emplace_back("after_train_batch");
  Bench<tiny::Net, Trace> bench;
  bench.on(tiny::batches(1, 6)[0], 4);
  CHECK(bench.engine.get<Trace>().lines == expected);
}

TEST_CASE("a step is that of a loop written by hand, and gradients do not pile up",
          "[train][step][law]") {
  Plain ours;
  const auto theirs = tiny::net();
  torch::optim::SGD sgd(theirs->parameters(), 0.1);
  for (const Batch& batch : tiny::batches(3)) {
    sgd.zero_grad();
    const at::Tensor loss = theirs->loss(theirs->forward(batch), batch).total();
    loss.backward();
    sgd.step();
    ours.on(batch);
    CHECK(ours.loss() == Approx(loss.item<double>()));
    CHECK_FALSE(ours.state.total_loss.at("total").requires_grad());
    CHECK(close_to(tiny::flat(*ours.net), tiny::flat(*theirs)));
  }
}

TEST_CASE("uneven microbatches give the gradients and losses of the whole batch",
          "[train][step][law]") {
  const Batch batch = tiny::batches(1, 7)[0];
  Bench<TwoLosses> whole;
  whole.on(batch);
  for (const std::int64_t size : {1, 3, 4, 7}) {
    INFO(size);
    Bench<TwoLosses> split;
    split.on(batch, size);
    CHECK(close_to(split.gradients(), whole.gradients()));
    for (const char* part : {"total", "error", "size"}) {
      CHECK(split.loss(part) == Approx(whole.loss(part)));
    }
  }
}

TEST_CASE("a loss of parts is reported as their sum and part by part, each a number",
          "[train][step]") {
  Bench<TwoLosses> bench;
  bench.on(tiny::batches(1)[0]);
  CHECK(bench.state.total_loss.names() == "total, error, size");
  CHECK(bench.state.total_loss.at("error").dim() == 0);
  CHECK(bench.loss() == Approx(bench.loss("error") + bench.loss("size")));
  Plain one;
  CHECK(one.on(tiny::batches(1)[0]).state.total_loss.names() == "total");
  Bench<OneNamedLoss> named;
  named.on(tiny::batches(1)[0]);
  CHECK(named.state.total_loss.names() == "total, error");
  CHECK(named.loss("error") == Approx(named.loss()));
}

TEST_CASE("the host's batch is whole again after its microbatches", "[train][step]") {
  Bench<tiny::Net, Seen> bench;
  const Batch batch = tiny::batches(1, 7)[0];
  bench.on(batch, 3);
  CHECK(bench.engine.get<Seen>().sizes == std::vector<std::int64_t>{3, 3, 1});
  CHECK(bench.engine.get<Seen>().last == std::vector<bool>{false, false, true});
  CHECK(bench.state.batch.inputs().is_same(batch.inputs()));
}

TEST_CASE("a number of microbatches is a size, rounded up", "[train][step]") {
  Bench<tiny::Net, Seen> bench;
  bench.run.grad_accum = 3;
  bench.on(tiny::batches(1, 7)[0]);
  CHECK(bench.engine.get<Seen>().sizes == std::vector<std::int64_t>{3, 3, 1});
  CHECK(bench.state.device_train_microbatch_size == 3);
  bench.on(tiny::batches(1, 2)[0]);  // fewer examples than microbatches
  CHECK(bench.state.device_train_microbatch_size == 1);
  CHECK(bench.engine.get<Seen>().sizes == std::vector<std::int64_t>{3, 3, 1, 1, 1});
}

TEST_CASE("microbatches weigh by tokens that make loss when told so", "[train][step]") {
  const Batch batch = tiny::batches(1, 4)[0];
  const auto tokens = [&](const Batch& part) {  // 3 of the first example, 1 of the last, else 0
    const bool first = part.inputs().data_ptr() == batch.inputs().data_ptr();
    return TokenCount(100, first ? 3 : 1);
  };
  Plain bench;
  bench.run.train.hooks.num_tokens = tokens;
  bench.run.weigh_by_tokens = true;
  bench.on(batch, 2);
  const auto parts = batch.split(2);
  const auto net = tiny::net();
  const auto loss = [&](const Batch& part) { return net->loss(net->forward(part), part).total(); };
  const at::Tensor expected = loss(parts[0]) * 0.75 + loss(parts[1]) * 0.25;
  CHECK(bench.loss() == Approx(expected.item<double>()));
}

TEST_CASE("a rank's loss weighs by its examples against the mean over ranks", "[train][step]") {
  const Batch batch = tiny::batches(1, 6)[0];
  Plain alone;
  alone.on(batch);
  Plain bench;
  bench.state.world_size = 2;
  bench.state.communicator = std::make_shared<OtherRank>(18);  // examples of the other rank
  bench.on(batch);
  CHECK(bench.loss() == Approx(alone.loss() * 6 / 12));
  CHECK(close_to(bench.gradients(), alone.gradients() * 0.5));
}

TEST_CASE("both passes of a closure policy see the same draws", "[train][step][closure]") {
  Bench<tiny::Net, Passes, Noise> bench(0.5);
  Bench<tiny::Net, Noise> once(0.5);
  const Batch batch = tiny::batches(1)[0];
  at::manual_seed(5);
  once.on(batch).on(batch);
  at::manual_seed(5);
  bench.on(batch).on(batch);
  const auto& drawn = bench.engine.get<Noise>().drawn;
  REQUIRE(drawn.size() == 4);
  CHECK(drawn[0] == drawn[1]);
  CHECK(drawn[1] != drawn[2]);
  CHECK(drawn[2] == drawn[3]);
  CHECK(bench.engine.get<Noise>().rng.position() == once.engine.get<Noise>().rng.position());
  CHECK(at::equal(tiny::flat(*bench.net), tiny::flat(*once.net)));  // dropout and randn as well
}

TEST_CASE("only the first pass of a closure policy is reported, and only passes to climb ascend",
          "[train][step][closure]") {
  struct Move final {  // so that every pass has another loss
    void apply(AfterTrainBatch, const State& state) const {
      const at::NoGradGuard no_grad;
      for (const auto& parameter : state.model->parameters()) {
        parameter.add_(1);
      }
    }
  };
  Bench<tiny::Net, Passes, Move> bench;
  Plain plain;
  const Batch batch = tiny::batches(1)[0];
  CHECK(bench.on(batch, 4).loss() == plain.on(batch, 4).loss());
  CHECK(bench.engine.get<Passes>().ascents == std::vector<bool>{true, false});
  CHECK_FALSE(bench.state.is_ascent);
}

TEST_CASE("a step without a closure policy never ascends", "[train][step]") {
  struct Ascents final {
    std::vector<bool> seen{};
    void apply(BeforeForward, const State& state) { seen.push_back(state.is_ascent); }
  };
  Bench<tiny::Net, Ascents> bench;
  bench.on(tiny::batches(1)[0]);
  CHECK(bench.engine.get<Ascents>().seen == std::vector<bool>{false});
}

TEST_CASE("the optimizer moves only when a closure policy says so", "[train][step][closure]") {
  Bench<tiny::Net, Passes> bench;
  bench.engine.get<Passes>().syncs = {false};
  bench.engine.get<Passes>().steps = false;
  const at::Tensor before = tiny::flat(*bench.net);
  bench.on(tiny::batches(1)[0]);
  CHECK(at::equal(tiny::flat(*bench.net), before));
  CHECK_FALSE(bench.state.is_ascent);  // though the last pass was one
}

TEST_CASE("gradients that overflow make no step and a smaller scale", "[train][step][scaler]") {
  Plain bench;
  Plain without;
  bench.run.scaler.emplace(at::kCPU, train::GradScalerOptions{.init_scale = 8});
  Batch batch = tiny::batches(1)[0];
  bench.on(batch);
  without.on(batch);
  CHECK(bench.loss() == without.loss());  // of loss itself, not what is scaled
  CHECK(close_to(tiny::flat(*bench.net), tiny::flat(*without.net)));
  CHECK(bench.run.scaler->get_scale() == 8);
  const at::Tensor before = tiny::flat(*bench.net);
  batch.targets() = at::full({6, 2}, std::numeric_limits<float>::infinity());
  bench.on(batch);
  CHECK(at::equal(tiny::flat(*bench.net), before));
  CHECK(bench.run.scaler->get_scale() == 4);

  Bench<tiny::Net, Passes> closure;
  closure.run.scaler.emplace(at::kCPU, train::GradScalerOptions{.init_scale = 8});
  closure.on(batch);
  CHECK(closure.engine.get<Passes>().finite == std::vector<bool>{false, false});
}

TEST_CASE("metrics see a batch once, as it is before policies change it", "[train][step]") {
  struct Blank final {
    void apply(BeforeForward, State& state) const {
      state.batch.targets() = at::zeros_like(state.batch.targets());
    }
  };
  Bench<tiny::Net, Blank> bench;
  bench.run.train_metrics = train::MetricSet(
      {std::make_shared<LossMetric>(
          [](const at::Tensor&, const at::Tensor& targets) { return targets.sum(); }, "Sum")},
      {}, "metrics/train/");
  MetricValues values;
  for (const Batch& batch : tiny::batches(2)) {
    bench.on(batch, 3);
    bench.run.train_metrics.compute(*bench.state.communicator, bench.state, values);
    const double of_halves = batch.targets().sum().item<double>() / 2;
    CHECK(values.at("Sum") == Approx(of_halves));  // the batch before is forgotten
  }
}

TEST_CASE("bfloat16 is for forward and loss; parameters and gradients stay fp32",
          "[train][step][amp]") {
  struct Types final {
    at::ScalarType outputs{};
    bool still_on = true;
    void apply(AfterLoss, const State& state) {
      outputs = state.outputs.tensor().scalar_type();
      still_on = at::autocast::is_autocast_enabled(at::kCPU);
    }
  };
  Bench<tiny::Net, Types> bench;
  bench.state.precision = Precision::amp_bf16;
  const Batch batch = tiny::batches(1)[0];
  const double first = bench.on(batch).loss();
  CHECK(bench.on(batch).loss() < first);
  CHECK(bench.engine.get<Types>().outputs == at::kBFloat16);
  CHECK_FALSE(bench.engine.get<Types>().still_on);
  CHECK(bench.net->in->weight.scalar_type() == at::kFloat);
  CHECK(bench.gradients().scalar_type() == at::kFloat);
}

TEST_CASE("microbatches go by the run's graphs, which end with the step", "[train][step][graphs]") {
  Notes::Log log;
  {
    Plain bench;
    bench.run.graphs = std::make_unique<Notes>(log);
    const Batch batch = tiny::batches(1, 5)[0];
    bench.on(batch, 4);
    CHECK(log.shares == std::vector<double>{0.8, 0.2});
    CHECK(log.seen == 2);
    CHECK(bench.loss() == Plain().on(batch, 4).loss());
    CHECK(log.forgotten == 0);
  }
  CHECK(log.forgotten == 1);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
