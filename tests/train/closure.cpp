#include <tutti/optim/closure.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <tutti/algorithms/sam.hpp>
#include <tutti/metrics/loss_metric.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/out_of_memory.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using torch::optim::LBFGS;
using torch::optim::LBFGSOptions;

namespace {

// The loss is the mean squared error of a linear map.
struct LeastSquares : torch::nn::Module {
  LeastSquares() : map(register_module("map", torch::nn::Linear(4, 2))) {}
  Outputs forward(const Batch& batch) { return map->forward(batch.inputs()); }
  Loss loss(const Outputs& outputs, const Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  torch::nn::Linear map{nullptr};
};

std::shared_ptr<LeastSquares> problem() {
  at::manual_seed(2);
  return std::make_shared<LeastSquares>();
}

LBFGSOptions searching() {
  return LBFGSOptions(1).max_iter(5).history_size(4).line_search_fn("strong_wolfe");
}
LBFGSOptions stepping() {
  return LBFGSOptions(0.1).max_iter(5);
}

OptimizerSpec lbfgs(const LBFGSOptions& how) {
  return
      [how](torch::nn::Module& model) { return std::make_unique<LBFGS>(model.parameters(), how); };
}

TrainerOptions options(const std::vector<Batch>& batches, OptimizerSpec optimizer,
                       Time length = "2ep") {
  return {.train = batches,
          .max_duration = length,
          .optimizer = std::move(optimizer),
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

// Counts evaluations, and notes what they draw and how large their microbatches are.
struct Evaluations final {
  Rng rng{};
  std::vector<double> drawn{};   // of the batch so far
  std::vector<double> losses{};  // that the trainer reports
  std::vector<std::int64_t> sizes{};
  std::int64_t most = 0;  // evaluations of a batch
  bool alike = true;      // each drew what the first of its batch drew
  void apply(BatchStart, State&) { drawn.clear(); }
  void apply(BeforeForward, State& state) {
    drawn.push_back(rng.uniform() + at::rand({1}).item<double>());
    sizes.push_back(state.batch.num_samples());
    alike = alike && drawn.back() == drawn.front();
    most = std::max(most, static_cast<std::int64_t>(drawn.size()));
  }
  void apply(BatchEnd, const State& state) {
    losses.push_back(state.total_loss.at("total").item<double>());
  }
};

// From the second evaluation of a batch on there is room for two examples.
struct RoomForTwo final {
  int evaluations = 0;
  int failed = 0;
  void apply(BatchStart, State&) { evaluations = 0; }
  void apply(BeforeTrainBatch, State&) { ++evaluations; }
  void apply(AfterForward, State& state) {
    if (evaluations > 1 && state.batch.num_samples() > 2) {
      ++failed;
      tutti_test::out_of_memory();
    }
  }
};

// Goes down the slope, half as far as long as the loss does not fall.
struct Backtracking final : torch::optim::Optimizer, optim::CallsClosure {
  explicit Backtracking(const std::vector<at::Tensor>& parameters, bool lazy = false)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters)},
                  std::make_unique<torch::optim::SGDOptions>(4.0)),
        lazy_(lazy) {}
  at::Tensor step(LossClosure closure) override {
    if (lazy_) {
      return {};
    }
    const auto before = closure().item<double>();
    std::vector<at::Tensor> slope;
    for (const at::Tensor& p : param_groups()[0].params()) {
      slope.push_back(p.grad().clone());
    }
    double rate = param_groups()[0].options().get_lr();
    move(slope, rate);
    while (closure().item<double>() >= before && rate > 1e-4) {
      rate /= 2;
      move(slope, -rate);
    }
    return {};
  }

 private:
  void move(const std::vector<at::Tensor>& slope, double rate) {
    const c10::NoGradGuard no_grad;
    for (std::size_t i = 0; i < slope.size(); ++i) {
      param_groups()[0].params()[i].sub_(slope[i], rate);
    }
  }
  bool lazy_;
};

// Calls a closure and does not say so.
struct Silent final : torch::optim::Optimizer {
  explicit Silent(const std::vector<at::Tensor>& parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters)},
                  std::make_unique<torch::optim::SGDOptions>(1.0)) {}
  at::Tensor step(LossClosure closure) override { return closure(); }
};

