#include <tutti/algorithms/local_sgd.hpp>

#include <memory>
#include <string>

#include <ATen/ATen.h>

#include <tutti/algorithms/diloco.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/core/recipe.hpp>

#include "support/catch.hpp"
#include "support/tiny.hpp"
#include "support/two_ranks.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// What two ranks train with it is in dist/local_training.cpp.

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::LocalSGD;

static_assert(tutti::Algorithm<LocalSGD>);
static_assert(tutti::Recipe<LocalSGD>::valid);
static_assert(std::is_aggregate_v<LocalSGD>);
static_assert(!tutti::detail::can_be_combined<LocalSGD, tutti::DiLoCo>);
static_assert(!tutti::detail::can_be_combined<LocalSGD, tutti::EMA>);

}  // namespace

TEST_CASE("LocalSGD meets every interval, and after every batch until start", "[local_sgd]") {
  const auto meets = [](const LocalSGD& policy, std::int64_t batch) {
    tutti::State state;
    state.timestamp.batch = batch;
    return policy.match(tutti::BatchEnd{}, state);
  };
  const LocalSGD plain{.interval = "3ba"};
  CHECK_FALSE(meets(plain, 1));
  CHECK_FALSE(meets(plain, 2));
  CHECK(meets(plain, 3));
  CHECK_FALSE(meets(plain, 4));
  const LocalSGD late{.interval = "3ba", .start = "2ba"};
  CHECK(meets(late, 1));
  CHECK(meets(late, 2));
  CHECK_FALSE(meets(late, 4));
  CHECK(meets(late, 5));
}

TEST_CASE("average_parameters leaves frozen parameters alone", "[functional][local_sgd]") {
  TwoRanks::run([](const std::shared_ptr<FakeCommunicator>& group) {
    tiny::Net net;
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : net.parameters()) {
      parameter.fill_(1);
    }
    net.out->bias.set_requires_grad(false);
    tutti::functional::average_parameters(net, *group);
    const double sum = net.in->weight[0][0].item<double>();  // these two ranks add
    const double frozen = net.out->bias[0].item<double>();
    if (sum != 2 || frozen != 1) {
      throw std::runtime_error("got " + std::to_string(sum) + ", " + std::to_string(frozen));
    }
  });
}

TEST_CASE("options of LocalSGD out of range are refused", "[local_sgd]") {
  const auto refusal = [](const LocalSGD& policy) {
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
  CHECK_THAT(refusal({.interval = "1ep"}), ContainsSubstring("LocalSGD: interval"));
  CHECK_THAT(refusal({.interval = "0ba"}), ContainsSubstring("1ba or more"));
  CHECK_THAT(refusal({.start = "1ep"}), ContainsSubstring("LocalSGD: start"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
