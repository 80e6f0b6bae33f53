#include <tutti/data/augmentations.hpp>

#include "support/catch.hpp"

#include <memory>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::AugmentationSet;
using tutti::Rng;
using tutti::data::augment;
using tutti::data::Augmentation;
using tutti::data::map_images;
using tutti::data::operation_of;
using tutti::data::size_of;

static_assert(size_of(AugmentationSet::safe) == 9);
static_assert(operation_of(AugmentationSet::safe, 8) == Augmentation::translate_y);
static_assert(operation_of(AugmentationSet::all, 9) == Augmentation::color);
static_assert(operation_of(AugmentationSet::original, 0) == Augmentation::autocontrast);
static_assert(operation_of(AugmentationSet::original, 9) == Augmentation::color_original);
static_assert(operation_of(AugmentationSet::original, 12) == Augmentation::sharpness_original);

Rng playing(std::initializer_list<double> uniforms) {
  auto tape = std::make_shared<tutti::Tape>();
  tape->uniforms = uniforms;
  Rng rng;
  rng.replay(tape);
  return rng;
}

at::Tensor noise(at::IntArrayRef shape) {
  at::manual_seed(6);
  return at::randint(256, shape, at::kByte);
}

}  // namespace

TEST_CASE("augment at severity 3 and 9: strengths stay in their ranges",
          "[data][augmentations][law]") {
  const at::Tensor ramp = at::arange(256).to(at::kByte).view({1, 16, 16});
  for (int i = 0; i < 300; ++i) {
    Rng rng(static_cast<std::uint64_t>(i));
    const auto kept = std::get<0>(augment(ramp, Augmentation::posterize, 3, rng).flatten().sort());
    const auto values = kept.to(at::kInt).diff().gt(0).sum().item<int>() + 1;
    CHECK((values == 16 || values == 8));
    const auto inverted = augment(ramp, Augmentation::solarize, 3, rng).ne(ramp);
    CHECK(inverted.flatten().slice(0, 0, 180).sum().item<int>() == 0);
    CHECK(augment(ramp, Augmentation::solarize, 9, rng)
              .flatten()
              .slice(0, 0, 26)
              .equal(ramp.flatten().slice(0, 0, 26)));
  }
}

TEST_CASE("augment turns what it draws into strengths", "[data][augmentations]") {
  const at::Tensor x = noise({3, 12, 15});
  namespace data = tutti::data;
  const auto with = [&](Augmentation operation, std::initializer_list<double> draws) {
    Rng rng = playing(draws);
    return augment(x, operation, 9, rng);
  };
  const double middle = 0.1 + (9 - 0.1) * 0.5;  // where a draw of 0.5 lies at severity 9
  CHECK(with(Augmentation::rotate, {1, 0.4}).equal(data::rotate(x, 27)));
  CHECK(with(Augmentation::rotate, {0.5, 0.6}).equal(data::rotate(x, -13)));
  CHECK(with(Augmentation::posterize, {0.5}).equal(data::posterize(x, 3)));
  CHECK(with(Augmentation::solarize, {0}).equal(data::solarize(x, 254)));
  CHECK(with(Augmentation::translate_x, {0.5, 0.6}).equal(data::translate_x(x, -2)));
  CHECK(with(Augmentation::translate_y, {0.5, 0.4}).equal(data::translate_y(x, 1)));
  CHECK(with(Augmentation::shear_x, {0.5, 0.4}).equal(data::shear_x(x, middle * 0.3 / 10)));
  CHECK(with(Augmentation::shear_y, {0.5, 0.6}).equal(data::shear_y(x, -middle * 0.3 / 10)));
  CHECK(with(Augmentation::brightness, {0.6, 0.25}).equal(data::brightness(x, 2.25)));
  CHECK(with(Augmentation::brightness, {0.4, 1}).equal(data::brightness(x, 1)));
  CHECK(with(Augmentation::autocontrast, {}).equal(data::autocontrast(x)));
  CHECK(with(Augmentation::equalize, {}).equal(data::equalize(x)));
  // First to which side of 1, up to 9 or down to 0.19, then how far.
  CHECK(with(Augmentation::color, {0.6, 0.25}).equal(data::color(x, 3)));
  CHECK(with(Augmentation::contrast, {0.5, 0.5}).equal(data::contrast(x, 0.595)));
  CHECK(with(Augmentation::sharpness, {0.6, 0.5}).equal(data::sharpness(x, 5)));
  const double original = middle * 1.8 / 10 + 0.1;
  CHECK(with(Augmentation::color_original, {0.5}).equal(data::color(x, original)));
  CHECK(with(Augmentation::contrast_original, {0.5}).equal(data::contrast(x, original)));
  CHECK(with(Augmentation::brightness_original, {0.5}).equal(data::brightness(x, original)));
  CHECK(with(Augmentation::sharpness_original, {0.5}).equal(data::sharpness(x, original)));
}

TEST_CASE("map_images keeps type and shape, and images do not share draws",
          "[data][augmentations][law]") {
  const auto shade = [](const at::Tensor& image, Rng& rng) {
    return image.mul(0).add(rng.integer(0, 250)).to(at::kByte);
  };
  for (const auto type : {at::kByte, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    Rng rng(2);
    const at::Tensor one = map_images(at::zeros({3, 4, 4}, type), rng, shade);
    CHECK(one.sizes() == at::IntArrayRef{3, 4, 4});
    CHECK(one.scalar_type() == type);
    const at::Tensor many = map_images(at::zeros({6, 3, 4, 4}, type), rng, shade);
    CHECK(many.scalar_type() == type);
    CHECK_FALSE(many[0].equal(many[1]));
    CHECK(many[0].eq(many[0][0][0][0]).all().item<bool>());
  }
  Rng rng;
  CHECK_THROWS_WITH(map_images(at::zeros({4, 4}), rng, shade),
                    ContainsSubstring("expected uint8, or floating from 0 to 1"));
}

TEST_CASE("map_images gives the same with any number of threads, and draws move on",
          "[data][augmentations]") {
  const auto noisy = [](const at::Tensor& image, Rng& rng) {
    return image.add(rng.integer(0, 100)).to(at::kByte);
  };
  const at::Tensor x = noise({9, 1, 4, 4});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  Rng a(3);
  const at::Tensor alone = map_images(x, a, noisy);
  at::set_num_threads(4);
  Rng b(3);
  CHECK(map_images(x, b, noisy).equal(alone));
  CHECK_FALSE(map_images(x, b, noisy).equal(alone));
  at::set_num_threads(threads);
}

TEST_CASE("map_images: floats are rounded to 256 values, not cut off", "[data][augmentations]") {
  const auto same = [](const at::Tensor& image, Rng&) { return image; };
  Rng rng;
  const at::Tensor x = at::arange(256).to(at::kFloat).div(255).view({1, 16, 16});
  CHECK(map_images(x, rng, same).equal(x));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
