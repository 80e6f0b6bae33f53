#include <tutti/nn/optimizers.hpp>

#include <memory>
#include <vector>

#include <torch/optim/sgd.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::surgery::Optimizers;
using All = std::vector<torch::optim::Optimizer*>;

All all(const Optimizers& optimizers) {
  return All(optimizers.begin(), optimizers.end());
}

std::shared_ptr<torch::optim::Optimizer> sgd() {
  return std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{torch::zeros({2})},
                                             torch::optim::SGDOptions(0.1));
}

}  // namespace

TEST_CASE("optimizers are seen in the order in which callers have them", "[surgery][optim]") {
  const auto first = sgd();
  const auto second = sgd();
  CHECK(all(*first) == All{first.get()});
  CHECK(all({second.get(), first.get()}) == All{second.get(), first.get()});
  const std::vector<std::shared_ptr<torch::optim::Optimizer>> of_a_state{first, second};
  CHECK(all(of_a_state) == All{first.get(), second.get()});
  CHECK(first.use_count() == 2);  // a view owns nothing
}

TEST_CASE("no optimizer at all is allowed", "[surgery][optim]") {
  CHECK(Optimizers().empty());
  CHECK(all({}).empty());
  CHECK(Optimizers(std::vector<std::shared_ptr<torch::optim::Optimizer>>{}).empty());
  const auto one = sgd();
  CHECK_FALSE(Optimizers(*one).empty());
}

TEST_CASE("null is left out, and an optimizer that is named twice is seen once",
          "[surgery][optim]") {
  const auto one = sgd();
  CHECK(all({nullptr, one.get(), nullptr}) == All{one.get()});
  CHECK(Optimizers({nullptr, nullptr}).empty());
  CHECK(all({one.get(), one.get()}) == All{one.get()});
  const std::vector<std::shared_ptr<torch::optim::Optimizer>> with_gaps{nullptr, one, nullptr, one};
  CHECK(all(with_gaps) == All{one.get()});
}

TEST_CASE("a parameter is forgotten with its state, in every group", "[surgery][optim]") {
  using tutti::surgery::forget;
  using tutti::surgery::holds;
  at::Tensor kept = torch::ones({2}, torch::requires_grad());
  at::Tensor gone = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD first({torch::optim::OptimizerParamGroup({kept, gone}),
                           torch::optim::OptimizerParamGroup({torch::ones({1})})},
                          torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD second({gone}, torch::optim::SGDOptions(0.1));
  (kept + gone).sum().backward();
  first.step();
  REQUIRE(first.state().count(gone.unsafeGetTensorImpl()) == 1);
  CHECK(holds({&second, &first}, kept.unsafeGetTensorImpl()));
  CHECK_FALSE(holds(second, kept.unsafeGetTensorImpl()));
  CHECK_FALSE(holds({}, kept.unsafeGetTensorImpl()));
  forget({&first, &second}, {gone.unsafeGetTensorImpl()});
  CHECK_FALSE(holds({&first, &second}, gone.unsafeGetTensorImpl()));
  CHECK(first.state().count(gone.unsafeGetTensorImpl()) == 0);
  CHECK(first.state().count(kept.unsafeGetTensorImpl()) == 1);
  CHECK(first.param_groups().at(0).params().size() == 1);
  CHECK(second.param_groups().at(0).params().empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
