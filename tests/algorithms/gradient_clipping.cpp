#include <tutti/algorithms/gradient_clipping.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/optim/sgd.h>

#include <tutti/core/recipe.hpp>

#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::ClippingType;
using tutti::GradientClipping;
using tutti::functional::apply_gradient_clipping;

static_assert(tutti::Algorithm<GradientClipping>);
static_assert(tutti::Recipe<GradientClipping>::valid);
static_assert(std::is_aggregate_v<GradientClipping>);

ClippingType type_of(const std::string& name) {
  for (const auto type : {ClippingType::norm, ClippingType::value, ClippingType::adaptive}) {
    if (name == to_string(type)) {
      return type;
    }
  }
  throw std::invalid_argument(name);
}

at::Tensor parameter(const at::Tensor& value, const at::Tensor& gradient) {
  at::Tensor p = value.clone().requires_grad_();
  p.mutable_grad() = gradient.clone();
  return p;
}

struct Listener {
  void log_metrics(std::span<const tutti::LoggedMetric> metrics, std::int64_t at) {
    for (const auto& metric : metrics) {
      names.emplace_back(metric.name);
      values.push_back(metric.value);
      step = at;
    }
  }
  std::vector<std::string> names;
  std::vector<double> values;
  std::int64_t step = -1;
};

tutti::State state_with_gradients(const std::shared_ptr<tiny::Net>& net) {
  tutti::State state;
  state.model = net;
  state.optimizers.push_back(
      std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1)));
  for (auto& p : net->parameters()) {
    p.mutable_grad() = at::ones_like(p);
  }
  return state;
}

}  // namespace

TEST_CASE("apply_gradient_clipping agrees with the reference",
          "[functional][gradient_clipping][golden]") {
  for (const golden::Case& c : golden::cases("apply_gradient_clipping")) {
    std::vector<at::Tensor> parameters;
    for (std::int64_t i = 0; i < c.params["n"].integer(); ++i) {
      const std::string k = std::to_string(i);
      parameters.push_back(c.has_in("g" + k) ? parameter(c.in("p" + k), c.in("g" + k))
                                             : c.in("p" + k).requires_grad_());
    }
    // The reference knows no floor, so that a unit whose weights are 0 gets no gradient ever.
    apply_gradient_clipping(parameters, type_of(c.params["clipping_type"].string()),
                            c.params["threshold"].number(), /*adaptive_floor=*/0);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::string key = "g" + std::to_string(i);
      CHECK(parameters[i].grad().defined() == c.has_out(key));
      if (c.has_out(key)) {
        CHECK_GOLDEN(c, key, parameters[i].grad());
      }
    }
  }
}

TEST_CASE("the norm is clipped and what it was is returned", "[functional][gradient_clipping]") {
  const at::Tensor p = parameter(at::zeros({2}), at::tensor({3.0F, 4.0F}));
  const at::Tensor q = at::zeros({2}).requires_grad_();
  const at::Tensor norm = apply_gradient_clipping({p, q}, ClippingType::norm, 1.0);
  CHECK(norm.item<double>() == 5);
  CHECK(p.grad().allclose(at::tensor({0.6F, 0.8F})));
  CHECK_FALSE(q.grad().defined());
  CHECK_FALSE(apply_gradient_clipping({q}, ClippingType::norm, 1.0).defined());
}

TEST_CASE("gradients below the threshold keep their bits", "[functional][gradient_clipping][law]") {
  const at::Tensor g = at::randn({5, 5});
  for (const auto type : {ClippingType::norm, ClippingType::value, ClippingType::adaptive}) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor p = parameter(at::ones({5, 5}, dtype), g.to(dtype));
      apply_gradient_clipping({p}, type, 1e6);
      CHECK(p.grad().equal(g.to(dtype)));
    }
  }
}

