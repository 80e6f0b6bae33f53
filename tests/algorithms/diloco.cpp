#include <tutti/algorithms/diloco.hpp>

#include <memory>
#include <string>

#include <ATen/ATen.h>

#include <tutti/algorithms/layer_freezing.hpp>
#include <tutti/algorithms/local_sgd.hpp>
#include <tutti/algorithms/swa.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/dist/communicator.hpp>

#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// What two ranks train with it is in dist/local_training.cpp.

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::DiLoCo;

static_assert(tutti::Algorithm<DiLoCo>);
static_assert(tutti::Recipe<DiLoCo>::valid);
static_assert(std::is_aggregate_v<DiLoCo>);
static_assert(!tutti::detail::can_be_combined<DiLoCo, tutti::LocalSGD>);
static_assert(!tutti::detail::can_be_combined<DiLoCo, tutti::SWA>);
static_assert(!tutti::detail::can_be_combined<DiLoCo, tutti::LayerFreezing>);

tutti::State state_of(const std::shared_ptr<tiny::Net>& net) {
  tutti::State state;
  state.model = net;
  state.communicator = std::make_shared<tutti::dist::SingleProcess>();
  return state;
}

void move(const std::shared_ptr<tiny::Net>& net, double by) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : net->parameters()) {
    parameter.add_(by);
  }
}

}  // namespace

TEST_CASE("DiLoCo makes the outer step after so many inner ones", "[diloco]") {
  const auto net = tiny::net();
  tutti::State state = state_of(net);
  const at::Tensor start = tiny::flat(*net);
  DiLoCo policy{.interval = "2ba", .outer_lr = 0.5, .outer_momentum = 0};
  policy.apply(tutti::FitStart{}, state);
  move(net, 1);
  policy.apply(tutti::BatchEnd{}, state);
  CHECK(tiny::flat(*net).allclose(start + 1));
  move(net, 1);
  policy.apply(tutti::BatchEnd{}, state);
  CHECK(tiny::flat(*net).allclose(start + 1));  // half of the way of 2
  policy.apply(tutti::FitEnd{}, state);         // nothing was trained since
  CHECK(tiny::flat(*net).allclose(start + 1));
}

TEST_CASE("DiLoCo's start and velocity are saved and loaded", "[diloco]") {
  const auto net = tiny::net();
  tutti::State state = state_of(net);
  DiLoCo policy{.interval = "1ba"};
  policy.apply(tutti::FitStart{}, state);
  move(net, 1);
  policy.apply(tutti::BatchEnd{}, state);
  tutti::Archive archive;
  policy.save(archive);
  const auto other = tiny::net();
  {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < other->parameters().size(); ++i) {
      other->parameters()[i].copy_(net->parameters()[i]);
    }
  }
  tutti::State of_other = state_of(other);
  DiLoCo loaded{.interval = "1ba"};
  loaded.load(archive);
  CHECK_FALSE(loaded.match(tutti::FitStart{}, of_other));
  for (int step = 0; step < 2; ++step) {
    move(net, 1);
    move(other, 1);
    policy.apply(tutti::BatchEnd{}, state);
    loaded.apply(tutti::BatchEnd{}, of_other);
    CHECK(tiny::flat(*net).equal(tiny::flat(*other)));
  }
}

TEST_CASE("a parameter that is gone is named by the outer step", "[diloco]") {
  tutti::functional::OuterStep step(*tiny::net());
  torch::nn::Linear another(2, 2);
  tutti::dist::SingleProcess alone;
  try {
    step(*another, alone, 1, 0);
    FAIL("another model was taken");
  } catch (const c10::Error& error) {
    CHECK_THAT(error.what_without_backtrace(),
               ContainsSubstring("the parameter 'in.weight' is gone"));
  }
}

TEST_CASE("options of DiLoCo out of range are refused", "[diloco]") {
  const auto refusal = [](const DiLoCo& policy) {
    try {
      policy.validate();
    } catch (const c10::ValueError& error) {
      return std::string(error.what_without_backtrace());
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  CHECK(refusal({}) == "nothing");
  CHECK_THAT(refusal({.interval = "1ep"}), ContainsSubstring("DiLoCo: interval"));
  CHECK_THAT(refusal({.outer_lr = 0}), ContainsSubstring("DiLoCo: outer_lr"));
  CHECK_THAT(refusal({.outer_momentum = 1}), ContainsSubstring("DiLoCo: outer_momentum"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
