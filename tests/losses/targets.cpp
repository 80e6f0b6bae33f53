#include <tutti/losses/targets.hpp>

#include "support/catch.hpp"

#include <ATen/ATen.h>

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
namespace functional = tutti::functional;

TEST_CASE("targets of the outputs' shape are dense, without the class dimension they are indices",
          "[losses][law]") {
  const auto outputs = at::zeros({3, 4, 5});
  CHECK(functional::infer_target_type(outputs, at::zeros({3, 4, 5})) == tutti::TargetType::dense);
  CHECK(functional::infer_target_type(outputs, at::zeros({3, 5}, at::kLong)) ==
        tutti::TargetType::indices);
  CHECK_THROWS_WITH(functional::infer_target_type(outputs, at::zeros({3})),
                    ContainsSubstring("the targets are [3] and the outputs [3, 4, 5]"));
}

TEST_CASE("only integer types hold indices", "[losses][law]") {
  for (const auto type : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong}) {
    CHECK(functional::is_index_targets(at::zeros({2}, type)));
  }
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBool}) {
    CHECK_FALSE(functional::is_index_targets(at::zeros({2}, type)));
  }
}

TEST_CASE("one-hot rows put the classes into dimension 1", "[losses][law]") {
  const auto outputs = at::zeros({2, 3, 2, 2});
  const auto index = at::tensor({0, 1, 2, 0, 2, 2, 1, 1}, at::kInt).view({2, 2, 2});
  const auto rows = functional::ensure_targets_one_hot(outputs, index);
  CHECK(rows.scalar_type() == at::kFloat);
  CHECK(rows.sizes() == at::IntArrayRef({2, 3, 2, 2}));
  CHECK(rows.argmax(1).equal(index.to(at::kLong)));
  CHECK(rows.sum(1).equal(at::ones({2, 2, 2})));
  CHECK(functional::ensure_targets_one_hot(outputs, index, 7).size(1) == 7);
}

TEST_CASE("one-hot rows follow a transposed index", "[losses][law]") {
  const auto index = at::tensor({0, 1, 2, 0, 2, 2}, at::kLong).view({2, 3}).t();
  const auto rows = functional::ensure_targets_one_hot(at::zeros({3, 3, 2}), index);
  CHECK(rows.argmax(1).equal(index));
}

TEST_CASE("a negative index is a row of zeros", "[losses][law]") {
  const auto rows =
      functional::ensure_targets_one_hot(at::zeros({3, 4}), at::tensor({1, -100, 3}, at::kLong));
  CHECK(rows.sum(1).equal(at::tensor({1.0F, 0.0F, 1.0F})));
}

TEST_CASE("dense targets only change type", "[losses][law]") {
  const auto dense = at::rand({3, 4}, at::kDouble);
  CHECK(functional::ensure_targets_one_hot(at::zeros({3, 4}), dense).equal(dense.to(at::kFloat)));
}

TEST_CASE("an index that is no class is refused by value and example", "[losses]") {
  CHECK_THROWS_WITH(
      functional::ensure_targets_one_hot(at::zeros({2, 4}), at::tensor({1, 4}, at::kLong)),
      ContainsSubstring("example 1 has target 4, expected less than 4, the number of classes"));
  CHECK_THROWS_WITH(functional::ensure_targets_one_hot(at::zeros({2, 4}), at::zeros({2})),
                    ContainsSubstring("are Float, expected an integer type"));
  CHECK_THROWS_WITH(
      functional::ensure_targets_one_hot(at::zeros({4}), at::scalar_tensor(1, at::kLong)),
      ContainsSubstring("the outputs are [4], expected [N, C, ...]"));
}

TEST_CASE("no examples give no rows", "[losses][law]") {
  const auto rows =
      functional::ensure_targets_one_hot(at::zeros({0, 4}), at::zeros({0}, at::kLong));
  CHECK(rows.sizes() == at::IntArrayRef({0, 4}));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
