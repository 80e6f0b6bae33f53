#include <tutti/fused/pixels.hpp>

#include "support/catch.hpp"

#include <tutti/algorithms/cutmix.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::fused::Box;
using tutti::fused::Holes;
using tutti::fused::Take;

static_assert(std::is_same_v<Box, tutti::functional::Box>);
static_assert(Box{1, 2, 3, 5}.area() == 6);

TEST_CASE("a box follows the rows and columns that are left", "[fused]") {
  const Take take{.rows = {0, 3, 4, 7}, .columns = {2, 3}};
  CHECK(take(Box{0, 0, 8, 8}) == Box{0, 0, 4, 2});  // all of it
  CHECK(take(Box{1, 3, 5, 4}) == Box{1, 1, 3, 2});
  CHECK(take(Box{1, 0, 3, 2}).area() == 0);         // nothing is left
  CHECK(take(Box{7, 3, 8, 4}) == Box{3, 1, 4, 2});  // the last pixel
}

TEST_CASE("a take of everything moves no box", "[fused]") {
  CHECK(Take{}(Box{1, 2, 3, 4}) == Box{1, 2, 3, 4});
}

TEST_CASE("one list of holes is that of all images", "[fused]") {
  const Box box{0, 0, 1, 1};
  CHECK(Holes{.boxes = {{box}}}.of(5).size() == 1);
  const Holes each{.boxes = {{box}, {}, {box, box}}};
  CHECK(each.of(0).size() == 1);
  CHECK(each.of(1).empty());
  CHECK(each.of(2).size() == 2);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
