#include <tutti/optim/adagrad.hpp>

#include "optim/golden_steps.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("Adagrad takes PyTorch's steps", "[optim][golden]") {
  check("Adagrad", Adagrad{});
  check("Adagrad/all", Adagrad{.lr = 0.1,
                               .lr_decay = 0.1,
                               .weight_decay = 0.1,
                               .initial_accumulator_value = 0.5,
                               .eps = 1e-3});
  check("Adagrad/maximize", Adagrad{.maximize = true});
}

TEST_CASE("Adagrad refuses numbers out of range", "[optim][error]") {
  const Tensors none;
  CHECK_THROWS_WITH(Adagrad{.lr_decay = -1}.build(none), ContainsSubstring("lr_decay is -1"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
