#include <tutti/algorithms/mixup.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/warnings.hpp"

#include <cmath>
#include <map>
#include <memory>
#include <string>

#include <tutti/core/engine.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/switch.hpp>

#include "algorithms/fixed_logits.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::MixUp;
using tutti::Rng;
using tutti::functional::draw_mixing;
using tutti::functional::mix;
using tutti::functional::mixup_batch;

static_assert(tutti::Algorithm<MixUp>);
static_assert(tutti::Recipe<MixUp>::valid);
static_assert(std::is_aggregate_v<MixUp>);

Rng replaying(const golden::Case& c) {
  auto tape = std::make_shared<tutti::Tape>();
  for (std::size_t i = 0; i < c.draws.size(); ++i) {
    if (c.draw_is_tensor(i)) {
      tape->permutations.push_back(c.draw_tensor(i));
    } else {
      tape->betas.push_back(c.draw_number(i));
    }
  }
  Rng rng;
  rng.replay(tape);
  return rng;
}

struct Tokens {
  using model_features = tutti::types<tutti::takes_tokens>;
};
struct Indices {
  using model_features = tutti::types<tutti::loss_takes_indices>;
};
struct Dice {
  using model_features = tutti::types<tutti::loss_not_linear_in_targets>;
};

}  // namespace

TEST_CASE("MixUp refuses images of bytes", "[mixup]") {
  MixUp mixup;
  tutti::State state;
  state.batch = tutti::Batch(at::zeros({2, 3, 4, 4}, at::kByte), at::zeros({2}, at::kLong));
  CHECK_THROWS_WITH(mixup.apply(tutti::BeforeForward{}, state),
                    Catch::Matchers::ContainsSubstring(
                        "MixUp: the inputs are bytes, uint8[2, 3, 4, 4], expected floats"));
}

TEST_CASE("mixup_batch agrees with the reference", "[functional][mixup][golden]") {
  for (const golden::Case& c : golden::cases("mixup_batch")) {
    tutti::functional::MixUpOptions options;
    if (const auto* alpha = c.params.find("alpha")) {
      options.alpha = alpha->number();
    }
    if (const auto* mixing = c.params.find("mixing")) {
      options.mixing = mixing->number();
    }
    if (c.has_in("indices")) {
      options.indices = c.in("indices");
    }
    Rng rng = replaying(c);
    const auto mixed = mixup_batch(c.in("x"), c.in("y"), rng, options);
    CHECK_GOLDEN(c, "x", mixed.input);
    CHECK_GOLDEN(c, "y_perm", mixed.permuted_target);
    CHECK(mixed.mixing == c.out("mixing").item<double>());
  }
}

TEST_CASE("MixUp: the policy agrees with the reference in both modes", "[mixup][golden]") {
  for (const golden::Case& c : golden::cases("MixUp")) {
    MixUp policy{.alpha = c.params["alpha"].number(),
                 .interpolate_loss = c.params["interpolate_loss"].boolean(),
                 .rng = replaying(c)};
    auto model = std::make_shared<FixedLogits>(c.in("logits"));
    tutti::State state = mid_step(model, c.in("x"), c.in("y"));
    run_microbatch(state, policy);
    CHECK_GOLDEN(c, "x", state.batch.inputs());
    CHECK_GOLDEN(c, "loss", state.loss);
    CHECK(state.loss_parts.at("total").equal(state.loss));
    state.loss.backward();
    CHECK_GOLDEN(c, "grad_logits", model->logits.grad());
    CHECK(policy.run.mixing == c.out("mixing").item<double>());
    CHECK(policy.run.indices->equal(c.out("indices")));
    if (c.has_out("y_mixed")) {
      CHECK_GOLDEN(c, "y_mixed", state.batch.targets());
    } else {
      CHECK(state.batch.targets().equal(c.in("y")));
    }
  }
}

TEST_CASE("mix blends row by row, rounding both products and the sum", "[functional][mixup][law]") {
  const at::Tensor x = at::randn({7, 11, 3, 5});
  const at::Tensor perm = at::randperm(7);
  const at::Tensor got = mix(x, perm, 0.3);
  for (std::int64_t i = 0; i < 7; ++i) {
    const at::Tensor partner = x[perm[i].item<std::int64_t>()];
    CHECK(got[i].equal(x[i].mul(0.7) + partner.mul(0.3)));
  }
}

