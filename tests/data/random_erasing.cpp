#include <tutti/data/random_erasing.hpp>

#include <ATen/ATen.h>

#include "data/vision_golden.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Rng;
using tutti::data::RandomErasing;
using vision_golden::golden;

TEST_CASE("RandomErasing equals torchvision's with its draws", "[data][random_erasing][golden]") {
  const auto check = [](const std::string& key, const RandomErasing& erasing,
                        const std::string& image) {
    INFO(key);
    Rng rng = vision_golden::given(key);
    CHECK(erasing(golden(image), rng).equal(golden(key)));
    CHECK(vision_golden::used_up(rng));
  };
  check("random_erasing.0", {.p = 0.5}, "image");
  check("random_erasing.1", {.p = 0.5, .value = {0.1, 0.2, 0.3}}, "floats");  // the second box
  check("random_erasing.2", {.p = 0.5}, "image");
  CHECK(golden("random_erasing.2").equal(golden("image")));
}

TEST_CASE("boxes have their area and shape, and lie inside", "[data][random_erasing][law]") {
  Rng rng(2);
  const RandomErasing erasing{.p = 0.7, .scale = {0.1, 0.3}, .ratio = {0.5, 2}};
  int erased = 0;
  for (int i = 0; i < 1000; ++i) {
    if (const auto box = erasing.draw(200, 300, rng)) {
      ++erased;
      const double area = static_cast<double>(box->height * box->width) / (200 * 300);
      const double shape = static_cast<double>(box->height) / static_cast<double>(box->width);
      CHECK((area > 0.095 && area < 0.305 && shape > 0.48 && shape < 2.1));
      CHECK((box->top >= 0 && box->left >= 0 && box->top + box->height <= 200 &&
             box->left + box->width <= 300));
    }
  }
  CHECK(std::abs(erased - 700) < 70);
}

TEST_CASE("random values are normal numbers, the same for the same draws",
          "[data][random_erasing]") {
  const at::Tensor images = at::full({8, 3, 64, 64}, 9.0F);
  const RandomErasing erasing{.p = 1, .scale = {0.3, 0.3}, .random = true};
  Rng a(6);
  Rng b(6);
  const at::Tensor once = erasing(images, a);
  CHECK(once.equal(erasing(images, b)));
  CHECK_FALSE(once.equal(erasing(images, b)));
  const at::Tensor values = once.masked_select(once.ne(9));
  CHECK(std::abs(values.mean().item<double>()) < 0.03);
  CHECK(std::abs(values.std().item<double>() - 1) < 0.03);
  CHECK(std::abs(static_cast<double>(values.numel()) / (8.0 * 3 * 64 * 64) - 0.3) < 0.02);
  CHECK(images.eq(9).all().item<bool>());
}

TEST_CASE("RandomErasing says which option is out of range", "[data][random_erasing]") {
  Rng rng;
  const at::Tensor x = golden("image");
  CHECK_THROWS_WITH(RandomErasing{.p = -1}(x, rng), ContainsSubstring("p is -1, expected"));
  CHECK_THROWS_WITH((RandomErasing{.scale = {0.1, 1.5}}(x, rng)),
                    ContainsSubstring("RandomErasing: scale is from 0.1 to 1.5"));
  CHECK_THROWS_WITH((RandomErasing{.p = 1, .value = {1, 2}}(x, rng)),
                    ContainsSubstring("there are 2 values, expected one, or one for each of 3"));
  CHECK_THROWS_WITH(RandomErasing{.random = true}(x, rng),
                    ContainsSubstring("the image is Byte[3, 23, 31]; put it behind Normalize"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
