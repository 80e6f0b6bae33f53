#include <tutti/algorithms/progressive_resizing.hpp>

#include "support/catch.hpp"

#include <cmath>

#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/loggers/in_memory.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Interpolation;
using tutti::ProgressiveResizing;
using tutti::ResizeMode;
using tutti::Rng;
using tutti::functional::resize_batch;
using tutti::functional::resize_batch_to;

static_assert(tutti::Algorithm<ProgressiveResizing>);
static_assert(sizeof(tutti::With<tutti::ProgressiveResizing{.initial_scale = 0.4}>) > 0);
static_assert(std::is_same_v<tutti::Recipe<tutti::CutOut, ProgressiveResizing,
                                           tutti::ColOut>::order<tutti::AfterDataloader>,
                             tutti::types<tutti::ColOut, ProgressiveResizing, tutti::CutOut>>);

struct AnyImages {
  using model_features = tutti::types<tutti::takes_images>;
};
struct FixedSize {
  using model_features = tutti::types<tutti::takes_images, tutti::fixed_input_size>;
};
static_assert(tutti::Supports<ProgressiveResizing, AnyImages>);
static_assert(!tutti::Supports<ProgressiveResizing, FixedSize>);

at::Tensor numbered(at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape), at::kFloat).view(shape);
}

// A state in which `batches` of 100 have been done, of a run of one epoch.
tutti::State after(std::int64_t batches) {
  tutti::State state;
  state.max_duration = tutti::Time::parse("1ep");
  state.train_dataloader_len = 100;
  state.timestamp.batch = state.timestamp.batch_in_epoch = batches;
  return state;
}

}  // namespace

TEST_CASE("ProgressiveResizing: sizes grow from the initial to the full one",
          "[progressive_resizing][law]") {
  const ProgressiveResizing standard;
  CHECK(standard.width_at(0, 224) == 112);
  CHECK(standard.width_at(0.5, 224) == 112);
  CHECK(standard.width_at(0.65, 224) == 168);
  CHECK(standard.width_at(0.8, 224) == 224);
  CHECK(standard.width_at(1, 224) == 224);
}

TEST_CASE("ProgressiveResizing: widths are rounded to multiples, halves to the even one",
          "[progressive_resizing]") {
  ProgressiveResizing policy{.size_increment = 32};
  CHECK(policy.width_at(0, 224) == 128);
  CHECK(policy.width_at(0, 80) == 32);
  CHECK(policy.width_at(0, 160) == 64);
  policy.initial_scale = 0.25;
  CHECK(policy.width_at(0, 224) == 64);
  CHECK(policy.width_at(1, 26) == 26);
}

TEST_CASE("ProgressiveResizing: delay and fine-tuning may fill the whole run",
          "[progressive_resizing]") {
  const ProgressiveResizing policy{.finetune_fraction = 0.5, .delay_fraction = 0.5};
  policy.validate();
  CHECK(policy.scale_at(0.49) == 0.5);
  CHECK(policy.scale_at(0.5) == 1);
}

TEST_CASE("ProgressiveResizing: a width is hit exactly where a factor would fall one short",
          "[progressive_resizing]") {
  Rng rng;
  const at::Tensor x = numbered({1, 1, 49, 49});
  CHECK(resize_batch_to(x, {}, 16, 16, rng).input.sizes() == at::IntArrayRef{1, 1, 16, 16});
  CHECK(resize_batch(x, {}, 16.0 / 49.0, rng).input.size(3) == 15);
}

TEST_CASE("resize_batch takes the nearest pixel, whatever the type", "[functional][resize]") {
  Rng rng;
  for (const auto type : {at::kByte, at::kFloat, at::kBFloat16, at::kLong}) {
    const at::Tensor x = numbered({1, 1, 8, 6}).to(type);
    const at::Tensor half = resize_batch(x, {}, 0.5, rng).input;
    CHECK(half.equal(x.slice(2, 0, 8, 2).slice(3, 0, 6, 2)));
  }
}

