#include <tutti/data/random_flip.hpp>

#include <ATen/ATen.h>

#include "data/vision_golden.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Rng;
using tutti::data::RandomHorizontalFlip;
using tutti::data::RandomVerticalFlip;
using vision_golden::golden;

TEST_CASE("RandomHorizontalFlip equals torchvision's with its draws",
          "[data][random_flip][golden]") {
  for (const std::string key : {"random_flip.0", "random_flip.1"}) {
    Rng rng = vision_golden::given(key);
    CHECK(RandomHorizontalFlip{.p = 0.4}(golden("image"), rng).equal(golden(key)));
    CHECK(vision_golden::used_up(rng));
  }
  CHECK_FALSE(golden("random_flip.0").equal(golden("random_flip.1")));
}

TEST_CASE("flips turn the part p of the images of a batch, each as a whole",
          "[data][random_flip][law]") {
  const at::Tensor images = at::arange(4, at::kByte).view({1, 1, 2, 2}).expand({1000, 1, 2, 2});
  Rng rng(4);
  const auto part = [&](const at::Tensor& flipped, const at::Tensor& turned) {
    const at::Tensor other = flipped.ne(images).flatten(1).any(1);
    CHECK(flipped.eq(turned).flatten(1).all(1).eq(other).all().item<bool>());
    return other.sum().item<std::int64_t>();
  };
  CHECK(std::abs(part(RandomHorizontalFlip{.p = 0.25}(images, rng), images.flip(3)) - 250) < 70);
  CHECK(std::abs(part(RandomVerticalFlip{}(images, rng), images.flip(2)) - 500) < 80);
  CHECK(part(RandomHorizontalFlip{.p = 0}(images, rng), images.flip(3)) == 0);
  CHECK(part(RandomVerticalFlip{.p = 1}(images, rng), images.flip(2)) == 1000);
  CHECK_THROWS_WITH(RandomVerticalFlip{.p = 2}(images, rng),
                    ContainsSubstring("RandomVerticalFlip: p is 2, expected a number from 0 to 1"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
