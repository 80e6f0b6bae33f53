#include <tutti/optim/asgd.hpp>

#include "optim/golden_steps.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;

TEST_CASE("ASGD takes PyTorch's steps", "[optim][golden]") {
  check("ASGD", ASGD{});
  check(
      "ASGD/all",
      ASGD{.lr = 0.1, .lambd = 0.1, .alpha = 0.5, .t0 = 3, .weight_decay = 0.1, .maximize = true});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
