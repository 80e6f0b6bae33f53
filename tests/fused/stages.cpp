#include <tutti/fused/stages.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <set>

using Catch::Matchers::ContainsSubstring;
using tutti::Rng;
using tutti::fused::Frame;
using tutti::fused::RandomCrop;
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

TEST_CASE("stages say which option is out of range", "[fused]") {
  CHECK_THROWS_WITH((RandomFlip{.p = 2}.validate()), ContainsSubstring("RandomFlip: p is 2"));
  CHECK_THROWS_WITH((RandomCrop{.height = -1}.validate()), ContainsSubstring("height is -1"));
  CHECK_THROWS_WITH((RandomCrop{.width = -1}.validate()), ContainsSubstring("width is -1"));
  CHECK_THROWS_WITH((RandomCrop{.padding = -1}.validate()), ContainsSubstring("padding is -1"));
}