TEST_CASE("resize_batch scales smoothly when asked to", "[functional][resize]") {
  Rng rng;
  const at::Tensor x = at::rand({2, 3, 16, 16});
  for (const auto how : {Interpolation::bilinear, Interpolation::antialias}) {
    const at::Tensor y = resize_batch(x, {}, 0.5, rng, {.interpolation = how}).input;
    CHECK(y.sizes() == at::IntArrayRef{2, 3, 8, 8});
    CHECK(std::abs(y.mean().item<double>() - x.mean().item<double>()) < 0.02);
  }
}

TEST_CASE("resize_batch of scale 1 and more gives the very tensors back", "[functional][resize]") {
  Rng rng;
  const at::Tensor x = at::rand({2, 3, 4, 4});
  const at::Tensor y = at::arange(2);
  for (const auto mode : {ResizeMode::crop, ResizeMode::resize}) {
    CHECK(resize_batch(x, y, 1.0, rng, {.mode = mode}).input.is_same(x));
    CHECK(resize_batch(x, y, 1.5, rng, {.mode = mode}).target.is_same(y));
  }
}

TEST_CASE("resize_batch makes targets smaller along with inputs", "[functional][resize][law]") {
  Rng rng(3);
  const at::Tensor x = numbered({2, 3, 12, 12});
  for (const auto mode : {ResizeMode::crop, ResizeMode::resize}) {
    const tutti::functional::ResizeOptions options{.mode = mode, .resize_targets = true};
    const auto both = resize_batch(x, x, 0.7, rng, options);
    CHECK(both.input.equal(both.target));
    const at::Tensor classes = x.select(1, 0).to(at::kLong);
    const auto map = resize_batch(x, classes, 0.7, rng, options);
    CHECK(map.target.equal(map.input.select(1, 0).to(at::kLong)));
    const auto floats = resize_batch(x, x.select(1, 1), 0.7, rng, options);
    CHECK(floats.target.equal(floats.input.select(1, 1)));
    CHECK(resize_batch(at::ones({2, 3, 32, 32}), at::ones({2, 16, 16}), 0.5, rng, options)
              .target.sizes() == at::IntArrayRef{2, 8, 8});
  }
  CHECK_THROWS_WITH(resize_batch(x, at::arange(2), 0.5, rng, {.resize_targets = true}),
                    ContainsSubstring("the targets are [2], expected [N, H, W]"));
}

TEST_CASE("resize_batch scales signals and volumes to the nearest", "[functional][resize]") {
  Rng rng;
  const at::Tensor signal = numbered({2, 3, 10});
  CHECK(resize_batch(signal, {}, 0.5, rng).input.equal(signal.slice(2, 0, 10, 2)));
  const at::Tensor volume = numbered({2, 1, 4, 6, 8});
  const tutti::functional::ResizeOptions both{.resize_targets = true};
  const auto half = resize_batch(volume, volume.select(1, 0).to(at::kLong), 0.5, rng, both);
  CHECK(half.input.equal(volume.slice(2, 0, 4, 2).slice(3, 0, 6, 2).slice(4, 0, 8, 2)));
  CHECK(half.target.equal(half.input.select(1, 0).to(at::kLong)));
  CHECK(resize_batch(volume, volume, 0.5, rng, both).target.equal(half.input));
  CHECK_THROWS_WITH(resize_batch(signal, {}, 0.5, rng, {.mode = ResizeMode::crop}),
                    ContainsSubstring("the input is [2, 3, 10], expected images"));
  CHECK_THROWS_WITH(resize_batch(signal, at::arange(2), 0.5, rng, both),
                    ContainsSubstring("the targets are [2], expected three dimensions"));
  CHECK_THROWS_AS(resize_batch(signal, {}, 0.05, rng), c10::ValueError);
  CHECK_THROWS_AS(resize_batch(at::rand({2, 3}), {}, 0.5, rng), c10::ValueError);
}

TEST_CASE("resize_batch crops a piece that may lie at every edge", "[functional][resize]") {
  Rng rng(5);
  const at::Tensor x = numbered({1, 1, 5, 5});
  bool last = false;
  for (int i = 0; i < 60; ++i) {
    const at::Tensor piece = resize_batch(x, {}, 0.8, rng, {.mode = ResizeMode::crop}).input;
    const auto corner = piece[0][0][0][0].item<std::int64_t>();
    CHECK(piece.equal(x.narrow(2, corner / 5, 4).narrow(3, corner % 5, 4)));
    last = last || corner == 6;
  }
  CHECK(last);
}

