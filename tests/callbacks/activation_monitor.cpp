#include <tutti/callbacks/activation_monitor.hpp>

#include <tutti/core/with.hpp>
#include <tutti/nn/embedding.hpp>
#include <tutti/nn/linear.hpp>

#include "callbacks/run.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<ActivationMonitor> == Role::callback);
static_assert(Recipe<With<ActivationMonitor{.interval = "50ba"}>>::valid);

namespace {

struct Net : torch::nn::Module {
  Net() {
    in = register_module("in", nn::Linear(4, 8));
    out = register_module("out", nn::Linear(8, 2));
  }
  Outputs forward(const Batch& batch) {
    hidden.push_back(in->forward(batch.inputs()).detach());
    TORCH_CHECK(hidden.size() != fail_at, "no more");
    return out->forward(hidden.back());
  }
  Loss loss(const Outputs& outputs, const Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  nn::Linear in{nullptr}, out{nullptr};
  std::vector<at::Tensor> hidden;
  std::size_t fail_at = 0;
};

std::shared_ptr<Net> net() {
  at::manual_seed(1);
  return std::make_shared<Net>();
}

}  // namespace

TEST_CASE("what goes into a layer and comes out is described on due batches",
          "[callbacks][activation_monitor]") {
  auto model = net();
  Trainer trainer{model, callback_run::options(5, "1ep"), ActivationMonitor{.interval = "2ba"},
                  InMemoryLogger{}};
  trainer.fit();
  const auto& memory = trainer.get<InMemoryLogger>();
  const auto& norms = memory.series("activations/l2_norm/out_input.0");
  REQUIRE(norms.values.size() == 3);
  CHECK(norms.timestamps[1].batch == 2);
  const at::Tensor x = model->hidden[2];  // [6, 8]
  CHECK(norms.values[1] == Approx(x.norm(2, -1).mean().item<double>()));
  CHECK(memory.series("activations/average/out_input.0").values[1] ==
        Approx(x.mean().item<double>()));
  CHECK(memory.series("activations/max/out_input.0").values[1] ==
        Approx(x.amax(-1).mean().item<double>()));
  const at::Tensor centred = x - x.mean(-1, true);
  const at::Tensor kurtosis = (centred.pow(4).mean(-1) / x.var(-1, /*unbiased=*/false).pow(2));
  CHECK(memory.series("activations/kurtosis/out_input.0").values[1] ==
        Approx(kurtosis.mean().item<double>()));
  CHECK(memory.latest("activations/l2_norm/in_output.0") ==
        memory.latest("activations/l2_norm/out_input.0"));
  CHECK(memory.data.contains("activations/max/in_input.0"));
  CHECK(memory.data.contains("activations/max/out_output.0"));
}

TEST_CASE("an interval may be in epochs, and of several microbatches the last is watched",
          "[callbacks][activation_monitor]") {
  auto model = net();
  auto options = callback_run::options(3, "2ep");  // batches of 6
  options.device_train_microbatch_size = 2;
  Trainer trainer{model, options, ActivationMonitor{.interval = "1ep"}, InMemoryLogger{}};
  trainer.fit();
  const auto& norms = trainer.get<InMemoryLogger>().series("activations/l2_norm/out_input.0");
  REQUIRE(norms.values.size() == 2);
  for (const std::size_t epoch : {0U, 1U}) {
    CHECK(norms.timestamps[epoch].batch == static_cast<std::int64_t>(3 * epoch));
    const at::Tensor x = model->hidden[9 * epoch + 2];  // [2, 8]
    CHECK(norms.values[epoch] == Approx(x.norm(2, -1).mean().item<double>()));
  }
}

TEST_CASE("watching changes nothing", "[callbacks][activation_monitor][law]") {
  auto watched = net();
  auto plain = net();
  Trainer with{watched, callback_run::options(4, "1ep"), ActivationMonitor{.interval = "1ba"},
               InMemoryLogger{}};
  Trainer<> without(plain, callback_run::options(4, "1ep"));
  with.fit();
  without.fit();
  CHECK(tiny::flat(*watched).equal(tiny::flat(*plain)));
  CHECK_FALSE(watched->in->slot());
}

TEST_CASE("what stands in for a layer goes on doing so", "[callbacks][activation_monitor]") {
  struct Zero : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return x.new_zeros({x.size(0), 2}); }
  };
  auto model = net();
  const auto zero = std::make_shared<Zero>();
  model->out->slot() = nn::Slot(zero);
  model->out->weight.set_requires_grad(false);
  tutti::detail::ActivationWatch watch;
  watch.start(*model, {});
  CHECK(model->forward(Batch(at::ones({3, 4}))).tensor().sum().item<double>() == 0.0);
  REQUIRE(watch.sink.names ==
          std::vector<std::string>{"in_input.0", "in_output.0", "out_input.0", "out_output.0"});
  watch.stop();
  CHECK(model->out->slot().module() == zero);
  CHECK(watch.empty());
}

TEST_CASE("layers can be left out and integers are", "[callbacks][activation_monitor]") {
  struct Both : torch::nn::Module {
    Both() {
      wte = register_module("wte", nn::Embedding(5, 4));
      head = register_module("head", nn::Linear(4, 2));
    }
    nn::Embedding wte{nullptr};
    nn::Linear head{nullptr};
  } model;
  tutti::detail::ActivationWatch watch;
  watch.start(model, {"head"});
  model.head->forward(model.wte->forward(at::ones({2, 3}, at::kLong)));
  CHECK(watch.sink.names == std::vector<std::string>{"wte_output.0"});
}

TEST_CASE("after an exception the layers are themselves again", "[callbacks][activation_monitor]") {
  auto model = net();
  model->fail_at = 1;
  Trainer trainer{model, callback_run::options(2, "1ep"), ActivationMonitor{.interval = "1ba"},
                  InMemoryLogger{}};
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("no more"));
  CHECK_FALSE(model->in->slot());
  CHECK_FALSE(model->out->slot());
}

TEST_CASE("a batch that is tried again is watched anew", "[callbacks][activation_monitor]") {
  callback_run::ByHand run;
  auto model = net();
  run.state.model = model;
  ActivationMonitor monitor;
  const Batch batch(at::ones({6, 4}));
  monitor.apply(BeforeForward{}, run.state);
  model->forward(batch);  // and then memory runs out
  REQUIRE(monitor.match(BeforeTrainBatch{}, run.state));
  monitor.apply(BeforeTrainBatch{}, run.state);
  CHECK_FALSE(model->in->slot());
  REQUIRE(monitor.match(BeforeForward{}, run.state));
  monitor.apply(BeforeForward{}, run.state);
  model->forward(batch);
  monitor.apply(AfterForward{}, run.state);
  CHECK(run.memory.series("activations/max/in_input.0").values.size() == 1);
  CHECK_FALSE(monitor.match(BeforeTrainBatch{}, run.state));
}

TEST_CASE("a model without layers that can be watched is refused",
          "[callbacks][activation_monitor]") {
  Trainer trainer{tiny::net(), callback_run::options(2, "1ep"), ActivationMonitor{}};
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("no layer that can be watched"));
  CHECK_THROWS_WITH((ActivationMonitor{.interval = "5sec"}.validate()),
                    ContainsSubstring("interval is 5sec, expected at least 1ba or 1ep"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
