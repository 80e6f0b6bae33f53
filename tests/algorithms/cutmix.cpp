#include <tutti/algorithms/cutmix.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <array>
#include <cmath>
#include <memory>

#include <tutti/algorithms/mixup.hpp>
#include <tutti/core/engine.hpp>

#include "algorithms/fixed_logits.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::CutMix;
using tutti::Rng;
using tutti::functional::Box;
using tutti::functional::box_around;
using tutti::functional::cutmix_batch;
using tutti::functional::draw_box;
using tutti::functional::paste_box;

static_assert(tutti::Algorithm<CutMix>);
static_assert(tutti::Recipe<CutMix>::valid);
static_assert(std::is_aggregate_v<CutMix>);

// The reference draws one more number per call and uses it for nothing: `draws` says how many.
Rng replaying(const golden::Case& c, std::size_t draws) {
  auto tape = std::make_shared<tutti::Tape>();
  for (std::size_t i = 0; i < draws; ++i) {
    const std::string& call = c.draws[i]["call"].string();
    if (c.draw_is_tensor(i)) {
      tape->permutations.push_back(c.draw_tensor(i));
    } else if (call == "numpy.random.beta") {
      tape->betas.push_back(c.draw_number(i));
    } else {
      tape->integers.push_back(c.draw(i).integer());
    }
  }
  Rng rng;
  rng.replay(tape);
  return rng;
}

at::Tensor as_tensor(const Box& box) {
  return at::tensor({box.top, box.left, box.bottom, box.right}, at::kLong);
}

}  // namespace

TEST_CASE("cutmix_batch agrees with the reference", "[functional][cutmix][golden]") {
  for (const golden::Case& c : golden::cases("cutmix_batch")) {
    const at::Tensor x = c.in("x");
    tutti::functional::CutMixOptions options;
    if (const auto* alpha = c.params.find("alpha")) {
      options.alpha = alpha->number();
    }
    if (const auto* uniform = c.params.find("uniform_sampling")) {
      options.uniform_sampling = uniform->boolean();
    }
    if (const auto* box = c.params.find("bbox")) {
      options.box = Box{box->at(0).integer(), box->at(1).integer(), box->at(2).integer(),
                        box->at(3).integer()};
    }
    if (const auto* length = c.params.find("length")) {
      // What the reference's `length` means: not the sides of the box but the part that is kept.
      const auto height = static_cast<double>(x.size(2));
      const auto width = static_cast<double>(x.size(3));
      options.lambda = std::trunc(length->number() * width) *
                       std::trunc(length->number() * height) / (height * width);
    }
    if (c.has_in("indices")) {
      options.indices = c.in("indices");
    }
    Rng rng = replaying(c, c.draws.size());
    const auto cut = cutmix_batch(x, c.in("y"), rng, options);
    CHECK_GOLDEN(c, "x", cut.input);
    CHECK_GOLDEN(c, "y_perm", cut.permuted_target);
    CHECK_GOLDEN(c, "bbox", as_tensor(cut.box));
    CHECK(cut.adjusted_lambda == c.out("adjusted_lambda").item<double>());
  }
}

TEST_CASE("CutMix: the policy agrees with the reference in both modes", "[cutmix][golden]") {
  for (const golden::Case& c : golden::cases("CutMix")) {
    CutMix policy{.alpha = c.params["alpha"].number(),
                  .interpolate_loss = c.params["interpolate_loss"].boolean(),
                  .uniform_sampling = c.params["uniform_sampling"].boolean(),
                  .rng = replaying(c, 4)};
    auto model = std::make_shared<FixedLogits>(c.in("logits"));
    tutti::State state = mid_step(model, c.in("x"), c.in("y"));
    run_microbatch(state, policy);
    CHECK_GOLDEN(c, "x", state.batch.inputs());
    CHECK_GOLDEN(c, "loss", state.loss);
    state.loss.backward();
    CHECK_GOLDEN(c, "grad_logits", model->logits.grad());
    CHECK_GOLDEN(c, "bbox", as_tensor(policy.run.box));
    CHECK(policy.run.adjusted_lambda == c.out("adjusted_lambda").item<double>());
    CHECK(policy.run.indices->equal(c.out("indices")));
    if (c.has_out("y_mixed")) {
      CHECK_GOLDEN(c, "y_mixed", state.batch.targets());
    }
  }
}