TEST_CASE("mix with weight 0, one example or a partner of itself changes nothing",
          "[functional][mixup][law]") {
  const at::Tensor x = at::randn({4, 3});
  CHECK(mix(x, at::randperm(4), 0).is_same(x));
  const at::Tensor one = at::ones({1, 3});
  CHECK(mix(one, at::zeros({1}, at::kLong), 0.25).equal(one));
  CHECK(mix(at::empty({0, 3}), at::empty({0}, at::kLong), 0.5).numel() == 0);
}

TEST_CASE("mix makes integers floating and keeps half", "[functional][mixup]") {
  const at::Tensor bytes = at::tensor({0, 200}, at::kByte);
  const at::Tensor perm = at::tensor({1, 0}, at::kLong);
  CHECK(mix(bytes, perm, 0.25).equal(at::tensor({50.0F, 150.0F})));
  CHECK(mix(at::ones({2}, at::kBFloat16), perm, 0.25).scalar_type() == at::kBFloat16);
}

TEST_CASE("mixing is never above a half and its mean at alpha 1 is a quarter",
          "[functional][mixup][law]") {
  Rng rng(3);
  double sum = 0;
  for (int i = 0; i < 4000; ++i) {
    const double mixing = draw_mixing(rng, 1.0);
    REQUIRE(mixing >= 0);
    REQUIRE(mixing <= 0.5);
    sum += mixing;
  }
  CHECK(std::abs(sum / 4000 - 0.25) < 0.01);
  const auto position = rng.position();
  CHECK(draw_mixing(rng, 0.0) == 0);
  CHECK(rng.position() == position);
}

TEST_CASE("one seed gives one mix, and the draws move on", "[mixup][law]") {
  const at::Tensor x = at::randn({8, 5});
  const at::Tensor y = at::randint(3, {8}, at::kLong);
  Rng a(7);
  Rng b(7);
  const auto first = mixup_batch(x, y, a);
  CHECK(first.input.equal(mixup_batch(x, y, b).input));
  CHECK(mixup_batch(x, y, a).mixing != first.mixing);
}

TEST_CASE("MixUp: loss mode equals label mode under cross entropy", "[mixup][law]") {
  const at::Tensor x = at::randn({6, 4});
  const at::Tensor y = at::randint(3, {6}, at::kLong);
  auto model = std::make_shared<FixedLogits>(at::randn({6, 3}));
  at::Tensor losses[2];
  for (const bool interpolate : {false, true}) {
    MixUp policy{.alpha = 1.0, .interpolate_loss = interpolate, .rng = Rng(5)};
    tutti::State state = mid_step(model, x, y);
    run_microbatch(state, policy);
    losses[interpolate ? 1 : 0] = state.loss;
  }
  CHECK(losses[0].allclose(losses[1], 1e-6, 1e-6));
}

TEST_CASE("label mode makes targets of pixels dense", "[mixup]") {
  MixUp policy{.alpha = 1.0};
  auto model = std::make_shared<FixedLogits>(at::randn({2, 4, 3, 3}));
  tutti::State state =
      mid_step(model, at::randn({2, 1, 3, 3}), at::randint(4, {2, 3, 3}, at::kLong));
  run_microbatch(state, policy);
  CHECK(state.batch.targets().sizes() == at::IntArrayRef{2, 4, 3, 3});
  CHECK(state.batch.targets().sum(1).allclose(at::ones({2, 3, 3})));
}

TEST_CASE("the batch's own tensors are left alone and other keys can be named", "[mixup]") {
  const at::Tensor image = at::randn({4, 3});
  const at::Tensor label = at::randint(2, {4}, at::kLong);
  const at::Tensor image_before = image.clone();
  MixUp policy{.alpha = 1.0, .input_key = "image", .target_key = "label"};
  tutti::State state;
  state.batch = std::map<std::string, at::Tensor>{{"image", image}, {"label", label}};
  fire<tutti::BeforeForward>(policy, state);
  state.outputs = at::randn({4, 2});
  fire<tutti::BeforeLoss>(policy, state);
  CHECK(image.equal(image_before));
  CHECK_FALSE(state.batch.at("image").equal(image));
  CHECK(state.batch.at("label").sizes() == at::IntArrayRef{4, 2});

  policy.input_key = "picture";
  CHECK_THROWS_WITH(policy.apply(tutti::BeforeForward{}, state),
                    ContainsSubstring("no tensor is called \"picture\"; there are: image, label"));
}

