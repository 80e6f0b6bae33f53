#include <tutti/data/image_geometry.hpp>

#include <string>

#include <ATen/ATen.h>

#include "data/vision_golden.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
namespace data = tutti::data;
using data::Interpolation;
using data::PaddingMode;
using vision_golden::golden;

static_assert(data::ImageSize(5).square() == data::ImageSize{5, 5});
static_assert(data::ImageSize{5, 4}.square() == data::ImageSize{5, 4});
static_assert(data::Padding{1, 2} == data::Padding{1, 2, 1, 2});

// Equal in every bit, of one image and of a batch of it.
void check(const std::string& key, const at::Tensor& x,
           const std::function<at::Tensor(const at::Tensor&)>& f) {
  INFO(key);
  const at::Tensor before = x.clone();
  CHECK(vision_golden::equals(f(x), key));
  const at::Tensor batch = f(at::stack({x, x.flip(-1)}));
  CHECK(batch.dim() == 4);
  CHECK(vision_golden::equals(batch[0], key));
  CHECK(batch[1].equal(f(x.flip(-1))));
  CHECK(x.equal(before));
}

}  // namespace

TEST_CASE("geometry equals torchvision's v2 functions in every bit",
          "[data][image_geometry][golden]") {
  for (const std::string kind : {"image", "floats"}) {
    const at::Tensor x = golden(kind);
    const double fill = kind == "image" ? 77 : 0.5;
    const std::vector<double> dots =
        kind == "image" ? std::vector<double>{1, 2, 3} : std::vector<double>{0.25, 0.5, 0.75};
    for (const auto mode :
         {Interpolation::nearest, Interpolation::bilinear, Interpolation::bicubic}) {
      const std::string name(to_string(mode));
      check("resize." + kind + "." + name + ".12", x,
            [&](const auto& y) { return data::resize_image(y, 12, 17, mode); });
      check("resize." + kind + "." + name + ".28", x,
            [&](const auto& y) { return data::resize_image(y, 28, 33, mode); });
      check("resized_crop." + kind + "." + name, x,
            [&](const auto& y) { return data::resized_crop(y, {3, 5, 14, 11}, {9, 8}, mode); });
    }
    check("crop_outside." + kind, x, [](const auto& y) { return data::crop(y, {-3, 20, 18, 16}); });
    for (const data::ImageSize size : {data::ImageSize{10, 12}, {9, 30}, {30, 8}, {28, 40}}) {
      check("center_crop." + kind + "." + std::to_string(size.height), x,
            [&](const auto& y) { return data::center_crop(y, size); });
    }
    const data::Padding frame{3, 5, 7, 2};
    check("pad." + kind + ".constant", x, [&](const auto& y) { return data::pad(y, frame, fill); });
    check("pad." + kind + ".edge", x,
          [&](const auto& y) { return data::pad(y, frame, 0, PaddingMode::edge); });
    check("pad." + kind + ".reflect", x,
          [&](const auto& y) { return data::pad(y, frame, 0, PaddingMode::reflect); });
    check("pad." + kind + ".symmetric", x,
          [&](const auto& y) { return data::pad(y, frame, 0, PaddingMode::symmetric); });
    check("horizontal_flip." + kind, x, data::horizontal_flip);
    check("vertical_flip." + kind, x, data::vertical_flip);
    check("erase." + kind, x, [&](const auto& y) { return data::erase(y, {4, 6, 9, 7}, dots); });
  }
}

TEST_CASE("normalize equals torchvision's, and ImageLoader's arithmetic in every bit",
          "[data][image_geometry][golden]") {
  const std::vector<double> mean{0.485, 0.456, 0.406};
  const std::vector<double> std{0.229, 0.224, 0.225};
  CHECK(data::normalize(golden("floats"), mean, std).equal(golden("normalize.floats")));
  // torchvision multiplies by a rounded 1 / 255.
  const at::Tensor y = data::normalize(golden("image"), mean, std);
  CHECK(y.allclose(golden("normalize.image"), 1e-6, 1e-6));
  const at::Tensor column = at::tensor({0.485F, 0.456F, 0.406F}).view({3, 1, 1});
  const at::Tensor spread = at::tensor({0.229F, 0.224F, 0.225F}).view({3, 1, 1});
  CHECK(y.equal(golden("image").to(at::kFloat).div(255).sub(column).div(spread)));
}

TEST_CASE("windows and turns share memory, and every type keeps itself",
          "[data][image_geometry][law]") {
  const at::Tensor x = golden("image");
  CHECK(data::crop(x, {2, 3, 4, 5}).const_data_ptr() == x[0][2][3].const_data_ptr());
  CHECK(data::crop(x, {-30, 0, 4, 5}).eq(0).all().item<bool>());
  CHECK(data::resized_crop(x, {0, 0, 23, 31}, {23, 31}).equal(x));
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor y = x.to(type).div(255);
    CHECK(data::resize_image(y, 10, 10).scalar_type() == type);
    CHECK(data::pad(y, 2).scalar_type() == type);
    CHECK(data::resize_image(y, 10, 10)
              .to(at::kFloat)
              .allclose(data::resize_image(y.to(at::kFloat), 10, 10), 1e-2, 4e-3));
  }
}

TEST_CASE("geometry says what it was given and what it takes", "[data][image_geometry]") {
  const at::Tensor x = golden("image");
  CHECK_THROWS_WITH(data::crop(x[0], {0, 0, 2, 2}),
                    ContainsSubstring("crop: the image is Byte[23, 31], expected uint8 or "
                                      "floating, [C, H, W] or [N, C, H, W]"));
  CHECK_THROWS_WITH(data::horizontal_flip(x.to(at::kInt)), ContainsSubstring("Int[3, 23, 31]"));
  CHECK_THROWS_WITH(data::crop(x, {0, 0, 0, 2}), ContainsSubstring("the box has 0 x 2 pixels"));
  CHECK_THROWS_WITH(data::center_crop(x, 0), ContainsSubstring("center_crop: the size is 0 x 0"));
  CHECK_THROWS_WITH(data::pad(x, {0, -1}), ContainsSubstring("the padding is 0, -1, 0, -1"));
  CHECK_THROWS_WITH(data::pad(x, 1, 256), ContainsSubstring("fill is 256, expected 0 to 255"));
  CHECK_THROWS_WITH(data::pad(x, {0, 23}, 0, PaddingMode::reflect),
                    ContainsSubstring("23 and 23 of a side of 23, expected less than the side"));
  CHECK_THROWS_WITH(data::pad(x, {0, 24}, 0, PaddingMode::symmetric),
                    ContainsSubstring("24 and 24 of a side of 23, expected at most the side"));
  CHECK_THROWS_WITH(data::erase(x, {20, 0, 4, 1}, std::vector<double>{0}),
                    ContainsSubstring("begins at (20, 0) and has 4 x 1 pixels, expected one "
                                      "inside of images [3, 23, 31]"));
  CHECK_THROWS_WITH(data::erase(x, {0, 0, 4, 1}, std::vector<double>{0, 1}),
                    ContainsSubstring("there are 2 values, expected one, or one for each of 3"));
  CHECK_THROWS_WITH(data::normalize(x, {0.5}, {0.5, 0.5, 0.5}),
                    ContainsSubstring("mean has 1 values and std 3"));
  CHECK_THROWS_WITH(data::normalize(x, {0, 0, 0}, {1, 0, 1}), ContainsSubstring("std is 0"));
  CHECK_THROWS_WITH(data::resize_image(x, 0, 4), ContainsSubstring("for 0 rows and 4 columns"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
