#include <tutti/train/graphs.hpp>

#include "support/catch.hpp"

#include <functional>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "support/fake_graphs.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using train::Graphs;

namespace {

// A model and what a step does with it, microbatch by microbatch.
struct Bench {
  std::shared_ptr<tiny::Net> net = tiny::net();
  State state;
  fake::Log log;
  Graphs graphs{std::make_unique<fake::Backend>(log)};
  std::function<void()> during = [] {};

  Bench() {
    state.model = net;
    state.task = net;
  }

  void work() {
    state.outputs = state.task.forward(state.batch);
    graphs.see(state.outputs);
    during();
    state.loss_parts = state.task.loss(state.outputs, state.batch);
    state.loss = state.loss_parts.total();
    state.loss.backward();
  }

  // One microbatch; true when a graph did it.
  bool pass(Batch batch, double share = 1) {
    state.batch = std::move(batch);
    train::GraphEntry& entry = graphs.find(state, share);
    if (!graphs.ready(entry)) {
      graphs.run(&entry, [this] { work(); });
      return false;
    }
    if (entry.graph == nullptr) {
      graphs.record(entry, state, [this] { work(); });
    } else {
      graphs.replay(entry, state);
    }
    return true;
  }
  bool step(std::int64_t size, double share = 1) {
    net->zero_grad(/*set_to_none=*/true);
    return pass(batch(size), share);
  }
  int by_graph(int steps, std::int64_t size) {
    int count = 0;
    for (int i = 0; i < steps; ++i) {
      count += step(size);
    }
    return count;
  }

  static Batch batch(std::int64_t size) { return {at::randn({size, 4}), at::randn({size, 2})}; }
};

// Outputs, loss and gradients are those of the batch, computed without graphs.
void check_results(Bench& bench, const Batch& batch) {
  std::vector<at::Tensor> got;
  for (const auto& parameter : bench.net->parameters()) {
    got.push_back(parameter.grad().clone());
  }
  const at::Tensor outputs = bench.state.outputs.tensor().clone();
  bench.net->zero_grad(/*set_to_none=*/true);
  const at::Tensor loss = bench.net->loss(bench.net->forward(batch), batch).total();
  loss.backward();
  CHECK(at::equal(outputs, bench.net->forward(batch).tensor()));
  CHECK(at::equal(bench.state.loss, loss));
  CHECK(at::equal(bench.state.loss_parts.at("total"), loss));
  std::size_t i = 0;
  for (const auto& parameter : bench.net->parameters()) {
    CHECK(at::equal(got[i++], parameter.grad()));
  }
}

}  // namespace

TEST_CASE("three times without a graph, then one is recorded, then it is replayed",
          "[train][graphs]") {
  Bench bench;
  std::vector<bool> by_graph;
  for (int i = 0; i < 6; ++i) {
    by_graph.push_back(bench.step(6));
  }
  CHECK(by_graph == std::vector<bool>{false, false, false, true, true, true});
  CHECK(bench.log.runs == 3);
  CHECK(bench.log.records == 1);
  CHECK(bench.log.replays == 3);
  CHECK(bench.graphs.size() == 1);
  CHECK(bench.graphs.replayed() == 3);
  CHECK(bench.graphs.passed() == 6);
}

TEST_CASE("a replay leaves what the batch gives without one", "[train][graphs]") {
  Bench bench;
  bench.by_graph(3, 6);
  for (int i = 0; i < 3; ++i) {  // recorded, replayed, replayed
    const Batch batch = Bench::batch(6);
    bench.net->zero_grad(/*set_to_none=*/true);
    REQUIRE(bench.pass(batch));
    CHECK_FALSE(bench.state.loss.requires_grad());
    CHECK_FALSE(bench.state.outputs.tensor().requires_grad());
    check_results(bench, batch);
  }
}

TEST_CASE("a loss that is kept does not change with the next replay", "[train][graphs]") {
  Bench bench;
  bench.by_graph(4, 6);
  bench.step(6);
  const at::Tensor kept = bench.state.loss;
  const at::Tensor same = kept.clone();
  bench.step(6);
  CHECK(at::equal(kept, same));
  CHECK_FALSE(at::equal(kept, bench.state.loss));
}

TEST_CASE("every shape has a graph of its own", "[train][graphs]") {
  Bench bench;
  CHECK(bench.by_graph(5, 6) == 2);
  CHECK(bench.by_graph(5, 4) == 2);
  CHECK(bench.by_graph(2, 6) == 2);
  CHECK(bench.log.records == 2);
  CHECK_FALSE(bench.step(6, 0.5));  // another part of the loss
  bench.state.batch = {};
  Batch typed{at::randn({6, 4}), at::randn({6, 2}).to(at::kDouble)};
  bench.net->zero_grad(true);
  CHECK_FALSE(bench.pass(typed));
  CHECK(bench.graphs.size() == 2);
}

