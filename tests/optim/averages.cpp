#include <tutti/optim/averages.hpp>

#include "optim/golden_steps.hpp"

#include <string>

#include <tutti/checkpoint/optimizer_state.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedule_free.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("schedule-free optimizers put their averages in and out", "[optim][averages][golden]") {
  const auto check = [](const std::string& name, const auto& hyper) {
    INFO(name);
    const Tensors weights = first_weights(at::kFloat, false);
    const auto optimizer = hyper.build(weights);
    for (std::size_t step = 0; step < factors.size(); ++step) {
      take_step(*optimizer, weights, hyper.lr, step);
    }
    Tensors before;
    for (const at::Tensor& weight : weights) {
      before.push_back(weight.detach().clone());
    }
    Archive archive;
    Tensors fresh = first_weights(at::kFloat, false);
    {
      const optim::AveragesInUse averages({optimizer});
      const optim::AveragesInUse within({optimizer});  // leaves it to the first
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const at::Tensor want = tensors().at(name + "/x" + std::to_string(i));
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

}  // namespace UNITY_BUILD_UNIQUE_ID
