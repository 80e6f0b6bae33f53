#include <tutti/optim/adadelta.hpp>

#include "optim/golden_steps.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("Adadelta takes PyTorch's steps", "[optim][golden]") {
  check("Adadelta", Adadelta{});
  check("Adadelta/all",
        Adadelta{.lr = 0.5, .rho = 0.8, .eps = 1e-3, .weight_decay = 0.1, .maximize = true});
}

TEST_CASE("Adadelta refuses numbers out of range", "[optim][error]") {
  const Tensors none;
  CHECK_THROWS_WITH(Adadelta{.rho = 2}.build(none), ContainsSubstring("Adadelta: rho is 2"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
