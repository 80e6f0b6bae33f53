#include <tutti/optim/lookahead.hpp>

#include "support/catch.hpp"

#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <tutti/checkpoint/optimizer_state.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/averages.hpp>
#include <tutti/optim/class_name.hpp>
#include <tutti/optim/schedule_free.hpp>

// Lookahead, and the averages of schedule-free optimizers, against golden.py's numbers.

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

using Tensors = std::vector<at::Tensor>;

constexpr std::array<double, 8> factors{1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 1.0, 0.75};

std::map<std::string, at::Tensor> read() {
  std::map<std::string, at::Tensor> out;
  const auto path = std::filesystem::path(TUTTI_SOURCE_DIR) / "tests/optim/golden.safetensors";
  for (const auto& [name, tensor] : checkpoint::read_safetensors(path)) {
    out[name] = tensor;
  }
  return out;
}

Tensors weights_of(const std::map<std::string, at::Tensor>& golden) {
  Tensors out;
  for (const char* const name : {"p0", "p1", "p2"}) {
    out.push_back(golden.at(name).clone().requires_grad_());
  }
  return out;
}

template <class Optimizer>
void take_step(Optimizer& optimizer, const Tensors& weights, double lr, std::size_t step,
               const std::map<std::string, at::Tensor>& golden) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i].mutable_grad() =
        golden.at("g" + std::to_string(i))[static_cast<std::int64_t>(step)].clone();
  }
  optimizer.param_groups()[0].options().set_lr(lr * factors[step]);
  optimizer.step();
}

constexpr double lr = 0.1;

}  // namespace

TEST_CASE("Lookahead takes the steps of pytorch_optimizer's", "[optim][lookahead][golden]") {
  const auto golden = read();
  const Lookahead<AdamW> hyper{.optimizer = {.lr = lr}, .k = 3, .alpha = 0.4};
  const Tensors weights = weights_of(golden);
  const auto optimizer = hyper.build(weights);
  CHECK(optim::class_name(*optimizer) == "Lookahead");
  for (std::size_t step = 0; step < 4; ++step) {
    take_step(*optimizer, weights, lr, step, golden);
  }
  CHECK(optimizer->state_of(weights[0])->step == 4);
  CHECK_FALSE(optimizer->report_per_parameter_metrics(weights[0], "w").empty());
  Archive archive;
  checkpoint::save_optimizer(*optimizer, archive);
  Tensors others;
  for (const at::Tensor& weight : weights) {
    others.push_back(weight.detach().clone().requires_grad_());
  }
  const auto resumed = hyper.build(others);
  checkpoint::load_optimizer(*resumed, archive);
  for (std::size_t step = 4; step < factors.size(); ++step) {
    take_step(*optimizer, weights, lr, step, golden);
    take_step(*resumed, others, lr, step, golden);
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor want = golden.at("Lookahead/p" + std::to_string(i))[1];
    CHECK(at::allclose(weights[i].detach().to(at::kDouble), want, 2e-5, 2e-5));
    CHECK(at::equal(weights[i], others[i]));
    CHECK(at::equal(optimizer->slow_weights(weights[i]), resumed->slow_weights(others[i])));
  }
}

TEST_CASE("averages are left where the weights begin anew", "[optim][lookahead][sweep]") {
  const Tensors weights{torch::ones({20}).requires_grad_()};
  const auto optimizer = Lookahead<AdamW>{.optimizer = {.lr = lr}, .k = 2}.build(weights);
  const Tensors averages{torch::zeros({20})};
  for (const int step : {1, 2, 3}) {
    weights[0].mutable_grad() = torch::ones({20});
    std::vector<char> done{0};
    optimizer->step({.scale = 0.5,
                     .averaging = {.averages = &averages,
                                   .weights = &weights,
                                   .version = 1,
                                   .smoothing = 0.5,
                                   .done = &done}});
#if defined(__x86_64__)
    CHECK(done[0] == (step == 2 ? 0 : 1));
#endif
    CHECK(at::equal(weights[0].grad(), torch::full({20}, 0.5)));
  }
}

TEST_CASE("Lookahead adds groups and refuses what cannot be", "[optim][lookahead][error]") {
  const Tensors weights{torch::ones({2}).requires_grad_()};
  const auto optimizer = Lookahead<AdamW>{.optimizer = {.lr = lr}}.build(weights);
  const at::Tensor later = torch::ones({2}).requires_grad_();
  optimizer->add_param_group(optim::group({later}, AdamW{.lr = 1.0}));
  REQUIRE(optimizer->param_groups().size() == 2);
  later.mutable_grad() = torch::ones({2});
  optimizer->step();
  CHECK(later[0].item<float>() < 0.5F);
  CHECK_THROWS_WITH((Lookahead<AdamW>{.k = 0}.build(weights)), ContainsSubstring("k is 0"));
  CHECK_THROWS_WITH((Lookahead<AdamW>{.alpha = 2}.build(weights)), ContainsSubstring("alpha is 2"));
  Archive plain;
  AdamW{}.build(weights)->save(plain);
  CHECK_THROWS_WITH((Lookahead<AdamW>{}.build(weights)->load(plain)),
                    ContainsSubstring("without Lookahead"));
}

TEST_CASE("schedule-free optimizers put their averages in and out", "[optim][averages][golden]") {
  const auto golden = read();
  const auto check = [&](const std::string& name, const auto& hyper) {
    INFO(name);
    const Tensors weights = weights_of(golden);
    const auto optimizer = hyper.build(weights);
    for (std::size_t step = 0; step < factors.size(); ++step) {
      take_step(*optimizer, weights, hyper.lr, step, golden);
    }
    Tensors before;
    for (const at::Tensor& weight : weights) {
      before.push_back(weight.detach().clone());
    }
    Archive archive;
    Tensors fresh = weights_of(golden);
    {
      const optim::AveragesInUse averages({optimizer});
      const optim::AveragesInUse within({optimizer});  // leaves it to the first
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const at::Tensor want = golden.at(name + "/x" + std::to_string(i));
        CHECK(at::allclose(weights[i].detach().to(at::kDouble), want, 2e-5, 2e-5));
      }
      CHECK_THROWS_WITH(optimizer->step(), ContainsSubstring("the model holds the averages"));
      checkpoint::save_optimizer(*optimizer, archive);
    }
    const auto loaded = hyper.build(fresh);
    checkpoint::load_optimizer(*loaded, archive);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      CHECK(at::equal(weights[i], before[i]));
      CHECK(at::equal(fresh[i], before[i]));
    }
  };
  check(
      "ScheduleFreeSGD/all",
      ScheduleFreeSGD{.lr = 0.1, .momentum = 0.8, .weight_decay = 0.1, .warmup_steps = 4, .r = 1});
  check("ScheduleFreeAdamW", ScheduleFreeAdamW{});
}

TEST_CASE("policies that average refuse optimizers that do", "[optim][averages][error]") {
  const Tensors weights{torch::ones({2}).requires_grad_()};
  CHECK_THROWS_WITH(optim::refuse_averages({ScheduleFreeSGD{}.build(weights)}, "EMA"),
                    ContainsSubstring("EMA: ScheduleFreeSGD averages its weights itself"));
  CHECK_NOTHROW(optim::refuse_averages({AdamW{}.build(weights)}, "EMA"));
}
