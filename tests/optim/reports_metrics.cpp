#include <tutti/optim/reports_metrics.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/optim/sgd.h>

#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

static_assert(std::has_virtual_destructor_v<optim::ReportsMetrics>);
static_assert(std::is_abstract_v<optim::ReportsMetrics>);

TEST_CASE("the reported norms are those of the step that was taken", "[optim][adam]") {
  const at::Tensor other = torch::ones({2}).requires_grad_();
  const at::Tensor weight = torch::randn({6, 5}).requires_grad_();
  const DecoupledAdamW numbers{.lr = 0.3, .weight_decay = 0.0};
  const auto optimizer = DecoupledAdamW{}.build(
      {optim::group({other}, DecoupledAdamW{}), optim::group({weight}, numbers)});
  CHECK(optimizer->report_per_parameter_metrics(weight, "fc.weight").empty());
  weight.mutable_grad() = torch::randn({6, 5});
  const at::Tensor before = weight.detach().clone();
  optimizer->step();
  const auto metrics = optimizer->report_per_parameter_metrics(weight, "fc.weight");
  const std::vector<std::pair<std::string, at::Tensor>> expected{
      {"l2_norm/moment/fc.weight", (0.1 * weight.grad()).norm()},
      {"l2_norm/param/fc.weight", weight.detach().norm()},
      {"l2_norm/update/fc.weight", (before - weight.detach()).norm()},
      {"l2_norm/grad/fc.weight", weight.grad().norm()}};
  REQUIRE(metrics.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(metrics[i].first == expected[i].first);
    CHECK(torch::allclose(metrics[i].second, expected[i].second, 1e-4));
  }
  weight.mutable_grad().reset();
  CHECK(optimizer->report_per_parameter_metrics(weight, "fc.weight").size() == 3);
  CHECK(optimizer->report_per_parameter_metrics(other, "other").empty());
}

TEST_CASE("the reported step is amsgrad's, which the largest square so far divides",
          "[optim][adam]") {
  const at::Tensor weight = torch::zeros({1}).requires_grad_();
  const auto adam = Adam{.lr = 0.1, .betas = {0.5, 0.5}, .amsgrad = true}.build({weight});
  for (const double gradient : {8.0, 0.0}) {
    weight.mutable_grad() = torch::full({1}, gradient);
    adam->step();
  }
  // m = 2, v = 16 and the largest 32; c1 = c2 = 0.75.
  const auto metrics = adam->report_per_parameter_metrics(weight, "w");
  CHECK(metrics.at(2).first == "l2_norm/update/w");
  CHECK(metrics[2].second.item<double>() == Approx(0.1 / 0.75 * 2 / std::sqrt(32 / 0.75)));
}

TEST_CASE("who reports metrics is found by its base class", "[optim]") {
  const at::Tensor weight = torch::ones({3}).requires_grad_();
  const auto found = [](const torch::optim::Optimizer& optimizer) {
    return dynamic_cast<const optim::ReportsMetrics*>(&optimizer);
  };
  CHECK(found(*Adam{}.build({weight})) != nullptr);
  CHECK(found(torch::optim::SGD({weight}, torch::optim::SGDOptions(0.1))) == nullptr);

  const auto adam = AdamW{.lr = 0.1}.build({weight});
  weight.mutable_grad() = torch::ones({3});
  adam->step();
  for (const auto& [name, value] : found(*adam)->report_per_parameter_metrics(weight, "w")) {
    INFO(name);
    CHECK(value.dim() == 0);
    CHECK(value.device() == weight.device());
    CHECK_FALSE(value.requires_grad());
  }
}

TEST_CASE("SGD reports nothing, nor does anyone of a parameter that is not its own", "[optim]") {
  const at::Tensor weight = torch::ones({3}).requires_grad_();
  const at::Tensor stranger = torch::ones({3}).requires_grad_();
  weight.mutable_grad() = torch::ones({3});
  stranger.mutable_grad() = torch::ones({3});
  const auto sgd = DecoupledSGDW{.lr = 0.1, .momentum = 0.9}.build({weight});
  const auto adam = Adam{}.build({weight});
  sgd->step();
  adam->step();
  CHECK(sgd->report_per_parameter_metrics(weight, "w").empty());
  CHECK(adam->report_per_parameter_metrics(weight, "w").size() == 4);
  CHECK(adam->report_per_parameter_metrics(stranger, "w").empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
