#include <tutti/optim/nadam.hpp>

#include "optim/golden_steps.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("NAdam takes PyTorch's steps", "[optim][golden]") {
  check("NAdam", NAdam{});
  check("NAdam/coupled", NAdam{.lr = 0.01,
                               .betas = {0.8, 0.95},
                               .eps = 1e-3,
                               .weight_decay = 0.1,
                               .momentum_decay = 0.1});
  check("NAdam/decoupled",
        NAdam{.weight_decay = 0.1, .decoupled_weight_decay = true, .maximize = true});
}

TEST_CASE("NAdam refuses numbers out of range", "[optim][error]") {
  const Tensors none;
  CHECK_THROWS_WITH((NAdam{.betas = {1.0, 0.9}}.build(none)),
                    ContainsSubstring("NAdam: betas are 1 and 0.9"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