// What the optimizer makes of the batches in a loop written by hand. Returns the losses that
// step() gives back, those before each step.
std::vector<double> by_hand(LeastSquares& model, torch::optim::Optimizer& optimizer,
                            const std::vector<Batch>& batches, int epochs) {
  std::vector<double> losses;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (const Batch& batch : batches) {
      const at::Tensor loss = optimizer.step([&] {
        optimizer.zero_grad();
        at::Tensor loss = model.loss(model.forward(batch), batch).total();
        loss.backward();
        return loss;
      });
      losses.push_back(loss.item<double>());
    }
  }
  return losses;
}

}  // namespace

TEST_CASE("LBFGS trains as in a loop written by hand, bit for bit", "[train][closure][law]") {
  for (const LBFGSOptions& how : {searching(), stepping()}) {
    const auto batches = tiny::batches(3);
    const auto theirs = problem();
    LBFGS optimizer(theirs->parameters(), how);
    const std::vector<double> losses = by_hand(*theirs, optimizer, batches, 2);
    const auto ours = problem();
    Trainer<Evaluations> trainer(ours, options(batches, lbfgs(how)));
    trainer.fit();
    CHECK(at::equal(tiny::flat(*ours), tiny::flat(*theirs)));
    CHECK(trainer.get<Evaluations>().losses == losses);
    CHECK(trainer.get<Evaluations>().most > 3);
    CHECK(trainer.get<Evaluations>().alike);
  }
}

TEST_CASE("LBFGS finds the least squares, in microbatches too", "[train][closure]") {
  const auto batches = tiny::batches(1, 12);
  const Batch& batch = batches.front();
  const at::Tensor x = at::cat({batch.inputs(), at::ones({12, 1})}, 1);
  const at::Tensor best = std::get<0>(at::linalg_lstsq(x, batch.targets()));
  for (const std::int64_t size : {0, 5}) {
    const auto model = problem();
    TrainerOptions with = options(batches, lbfgs(searching()), "8ba");
    with.device_train_microbatch_size = size;
    Trainer<Evaluations> trainer(model, with);
    trainer.fit();
    CHECK(at::allclose(model->map->weight, best.slice(0, 0, 4).t(), 1e-3, 1e-4));
    CHECK(at::allclose(model->map->bias, best[4], 1e-3, 1e-4));
    CHECK(trainer.get<Evaluations>().sizes.front() == (size == 0 ? 12 : size));
  }
}

TEST_CASE("microbatches of a closure add up to the batch", "[train][closure][law]") {
  const auto batches = tiny::batches(2, 7);
  std::vector<at::Tensor> weights;
  std::vector<std::vector<double>> losses;
  for (const std::int64_t size : {0, 3}) {
    const auto model = problem();
    TrainerOptions with = options(batches, lbfgs(searching()), "1ep");
    with.device_train_microbatch_size = size;
    Trainer<Evaluations> trainer(model, with);
    trainer.fit();
    weights.push_back(tiny::flat(*model));
    losses.push_back(trainer.get<Evaluations>().losses);
  }
  CHECK(at::allclose(weights[0], weights[1], 1e-3, 1e-4));
  CHECK(losses[0][0] == Approx(losses[1][0]));
}

TEST_CASE("memory that runs out within a closure makes it begin again with smaller parts",
          "[train][closure][microbatching]") {
  const auto batches = tiny::batches(2, 6);
  const auto theirs = problem();
  LBFGS optimizer(theirs->parameters(), searching());
  by_hand(*theirs, optimizer, batches, 1);
  const auto ours = problem();
  TrainerOptions with = options(batches, lbfgs(searching()), "1ep");
  with.device_train_microbatch_size = "auto";
  Trainer<RoomForTwo> trainer(ours, with);
  trainer.fit();
  CHECK(trainer.get<RoomForTwo>().failed == 2);  // 6, 3, then 1
  CHECK(trainer.state().device_train_microbatch_size == 1);
  CHECK(at::allclose(tiny::flat(*ours), tiny::flat(*theirs), 1e-3, 1e-4));
}

