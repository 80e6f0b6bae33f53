#include <tutti/optim/adamax.hpp>

#include "optim/golden_steps.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;

TEST_CASE("Adamax takes PyTorch's steps", "[optim][golden]") {
  check("Adamax", Adamax{});
  check(
      "Adamax/all",
      Adamax{.lr = 0.01, .betas = {0.3, 0.95}, .eps = 1e-3, .weight_decay = 0.1, .maximize = true});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