TEST_CASE("resize_batch_to takes the same part of targets of another size",
          "[functional][resize][law]") {
  Rng rng(7);
  const at::Tensor x = numbered({1, 1, 8, 20});
  const at::Tensor y = numbered({1, 4, 10});
  const auto scaled = resize_batch_to(x, y, 4, 10, rng, {.resize_targets = true});
  CHECK(scaled.target.equal(y.slice(1, 0, 4, 2).slice(2, 0, 10, 2)));
  const at::Tensor third = resize_batch_to(x, {}, 3, 7, rng).input[0][0];
  CHECK(third.select(1, 0).equal(at::tensor({0.0F, 40.0F, 100.0F})));  // rows floor(i * 8 / 3)
  CHECK(resize_batch_to(x, {}, 1, 1, rng).input.item<double>() == 0);
  std::int64_t lowest = 0;
  std::int64_t rightmost = 0;
  for (int i = 0; i < 200; ++i) {
    const auto cut =
        resize_batch_to(x, y, 4, 10, rng, {.mode = ResizeMode::crop, .resize_targets = true});
    const auto corner = cut.input[0][0][0][0].item<std::int64_t>();
    lowest = std::max(lowest, corner / 20);
    rightmost = std::max(rightmost, corner % 20);
    CHECK(cut.target.equal(y.narrow(1, corner / 20 / 2, 2).narrow(2, corner % 20 / 2, 5)));
  }
  CHECK(lowest == 4);
  CHECK(rightmost == 10);
}

TEST_CASE("ProgressiveResizing: the policy follows batches inside an epoch, or whole epochs",
          "[progressive_resizing]") {
  ProgressiveResizing policy{.initial_scale = 0.5, .finetune_fraction = 0, .delay_fraction = 0};
  tutti::State state = after(50);
  tutti::InMemoryLogger memory;
  state.logger.add(memory);
  state.batch = tutti::Batch(at::rand({2, 3, 64, 32}), at::arange(2));
  policy.apply(tutti::AfterDataloader{}, state);
  CHECK(state.batch.inputs().sizes() == at::IntArrayRef{2, 3, 48, 24});
  CHECK(memory.latest("progressive_resizing/height") == 48);
  CHECK(memory.latest("progressive_resizing/width") == 24);
  CHECK(memory.latest("progressive_resizing/scale_factor") == 0.75);
  policy.whole_units = true;
  state.batch = tutti::Batch(at::rand({2, 3, 64, 32}), at::arange(2));
  policy.apply(tutti::AfterDataloader{}, state);
  CHECK(state.batch.inputs().sizes() == at::IntArrayRef{2, 3, 32, 16});
}

TEST_CASE("ProgressiveResizing: what cannot be meant is refused", "[progressive_resizing]") {
  CHECK_THROWS_WITH(
      (ProgressiveResizing{.finetune_fraction = 0.6, .delay_fraction = 0.5}.validate()),
      ContainsSubstring("delay_fraction is 0.5, expected 0 or more, and at most 1 together"));
  CHECK_THROWS_WITH(ProgressiveResizing{.initial_scale = 0}.validate(),
                    ContainsSubstring("initial_scale is 0"));
  CHECK_THROWS_WITH(ProgressiveResizing{.initial_scale = 1.5}.validate(),
                    ContainsSubstring("initial_scale is 1.5"));
  CHECK_THROWS_WITH(ProgressiveResizing{.size_increment = 0}.validate(),
                    ContainsSubstring("size_increment is 0, expected 1 or more"));
  ProgressiveResizing policy{.size_increment = 64};
  tutti::State state = after(0);
  state.batch = tutti::Batch(at::rand({2, 3, 32, 32}));
  CHECK_THROWS_WITH(policy.apply(tutti::AfterDataloader{}, state),
                    ContainsSubstring("images would become 0 x 0; take a larger scale"));
  state.batch = tutti::Batch(at::rand({2, 3}));
  CHECK_THROWS_WITH(policy.apply(tutti::AfterDataloader{}, state),
                    ContainsSubstring("the input is [2, 3], expected images [N, C, H, W]"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