TEST_CASE("loss mode blends every part of the loss", "[mixup]") {
  struct TwoParts : FixedLogits {
    using FixedLogits::FixedLogits;
    tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
      tutti::Loss parts;
      parts["cross_entropy"] =
          tutti::functional::soft_cross_entropy(outputs.tensor(), batch.targets());
      parts["size"] = outputs.tensor().pow(2).mean();
      return parts;
    }
  };
  tutti::State state;
  state.task = std::make_shared<TwoParts>(at::randn({4, 3}));
  state.batch = tutti::Batch(at::randn({4, 2}), at::arange(4).remainder(3));
  MixUp policy{.alpha = 1.0, .interpolate_loss = true};
  run_microbatch(state, policy);
  CHECK(state.loss.allclose(state.loss_parts.total()));
}

TEST_CASE("the second loss is computed in the precision of the run", "[mixup]") {
  struct Remembers : FixedLogits {
    using FixedLogits::FixedLogits;
    tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch&) {
      low = at::autocast::is_autocast_enabled(at::kCPU);
      return outputs.tensor().sum();
    }
    bool low = false;
  };
  auto model = std::make_shared<Remembers>(at::randn({4, 3}));
  tutti::State state;
  state.task = model;
  state.precision = tutti::Precision::amp_bf16;
  state.batch = tutti::Batch(at::randn({4, 2}), at::arange(4).remainder(3));
  MixUp policy{.interpolate_loss = true};
  fire<tutti::BeforeForward>(policy, state);
  run_forward(state);
  run_loss(state);
  CHECK_FALSE(model->low);
  fire<tutti::BeforeBackward>(policy, state);
  CHECK(model->low);
  CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST_CASE("numbers out of range are refused with what was got and what is expected", "[mixup]") {
  CHECK_THROWS_WITH(MixUp{.alpha = -1}.validate(),
                    ContainsSubstring("alpha is -1, expected 0 or more"));
  MixUp{.alpha = 0}.validate();
  Rng rng;
  CHECK_THROWS_WITH(mixup_batch(at::ones({2}), at::ones({2}), rng, {.mixing = 1.5}),
                    ContainsSubstring("mixing is 1.5, expected a number from 0 to 1"));
  CHECK_THROWS_WITH(mix(at::ones({2}), at::zeros({3}, at::kLong), 0.5),
                    ContainsSubstring("indices is [3] and x is [2]"));
}

TEST_CASE("tokens cannot be blended", "[mixup]") {
  STATIC_REQUIRE_FALSE(tutti::Supports<MixUp, Tokens>);
}

TEST_CASE("targets are not mixed for a loss that takes class indices only", "[mixup]") {
  using tutti::Engine;
  const Engine<MixUp> label_mode{MixUp{}};
  CHECK_THROWS_WITH(label_mode.validate_model<Indices>(),
                    ContainsSubstring("MixUp: the targets are to be mixed") &&
                        ContainsSubstring("set interpolate_loss"));
  label_mode.validate_model<FixedLogits>();  // says nothing of its loss
  Engine<MixUp>{MixUp{.interpolate_loss = true}}.validate_model<Indices>();
}

TEST_CASE("a switched policy looks at the model while it is on", "[mixup]") {
  using Engine = tutti::Engine<tutti::Switch<MixUp>>;
  CHECK_THROWS_AS(Engine{tutti::Switch<MixUp>(MixUp{})}.validate_model<Indices>(), c10::ValueError);
  Engine{tutti::Switch<MixUp>(MixUp{}, false)}.validate_model<Indices>();
}

TEST_CASE("mixing losses that are not linear in the targets is warned about", "[mixup]") {
  Warnings warnings;
  MixUp{}.validate_model<Dice>();
  CHECK(warnings.texts.empty());
  MixUp{.interpolate_loss = true}.validate_model<Dice>();
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts.front(), ContainsSubstring("not linear in the targets"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
