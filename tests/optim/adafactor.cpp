#include <tutti/optim/adafactor.hpp>

#include "optim/golden_steps.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("Adafactor takes PyTorch's steps", "[optim][golden]") {
  check("Adafactor", Adafactor{});
  check("Adafactor/all", Adafactor{.lr = 0.5,
                                   .beta2_decay = -0.5,
                                   .eps = {1e-4, 1e-2},
                                   .d = 1.5,
                                   .weight_decay = 0.1,
                                   .maximize = true});
}

TEST_CASE("Adafactor refuses numbers out of range", "[optim][error]") {
  const Tensors none;
  CHECK_THROWS_WITH(Adafactor{.d = 0.5}.build(none), ContainsSubstring("Adafactor: d is 0.5"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
