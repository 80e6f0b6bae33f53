#include "support/golden.hpp"

#include <limits>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

TEST_CASE("every tensor that the golden index names is in its file with its type and shape",
          "[golden]") {
  REQUIRE(golden::functions().size() >= 1);
  for (const auto& function : golden::functions()) {
    INFO(function);
    const auto cases = golden::cases(function);
    const auto& facts = golden::index()["functions"][function];
    CHECK(static_cast<std::int64_t>(cases.size()) == facts["cases"].integer());
  }
}

TEST_CASE("a golden case gives its inputs, draws, outputs and tolerance", "[golden]") {
  const auto cases = golden::cases("MixUp");
  const auto& first = cases.at(0);
  CHECK(first.name == "MixUp/000");
  CHECK(first.params["alpha"].number() == 0.2);
  CHECK(first.draw_number(0) == 0.999852665612189);
  CHECK(first.draw_is_tensor(1));
  CHECK(first.draw_tensor(1).sizes() == first.in("y").sizes());
  CHECK(first.tolerance.rtol == 1e-5);
  CHECK(first.out("x").sizes() == first.in("x").sizes());
  CHECK_GOLDEN(first, "x", first.out("x"));
  CHECK_THROWS_WITH(first.out("z"), Catch::Matchers::ContainsSubstring("no 'out' tensor 'z'"));
  CHECK_THROWS_WITH(golden::cases("MixDown"),
                    Catch::Matchers::ContainsSubstring("no case of 'MixDown'"));
}

TEST_CASE("golden comparison follows the rule of the reference vectors", "[golden]") {
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const auto inf = std::numeric_limits<double>::infinity();
  const auto t = [](std::vector<double> values) { return at::tensor(values); };
  const golden::Tolerance exact{.exact = true};
  const golden::Tolerance loose{.rtol = 0.1, .atol = 0.01, .scale = 0.001};

  CHECK(golden::matches(t({1, nan, inf}), t({1, nan, inf}), exact) == "");
  CHECK(golden::matches(t({1, nan, inf}), t({1, nan, inf}), loose) == "");
  CHECK(golden::matches(t({0.0}), t({-0.0}), exact) != "");
  CHECK(golden::matches(t({1.0}).to(at::kFloat), t({1.0}), exact) != "");
  CHECK(golden::matches(t({1.0}).to(at::kFloat), t({1.0}), loose) == "");
  CHECK(golden::matches(t({-inf}), t({inf}), loose) != "");
  CHECK(golden::matches(t({1.0}), t({nan}), loose) != "");
  CHECK(golden::matches(t({1.0}), t({1.0, 2.0}), loose) != "");
  CHECK(golden::matches(at::Tensor(), t({1.0}), loose) != "");

  // 10 +- (0.01 + 1 + 0.01): the largest finite |want| scales the tolerance of every element
  CHECK(golden::matches(t({11.019, 0}), t({10, 0}), loose) == "");
  CHECK(golden::matches(t({11.021, 0}), t({10, 0}), loose) != "");
  CHECK(golden::matches(t({10, 0.0199}), t({10, 0}), loose) == "");
  CHECK(golden::matches(t({10, 0.0201}), t({10, 0}), loose) != "");

  const auto integers = at::tensor(std::vector<std::int64_t>{1, 2});
  CHECK(golden::matches(integers, integers, loose) == "");
  CHECK(golden::matches(integers + 1, integers, loose) != "");
  CHECK(golden::matches(integers.to(at::kDouble), integers, loose) != "");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
