#include <tutti/optim/rprop.hpp>

#include "optim/golden_steps.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("Rprop takes PyTorch's steps", "[optim][golden]") {
  check("Rprop", Rprop{});
  check("Rprop/all",
        Rprop{.lr = 0.1, .etas = {0.3, 2.0}, .step_sizes = {0.05, 0.3}, .maximize = true});
}

TEST_CASE("Rprop refuses numbers out of range", "[optim][error]") {
  const Tensors none;
  CHECK_THROWS_WITH((Rprop{.etas = {0.5, 1.0}}.build(none)),
                    ContainsSubstring("etas are 0.5 and 1"));
  CHECK_THROWS_WITH((Rprop{.step_sizes = {1.0, 0.5}}.build(none)),
                    ContainsSubstring("step_sizes are 1 and 0.5"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
