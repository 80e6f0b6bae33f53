#include <tutti/fused/stages.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <set>

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Rng;
using tutti::fused::Frame;
using tutti::fused::Holes;
using tutti::fused::RandomCrop;
using tutti::fused::RandomErasing;
using tutti::fused::RandomFlip;

TEST_CASE("RandomFlip flips about the part p of the images", "[fused]") {
  const Frame frame{.images = 2000, .channels = 3, .height = 4, .width = 4};
  const auto flips = [&](double p) {
    const auto flipped = RandomFlip{.p = p, .rng = Rng(3)}.pixels(frame).flipped;
    CHECK(flipped.size() == 2000);
    return std::count(flipped.begin(), flipped.end(), true);
  };
  CHECK(flips(0) == 0);
  CHECK(flips(1) == 2000);
  CHECK(std::abs(flips(0.25) - 500) < 100);
}

TEST_CASE("RandomCrop takes every place in the frame", "[fused]") {
  const Frame frame{.images = 2000, .channels = 3, .height = 5, .width = 6};
  const auto crops = RandomCrop{.height = 4, .width = 6, .padding = 1}.pixels(frame);
  CHECK(crops.height == 4);
  CHECK(crops.width == 6);
  std::set<std::int64_t> rows;
  std::set<std::int64_t> columns;
  for (const auto& corner : crops.corners) {
    rows.insert(corner.row);
    columns.insert(corner.column);
  }
  CHECK(rows == std::set<std::int64_t>{-1, 0, 1, 2});
  CHECK(columns == std::set<std::int64_t>{-1, 0, 1});
}

TEST_CASE("RandomCrop without sizes keeps those of the images", "[fused]") {
  const auto crops = RandomCrop{}.pixels({.images = 3, .channels = 1, .height = 5, .width = 6});
  CHECK(crops.height == 5);
  CHECK(crops.width == 6);
  for (const auto& corner : crops.corners) {
    CHECK(corner.row == 0);
    CHECK(corner.column == 0);
  }
}

TEST_CASE("RandomErasing draws the boxes of data::RandomErasing, one image after the other",
          "[fused]") {
  const Frame frame{.images = 200, .channels = 3, .height = 20, .width = 30};
  const tutti::data::RandomErasing one{.p = 0.6, .scale = {0.1, 0.2}};
  const Holes holes = RandomErasing{.p = 0.6, .scale = {0.1, 0.2}, .rng = Rng(3)}.pixels(frame);
  Rng rng(3);
  std::int64_t erased = 0;
  for (std::int64_t i = 0; i < frame.images; ++i) {
    const auto box = one.draw(20, 30, rng);
    REQUIRE(holes.of(i).size() == (box ? 1 : 0));
    if (box) {
      CHECK(holes.of(i)[0].area() == box->height * box->width);
      CHECK(holes.of(i)[0].top == box->top);
      CHECK(holes.of(i)[0].left == box->left);
      ++erased;
    }
  }
  CHECK(std::abs(erased - 120) < 30);
}

TEST_CASE("RandomErasing sets boxes to 0, of bytes and of floats", "[fused]") {
  for (const auto type : {at::kByte, at::kFloat}) {
    tutti::State state;
    const at::Tensor x = at::full({6, 3, 20, 30}, 7, type);
    state.batch = tutti::Batch(x, at::zeros({6}, at::kLong));
    RandomErasing stage{.p = 1, .rng = Rng(5)};
    const Holes holes = RandomErasing(stage).pixels({6, 3, 20, 30});
    stage.apply(tutti::AfterDataloader{}, state);
    const at::Tensor& y = state.batch.inputs();
    for (std::int64_t i = 0; i < 6; ++i) {
      CHECK(y[i].eq(0).sum().item<std::int64_t>() == 3 * holes.of(i)[0].area());
    }
    CHECK(x.eq(7).all().item<bool>());
  }
}

TEST_CASE("stages say which option is out of range", "[fused]") {
  CHECK_THROWS_WITH((RandomFlip{.p = 2}.validate()), ContainsSubstring("RandomFlip: p is 2"));
  CHECK_THROWS_WITH((RandomCrop{.height = -1}.validate()), ContainsSubstring("height is -1"));
  CHECK_THROWS_WITH((RandomCrop{.width = -1}.validate()), ContainsSubstring("width is -1"));
  CHECK_THROWS_WITH((RandomCrop{.padding = -1}.validate()), ContainsSubstring("padding is -1"));
  CHECK_THROWS_WITH((RandomErasing{.p = -1}.validate()),
                    ContainsSubstring("RandomErasing: p is -1"));
  CHECK_THROWS_WITH((RandomErasing{.scale = {0.5, 0.2}}.validate()),
                    ContainsSubstring("scale goes from part to part of an image"));
  CHECK_THROWS_WITH((RandomErasing{.ratio = {0, 1}}.validate()),
                    ContainsSubstring("ratio is above 0"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
