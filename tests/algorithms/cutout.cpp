#include <tutti/algorithms/cutout.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

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

TEST_CASE("CutOut: centres lie anywhere in the image, and when uniform just as far outside",
          "[cutout][law]") {
  using Ends = std::pair<std::int64_t, std::int64_t>;
  // How often each place of holes 4 rows high was drawn along 8 rows.
  const auto places = [](bool uniform) {
    CutOut policy{.num_holes = 24000, .uniform_sampling = uniform, .rng = Rng(7)};
    const auto boxes =
        policy.pixels(tutti::fused::Frame{.images = 1, .channels = 1, .height = 8, .width = 13})
            .boxes.at(0);
    std::map<Ends, int> rows, columns;
    for (const tutti::fused::Box& box : boxes) {
      ++rows[{box.top, box.bottom}];
      ++columns[{box.left, box.right}];
    }
    return std::pair(rows, columns);
  };
  const auto expect = [](const std::map<Ends, int>& got, std::int64_t first, std::int64_t size) {
    std::map<Ends, int> centres;
    for (std::int64_t c = first; c < size - first; ++c) {
      const auto end = [&](std::int64_t at) { return std::clamp<std::int64_t>(at, 0, size); };
      ++centres[{end(c - 2), end(c + 2)}];
    }
    CHECK(got.size() == centres.size());
    for (const auto& [ends, times] : centres) {
      INFO(ends.first << " to " << ends.second);
      const double wanted = 24000.0 * times / static_cast<double>(size - 2 * first);
      CHECK(got.at(ends) == Approx(wanted).epsilon(0.12));  // 5 deviations
    }
  };
  const auto [rows, columns] = places(false);
  expect(rows, 0, 8);
  expect(columns, 0, 13);
  const auto [uniform_rows, uniform_columns] = places(true);
  expect(uniform_rows, -2, 8);
  expect(uniform_columns, -2, 13);
}

TEST_CASE("CutOut: what is not in a hole stays, in images of any strides, and has a gradient",
          "[functional][cutout]") {
  const at::Tensor x = at::randn({2, 9, 3, 7}).transpose(1, 2).requires_grad_();
  Rng rng = centres({4, 1});
  const at::Tensor y = cutout_batch(x, rng, {.length = 0.6});  // 4 rows, 3 columns at the edge
  const at::Tensor kept = at::ones({9, 7});
  kept.slice(0, 2, 6).slice(1, 0, 3).zero_();
  CHECK(y.equal(x * kept));
  y.sum().backward();
  CHECK(x.grad().equal(kept.expand_as(x)));
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
  CHECK_THROWS_WITH(cutout_batch(at::ones({4, 4}), rng, {.length = 1}),
                    ContainsSubstring("length is 1"));
  CHECK_THROWS_WITH(cutout_batch(at::ones({4, 4}), rng, {.num_holes = -1}),
                    ContainsSubstring("num_holes is -1"));
  CHECK_THROWS_WITH(cutout_batch(at::ones({4}), rng), ContainsSubstring("the input is [4]"));
  CHECK_THROWS_WITH(cutout_batch(at::ones({4, 4}), rng, {.per_image = true}),
                    ContainsSubstring("expected images [N, ..., H, W]"));
  CHECK(cutout_batch(at::ones({3, 4, 4}), rng, {.per_image = true}).size(0) == 3);
  CutOut{.num_holes = 0, .length = 0.01}.validate();
}

}  // namespace UNITY_BUILD_UNIQUE_ID