TEST_CASE("small and large tensors, floats and doubles are clipped alike",
          "[functional][gradient_clipping][law]") {
  const at::Tensor small = at::randn({40, 10});
  const at::Tensor large = at::randn({300, 200});
  const double norm =
      at::cat({small.flatten(), large.flatten()}).to(at::kDouble).norm().item<double>();
  for (const auto type : {at::kFloat, at::kDouble}) {
    const at::Tensor a = parameter(small.to(type), small.to(type));
    const at::Tensor b = parameter(large.to(type), large.to(type));
    const at::Tensor got = apply_gradient_clipping({a, b}, ClippingType::norm, 0.5);
    CHECK(std::abs(got.item<double>() - norm) < 1e-4 * norm);
    CHECK(a.grad().allclose(small.to(type) * (0.5 / norm), 1e-5, 1e-8));
    CHECK(b.grad().allclose(large.to(type) * (0.5 / norm), 1e-5, 1e-8));
  }
  // Per unit: slices of dimension 0; the whole of what has one dimension.
  const at::Tensor w = at::rand({300, 200});
  for (const auto dims : {1, 2}) {
    const at::Tensor weight = dims == 2 ? w : w.flatten();
    const at::Tensor gradient = dims == 2 ? large : large.flatten();
    const at::Tensor p = parameter(weight, gradient);
    apply_gradient_clipping({p}, ClippingType::adaptive, 0.1);
    const at::Tensor limit = (dims == 2 ? w.norm(2, 1, true) : w.norm()) * 0.1;
    const at::Tensor length = dims == 2 ? large.norm(2, 1, true) : large.norm();
    CHECK(p.grad().allclose(gradient * (limit / length).clamp_max(1), 1e-5, 1e-7));
  }
}

TEST_CASE("adaptive clipping looks at each unit beside its weights",
          "[functional][gradient_clipping]") {
  const at::Tensor one = parameter(at::tensor({3.0F, 4.0F}), at::tensor({7.0F, 24.0F}));
  apply_gradient_clipping({one}, ClippingType::adaptive, 0.5);
  CHECK(one.grad().allclose(at::tensor({0.7F, 2.4F})));

  const at::Tensor two = parameter(at::tensor({3.0F, 4.0F, 9.0F, 40.0F}).view({2, 2}),
                                   at::tensor({7.0F, 24.0F, 5.0F, 12.0F}).view({2, 2}));
  apply_gradient_clipping({two}, ClippingType::adaptive, 0.5);
  CHECK(two.grad()[0].allclose(at::tensor({0.7F, 2.4F})));
  CHECK(two.grad()[1].equal(at::tensor({5.0F, 12.0F})));
}

TEST_CASE("weights that start at zero can leave it, unless the floor is 0",
          "[functional][gradient_clipping]") {
  for (const std::int64_t n : {4, 40000}) {
    const at::Tensor p = parameter(at::zeros({n}), at::ones({n}));
    apply_gradient_clipping({p}, ClippingType::adaptive, 0.5);
    CHECK(std::abs(p.grad().norm().item<double>() - 0.5e-3) < 1e-7);
    const at::Tensor q = parameter(at::zeros({n}), at::ones({n}));
    apply_gradient_clipping({q}, ClippingType::adaptive, 0.5, /*adaptive_floor=*/0);
    CHECK(q.grad().equal(at::zeros({n})));
  }
}

TEST_CASE("adaptive clipping leaves a unit with NaN as it is, and clips the others",
          "[functional][gradient_clipping]") {
  for (const std::int64_t n : {2, 40000}) {
    at::Tensor bad = at::full({2, n}, 8.0F);
    bad[0][1] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor one = parameter(at::ones({2, n}), bad.clone());
    apply_gradient_clipping({one}, ClippingType::adaptive, 0.5);
    CHECK(one.grad()[0][0].item<float>() == 8.0F);
    CHECK(one.grad()[1].allclose(at::full({n}, 0.5F)));
  }
}

TEST_CASE("gradients of zero stay zero and NaN is not hidden", "[functional][gradient_clipping]") {
  for (const auto type : {ClippingType::norm, ClippingType::value, ClippingType::adaptive}) {
    for (const std::int64_t n : {2, 40000}) {
      const at::Tensor zero = parameter(at::zeros({n}), at::zeros({n}));
      apply_gradient_clipping({zero}, type, 0.5, 0);
      CHECK(zero.grad().equal(at::zeros({n})));
      const at::Tensor half = parameter(at::zeros({n, 2}, at::kHalf), at::zeros({n, 2}, at::kHalf));
      apply_gradient_clipping({half}, type, 0.5, 0);
      CHECK(half.grad().equal(at::zeros({n, 2}, at::kHalf)));
      at::Tensor bad = at::ones({n});
      bad[1] = std::numeric_limits<float>::quiet_NaN();
      const at::Tensor nan = parameter(at::ones({n}), bad);
      apply_gradient_clipping({nan}, type, 0.5);
      CHECK(nan.grad().isnan().any().item<bool>());
    }
  }
}

