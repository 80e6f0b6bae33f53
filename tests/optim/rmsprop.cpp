#include <tutti/optim/rmsprop.hpp>

#include "optim/golden_steps.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("RMSprop takes PyTorch's steps", "[optim][golden]") {
  check("RMSprop", RMSprop{});
  check("RMSprop/centered", RMSprop{.alpha = 0.9, .eps = 1e-3, .centered = true});
  check("RMSprop/momentum", RMSprop{.weight_decay = 0.1, .momentum = 0.9});
  check("RMSprop/all", RMSprop{.alpha = 0.8,
                               .eps = 1e-2,
                               .weight_decay = 0.1,
                               .momentum = 0.9,
                               .centered = true,
                               .maximize = true});
}

TEST_CASE("RMSprop refuses numbers out of range", "[optim][error]") {
  const Tensors none;
  CHECK_THROWS_WITH(RMSprop{.alpha = 1}.build(none), ContainsSubstring("RMSprop: alpha is 1"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
