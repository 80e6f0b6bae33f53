#include <tutti/optim/lars.hpp>

#include "optim/golden_steps.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("LARS takes timm's steps", "[optim][golden]") {
  check("LARS", LARS{});
  check("LARS/momentum",
        LARS{.lr = 0.5, .momentum = 0.9, .weight_decay = 0.1, .trust_coeff = 0.02});
  check("LARS/all", LARS{.lr = 0.1,
                         .momentum = 0.9,
                         .weight_decay = 0.1,
                         .nesterov = true,
                         .trust_coeff = 0.5,
                         .eps = 1e-3,
                         .trust_clip = true});
  check("LARS/adapt", LARS{.lr = 0.5, .momentum = 0.9, .dampening = 0.2, .always_adapt = true});
}

TEST_CASE("LARS refuses numbers out of range", "[optim][error]") {
  const Tensors none;
  CHECK_THROWS_WITH(LARS{.nesterov = true}.build(none), ContainsSubstring("LARS: nesterov needs"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
