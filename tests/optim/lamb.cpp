#include <tutti/optim/lamb.hpp>

#include "optim/golden_steps.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;

TEST_CASE("LAMB takes timm's steps", "[optim][golden]") {
  check("LAMB", LAMB{});
  check("LAMB/all", LAMB{.lr = 0.1,
                         .betas = {0.8, 0.9},
                         .eps = 1e-3,
                         .weight_decay = 0.1,
                         .bias_correction = false,
                         .grad_averaging = false,
                         .trust_clip = true});
  check("LAMB/decoupled", LAMB{.lr = 0.1, .weight_decay = 0.1, .decoupled_decay = true});
  check("LAMB/adapt", LAMB{.weight_decay = 0, .always_adapt = true});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
