#include <tutti/callbacks/optimizer_monitor.hpp>

#include <cmath>

#include <tutti/core/with.hpp>
#include <tutti/optim/adam.hpp>

#include "callbacks/run.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<OptimizerMonitor> == Role::callback);
static_assert(Recipe<With<OptimizerMonitor{.batch_log_interval = 5}>>::valid);

namespace {

// Norms by hand, at the same moment as the callback.
struct Norms final {
  static constexpr Role role = Role::algorithm;
  std::vector<std::vector<double>> gradients, weights;
  void apply(BatchEnd, State& state) {
    gradients.emplace_back();
    weights.emplace_back();
    for (const auto& parameter : state.model->parameters()) {
      gradients.back().push_back(parameter.grad().defined() ? parameter.grad().norm().item<double>()
                                                            : 0.0);
      weights.back().push_back(parameter.detach().norm().item<double>());
    }
  }
};

}  // namespace

TEST_CASE("gradients are logged every so many batches with their common norm",
          "[callbacks][optimizer_monitor]") {
  auto net = tiny::net();
  net->out->bias.set_requires_grad(false);
  Trainer trainer{net, callback_run::options(5, "1ep"), Norms{},
                  OptimizerMonitor{.batch_log_interval = 2}, InMemoryLogger{}};
  trainer.fit();
  const auto& memory = trainer.get<InMemoryLogger>();
  const auto& by_hand = trainer.get<Norms>().gradients;
  const auto& logged = memory.series("l2_norm/grad/in.weight");
  REQUIRE(logged.values.size() == 2);
  CHECK(logged.timestamps[0].batch == 2);
  CHECK(logged.timestamps[1].batch == 4);
  CHECK(logged.values[0] == Approx(by_hand[1][0]));
  CHECK(memory.latest("l2_norm/grad/in.weight") == Approx(by_hand[3][0]));
  CHECK(memory.latest("l2_norm/grad/in.bias") == Approx(by_hand[3][1]));
  CHECK(memory.latest("l2_norm/grad/out.weight") == Approx(by_hand[3][2]));
  CHECK_FALSE(memory.data.contains("l2_norm/grad/out.bias"));    // it has no gradient
  CHECK_FALSE(memory.data.contains("l2_norm/param/in.weight"));  // SGD reports nothing
  double squares = 0;
  for (const double norm : by_hand[3]) {
    squares += norm * norm;
  }
  CHECK(memory.latest("l2_norm/grad/global") == Approx(std::sqrt(squares)));
}

TEST_CASE("an optimizer of the Adam family adds moments weights and updates",
          "[callbacks][optimizer_monitor]") {
  auto options = callback_run::options(1, "1ep");
  const DecoupledAdamW adam{.lr = 0.01, .weight_decay = 0.0};
  options.optimizer = adam;
  Trainer trainer{tiny::net(), options, Norms{}, OptimizerMonitor{.batch_log_interval = 1},
                  InMemoryLogger{}};
  trainer.fit();
  const auto& memory = trainer.get<InMemoryLogger>();
  const auto& gradients = trainer.get<Norms>().gradients[0];
  CHECK(memory.latest("l2_norm/grad/in.weight") == Approx(gradients[0]));
  CHECK(memory.series("l2_norm/grad/in.weight").values.size() == 1);
  CHECK(memory.latest("l2_norm/param/in.weight") == Approx(trainer.get<Norms>().weights[0][0]));
  // after one step the moment is (1 - beta1) g and the update lr * sign(g)
  CHECK(memory.latest("l2_norm/moment/in.weight") == Approx(0.1 * gradients[0]));
  CHECK(memory.latest("l2_norm/update/in.weight") == Approx(0.01 * std::sqrt(32.0)).epsilon(1e-4));

  Trainer quiet{tiny::net(), options,
                OptimizerMonitor{.log_optimizer_metrics = false, .batch_log_interval = 1},
                InMemoryLogger{}};
  quiet.fit();
  CHECK(quiet.get<InMemoryLogger>().latest("l2_norm/grad/in.weight") == Approx(gradients[0]));
  CHECK_FALSE(quiet.get<InMemoryLogger>().data.contains("l2_norm/moment/in.weight"));
}

TEST_CASE("each parameter is reported by the optimizer that trains it",
          "[callbacks][optimizer_monitor]") {
  callback_run::ByHand run;
  const auto net = tiny::net();
  run.state.model = net;
  const auto parameters = net->parameters();
  for (const auto& parameter : parameters) {
    parameter.mutable_grad() = at::ones_like(parameter);
  }
  for (const std::size_t first : {0U, 2U}) {
    run.state.optimizers.push_back(
        DecoupledAdamW{.lr = 0.01}.build({parameters[first], parameters[first + 1]}));
    run.state.optimizers.back()->step();
  }
  run.advance(1, 0, std::chrono::seconds(1));
  OptimizerMonitor{.batch_log_interval = 1}.apply(BatchEnd{}, run.state);
  for (const char* name : {"in.weight", "in.bias", "out.weight", "out.bias"}) {
    CHECK(run.memory.data.contains(std::string("l2_norm/moment/") + name));
  }
}

TEST_CASE("an interval of no batches is refused", "[callbacks][optimizer_monitor]") {
  CHECK_THROWS_WITH((OptimizerMonitor{.batch_log_interval = 0}.validate()),
                    ContainsSubstring("batch_log_interval is 0, expected at least 1 batch"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
