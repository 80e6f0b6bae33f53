#include <tutti/callbacks/nan_monitor.hpp>

#include <limits>

#include "callbacks/run.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<NaNMonitor> == Role::callback);

namespace {

/// Its loss is a NaN, or infinite, from the third batch on.
struct Broken : tiny::Net {
  double bad = std::numeric_limits<double>::quiet_NaN();
  bool parts = false;
  int calls = 0;

  Loss loss(const Outputs& outputs, const Batch& batch) {
    const at::Tensor good = tiny::Net::loss(outputs, batch).total();
    const at::Tensor other = ++calls >= 3 ? good * bad : good * 2.0;
    return parts ? Loss{{"mse", good}, {"aux", other}} : Loss(other);
  }
};

}  // namespace

TEST_CASE("a loss that is not a number ends the run at its batch", "[callbacks][nan_monitor]") {
  Trainer<NaNMonitor> trainer(std::make_shared<Broken>(), callback_run::options(4, "1ep"));
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("Train loss contains a NaN (batch 2 of"));
  CHECK(trainer.state().timestamp.batch == 2);
}

TEST_CASE("the part of a loss that is not a number is named", "[callbacks][nan_monitor]") {
  auto net = std::make_shared<Broken>();
  net->parts = true;
  Trainer<NaNMonitor> trainer(net, callback_run::options(4, "1ep"));
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("Train loss aux contains a NaN"));
}

TEST_CASE("an infinite loss passes the NaNMonitor", "[callbacks][nan_monitor]") {
  {
    NaNMonitor monitor;
    State state;
    state.loss_parts = at::full({}, std::numeric_limits<double>::infinity());
    state.loss = state.loss_parts.total();
    CHECK_NOTHROW(monitor.apply(AfterLoss{}, state));
    state.loss_parts = at::tensor({1.0, std::numeric_limits<double>::quiet_NaN()});
    state.loss = at::ones({});
    CHECK_THROWS_WITH(monitor.apply(AfterLoss{}, state), ContainsSubstring("contains a NaN"));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
