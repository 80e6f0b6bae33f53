#include <tutti/nn/sequential.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <tutti/nn/slot.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;

static_assert(nn::TensorModule<nn::SequentialImpl>);
static_assert(std::is_same_v<nn::Sequential::Impl, nn::SequentialImpl>);

}  // namespace

TEST_CASE("a Sequential chains its modules, one inside the other too", "[nn][law]") {
  torch::nn::Linear first(3, 4);
  torch::nn::Linear second(4, 4);
  torch::nn::Linear third(4, 2);
  nn::Sequential model(first, nn::Sequential(torch::nn::Tanh(), nn::Sequential(second)), third);
  const at::Tensor x = torch::randn({5, 3});
  const at::Tensor expected = third->forward(second->forward(first->forward(x).tanh()));
  CHECK(model(x).equal(expected));
  CHECK(model->forward(x).equal(expected));
  CHECK(model->size() == 3);
  CHECK(model->named_parameters().keys() == std::vector<std::string>{"0.weight", "0.bias",
                                                                     "1.1.0.weight", "1.1.0.bias",
                                                                     "2.weight", "2.bias"});
}

TEST_CASE("the children of a Sequential may be named, and more may be added", "[nn]") {
  nn::Sequential model({{"up", torch::nn::Linear(3, 4)}, {"act", torch::nn::Tanh()}});
  model->push_back("down", torch::nn::Linear(4, 2));
  CHECK(model->named_children().keys() == std::vector<std::string>{"up", "act", "down"});
  CHECK(model(torch::randn({5, 3})).sizes() == std::vector<std::int64_t>{5, 2});
}

TEST_CASE("an empty Sequential says so when it is called", "[nn]") {
  nn::Sequential model;
  CHECK(model->is_empty());
  CHECK_THROWS_WITH(model(torch::randn({1})),
                    Catch::Matchers::ContainsSubstring("empty Sequential"));
  CHECK(std::dynamic_pointer_cast<nn::SequentialImpl>(model->clone())->is_empty());
  const nn::Sequential none{nullptr};
  CHECK(none.is_empty());
}

TEST_CASE("a Sequential clones deeply, with its names, and nests as a copy too", "[nn][law]") {
  nn::Sequential inner({{"drop", torch::nn::Dropout(0.5)}, {"act", torch::nn::Tanh()}});
  nn::Sequential model({{"up", torch::nn::Linear(3, 4)}, {"inner", inner}});
  model->eval();
  const at::Tensor x = torch::randn({5, 3});

  const auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(model->clone());
  REQUIRE(copy != nullptr);
  CHECK(copy->named_children().keys() == std::vector<std::string>{"up", "inner"});
  CHECK(copy->at<nn::SequentialImpl>(1).named_children().keys() ==
        std::vector<std::string>{"drop", "act"});
  CHECK(copy->forward(x).equal(model->forward(x)));
  CHECK(nn::Sequential(copy)(x).equal(model->forward(x)));

  torch::NoGradGuard no_grad;
  copy->at<torch::nn::LinearImpl>(0).weight.zero_();
  CHECK_FALSE(copy->forward(x).equal(model->forward(x)));
  CHECK(copy->parameters()[0].is_same(copy->at<torch::nn::LinearImpl>(0).weight));
}

TEST_CASE("what is frozen in a Sequential is frozen in its copy", "[nn]") {
  torch::nn::Linear frozen(2, 2);
  frozen->weight.set_requires_grad(false);
  nn::Sequential model(torch::nn::Linear(2, 2), nn::Sequential(frozen));
  const auto copy = model->clone()->named_parameters();
  CHECK(copy["0.weight"].requires_grad());
  CHECK_FALSE(copy["1.0.weight"].requires_grad());
  CHECK(copy["1.0.bias"].requires_grad());
}

TEST_CASE("a copy of a Sequential is in the mode of each of its parts", "[nn]") {
  nn::Sequential model(torch::nn::Dropout(0.5), nn::Sequential(torch::nn::Dropout(0.5)));
  for (const bool training : {false, true}) {
    model->train(training);
    model[0]->train(!training);  // as a user freezes one layer
    const auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(model->clone());
    REQUIRE(copy != nullptr);
    CHECK(copy->is_training() == training);
    CHECK(copy->ptr(0)->is_training() == !training);
    CHECK(copy->ptr(1)->is_training() == training);
    CHECK(copy->at<nn::SequentialImpl>(1).ptr(0)->is_training() == training);
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
