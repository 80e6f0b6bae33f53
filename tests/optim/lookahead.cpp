#include <tutti/optim/lookahead.hpp>

#include "optim/golden_steps.hpp"

#include <string>
#include <vector>

#include <tutti/checkpoint/optimizer_state.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/class_name.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr double lr = 0.1;

}  // namespace

TEST_CASE("Lookahead takes the steps of pytorch_optimizer's", "[optim][lookahead][golden]") {
  const Lookahead<AdamW> hyper{.optimizer = {.lr = lr}, .k = 3, .alpha = 0.4};
  const Tensors weights = first_weights(at::kFloat, false);
  const auto optimizer = hyper.build(weights);
  CHECK(optim::class_name(*optimizer) == "Lookahead");
  for (std::size_t step = 0; step < 4; ++step) {
    take_step(*optimizer, weights, lr, step);
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
    take_step(*optimizer, weights, lr, step);
    take_step(*resumed, others, lr, step);
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor want = tensors().at("Lookahead/p" + std::to_string(i))[1];
    CHECK(at::allclose(weights[i].detach().to(at::kDouble), want, 2e-5, 2e-5));
    CHECK(at::equal(weights[i], others[i]));
    CHECK(at::equal(optimizer->slow_weights(weights[i]), resumed->slow_weights(others[i])));
  }
}

TEST_CASE("Lookahead goes on bit for bit with parameters that had no gradient yet",
          "[optim][lookahead][resume]") {
  const Lookahead<AdamW> hyper{.optimizer = {.lr = lr}, .k = 2};
  const auto train = [](auto& optimizer, const Tensors& weights, int from, int to) {
    for (int step = from; step < to; ++step) {
      weights[0].mutable_grad() = weights[0].detach() + step;
      if (step > 3) {  // given back to training
        weights[1].mutable_grad() = weights[1].detach() - step;
      }
      optimizer.step();
    }
  };
  const Tensors whole{torch::ones({3}).requires_grad_(), torch::ones({2}).requires_grad_(),
                      torch::ones({2}).requires_grad_()};
  const auto optimizer = hyper.build(whole);
  train(*optimizer, whole, 0, 3);
  Archive archive;
  checkpoint::save_optimizer(*optimizer, archive);
  Tensors resumed_weights;
  for (const at::Tensor& weight : whole) {
    resumed_weights.push_back(weight.detach().clone().requires_grad_());
  }
  const auto resumed = hyper.build(resumed_weights);
  checkpoint::load_optimizer(*resumed, archive);
  CHECK(resumed->state_of(resumed_weights[1]) == nullptr);
  train(*optimizer, whole, 3, 8);
  train(*resumed, resumed_weights, 3, 8);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    CHECK(at::equal(whole[i], resumed_weights[i]));
    CHECK(at::equal(optimizer->slow_weights(whole[i]), resumed->slow_weights(resumed_weights[i])));
  }
  CHECK(resumed->state_of(resumed_weights[1])->step == 4);
  CHECK(resumed->state_of(resumed_weights[2]) == nullptr);
}

TEST_CASE("averages are left where the weights begin anew", "[optim][lookahead][fused_step]") {
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

}  // namespace UNITY_BUILD_UNIQUE_ID