TEST_CASE("the policy clips what the optimizer updates and logs the norm at the end of the batch",
          "[gradient_clipping]") {
  auto net = tiny::net();
  tutti::State state = state_with_gradients(net);
  Listener listener;
  GradientClipping policy{.clipping_type = ClippingType::norm, .clipping_threshold = 1.0};
  policy.validate();
  policy.apply(tutti::AfterTrainBatch{}, state);
  CHECK_FALSE(policy.match(tutti::BatchEnd{}, state));
  state.logger.add(listener);
  REQUIRE(policy.match(tutti::BatchEnd{}, state));
  state.timestamp = state.previous_timestamp.to_next_batch();
  policy.apply(tutti::BatchEnd{}, state);
  CHECK(listener.names == std::vector<std::string>{"gradient_clipping/norm"});
  CHECK(std::abs(listener.values[0] - std::sqrt(4 * 8 + 8 + 8 * 2 + 2)) < 1e-6);
  CHECK(listener.step == 0);
  double sum = 0;
  for (const auto& p : net->parameters()) {
    sum += p.grad().pow(2).sum().item<double>();
  }
  CHECK(std::abs(sum - 1) < 1e-5);
  policy.clipping_type = ClippingType::value;
  policy.apply(tutti::AfterTrainBatch{}, state);
  CHECK_FALSE(policy.match(tutti::BatchEnd{}, state));
}

TEST_CASE("SAM's ascent is not clipped unless asked for", "[gradient_clipping][sam]") {
  tutti::State state;
  state.is_ascent = true;
  GradientClipping policy{.clipping_type = ClippingType::value, .clipping_threshold = 1.0};
  CHECK_FALSE(policy.match(tutti::AfterTrainBatch{}, state));
  policy.in_ascent = true;
  CHECK(policy.match(tutti::AfterTrainBatch{}, state));
  policy.in_ascent = false;
  state.is_ascent = false;
  CHECK(policy.match(tutti::AfterTrainBatch{}, state));
}

TEST_CASE("excluded parameters keep their gradients and do not count", "[gradient_clipping]") {
  auto net = tiny::net();
  tutti::State state = state_with_gradients(net);
  GradientClipping policy{
      .clipping_type = ClippingType::norm, .clipping_threshold = 1.0, .exclude = {"out.*"}};
  REQUIRE(policy.match(tutti::FitStart{}, state));
  policy.apply(tutti::FitStart{}, state);
  policy.apply(tutti::AfterTrainBatch{}, state);
  CHECK(net->out->weight.grad().equal(at::ones({2, 8})));
  CHECK(std::abs(policy.run.norm->item<double>() - std::sqrt(40)) < 1e-6);
  policy.exclude = {"head.*"};
  CHECK_THROWS_WITH(policy.apply(tutti::FitStart{}, state),
                    ContainsSubstring("\"head.*\", which is the name of no parameter"));
}

TEST_CASE("what is not set or out of range is refused", "[gradient_clipping]") {
  CHECK_THROWS_WITH(GradientClipping{}.validate(), ContainsSubstring("clipping_type is not set"));
  CHECK_THROWS_WITH((GradientClipping{.clipping_type = ClippingType::norm}.validate()),
                    ContainsSubstring("clipping_threshold is 0, expected more than 0"));
  CHECK_THROWS_WITH((GradientClipping{.clipping_type = ClippingType::adaptive,
                                      .clipping_threshold = 0.1,
                                      .adaptive_floor = -1e-3}
                         .validate()),
                    ContainsSubstring("adaptive_floor is -0.001, expected 0 or more"));
  CHECK_THROWS_WITH(apply_gradient_clipping(std::vector<at::Tensor>{}, ClippingType::norm, 0),
                    ContainsSubstring("clipping_threshold is 0"));
  const at::Tensor p = parameter(at::ones({2}), at::ones({2}));
  CHECK_THROWS_AS(apply_gradient_clipping({p}, ClippingType::unset, 1), c10::ValueError);
  p.mutable_grad() = at::ones({2}).to_sparse();
  CHECK_THROWS_WITH(apply_gradient_clipping({p}, ClippingType::norm, 1),
                    ContainsSubstring("expected a dense one"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
