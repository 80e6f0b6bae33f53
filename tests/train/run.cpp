#include <tutti/train/run.hpp>

#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <torch/optim/sgd.h>

#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Rates = std::vector<double>;

namespace {

struct Endless {  // does not say how long it is
  void start(std::int64_t, std::int64_t) {}
  std::optional<Batch> next() { return tiny::batches(1).front(); }
};

// Two optimizers, the first with two groups, whose learning rates are 1, 2 and 3.
struct Bench {
  std::shared_ptr<tiny::Net> net = tiny::net();
  State state;
  train::Run run;

  Bench() {
    const auto first = std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{net->in->weight},
                                                           torch::optim::SGDOptions(1));
    add_group(*first, net->in->bias, 2);
    state.optimizers = {
        first, std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{net->out->weight}, 3)};
    state.max_duration = "10ba";
    state.timestamp.batch = 4;
  }
  static void add_group(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                        double lr) {
    optimizer.add_param_group({{parameter}, std::make_unique<torch::optim::SGDOptions>(lr)});
  }
  Rates rates() const {
    Rates out;
    for (const auto& optimizer : state.optimizers) {
      for (const auto& group : optimizer->param_groups()) {
        out.push_back(group.options().get_lr());
      }
    }
    return out;
  }
};

double halved(const Progress&, double) {
  return 0.5;
}
double by_batch(const Progress& progress, double ratio) {
  return static_cast<double>(progress.timestamp.batch) * ratio;
}

}  // namespace

TEST_CASE("as many batches are taken as there are and as are asked for", "[train][run]") {
  const DataSpec five = tiny::batches(5);
  CHECK(train::length_of(five, -1) == 5);
  CHECK(train::length_of(five, 3) == 3);
  CHECK(train::length_of(five, 9) == 5);
  CHECK(train::length_of(five, 0) == 0);
  CHECK(train::length_of(Endless{}, -1) == -1);
  CHECK(train::length_of(Endless{}, 3) == 3);
}

TEST_CASE("a schedule multiplies the learning rates that were bound, of every group",
          "[train][run]") {
  Bench bench;
  bench.run.bind_schedule(bench.state);
  CHECK(bench.state.initial_lrs == Rates{1, 2, 3});
  bench.run.schedule = halved;
  bench.run.step_schedule(bench.state, bench.state.timestamp);
  bench.run.step_schedule(bench.state,
                          bench.state.timestamp);  // of the initial ones, not of the last
  CHECK(bench.rates() == Rates{0.5, 1, 1.5});
  bench.run.set_learning_rates(bench.state, 2);
  CHECK(bench.rates() == Rates{2, 4, 6});
  bench.run.bind_schedule(bench.state);
  CHECK(bench.state.initial_lrs == Rates{2, 4, 6});
}

TEST_CASE("a schedule that gives no factor is refused", "[train][run]") {
  for (const double alpha :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Bench bench;
    bench.run.bind_schedule(bench.state);
    bench.run.schedule = [alpha](const Progress&, double) { return alpha; };
    CHECK_THROWS_WITH(bench.run.step_schedule(bench.state, bench.state.timestamp),
                      ContainsSubstring("at batch 4, by which learning rates are multiplied"));
    CHECK(bench.rates() == Rates{1, 2, 3});
  }
}

TEST_CASE("a schedule is computed for now, or for another moment, which is remembered",
          "[train][run]") {
  Bench bench;
  bench.run.bind_schedule(bench.state);
  bench.run.schedule = by_batch;
  bench.run.scale_schedule_ratio = 0.5;
  bench.run.step_schedule(bench.state, bench.state.timestamp);
  CHECK(bench.rates() == Rates{2, 4, 6});
  CHECK(bench.run.scheduled_at.batch == 4);
  Timestamp then;
  then.batch = 2;
  bench.run.step_schedule(bench.state, then);
  CHECK(bench.rates() == Rates{1, 2, 3});
  CHECK(bench.run.scheduled_at.batch == 2);
  CHECK(bench.state.timestamp.batch == 4);
}

TEST_CASE("a schedule is stepped for what has ended, or ahead for what comes", "[train][run]") {
  for (const bool ahead : {false, true}) {
    for (const bool every_batch : {false, true}) {
      Bench bench;  // behind batch 4
      bench.run.bind_schedule(bench.state);
      bench.run.schedule = by_batch;
      bench.run.schedule_ahead = ahead;
      bench.run.step_schedule_every_batch = every_batch;
      const double now = ahead ? 5 : 4;
      const auto after = [&](auto step, std::int64_t batch_in_epoch) {
        Timestamp next = bench.state.timestamp;
        next.batch = 5;
        next.batch_in_epoch = batch_in_epoch;
        bench.run.set_learning_rates(bench.state, 1);
        (bench.run.*step)(bench.state, next);
        return bench.rates().front();
      };
      CHECK(after(&train::Run::step_schedule_after_batch, 5) == (every_batch ? now : 1));
      CHECK(after(&train::Run::step_schedule_after_epoch, 0) == (ahead || !every_batch ? now : 1));
      CHECK(after(&train::Run::step_schedule_after_iteration, 0) == (ahead ? now : 1));
      CHECK(after(&train::Run::step_schedule_after_iteration, 2) ==
            (ahead && every_batch ? now : 1));
    }
  }
}

TEST_CASE("without a schedule learning rates stay as they are", "[train][run]") {
  Bench bench;
  bench.run.step_schedule(bench.state, bench.state.timestamp);  // though none were bound
  CHECK(bench.rates() == Rates{1, 2, 3});
  CHECK(bench.run.scheduled_at.batch == 4);
}

TEST_CASE("a group that was added after its learning rates were bound is refused", "[train][run]") {
  Bench bench;
  bench.run.bind_schedule(bench.state);
  bench.run.schedule = halved;
  Bench::add_group(*bench.state.optimizers.back(), bench.net->out->bias, 4);
  CHECK_THROWS_WITH(bench.run.step_schedule(bench.state, bench.state.timestamp),
                    ContainsSubstring("after its learning rates were bound; add groups before"));
}

TEST_CASE("gradients are forgotten, and buffers that they are views of left alone",
          "[train][run]") {
  Bench bench;
  const at::Tensor buffer = at::ones({8 * 4});
  bench.net->in->weight.mutable_grad() = buffer.view({8, 4});
  bench.net->out->weight.mutable_grad() = at::ones({2, 8});
  bench.net->out->bias.mutable_grad() = at::ones({2});  // no optimizer's
  train::zero_gradients(bench.state);
  CHECK_FALSE(bench.net->in->weight.grad().defined());
  CHECK_FALSE(bench.net->out->weight.grad().defined());
  CHECK(bench.net->out->bias.grad().defined());
  CHECK(at::equal(buffer, at::ones({8 * 4})));
}

TEST_CASE("the clock stands still between pause() and resume()", "[train][run]") {
  using namespace std::chrono_literals;
  train::Clock clock;
  std::this_thread::sleep_for(5ms);
  CHECK(clock.lap() >= 5ms);
  const auto before = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(5ms);
  clock.pause();
  std::this_thread::sleep_for(20ms);
  clock.resume();
  const auto lap = clock.lap();
  CHECK(lap >= 5ms);
  CHECK(lap <= std::chrono::steady_clock::now() - before - 20ms);
  std::this_thread::sleep_for(20ms);
  const auto begin = std::chrono::steady_clock::now();
  clock.start();
  const auto anew = clock.lap();
  CHECK(anew <= std::chrono::steady_clock::now() - begin);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
