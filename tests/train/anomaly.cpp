#include <tutti/train/anomaly.hpp>

#include <stdexcept>

#include <ATen/ATen.h>

#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using torch::autograd::AnomalyMode;

TEST_CASE("anomaly mode is on for as long as it is wanted, and then as before",
          "[train][anomaly]") {
  CHECK_FALSE(AnomalyMode::is_enabled());
  {
    const train::AnomalyScope off(false);
    CHECK_FALSE(AnomalyMode::is_enabled());
    const train::AnomalyScope on(true);
    CHECK(AnomalyMode::is_enabled());
    CHECK(AnomalyMode::should_check_nan());
  }
  CHECK_FALSE(AnomalyMode::is_enabled());
}

TEST_CASE("an anomaly is explained with the batch and the parameters", "[train][anomaly]") {
  State state;
  const auto net = tiny::net();
  state.model = net;
  state.loss = at::full({}, 2.5);
  state.timestamp.batch = 12;
  {
    const at::NoGradGuard no_grad;
    net->in->bias[0] = std::nan("");
  }
  net->out->weight.mutable_grad() = at::full_like(net->out->weight, std::nan(""));
  CHECK_THROWS_WITH(
      train::explain_anomaly(state, std::runtime_error("Function 'X' returned nan values in it.")),
      ContainsSubstring("detect_anomaly: Function 'X' returned nan values in it. That was in batch "
                        "12 of the run, epoch 0, whose loss is 2.5. Weights that are not finite: "
                        "in.bias; gradients so far: out.weight"));
  train::explain_anomaly(state, std::runtime_error("no memory"));  // something else
}

}  // namespace UNITY_BUILD_UNIQUE_ID
