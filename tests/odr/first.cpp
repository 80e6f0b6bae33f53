#include <tutti/tutti.hpp>

#include "support/catch.hpp"

int second_unit_version();

TEST_CASE("the whole library links when two files include it", "[odr]") {
  CHECK(second_unit_version() == TUTTI_VERSION_MINOR);
}
