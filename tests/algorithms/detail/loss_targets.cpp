#include <tutti/algorithms/detail/loss_targets.hpp>

#include <ATen/ATen.h>  // ahead of Catch2: it brings a CHECK of its own

#include "support/catch.hpp"

#include <memory>
#include <type_traits>

#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/core/recipe.hpp>

#include "algorithms/fixed_logits.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::CutMix;
using tutti::LabelSmoothing;
using tutti::MixUp;
using tutti::Rng;
using tutti::types;
using tutti::functional::mix;
using tutti::functional::smooth_labels;

template <class... Ps>
using order_of_loss = typename tutti::Recipe<Ps...>::template order<tutti::BeforeLoss>;
using Right = types<MixUp, CutMix, LabelSmoothing>;
static_assert(std::is_same_v<order_of_loss<MixUp, CutMix, LabelSmoothing>, Right>);
static_assert(std::is_same_v<order_of_loss<LabelSmoothing, CutMix, MixUp>, Right>);
static_assert(std::is_same_v<order_of_loss<CutMix, LabelSmoothing, MixUp>, Right>);

struct Setting {
  at::Tensor x = at::randn({6, 3, 8, 8});
  at::Tensor y = at::randint(5, {6}, at::kLong);
  at::Tensor dense = at::one_hot(y, 5).to(at::kFloat);
  std::shared_ptr<FixedLogits> model = std::make_shared<FixedLogits>(at::randn({6, 5}));
  tutti::State state = mid_step(model, x, y);
  MixUp mixup{.alpha = 1.0, .rng = Rng(1)};
  CutMix cutmix{.rng = Rng(2)};
  LabelSmoothing smoothing{.smoothing = 0.2};

  at::Tensor loss_of(const at::Tensor& targets) const {
    return tutti::functional::soft_cross_entropy(model->logits, targets);
  }
};

}  // namespace

TEST_CASE("CutMix mixes the targets that MixUp has mixed", "[mixup][cutmix][law]") {
  Setting s;
  run_microbatch(s.state, s.mixup, s.cutmix);
  REQUIRE(s.cutmix.run.adjusted_lambda < 1);
  // Row by row from the plan: a, m and the two permutations give at most four classes.
  const double a = s.cutmix.run.adjusted_lambda;
  const double m = s.mixup.run.mixing;
  const at::Tensor first = s.dense.index_select(0, *s.mixup.run.indices);
  const auto cut = [&](const at::Tensor& t) { return t.index_select(0, *s.cutmix.run.indices); };
  const at::Tensor expected = s.dense * (a * (1 - m)) + first * (a * m) +
                              cut(s.dense) * ((1 - a) * (1 - m)) + cut(first) * ((1 - a) * m);
  CHECK(s.state.batch.targets().allclose(expected, 1e-6, 1e-6));
  CHECK(s.state.batch.targets().sum(1).allclose(at::ones({6})));
}

TEST_CASE("smoothing sees the mixed targets and restores the unmixed ones",
          "[mixup][label_smoothing][law]") {
  Setting s;
  run_microbatch(s.state, s.mixup, s.smoothing);
  const at::Tensor mixed = mix(s.dense, *s.mixup.run.indices, s.mixup.run.mixing);
  CHECK(s.state.loss.allclose(s.loss_of(smooth_labels(s.model->logits, mixed, 0.2))));
  CHECK(s.state.batch.targets().is_same(s.y));
}

TEST_CASE("targets under different keys are kept apart", "[mixup][label_smoothing]") {
  Setting s;
  const at::Tensor mask = at::randint(5, {6}, at::kLong);
  const at::Tensor smooth = smooth_labels(s.model->logits, s.y, 0.2);
  s.mixup.target_key = "mask";
  for (const bool interpolate : {false, true}) {
    INFO("interpolate_loss " << interpolate);
    s.state.batch = tutti::Batch(s.x, s.y);
    s.state.batch["mask"] = mask;
    s.mixup.interpolate_loss = interpolate;
    run_microbatch(s.state, s.mixup, s.smoothing);
    CHECK(s.state.batch.targets().is_same(s.y));
    const at::Tensor dense = at::one_hot(mask, 5).to(at::kFloat);
    const at::Tensor mixed = mix(dense, *s.mixup.run.indices, s.mixup.run.mixing);
    const at::Tensor now = s.state.batch.at("mask");
    CHECK((interpolate ? now.is_same(mask) : now.allclose(mixed)));
    CHECK(s.state.loss.allclose(s.loss_of(smooth)));  // both terms, where there are two
  }

  // The key of the batch's own targets by name is no other key.
  s.smoothing.target_key = "targets";
  s.mixup.target_key = {};
  s.mixup.interpolate_loss = false;
  s.state.batch = tutti::Batch(s.x, s.y);
  run_microbatch(s.state, s.mixup, s.smoothing);
  CHECK(s.state.batch.targets().is_same(s.y));
}

TEST_CASE("both terms of an interpolated loss are smoothed", "[mixup][label_smoothing]") {
  Setting s;
  s.mixup.interpolate_loss = true;
  run_microbatch(s.state, s.mixup, s.smoothing);
  const at::Tensor mixed = mix(s.dense, *s.mixup.run.indices, s.mixup.run.mixing);
  CHECK(s.state.loss.allclose(s.loss_of(smooth_labels(s.model->logits, mixed, 0.2)), 1e-5, 1e-6));
  CHECK(s.state.batch.targets().is_same(s.y));
}

TEST_CASE("CutMix may interpolate the loss of targets that MixUp has mixed",
          "[mixup][cutmix][label_smoothing]") {
  at::Tensor losses[2];
  at::manual_seed(4);
  const Setting shared;
  for (const bool interpolate : {false, true}) {
    Setting s = shared;
    s.cutmix.interpolate_loss = interpolate;
    run_microbatch(s.state, s.mixup, s.cutmix, s.smoothing);
    losses[interpolate ? 1 : 0] = s.state.loss;
  }
  CHECK(losses[0].allclose(losses[1], 1e-5, 1e-6));
}

TEST_CASE("MixUp refuses to interpolate the loss beside another policy that mixes",
          "[mixup][cutmix]") {
  MixUp mixup{.interpolate_loss = true};
  CHECK_THROWS_WITH(mixup.validate_with(CutMix{}),
                    ContainsSubstring("interpolate_loss is set beside CutMix"));
  mixup.validate_with(LabelSmoothing{});
  mixup.validate_with(mixup);
  mixup.interpolate_loss = false;
  mixup.validate_with(CutMix{.interpolate_loss = true});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
