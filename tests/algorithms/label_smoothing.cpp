#include <tutti/algorithms/label_smoothing.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <memory>

#include <tutti/core/recipe.hpp>

#include "algorithms/fixed_logits.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::LabelSmoothing;
using tutti::functional::smooth_labels;

static_assert(tutti::Algorithm<LabelSmoothing>);
static_assert(tutti::Recipe<LabelSmoothing>::valid);
static_assert(std::is_aggregate_v<LabelSmoothing>);

at::Tensor hot_rows(const at::Tensor& y, std::int64_t classes) {
  return at::one_hot(y, classes).to(at::kFloat);
}

struct Silent {};
struct TakesIndices {
  using model_features = tutti::types<tutti::loss_takes_indices>;
};

}  // namespace

TEST_CASE("smooth_labels agrees with the reference", "[functional][label_smoothing][golden]") {
  for (const golden::Case& c : golden::cases("smooth_labels")) {
    CHECK_GOLDEN(c, "y", smooth_labels(c.in("logits"), c.in("y"), c.params["smoothing"].number()));
  }
}

TEST_CASE("the policy agrees with the reference and puts the targets back",
          "[label_smoothing][golden]") {
  for (const golden::Case& c : golden::cases("LabelSmoothing")) {
    LabelSmoothing policy{.smoothing = c.params["smoothing"].number()};
    auto model = std::make_shared<FixedLogits>(c.in("logits"));
    tutti::State state = mid_step(model, c.in("x"), c.in("y"));
    run_forward(state);
    fire<tutti::BeforeLoss>(policy, state);
    CHECK_GOLDEN(c, "y_smoothed", state.batch.targets());
    run_loss(state);
    fire<tutti::AfterLoss>(policy, state);
    CHECK_GOLDEN(c, "y_after", state.batch.targets());
    CHECK(state.batch.targets().scalar_type() == c.in("y").scalar_type());
    CHECK_GOLDEN(c, "loss", state.loss);
    state.loss.backward();
    CHECK_GOLDEN(c, "grad_logits", model->logits.grad());
  }
}

TEST_CASE("indices and one-hot rows give the same, rows sum to 1, and 1 is uniform",
          "[functional][label_smoothing][law]") {
  const at::Tensor logits = at::randn({6, 5});
  const at::Tensor y = at::randint(5, {6}, at::kLong);
  for (const double s : {0.0, 0.1, 0.5, 0.9, 1.0}) {
    const at::Tensor smoothed = smooth_labels(logits, y, s);
    CHECK(smoothed.allclose(smooth_labels(logits, hot_rows(y, 5), s), 1e-6, 1e-7));
    CHECK(smoothed.sum(1).allclose(at::ones({6})));
  }
  CHECK(smooth_labels(logits, y, 0.0).equal(hot_rows(y, 5)));
  CHECK(smooth_labels(logits, y, 1.0).allclose(at::full({6, 5}, 0.2)));
  const at::Tensor four = smooth_labels(at::randn({1, 4}), at::zeros({1}, at::kLong));
  CHECK(four.allclose(at::tensor({0.925F, 0.025F, 0.025F, 0.025F}).unsqueeze(0)));
}

TEST_CASE("targets of pixels are smoothed along the classes", "[functional][label_smoothing]") {
  const at::Tensor y = at::randint(4, {2, 3, 5}, at::kLong);
  const at::Tensor smoothed = smooth_labels(at::randn({2, 4, 3, 5}), y, 0.2);
  CHECK(smoothed.sizes() == at::IntArrayRef{2, 4, 3, 5});
  CHECK(smoothed.argmax(1).equal(y));
}

TEST_CASE("positions that are ignored stay empty and train nothing",
          "[functional][label_smoothing]") {
  const at::Tensor y = at::tensor({2, -100, 0}, at::kLong);
  for (const auto& indices : {y, y.to(at::kInt)}) {
    const at::Tensor smoothed = smooth_labels(at::randn({3, 4}), indices, 0.1);
    CHECK(smoothed[1].equal(at::zeros({4})));
    CHECK(smoothed.sum(1).allclose(at::tensor({1.0F, 0.0F, 1.0F})));
    CHECK(smooth_labels(at::randn({3, 4}), smoothed, 0.0).equal(smoothed));
    CHECK(smooth_labels(at::randn({3, 4}), smoothed, 0.1)[1].equal(at::zeros({4})));
  }
  const at::Tensor none = at::full({1}, -100, at::kLong);
  CHECK(smooth_labels(at::randn({1, 4}), none, 0.1).equal(at::zeros({1, 4})));
  LabelSmoothing policy;
  auto model = std::make_shared<FixedLogits>(at::randn({3, 4}));
  tutti::State state = mid_step(model, at::randn({3, 2}), y);
  run_microbatch(state, policy);
  state.loss.backward();
  CHECK(model->logits.grad()[1].equal(at::zeros({4})));
  CHECK(model->logits.grad()[0].abs().sum().item<float>() > 0);
}

TEST_CASE("several labels in a row get the whole uniform part", "[functional][label_smoothing]") {
  const at::Tensor y = at::tensor({1.0F, 1.0F, 0.0F, 0.0F}).unsqueeze(0);
  CHECK(smooth_labels(y, y, 0.2).allclose(y * 0.8 + 0.05));
}

TEST_CASE("the given targets are not written to", "[label_smoothing][law]") {
  const at::Tensor dense = at::randn({3, 4}).softmax(1);
  const at::Tensor before = dense.clone();
  LabelSmoothing policy;
  tutti::State state =
      mid_step(std::make_shared<FixedLogits>(at::randn({3, 4})), at::randn({3, 2}), dense);
  run_microbatch(state, policy);
  CHECK(dense.equal(before));
  CHECK(state.batch.targets().is_same(dense));
}

TEST_CASE("smoothing out of range and wrong shapes are refused", "[label_smoothing]") {
  CHECK_THROWS_WITH(LabelSmoothing{.smoothing = 1.5}.validate(),
                    ContainsSubstring("smoothing is 1.5, expected a number from 0 to 1"));
  LabelSmoothing{.smoothing = 1}.validate();
  const at::Tensor y = at::zeros({3}, at::kLong);
  CHECK_THROWS_WITH(smooth_labels(at::ones({3, 2}), y, -0.1),
                    ContainsSubstring("smoothing is -0.1"));
  CHECK_THROWS_AS(smooth_labels(at::ones({3, 2}), y, 1.1), c10::ValueError);
  CHECK_THROWS_AS(smooth_labels(at::ones({3, 2, 2}), y), c10::ValueError);
  CHECK_THROWS_AS(smooth_labels(at::ones({3}), at::ones({3})), c10::ValueError);
}

TEST_CASE("a loss that takes class indices only is refused", "[label_smoothing]") {
  STATIC_REQUIRE(tutti::Supports<LabelSmoothing, Silent>);
  STATIC_REQUIRE_FALSE(tutti::Supports<LabelSmoothing, TakesIndices>);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