TEST_CASE("a run with LBFGS resumes bit for bit, with the same dropout in each evaluation",
          "[train][closure][resume]") {
  const TemporaryFolder folder;
  const auto batches = tiny::batches(5);
  TrainerOptions with = options(batches, lbfgs(searching()));
  const auto whole = tiny::net(1, 0.3);
  Trainer<Evaluations>(whole, with).fit();
  TrainerOptions first = with;
  first.max_duration = "7ba";
  first.save_folder = folder.path().string();
  first.save_interval = "7ba";
  Trainer<Evaluations>(tiny::net(1, 0.3), first).fit();
  const auto model = tiny::net(5, 0.3);
  with.load_path = (folder / "latest").string();
  Trainer<Evaluations> rest(model, with);
  CHECK(rest.state().timestamp.batch == 7);
  rest.fit();
  CHECK(rest.get<Evaluations>().alike);
  CHECK(at::equal(tiny::flat(*whole), tiny::flat(*model)));
}

TEST_CASE("an optimizer of one's own gets a closure when it says that it calls one",
          "[train][closure]") {
  const auto batches = tiny::batches(1);
  const auto model = problem();
  Trainer<Evaluations> trainer(model, options(
                                          batches,
                                          [](torch::nn::Module& net) {
                                            return std::make_unique<Backtracking>(net.parameters());
                                          },
                                          "9ba"));
  trainer.fit();
  const std::vector<double>& losses = trainer.get<Evaluations>().losses;
  CHECK(std::is_sorted(losses.rbegin(), losses.rend()));
  CHECK(losses.back() < losses.front());
  CHECK(trainer.get<Evaluations>().most > 2);
  Trainer<> lazy(problem(), options(batches, [](torch::nn::Module& net) {
                   return std::make_unique<Backtracking>(net.parameters(), /*lazy=*/true);
                 }));
  CHECK_THROWS_WITH(lazy.fit(), ContainsSubstring("its step() did not call the closure"));
  Trainer<> silent(problem(), options(batches, [](torch::nn::Module& net) {
                     return std::make_unique<Silent>(net.parameters());
                   }));
  CHECK_THROWS_WITH(silent.fit(), ContainsSubstring("Silent: step() was called without a closure, "
                                                    "and calls it; derive the optimizer from"));
}

TEST_CASE("what cannot stand beside a closure is refused at the start", "[train][closure]") {
  const auto batches = tiny::batches(1);
  CHECK_THROWS_WITH((Trainer{problem(), options(batches, lbfgs(searching())), SAM{}}),
                    ContainsSubstring("the optimizer LBFGS runs forward and backward itself") &&
                        ContainsSubstring("the policy SAM"));
  TrainerOptions graphs = options(batches, lbfgs(searching()));
  graphs.cuda_graphs = "auto";  // where they can be: not here
  CHECK_NOTHROW(Trainer<>(problem(), graphs).fit());
  const auto check = [&](const TrainerOptions& with) {
    train::check_closure(LBFGS(problem()->parameters()), with, "");
  };
  CHECK_THROWS_WITH(check({.precision = Precision::amp_fp16}),
                    ContainsSubstring("precision is amp_fp16, but LBFGS compares losses") &&
                        ContainsSubstring("use amp_bf16 or fp32"));
  CHECK_THROWS_WITH(check({.cuda_graphs = true}), ContainsSubstring("cuda_graphs is true"));
  CHECK_NOTHROW(check({.precision = Precision::amp_bf16, .cuda_graphs = "auto"}));
  CHECK_THROWS_WITH(functional::SAMOptimizer(std::shared_ptr<torch::optim::Optimizer>(
                        std::make_shared<LBFGS>(problem()->parameters()))),
                    ContainsSubstring("the base optimizer calls a closure"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
