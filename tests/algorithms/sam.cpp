#include <tutti/algorithms/sam.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/sgd.h>

#include <tutti/core/recipe.hpp>

#include "nn/golden_model.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::SAM;
using tutti::functional::SAMOptimizer;

static_assert(tutti::Algorithm<SAM>);
static_assert(tutti::Recipe<SAM>::valid);
static_assert(std::is_aggregate_v<SAM>);

// One vector of weights and what the loop does around a step: gradients, overflow, update.
struct Bowl {
  explicit Bowl(std::vector<float> start, double lr = 0.1) {
    w = at::tensor(start).requires_grad_();
    optimizer = std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{w, other},
                                                    torch::optim::SGDOptions(lr));
    state.model = std::make_shared<torch::nn::Module>();
    state.optimizers = {optimizer};
  }
  // closure(sync): gradients of 0.5 * |w|^2, noted with where they were taken.
  bool closure(bool sync) {
    synced.push_back(sync);
    seen.push_back(w.detach().clone());
    optimizer->zero_grad();
    (slope ? slope(w) : w.pow(2).sum() * 0.5).backward();
    return !(overflow_at == static_cast<int>(seen.size()));
  }
  void step(SAM& sam) {
    sam.step(
        state, [this](bool sync) { return closure(sync); },
        [this] {
          ++updates;
          optimizer->step();
        });
  }

  at::Tensor w;
  at::Tensor other = at::ones({2}).requires_grad_();
  std::shared_ptr<torch::optim::SGD> optimizer;
  tutti::State state;
  std::function<at::Tensor(const at::Tensor&)> slope;
  std::vector<bool> synced;
  std::vector<at::Tensor> seen;
  int overflow_at = 0;
  int updates = 0;
};

}  // namespace

TEST_CASE("SAMOptimizer agrees with the reference", "[functional][sam][golden]") {
  for (const golden::Case& c : golden::cases("SAM")) {
    auto model = golden::build_model(c.params["model"], golden::Layers::plain);
    golden::load_state(*model, c.ins("state."));
    torch::optim::SGDOptions options(c.params["sgd"]["lr"].number());
    if (const auto* momentum = c.params["sgd"].find("momentum")) {
      options.momentum(momentum->number());
    }
    const golden::Json& args = c.params["sam"];
    const auto base = std::make_shared<torch::optim::SGD>(model->parameters(), options);
    const auto* epsilon = args.find("epsilon");
    const auto* interval = args.find("interval");
    SAMOptimizer sam(base, args["rho"].number(), epsilon ? epsilon->number() : 1e-12,
                     interval ? interval->integer() : 1);
    const at::Tensor x = c.in("x");
    const at::Tensor y = c.in("y");
    std::vector<double> losses;
    for (std::int64_t s = 0; s < c.params["steps"].integer(); ++s) {
      std::int64_t calls = 0;
      const at::Tensor loss = sam.step([&] {
        ++calls;
        base->zero_grad();
        at::Tensor value = torch::nn::functional::cross_entropy(model->forward(x[s]), y[s]);
        value.backward();
        return value;
      });
      losses.push_back(loss.item<double>());
      CHECK(calls == c.expect["closure_calls"][static_cast<std::size_t>(s)].integer());
      for (const auto& p : model->named_parameters()) {
        CHECK_GOLDEN(c, "step" + std::to_string(s) + "." + p.key(), p.value().detach());
      }
    }
    if (c.has_out("loss")) {
      CHECK_GOLDEN(c, "loss", at::tensor(losses, at::kDouble));
    }
  }
}

TEST_CASE("a step follows the gradient at the worst nearby weights", "[sam]") {
  Bowl one({1.0F});
  SAM sam{.rho = 0.05};
  one.step(sam);
  CHECK(std::abs(one.w.item<double>() - 0.895) < 1e-6);
  CHECK(one.synced == std::vector<bool>{false, true});

  Bowl two({3.0F, 4.0F});
  SAM wide{.rho = 0.5};
  two.step(wide);
  CHECK(two.w.detach().allclose(at::tensor({2.67F, 3.56F})));
  CHECK(two.other.equal(at::ones({2})));  // it has no gradient
}

TEST_CASE("between intervals the steps are plain", "[sam]") {
  Bowl bowl({1.0F});
  SAM sam{.interval = 3};
  for (int i = 0; i < 7; ++i) {
    bowl.step(sam);
  }
  CHECK(bowl.synced == std::vector<bool>{true, true, false, true, true, true, false, true, true});
  CHECK(bowl.updates == 7);
}

TEST_CASE("without an update the weights come back bit for bit", "[sam][law]") {
  for (const std::int64_t n : {7, 50000}) {
    Bowl bowl({1.0F}, /*lr=*/0);
    bowl.w = at::randn({n}).requires_grad_();
    bowl.optimizer->param_groups()[0].params()[0] = bowl.w;
    const at::Tensor before = bowl.w.detach().clone();
    const void* memory = bowl.w.const_data_ptr();
    SAM sam{.rho = 3};
    bowl.step(sam);
    CHECK(bowl.w.equal(before));
    CHECK(bowl.w.const_data_ptr() == memory);
    CHECK(std::abs((bowl.seen[1] - before).norm().item<double>() - 3) < 1e-3);
    bowl.step(sam);
    CHECK(bowl.w.equal(before));
  }
}

