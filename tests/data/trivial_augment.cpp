#include <tutti/data/trivial_augment.hpp>

#include <string>

#include <ATen/ATen.h>

#include "data/vision_golden.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Rng;
using tutti::data::Augmentation;
using tutti::data::Interpolation;
using tutti::data::TrivialAugmentWide;
using tutti::data::TrivialDraw;
using vision_golden::golden;

TEST_CASE("every operation equals torchvision's on Pillow's images, with its draws",
          "[data][trivial_augment][golden]") {
  int operations = 0;
  for (const auto& [key, expected] : vision_golden::tensors()) {
    const bool draws = key.ends_with(".integer") || key.ends_with(".uniform");
    if (!key.starts_with("trivial.") || draws) {
      continue;
    }
    INFO(key);
    const TrivialAugmentWide trivial{.interpolation = key.starts_with("trivial.nearest")
                                                          ? Interpolation::nearest
                                                          : Interpolation::bilinear};
    Rng rng = vision_golden::given(key);
    CHECK(trivial(golden("image"), rng).equal(expected));
    CHECK(vision_golden::used_up(rng));
    ++operations;
  }
  CHECK(operations == 63);
}

TEST_CASE("strengths are those of the bins, with either sign", "[data][trivial_augment]") {
  const auto drawn = [](std::int64_t operation, std::int64_t bin, double sign,
                        std::int64_t bins = 31) {
    auto tape = std::make_shared<tutti::Tape>();
    tape->integers = {operation, bin};
    tape->uniforms = {sign};
    Rng rng;
    rng.replay(tape);
    return TrivialAugmentWide{.num_magnitude_bins = bins}.draw(rng);
  };
  CHECK_FALSE(drawn(0, 5, 0).operation);
  CHECK(drawn(1, 30, 0.6).operation == Augmentation::shear_x);
  CHECK(drawn(1, 30, 0.6).magnitude == Approx(0.99));
  CHECK(drawn(1, 0, 0.6).magnitude == 0);
  CHECK(drawn(3, 15, 0.5).magnitude == Approx(-16));
  CHECK(drawn(5, 20, 0.6).magnitude == Approx(90));
  CHECK(drawn(10, 0, 0).magnitude == 8);
  CHECK(drawn(10, 30, 0).magnitude == 2);
  CHECK(drawn(11, 0, 0).magnitude == 1);
  CHECK(drawn(11, 10, 0, 11).magnitude == 0);
  CHECK(drawn(13, 10, 0).operation == Augmentation::equalize);
}

TEST_CASE("batches, floats and grey images are augmented image by image",
          "[data][trivial_augment][law]") {
  const TrivialAugmentWide trivial;
  Rng rng(4);
  const at::Tensor batch = golden("image").expand({20, 3, 23, 31}).contiguous();
  const at::Tensor out = trivial(batch, rng);
  CHECK(out.sizes() == batch.sizes());
  CHECK_FALSE(out.eq(out[0]).flatten(1).all(1).all().item<bool>());
  CHECK(trivial(golden("floats"), rng).scalar_type() == at::kFloat);
  CHECK(trivial(golden("grey"), rng).sizes() == golden("grey").sizes());
}

TEST_CASE("TrivialAugmentWide says what it takes", "[data][trivial_augment]") {
  Rng rng;
  CHECK_THROWS_WITH(TrivialAugmentWide{.num_magnitude_bins = 1}(golden("image"), rng),
                    ContainsSubstring("num_magnitude_bins is 1, expected 2 or more"));
  CHECK_THROWS_WITH(tutti::data::trivial_augment(golden("floats"), {Augmentation::rotate, 3}),
                    ContainsSubstring("trivial_augment: the image is Float[3, 23, 31]"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
