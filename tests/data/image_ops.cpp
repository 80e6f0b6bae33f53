#include <tutti/data/image_ops.hpp>

#include "data/vision_golden.hpp"
#include "support/catch.hpp"

#include <functional>
#include <string>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
namespace data = tutti::data;

at::Tensor noise(at::IntArrayRef shape) {
  at::manual_seed(5);
  return at::randint(256, shape, at::kByte);
}

at::Tensor row(std::initializer_list<int> values) {
  return at::tensor(std::vector<int>(values), at::kInt).to(at::kByte).view({1, 1, -1});
}

}  // namespace

TEST_CASE("image operations do each image of a batch as it would be done alone",
          "[data][image_ops][law]") {
  const at::Tensor images = noise({5, 3, 9, 12});
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> operations{
      data::autocontrast,
      data::equalize,
      [](const at::Tensor& x) { return data::posterize(x, 3); },
      [](const at::Tensor& x) { return data::solarize(x, 100); },
      [](const at::Tensor& x) { return data::rotate(x, 20); },
      [](const at::Tensor& x) { return data::rotate(x, 20, data::Interpolation::nearest); },
      [](const at::Tensor& x) { return data::hue(x, 0.2); },
      [](const at::Tensor& x) { return data::shear_x(x, 0.2); },
      [](const at::Tensor& x) { return data::shear_y(x, -0.2); },
      [](const at::Tensor& x) { return data::translate_x(x, 3); },
      [](const at::Tensor& x) { return data::translate_y(x, -3); },
      [](const at::Tensor& x) { return data::color(x, 1.5); },
      [](const at::Tensor& x) { return data::contrast(x, 0.5); },
      [](const at::Tensor& x) { return data::brightness(x, 1.3); },
      [](const at::Tensor& x) { return data::sharpness(x, 2.5); }};
  const at::Tensor before = images.clone();
  for (const auto& operation : operations) {
    const at::Tensor all = operation(images);
    CHECK(all.sizes() == images.sizes());
    CHECK(all.scalar_type() == at::kByte);
    for (std::int64_t i = 0; i < images.size(0); ++i) {
      CHECK(operation(images[i]).equal(all[i]));
    }
    CHECK(operation(images.flip({3}).flip({3})).equal(all));
    CHECK(operation(images.contiguous(at::MemoryFormat::ChannelsLast)).equal(all));
    CHECK(operation(images.slice(0, 0, 0)).numel() == 0);
  }
  CHECK(images.equal(before));
}

TEST_CASE("factor 1 leaves an image, factor 0 gives what it is blended with",
          "[data][image_ops][law]") {
  const at::Tensor x = noise({3, 8, 8});
  CHECK(data::color(x, 1).equal(x));
  CHECK(data::contrast(x, 1).equal(x));
  CHECK(data::brightness(x, 1).equal(x));
  CHECK(data::sharpness(x, 1).equal(x));
  CHECK(data::brightness(x, 0).eq(0).all().item<bool>());
  const at::Tensor grey = data::color(x, 0);
  CHECK(grey[0].equal(grey[1]));
  CHECK(grey[0].equal(grey[2]));
  CHECK(data::contrast(x, 0).eq(data::contrast(x, 0)[0][0][0]).all().item<bool>());
  CHECK(data::sharpness(x, 0).select(1, 0).equal(x.select(1, 0)));
  const at::Tensor flat = at::full({3, 5, 5}, 200, at::kByte);
  CHECK(data::sharpness(flat, 3).equal(flat));
  CHECK(data::color(flat, 0.3).equal(flat));
}

