#include <tutti/nn/module_names.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::surgery::ModuleNames;

TEST_CASE("a list names modules by their whole name or its end behind a dot", "[nn][names]") {
  const ModuleNames names = {"q_proj", "mlp.up"};
  CHECK_FALSE(names.is_expression());
  CHECK(names.contains("q_proj"));
  CHECK(names.contains("layers.0.q_proj"));
  CHECK(names.contains("layers.0.mlp.up"));
  CHECK_FALSE(names.contains("layers.0.xq_proj"));
  CHECK_FALSE(names.contains("layers.0.up"));
  CHECK_FALSE(names.contains("q_proj.base"));
  CHECK(names.lists("q_proj"));
  CHECK_FALSE(names.lists("layers.0.q_proj"));
  CHECK_FALSE(ModuleNames().contains(""));
  CHECK(ModuleNames().empty());
}

TEST_CASE("a text is an expression for the whole name", "[nn][names]") {
  const ModuleNames names = R"(.*\.[01]\.(q|v)_proj)";
  CHECK(names.is_expression());
  CHECK(names.contains("layers.1.v_proj"));
  CHECK_FALSE(names.contains("layers.2.v_proj"));
  CHECK_FALSE(names.contains("layers.1.v_proj.base"));
  CHECK_FALSE(names.lists(R"(.*\.[01]\.(q|v)_proj)"));
  const ModuleNames plain = "q_proj";
  CHECK_FALSE(plain.contains("layers.0.q_proj"));
  CHECK_FALSE(plain == ModuleNames{"q_proj"});
  CHECK(plain == ModuleNames("q_proj"));
  CHECK_THROWS_AS(ModuleNames("(q_proj"), c10::ValueError);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
