#include <tutti/checkpoint/glob.hpp>

#include <string>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::checkpoint::glob_matches;

TEST_CASE("a glob's star spans any run of characters, separators included", "[checkpoint][glob]") {
  CHECK(glob_matches("state/optimizers*", "state/optimizers/0/lr"));
  CHECK(glob_matches("*.weight", "layer1.0.conv1.weight"));
  CHECK(glob_matches("state/*/lr", "state/optimizers/0/lr"));
  CHECK(glob_matches("**a*b*", "xxaxxbxx"));
  CHECK(glob_matches("*", ""));
  CHECK(glob_matches("fc.?", "fc.1"));
  CHECK_FALSE(glob_matches("fc.?", "fc."));
  CHECK_FALSE(glob_matches("*.weight", "conv.bias"));
  CHECK_FALSE(glob_matches("rng", "rng/cpu"));
  CHECK_FALSE(glob_matches("", "x"));
  CHECK(glob_matches("", ""));
}

TEST_CASE("a glob of many stars answers at once", "[checkpoint][glob]") {
  std::string pattern;
  for (int i = 0; i < 40; ++i) {
    pattern += "*a";
  }
  CHECK_FALSE(glob_matches(pattern + "b", std::string(2000, 'a')));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