TEST_CASE("tables: contrast stretched, values levelled, bits dropped, bright ones inverted",
          "[data][image_ops]") {
  CHECK(data::autocontrast(row({50, 100, 150})).equal(row({0, 127, 255})));
  CHECK(data::autocontrast(row({7, 7, 7})).equal(row({7, 7, 7})));
  CHECK(data::equalize(row({7, 7, 9})).equal(row({7, 7, 9})));
  CHECK(data::posterize(row({255, 129, 64, 3}), 1).equal(row({128, 128, 0, 0})));
  CHECK(data::posterize(row({255, 129}), 8).equal(row({255, 129})));
  CHECK(data::solarize(row({0, 127, 128, 255})).equal(row({0, 127, 127, 0})));
  CHECK(data::solarize(row({0, 255}), 256).equal(row({0, 255})));
  CHECK(data::brightness(row({100, 200}), 1.5).equal(row({150, 255})));
}

TEST_CASE("moving: by nothing, by whole pixels, by right angles", "[data][image_ops][law]") {
  const at::Tensor x = noise({3, 6, 6});
  CHECK(data::rotate(x, 0).equal(x));
  CHECK(data::rotate(x, 180).equal(x.flip({1, 2})));
  CHECK(data::rotate(x, 90).equal(x.rot90(1, {1, 2})));
  CHECK(data::rotate(x, -90).equal(data::rotate(x, 270)));
  CHECK(data::shear_x(x, 0).equal(x));
  const at::Tensor left = data::translate_x(x, 2);
  CHECK(left.slice(2, 0, 4).equal(x.slice(2, 2, 6)));
  CHECK(left.slice(2, 4, 6).eq(0).all().item<bool>());
  for (const std::int64_t by : {-9, -6, -2, 0, 1, 6, 9}) {
    CHECK(data::translate_x(x, by).equal(data::affine(x, {.c = static_cast<double>(by)})));
    CHECK(data::translate_y(x, by).equal(data::affine(x, {.f = static_cast<double>(by)})));
  }
}

TEST_CASE("moving to the nearest pixel: by nothing, by whole pixels, by right angles",
          "[data][image_ops][law]") {
  const at::Tensor x = noise({3, 6, 6});
  const auto nearest = data::Interpolation::nearest;
  CHECK(data::rotate(x, 0, nearest).equal(x));
  CHECK(data::rotate(x, 90, nearest).equal(x.rot90(1, {1, 2})));
  CHECK(data::rotate(x, 180, nearest).equal(x.flip({1, 2})));
  CHECK(data::affine(x, {.c = 2}, nearest).equal(data::translate_x(x, 2)));
  CHECK(data::affine(x, {.f = -1}, nearest).equal(data::translate_y(x, -1)));
  CHECK_THROWS_WITH(data::rotate(x, 5, data::Interpolation::bicubic),
                    ContainsSubstring("interpolation is bicubic, expected nearest or bilinear"));
}

TEST_CASE("hue moves colours around the circle as Pillow and torchvision do",
          "[data][image_ops][golden]") {
  const at::Tensor grid = vision_golden::golden("grid");
  for (const std::string shift : {"-0.5", "-0.31", "0.0", "0.1", "0.5"}) {
    CHECK(data::hue(grid, std::stod(shift)).equal(vision_golden::golden("hue.grid." + shift)));
  }
  const at::Tensor grey = noise({1, 4, 4});
  CHECK(data::hue(grey, 0.3).equal(grey));
  CHECK_THROWS_WITH(data::hue(grid, 0.6), ContainsSubstring("shift is 0.6, expected -0.5 to 0.5"));
}

TEST_CASE("image operations refuse what is no 8-bit image", "[data][image_ops]") {
  CHECK_THROWS_WITH(data::equalize(at::ones({3, 4, 4})),
                    ContainsSubstring("equalize: the image is Float[3, 4, 4]") &&
                        ContainsSubstring("expected uint8 [C, H, W]"));
  CHECK_THROWS_WITH(data::rotate(noise({4, 4}), 5), ContainsSubstring("rotate: the image is"));
  CHECK_THROWS_WITH(data::color(noise({2, 4, 4}), 1),
                    ContainsSubstring("the image has 2 channels, expected 1, or 3"));
  CHECK_THROWS_WITH(data::posterize(noise({1, 4, 4}), 9), ContainsSubstring("bits is 9"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