TEST_CASE("a gradient in one pass only does no harm", "[sam]") {
  Bowl bowl({1.0F}, /*lr=*/0);
  int call = 0;
  bowl.slope = [&](const at::Tensor& w) {
    ++call;
    return call % 2 == 1 ? w.sum() : bowl.other.sum();
  };
  SAM sam{.rho = 0.5};
  bowl.step(sam);
  bowl.step(sam);
  CHECK(bowl.w.item<float>() == 1);
  CHECK(bowl.other.equal(at::ones({2})));
}

TEST_CASE("gradients of zero move nothing and make no NaN", "[sam]") {
  Bowl bowl({0.0F, 0.0F});
  SAM sam;
  bowl.step(sam);
  CHECK(bowl.seen[1].equal(at::zeros({2})));
  CHECK(bowl.w.equal(at::zeros({2})));
}

TEST_CASE("an overflow in either pass leaves the weights and makes no update", "[sam]") {
  for (const int pass : {1, 2}) {
    Bowl bowl({1.0F, 2.0F});
    bowl.overflow_at = pass;
    if (pass == 2) {
      bowl.slope = [](const at::Tensor& w) {
        return (w * std::numeric_limits<float>::infinity()).sum();
      };
    }
    const at::Tensor before = bowl.w.detach().clone();
    SAM sam;
    bowl.step(sam);
    CHECK(static_cast<int>(bowl.seen.size()) == pass);
    CHECK(bowl.w.equal(before));
    CHECK(bowl.updates == 0);
    CHECK(sam.run.steps == 1);
  }
}

TEST_CASE("an exception in the second pass leaves the weights", "[sam]") {
  Bowl bowl({1.0F, 2.0F});
  bowl.slope = [&](const at::Tensor& w) {
    if (bowl.seen.size() == 2) {
      throw std::runtime_error("no more data");
    }
    return w.sum();
  };
  const at::Tensor before = bowl.w.detach().clone();
  SAM sam{.rho = 1};
  CHECK_THROWS_WITH(bowl.step(sam), "no more data");
  CHECK_FALSE(bowl.seen[1].equal(before));
  CHECK(bowl.w.equal(before));

  auto base = std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{bowl.w},
                                                  torch::optim::SGDOptions(0.1));
  SAMOptimizer optimizer(base, 1.0);
  int calls = 0;
  CHECK_THROWS_AS(optimizer.step([&] {
    if (++calls == 2) {
      throw std::runtime_error("no more data");
    }
    at::Tensor loss = bowl.w.sum();
    loss.backward();
    return loss;
  }),
                  std::runtime_error);
  CHECK(bowl.w.equal(before));
}

TEST_CASE("running statistics learn from the first pass only, unless told otherwise", "[sam]") {
  const at::Tensor x = at::randn({8, 3});
  at::Tensor counts[2];
  at::Tensor means[2];
  for (const bool freeze : {false, true}) {
    torch::nn::BatchNorm1d norm(3);
    at::Tensor expected;
    tutti::State state;
    state.model = norm.ptr();
    const auto optimizer =
        std::make_shared<torch::optim::SGD>(norm->parameters(), torch::optim::SGDOptions(0.1));
    state.optimizers = {optimizer};
    SAM sam{.freeze_statistics = freeze};
    sam.apply(tutti::AfterLoad{}, state);
    for (int i = 0; i < 2; ++i) {
      sam.step(
          state,
          [&](bool sync) {
            optimizer->zero_grad();
            norm->forward(x + i).pow(3).sum().backward();
            expected = sync ? expected : norm->running_mean.clone();
            return true;
          },
          [&] { optimizer->step(); });
    }
    counts[freeze ? 1 : 0] = norm->num_batches_tracked.clone();
    CHECK(norm->running_mean.equal(expected) == freeze);
    CHECK(optimizer->param_groups()[0].params()[0].grad().defined());
  }
  CHECK(counts[0].item<std::int64_t>() == 4);
  CHECK(counts[1].item<std::int64_t>() == 2);
}

TEST_CASE("SAM: a resumed run goes on as the saved one", "[sam][resume]") {
  Bowl whole({1.0F});
  SAM first{.rho = 0.2, .interval = 2};
  for (int i = 0; i < 3; ++i) {
    whole.step(first);
  }
  tutti::Archive archive;
  first.save(archive);
  Bowl resumed({whole.w.item<float>()});
  SAM second{.rho = 0.2, .interval = 2};
  second.load(archive);
  for (int i = 0; i < 3; ++i) {
    whole.step(first);
    resumed.step(second);
  }
  CHECK(resumed.w.equal(whole.w));
}

TEST_CASE("numbers out of range are refused with what was got", "[sam]") {
  CHECK_THROWS_WITH(SAM{.rho = 0}.validate(), ContainsSubstring("rho is 0, expected more than 0"));
  CHECK_THROWS_WITH(SAM{.interval = 0}.validate(), ContainsSubstring("interval is 0"));
  CHECK_THROWS_WITH(SAM{.epsilon = 0}.validate(), ContainsSubstring("epsilon is 0"));
  SAM{}.validate();
  auto base = std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{at::ones({1})},
                                                  torch::optim::SGDOptions(0.1));
  CHECK_THROWS_WITH(SAMOptimizer(base, -1), ContainsSubstring("rho is -1"));
  CHECK_THROWS_WITH(SAMOptimizer(nullptr), ContainsSubstring("the base optimizer is null"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