TEST_CASE("microbatches add to the gradients of the graph before them", "[train][graphs]") {
  Bench bench;
  const auto step = [&] {
    bench.net->zero_grad(/*set_to_none=*/true);
    const Batch a = Bench::batch(3);
    const Batch b = Bench::batch(3);
    const bool first = bench.pass(a, 0.5);
    const bool second = bench.pass(b, 0.5);
    const at::Tensor got = bench.net->parameters().front().grad().clone();
    bench.net->zero_grad(/*set_to_none=*/true);
    for (const Batch& batch : {a, b}) {
      bench.net->loss(bench.net->forward(batch), batch).total().backward();
    }
    CHECK(at::equal(got, bench.net->parameters().front().grad()));
    return int{first} + int{second};
  };
  std::vector<int> by_graph;
  for (int i = 0; i < 9; ++i) {
    by_graph.push_back(step());
  }
  // The second is recorded when it has come three times behind the first one's graph.
  CHECK(by_graph == std::vector<int>{0, 0, 0, 1, 1, 1, 2, 2, 2});
  CHECK(bench.log.records == 2);
}

TEST_CASE("other parameters, or parameters in other memory, give all graphs up",
          "[train][graphs]") {
  Bench bench;
  REQUIRE(bench.by_graph(4, 6) == 1);
  SECTION("frozen") {
    bench.net->in->weight.set_requires_grad(false);
  }
  SECTION("moved") {
    bench.net->in->weight.set_data(bench.net->in->weight.detach().clone());
  }
  SECTION("replaced") {
    bench.net->replace_module("in", torch::nn::Linear(4, 8));
  }
  SECTION("told so") {
    bench.graphs.forget();
  }
  SECTION("in evaluation mode") {
    bench.net->eval();
  }
  CHECK_FALSE(bench.step(6));
  CHECK(bench.graphs.size() == 0);
  CHECK(bench.by_graph(3, 6) == 1);
  CHECK(bench.log.records == 2);
}

TEST_CASE("values of the parameters may change", "[train][graphs]") {
  Bench bench;
  bench.by_graph(4, 6);
  {
    const c10::AutoGradMode no_grad(false);
    bench.net->in->weight.mul_(2);
  }
  bench.net->zero_grad(true);
  const Batch batch = Bench::batch(6);
  REQUIRE(bench.pass(batch));
  check_results(bench, batch);
}

TEST_CASE("of many graphs the least recently used ones are given up", "[train][graphs]") {
  Bench bench;
  const auto most = static_cast<std::int64_t>(Graphs::most_graphs);
  for (std::int64_t size = 1; size <= most; ++size) {
    bench.by_graph(4, size);
  }
  CHECK(bench.graphs.size() == Graphs::most_graphs);
  CHECK(bench.step(1));  // used again
  bench.by_graph(4, most + 1);
  CHECK(bench.graphs.size() == Graphs::most_graphs);
  CHECK(bench.step(1));
  CHECK_FALSE(bench.step(2));
  CHECK(bench.step(3));
}

TEST_CASE("shapes that do not settle are warned of once and asked for more", "[train][graphs]") {
  Bench bench;
  const auto unsettled = [&] {
    for (int i = 0; i < Graphs::window; ++i) {
      bench.step(1 + i);
    }
  };
  unsettled();
  const Warnings said;
  bench.step(1);
  unsettled();
  unsettled();
  REQUIRE(said.texts.size() == 1);
  CHECK_THAT(said.texts.front(),
             ContainsSubstring("cuda_graphs: of the last 200 forward passes 0 were replayed, since "
                               "the shapes of the batches do not settle"));
  CHECK(bench.log.records == 0);
  CHECK(bench.by_graph(50, 7) == 0);  // not after three times any more
  CHECK(bench.by_graph(100, 7) > 0);
}

TEST_CASE("work that cannot be recorded says what to change", "[train][graphs]") {
  Bench bench;
  bench.by_graph(3, 6);
  bench.during = [] { TORCH_CHECK(false, "operation not permitted when stream is capturing"); };
  CHECK_THROWS_WITH(bench.step(6),
                    ContainsSubstring("operation not permitted when stream is capturing\nThis "
                                      "happened while a training step was recorded "
                                      "(TrainerOptions::cuda_graphs). Forward, loss") &&
                        ContainsSubstring("set cuda_graphs to false"));
  bench.during = [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory"); };
  CHECK_THROWS_AS(bench.step(6), c10::OutOfMemoryError);
  bench.during = [] {};
  CHECK(bench.step(6));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
