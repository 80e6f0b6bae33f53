#include <tutti/optim/class_name.hpp>

#include "support/catch.hpp"

#include <memory>
#include <utility>
#include <vector>

#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

namespace {

struct Own final : torch::optim::SGD {
  using torch::optim::SGD::SGD;
};

// As users wrap one optimizer by another.
template <class Inner, class... More>
struct Lookahead final : torch::optim::SGD {
  using torch::optim::SGD::SGD;
};

template <class T>
std::unique_ptr<torch::optim::Optimizer> local_to_a_template(std::vector<at::Tensor> parameters) {
  struct Local final : torch::optim::SGD {
    using torch::optim::SGD::SGD;
  };
  return std::make_unique<Local>(std::move(parameters), torch::optim::SGDOptions(0.1));
}

}  // namespace

TEST_CASE("an optimizer is called as in Python", "[optim]") {
  const std::vector<at::Tensor> parameters{at::zeros({2}).requires_grad_()};
  CHECK(optim::class_name(*DecoupledAdamW{}.build(parameters)) == "DecoupledAdamW");
  CHECK(optim::class_name(*DecoupledSGDW{.lr = 0.1}.build(parameters)) == "DecoupledSGDW");
  CHECK(optim::class_name(*Adam{}.build(parameters)) == "Adam");
  CHECK(optim::class_name(*AdamW{}.build(parameters)) == "AdamW");
  CHECK(optim::class_name(*SGD{.lr = 0.1}.build(parameters)) == "SGD");
  CHECK(optim::class_name(torch::optim::RMSprop(parameters)) == "RMSprop");
}

TEST_CASE("an optimizer of a user's is called by its class, not by what that is made of",
          "[optim]") {
  const std::vector<at::Tensor> parameters{at::zeros({2}).requires_grad_()};
  const torch::optim::SGDOptions options(0.1);
  CHECK(optim::class_name(Own(parameters, options)) == "Own");
  CHECK(optim::class_name(Lookahead<torch::optim::RMSprop>(parameters, options)) == "Lookahead");
  CHECK(optim::class_name(Lookahead<std::vector<int>, Lookahead<int>>(parameters, options)) ==
        "Lookahead");
  CHECK(optim::class_name(*local_to_a_template<std::vector<int>>(parameters)) == "Local");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
