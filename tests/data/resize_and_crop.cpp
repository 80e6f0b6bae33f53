#include <tutti/data/resize_and_crop.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <utility>

#include <ATen/ATen.h>

#include <tutti/data/image_geometry.hpp>
#include <tutti/data/transforms.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::data::Interpolation;
using tutti::data::resize_image;
using tutti::data::ResizeAndCrop;

// 12 rows and 20 columns, the value of each pixel 10 times its row plus its column.
at::Tensor ramp() {
  const at::Tensor rows = at::arange(12, at::kByte).mul(10).view({1, 12, 1});
  return rows.add(at::arange(20, at::kByte).view({1, 1, 20})).expand({3, 12, 20}).contiguous();
}

}  // namespace

TEST_CASE("the shorter side is scaled and the square in the middle kept", "[data][resize]") {
  const at::Tensor image = ramp();
  const at::Tensor y = ResizeAndCrop{.resize = 6, .crop = 4}(image);
  CHECK(y.sizes() == at::IntArrayRef{3, 4, 4});
  // 6 rows of 10 columns: rows 1 to 4, columns 3 to 6, each the mean of 2 by 2 pixels inside.
  const at::Tensor whole = ResizeAndCrop{.resize = 6, .crop = 0}(image);
  CHECK(whole.sizes() == at::IntArrayRef{3, 6, 10});
  CHECK(y.equal(whole.slice(1, 1, 5).slice(2, 3, 7)));
  CHECK(std::abs(whole[0][2][5].item<int>() - (45 + 10)) <= 1);
}

TEST_CASE("the square begins at the half of what is cut off, rounded as torchvision's or down",
          "[data][resize]") {
  const at::Tensor image = ramp();
  const auto begins = [&](std::int64_t crop, bool floor_center) {
    const at::Tensor y =
        ResizeAndCrop{.resize = 0, .crop = crop, .floor_center = floor_center}(image);
    const int row = y[0][0][0].item<int>() / 10;
    const int column = y[0][0][0].item<int>() % 10;
    CHECK(y.equal(image.slice(1, row, row + crop).slice(2, column, column + crop)));
    return std::pair{row, column};
  };
  // int(round((12 - crop) / 2.0)) and int(round((20 - crop) / 2.0)) of Python.
  CHECK(begins(9, false) == std::pair{2, 6});  // 1.5, 5.5
  CHECK(begins(9, true) == std::pair{1, 5});
  CHECK(begins(11, false) == std::pair{0, 4});  // 0.5, 4.5
  CHECK(begins(11, true) == std::pair{0, 4});
  CHECK(begins(5, false) == std::pair{4, 8});  // 3.5, 7.5
  CHECK(begins(5, true) == std::pair{3, 7});
  CHECK(begins(10, false) == std::pair{1, 5});
  CHECK(begins(10, true) == std::pair{1, 5});
  for (std::int64_t crop = 1; crop <= 12; ++crop) {
    CHECK(ResizeAndCrop{.resize = 0, .crop = crop}(image).equal(
        tutti::data::center_crop(image, crop)));
    tutti::Rng rng;
    const auto box = ResizeAndCrop{.resize = 24, .crop = crop}(36, 75, rng).kept;
    CHECK(box.left == tutti::data::detail::middle(50, crop));
  }
}

TEST_CASE("squashed images lose their shape, and those that fit are left alone", "[data][resize]") {
  const at::Tensor image = ramp();
  CHECK(ResizeAndCrop{.resize = 8, .crop = 8, .squash = true}(image).sizes() ==
        at::IntArrayRef{3, 8, 8});
  const at::Tensor square = image.slice(2, 0, 12).contiguous();
  CHECK(ResizeAndCrop{.resize = 12, .crop = 12}(square).equal(square));
  CHECK(ResizeAndCrop{.resize = 0, .crop = 10}(image).equal(image.slice(1, 1, 11).slice(2, 5, 15)));
  CHECK(resize_image(image, 12, 20).is_same(image));
}

TEST_CASE("bicubic images overshoot at edges where bilinear ones do not", "[data][resize]") {
  at::Tensor edge = at::full({1, 8, 8}, 100, at::kByte);
  edge.slice(2, 4, 8).fill_(200);
  const at::Tensor linear = resize_image(edge, 16, 16);
  const at::Tensor cubic = resize_image(edge, 16, 16, Interpolation::bicubic);
  CHECK(linear.min().item<int>() == 100);
  CHECK(cubic.min().item<int>() < 100);
  CHECK(cubic.max().item<int>() > 200);
}

TEST_CASE("it is a transform of a loader", "[data][resize]") {
  const tutti::data::Transforms transforms{{"fit", ResizeAndCrop{.resize = 6, .crop = 4}}};
  CHECK(transforms(ramp(), 0).equal(ResizeAndCrop{.resize = 6, .crop = 4}(ramp())));
}

TEST_CASE("images that are too small or no images are refused", "[data][resize]") {
  CHECK_THROWS_WITH((ResizeAndCrop{.resize = 0, .crop = 16}(ramp())),
                    ContainsSubstring("the image is 12 x 20 after resize, crop is 16"));
  CHECK_THROWS_WITH(ResizeAndCrop{}(ramp().to(at::kInt)),
                    ContainsSubstring("expected uint8 or floating [C, H, W]"));
  CHECK_THROWS_AS(resize_image(ramp(), 0, 3), c10::ValueError);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
