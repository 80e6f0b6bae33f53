#include <tutti/optim/lion.hpp>

#include "optim/golden_steps.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;

TEST_CASE("Lion takes timm's steps", "[optim][golden]") {
  check("Lion", Lion{});
  check("Lion/all", Lion{.lr = 0.01, .betas = {0.4, 0.8}, .weight_decay = 0.1, .maximize = true});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
