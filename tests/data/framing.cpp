#include <tutti/data/framing.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::data::CropBox;
using tutti::data::Framing;
using tutti::data::ImageSize;

static_assert(ImageSize(5).square() == ImageSize{5, 5});
static_assert(ImageSize{5, 4}.square() == ImageSize{5, 4});

TEST_CASE("an image may be made smaller while the box has the pixels that are wanted",
          "[data][framing]") {
  const Framing whole{.size = {100, 100}};
  CHECK(whole.reduction(800, 800, 1) == 8);
  CHECK(whole.reduction(799, 800, 1) == 4);
  CHECK(whole.reduction(800, 399, 1) == 2);
  CHECK(whole.reduction(800, 199, 1) == 1);
  CHECK(whole.reduction(800, 800, 2) == 4);
  CHECK(whole.reduction(80, 80, 1) == 1);
  const Framing box{.box = {0, 0, 200, 900}, .size = 100};
  CHECK(box.reduction(4000, 4000, 1) == 2);
  CHECK(Framing{.box = {0, 0, 200, 900}}.reduction(4000, 4000, 1) == 1);  // not scaled
}

TEST_CASE("the box lies in the smaller image where it lay", "[data][framing]") {
  const Framing plan{.box = {100, 41, 201, 80}, .size = 10, .kept = {1, 1, 8, 8}};
  const Framing half = plan.reduced(401, 300, 201, 150);
  CHECK(half.box == CropBox{50, 20, 101, 40});
  CHECK(half.kept == plan.kept);
  CHECK(plan.reduced(401, 300, 401, 300) == plan);
  // The last row and column stay inside, and nothing becomes empty.
  const Framing edge{.box = {399, 299, 2, 1}, .size = 10};
  CHECK(edge.reduced(401, 300, 51, 38).box == CropBox{50, 37, 1, 1});
  CHECK(Framing{.size = 10}.reduced(400, 300, 50, 38) == Framing{.size = 10});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
