#include <tutti/algorithms/cutout.hpp>

#include "support/catch.hpp"

#include <limits>

#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::CutOut;
using tutti::Rng;
using tutti::functional::cutout_batch;

static_assert(tutti::Algorithm<CutOut>);
static_assert(tutti::Recipe<CutOut>::valid);
static_assert(sizeof(tutti::With<tutti::CutOut{.num_holes = 2, .length = 0.25}>) > 0);

Rng centres(std::initializer_list<std::int64_t> drawn) {
  auto tape = std::make_shared<tutti::Tape>();
  tape->integers = drawn;
  Rng rng;
  rng.replay(tape);
  return rng;
}

std::int64_t zeros(const at::Tensor& x) {
  return x.eq(0).sum().item<std::int64_t>();
}

}  // namespace

TEST_CASE("CutOut: a hole has the side asked for inside the image and less at its edges",
          "[functional][cutout][law]") {
  const at::Tensor x = at::ones({1, 1, 32, 32});
  Rng inside = centres({16, 15});
  const at::Tensor cut = cutout_batch(x, inside);
  CHECK(zeros(cut) == 16 * 16);
  CHECK(zeros(cut.slice(2, 8, 24).slice(3, 7, 23)) == 16 * 16);
  Rng corner = centres({0, 0});
  CHECK(zeros(cutout_batch(x, corner).slice(2, 0, 8).slice(3, 0, 8)) == 8 * 8);
  CHECK(zeros(x) == 0);
}

TEST_CASE("CutOut: odd sides lose a pixel and a side of one pixel cuts nothing",
          "[functional][cutout]") {
  const at::Tensor x = at::ones({2, 12, 12});
  Rng three = centres({6, 6});
  CHECK(zeros(cutout_batch(x, three, {.length = 0.25})) == 2 * 2 * 2);
  Rng one = centres({6, 6});
  CHECK(zeros(cutout_batch(x, one, {.length = 0.1})) == 0);
}

TEST_CASE("CutOut: without holes the input comes back, and an empty batch is no fault",
          "[functional][cutout]") {
  Rng rng;
  const at::Tensor x = at::ones({2, 3, 4, 4});
  CHECK(cutout_batch(x, rng, {.num_holes = 0}).is_same(x));
  CHECK(cutout_batch(at::ones({0, 3, 4, 4}), rng).numel() == 0);
}

TEST_CASE("CutOut: all images and channels of a batch share their holes unless told otherwise",
          "[functional][cutout][law]") {
  Rng rng(3);
  const at::Tensor x = at::ones({6, 3, 20, 16});
  const at::Tensor same = cutout_batch(x, rng, {.num_holes = 2});
  CHECK(same.eq(same[0][0]).all().item<bool>());
  const at::Tensor own = cutout_batch(x, rng, {.per_image = true});
  CHECK_FALSE(own.eq(own[0]).all().item<bool>());
  CHECK(own.eq(own.slice(1, 0, 1)).all().item<bool>());
}

TEST_CASE("CutOut: uniform sampling covers every pixel equally often", "[functional][cutout]") {
  at::Tensor covered = at::zeros({8, 8});
  for (std::int64_t row = -2; row < 10; ++row) {
    for (std::int64_t column = -2; column < 10; ++column) {
      Rng rng = centres({row, column});
      covered += cutout_batch(at::ones({8, 8}), rng, {.uniform_sampling = true}).eq(0);
    }
  }
  CHECK(covered.eq(16).all().item<bool>());
}

TEST_CASE("CutOut: pixels that are no numbers stay outside of holes and vanish inside",
          "[functional][cutout]") {
  Rng rng = centres({4, 4});
  const at::Tensor x = at::full({8, 8}, std::numeric_limits<double>::quiet_NaN());
  const at::Tensor cut = cutout_batch(x, rng);
  CHECK(cut.isnan().sum().item<std::int64_t>() == 64 - 16);
  CHECK(zeros(cut) == 16);
}

TEST_CASE("CutOut: bytes, half precision and channels-last stay what they are",
          "[functional][cutout]") {
  Rng rng(1);
  for (const auto type : {at::kByte, at::kHalf, at::kBFloat16, at::kDouble}) {
    CHECK(cutout_batch(at::ones({2, 3, 8, 8}, type), rng).scalar_type() == type);
  }
  const at::Tensor last = at::ones({2, 3, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
  CHECK(cutout_batch(last, rng).is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST_CASE("CutOut: the policy replaces the batch's inputs, by name too, and leaves targets",
          "[cutout]") {
  const at::Tensor image = at::ones({4, 3, 8, 8});
  const at::Tensor label = at::arange(4);
  tutti::State state;
  state.batch = {{"image", image}, {"label", label}};
  CutOut policy{.input_key = "image", .rng = Rng(5)};
  policy.apply(tutti::AfterDataloader{}, state);
  CHECK(zeros(image) == 0);
  CHECK(zeros(state.batch.at("image")) > 0);
  CHECK(state.batch.at("label").is_same(label));
  CutOut again{.input_key = "image", .rng = Rng(5)};
  tutti::State other;
  other.batch = {{"image", image}};
  again.apply(tutti::AfterDataloader{}, other);
  CHECK(other.batch.at("image").equal(state.batch.at("image")));
}

TEST_CASE("CutOut: options out of range are refused with what was got and what is expected",
          "[cutout]") {
  CHECK_THROWS_WITH(CutOut{.length = 0}.validate(),
                    ContainsSubstring("length is 0, expected more than 0 and less than 1"));
  CHECK_THROWS_WITH(CutOut{.length = 1}.validate(), ContainsSubstring("length is 1"));
  CHECK_THROWS_WITH(CutOut{.num_holes = -1}.validate(),
                    ContainsSubstring("num_holes is -1, expected 0 or more"));
  Rng rng;
  CHECK_THROWS_WITH(cutout_batch(at::ones({4, 4}), rng, {.length = 0}),
                    ContainsSubstring("length is 0"));
  CHECK_THROWS_WITH(cutout_batch(at::ones({4}), rng), ContainsSubstring("the input is [4]"));
}