TEST_CASE("a box lies around its centre and is cut off at the edges", "[functional][cutmix][law]") {
  constexpr double half = 0.5;  // sides for lambda 0.75
  static_assert(box_around(16, 16, 32, 32, half) == Box{8, 8, 24, 24});
  static_assert(box_around(0, 0, 32, 32, half) == Box{0, 0, 8, 8});
  static_assert(box_around(31, 31, 32, 32, half) == Box{23, 23, 32, 32});
  static_assert(box_around(3, 3, 7, 7, half) == Box{2, 2, 4, 4});  // int(3.5) / 2 to either side
  static_assert(box_around(5, 5, 8, 8, 0).area() == 0);

  const at::Tensor x = at::randn({2, 3, 32, 32});
  Rng rng;
  const auto kept = [&](const Box& box) {
    return cutmix_batch(x, at::zeros({2}), rng, {.box = box}).adjusted_lambda;
  };
  CHECK(kept({8, 8, 24, 24}) == 0.75);
  CHECK(kept({0, 0, 8, 8}) == 0.9375);
}

TEST_CASE("every pixel comes from the partner inside the box and stays outside",
          "[functional][cutmix][law]") {
  const at::Tensor x = at::randn({5, 2, 6, 7}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor perm = at::randperm(5);
  const at::Tensor got = paste_box(x, perm, {1, 2, 4, 7});
  at::Tensor inside = at::zeros({6, 7}, at::kBool);
  inside.slice(0, 1, 4).slice(1, 2, 7).fill_(true);
  CHECK(got.equal(at::where(inside, x.index_select(0, perm), x)));
  CHECK(got.is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST_CASE("an empty box and a single example change nothing", "[functional][cutmix][law]") {
  const at::Tensor x = at::randn({3, 1, 8, 8});
  Rng rng;
  const auto none = cutmix_batch(x, at::zeros({3}), rng, {.lambda = 1.0});
  CHECK(none.input.is_same(x));
  CHECK(none.adjusted_lambda == 1);
  const at::Tensor one = at::randn({1, 1, 8, 8});
  CHECK(cutmix_batch(one, at::zeros({1}), rng).input.equal(one));
}

TEST_CASE("uniform sampling covers every column equally often", "[functional][cutmix][law]") {
  constexpr std::int64_t size = 8;
  constexpr std::int64_t cut = 4;
  std::array<int, size> covered{};
  for (std::int64_t centre = -cut / 2; centre < size + cut / 2; ++centre) {
    const Box box = box_around(centre, centre, size, size, 0.5);
    for (std::int64_t at = box.left; at < box.right; ++at) {
      ++covered[static_cast<std::size_t>(at)];
    }
  }
  for (const int times : covered) {
    CHECK(times == cut);
  }
  Rng rng(11);
  bool above = false;
  bool below = false;
  for (int i = 0; i < 300; ++i) {
    const Box box = draw_box(rng, size, size, 0.5, /*uniform_sampling=*/true);
    above = above || box.bottom == 0;
    below = below || box.top > size - 2;
  }
  CHECK(above);
  CHECK(below);
}

TEST_CASE("length is the box's side as a part of the image's", "[functional][cutmix]") {
  Rng rng(2);
  const at::Tensor x = at::randn({2, 1, 16, 16});
  for (int i = 0; i < 20; ++i) {
    const auto cut = cutmix_batch(x, at::zeros({2}), rng, {.length = 0.25});
    CHECK(cut.box.area() <= 16);
  }
}

TEST_CASE("CutMix: loss mode equals label mode under cross entropy", "[cutmix][law]") {
  const at::Tensor x = at::randn({6, 3, 8, 12});
  const at::Tensor y = at::randint(3, {6}, at::kLong);
  auto model = std::make_shared<FixedLogits>(at::randn({6, 3}));
  at::Tensor losses[2];
  for (const bool interpolate : {false, true}) {
    CutMix policy{.interpolate_loss = interpolate, .rng = Rng(5)};
    tutti::State state = mid_step(model, x, y);
    run_microbatch(state, policy);
    losses[interpolate ? 1 : 0] = state.loss;
    CHECK(policy.run.adjusted_lambda == 1 - static_cast<double>(policy.run.box.area()) / (8 * 12));
  }
  CHECK(losses[0].allclose(losses[1], 1e-6, 1e-6));
}

TEST_CASE("targets of pixels get the same box, as indices too, in a tensor of their own",
          "[cutmix]") {
  const at::Tensor y = at::randint(4, {3, 8, 8}, at::kLong);
  const at::Tensor before = y.clone();
  CutMix policy{.rng = Rng(1)};
  tutti::State state =
      mid_step(std::make_shared<FixedLogits>(at::randn({3, 4, 8, 8})), at::randn({3, 2, 8, 8}), y);
  run_microbatch(state, policy);
  REQUIRE(policy.run.box.area() > 0);
  CHECK(state.batch.targets().equal(paste_box(before, *policy.run.indices, policy.run.box)));
  CHECK(y.equal(before));

  policy.interpolate_loss = true;
  CHECK_THROWS_WITH(run_microbatch(state, policy), ContainsSubstring("leave it off"));
}

TEST_CASE("what cannot be meant is refused with what was got", "[cutmix]") {
  CHECK_THROWS_WITH(CutMix{.alpha = 0}.validate(),
                    ContainsSubstring("alpha is 0, expected more than 0"));
  Rng rng;
  const at::Tensor x = at::ones({2, 1, 4, 4});
  CHECK_THROWS_WITH(cutmix_batch(x, x, rng, {.length = 0.5, .box = Box{}}),
                    ContainsSubstring("more than one of lambda, length and box"));
  CHECK_THROWS_WITH(cutmix_batch(x, x, rng, {.alpha = -1}), ContainsSubstring("alpha is -1"));
  CHECK_THROWS_WITH(cutmix_batch(x, x, rng, {.box = Box{0, 0, 5, 2}}),
                    ContainsSubstring("expected them within the image of 4 x 4"));
  CHECK_THROWS_WITH(cutmix_batch(x, x, rng, {.box = Box{0, 0, 2, 5}}),
                    ContainsSubstring("columns 0 to 5; expected them within"));
  CHECK_THROWS_WITH(cutmix_batch(x, x, rng, {.length = 1.1}), ContainsSubstring("length is 1.1"));
  CHECK_THROWS_WITH(cutmix_batch(x, x, rng, {.lambda = 1.1}), ContainsSubstring("lambda is 1.1"));
  CHECK_THROWS_WITH(paste_box(x, at::zeros({1}, at::kLong), {0, 0, 2, 2}),
                    ContainsSubstring("expected x [N, ..., H, W] and one index for each"));
  CHECK_THROWS_WITH(cutmix_batch(at::ones({2, 4}), x, rng),
                    ContainsSubstring("expected images [N, C, H, W]"));
}

TEST_CASE("CutMix refuses to interpolate the loss beside MixUp", "[cutmix]") {
  using Both = tutti::Engine<tutti::MixUp, CutMix>;
  CHECK_NOTHROW(Both(tutti::MixUp{}, CutMix{}));
  CHECK_THROWS_AS(Both(tutti::MixUp{}, CutMix{.interpolate_loss = true}), c10::ValueError);
  CHECK_THROWS_AS(Both(tutti::MixUp{.interpolate_loss = true}, CutMix{}), c10::ValueError);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
