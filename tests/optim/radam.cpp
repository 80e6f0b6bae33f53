#include <tutti/optim/radam.hpp>

#include "optim/golden_steps.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;

TEST_CASE("RAdam takes PyTorch's steps", "[optim][golden]") {
  check("RAdam", RAdam{});
  check("RAdam/coupled", RAdam{.lr = 0.01, .betas = {0.8, 0.9}, .eps = 1e-3, .weight_decay = 0.1});
  check("RAdam/decoupled",
        RAdam{.weight_decay = 0.1, .decoupled_weight_decay = true, .maximize = true});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
