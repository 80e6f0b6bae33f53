#include <tutti/losses/mixed_cross_entropy.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/catch.hpp"

#include <vector>

#include <tutti/losses/soft_cross_entropy.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Reduction;
using tutti::functional::mixed_cross_entropy;
using tutti::functional::soft_cross_entropy;

namespace {

constexpr std::int64_t examples = 7;
constexpr std::int64_t classes = 5;

struct Case {
  at::Tensor logits = at::randn({examples, classes}).mul_(3);
  at::Tensor target = at::randint(0, classes, {examples}, at::kLong);
  at::Tensor rows;
  std::vector<double> weights;

  explicit Case(std::vector<double> pair_weights) : weights(std::move(pair_weights)) {
    rows = at::randint(0, examples, {examples, std::ssize(weights)}, at::kLong);
    rows.select(1, 0).copy_(at::arange(examples));
  }

  // The targets [N, C] themselves.
  at::Tensor dense(double smoothing) const {
    at::Tensor out = at::zeros({examples, classes}, at::kDouble);
    for (std::int64_t n = 0; n < examples; ++n) {
      for (std::size_t j = 0; j < weights.size(); ++j) {
        const auto row = rows[n][static_cast<std::int64_t>(j)].item<std::int64_t>();
        const auto index = target[row].item<std::int64_t>();
        if (index >= 0) {
          out[n][index] += (1 - smoothing) * weights[j];
          out[n] += smoothing * weights[j] / classes;
        }
      }
    }
    return out.to(at::kFloat);
  }
};

const std::vector<std::vector<double>> mixes{
    {1}, {0.7, 0.3}, {0.25, 0.75}, {0.42, 0.28, 0.18, 0.12}};

}  // namespace

TEST_CASE("mixed cross entropy and its gradient are those of dense targets", "[losses][law]") {
  at::manual_seed(1);
  for (const bool ignoring : {false, true}) {
    for (const auto& weights : mixes) {
      for (const double smoothing : {0.0, 0.1, 1.0}) {
        for (const auto reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
          Case c(weights);
          if (ignoring) {
            c.target[2] = -100;
            c.target[5] = -1;
          }
          const at::Tensor x = c.logits.clone().requires_grad_();
          const at::Tensor y = c.logits.clone().requires_grad_();
          const at::Tensor got =
              mixed_cross_entropy(x, c.target, c.rows, weights, smoothing, reduction);
          const at::Tensor want = soft_cross_entropy(y, c.dense(smoothing), {}, -100, reduction);
          REQUIRE(got.sizes() == want.sizes());
          CHECK(got.allclose(want, 1e-6, 1e-6));
          const at::Tensor outer = at::randn(got.sizes());
          got.backward(outer);
          want.backward(outer);
          CHECK(x.grad().allclose(y.grad(), 1e-5, 1e-6));
        }
      }
    }
  }
}

TEST_CASE("mixed cross entropy has a second derivative", "[losses][law]") {
  at::manual_seed(2);
  const Case c({0.6, 0.4});
  const auto curvature = [&](const auto& loss) {
    const at::Tensor x = c.logits.to(at::kDouble).requires_grad_();
    const auto first = torch::autograd::grad({loss(x)}, {x}, {}, true, true);
    return torch::autograd::grad({first[0].pow(2).sum()}, {x})[0];
  };
  const at::Tensor got = curvature([&](const at::Tensor& x) {
    return mixed_cross_entropy(x, c.target, c.rows, c.weights, 0.1);
  });
  const at::Tensor want =
      curvature([&](const at::Tensor& x) { return soft_cross_entropy(x, c.dense(0.1)); });
  CHECK(got.allclose(want, 1e-5, 1e-7));
}

TEST_CASE("mixed cross entropy of half-precision logits is computed in fp32", "[losses]") {
  at::manual_seed(3);
  const Case c({0.5, 0.5});
  const at::Tensor x = c.logits.to(at::kBFloat16).requires_grad_();
  const at::Tensor loss = mixed_cross_entropy(x, c.target, c.rows, c.weights);
  CHECK(loss.scalar_type() == at::kFloat);
  CHECK(loss.allclose(soft_cross_entropy(x.to(at::kFloat), c.dense(0)), 1e-6, 1e-6));
  loss.backward();
  CHECK(x.grad().scalar_type() == at::kBFloat16);
}

TEST_CASE("mixed cross entropy takes indices of any integer type", "[losses]") {
  at::manual_seed(4);
  const Case c({0.9, 0.1});
  const at::Tensor want = mixed_cross_entropy(c.logits, c.target, c.rows, c.weights);
  for (const auto type : {at::kByte, at::kChar, at::kShort, at::kInt}) {
    CHECK(at::equal(mixed_cross_entropy(c.logits, c.target.to(type), c.rows, c.weights), want));
  }
}

TEST_CASE("mixed cross entropy of one example is its own, of none no number", "[losses]") {
  const at::Tensor x = at::randn({1, classes});
  const at::Tensor y = at::full({1}, 2, at::kLong);
  const at::Tensor rows = at::zeros({1, 2}, at::kLong);
  CHECK(mixed_cross_entropy(x, y, rows, {0.4, 0.6}).allclose(at::cross_entropy_loss(x, y)));
  const at::Tensor none = at::zeros({0, 1}, at::kLong);
  CHECK(mixed_cross_entropy(at::ones({0, classes}), none.flatten(), none, {1})
            .isnan()
            .item<bool>());  // as torch.nn.functional.cross_entropy
}

TEST_CASE("mixed cross entropy refuses what does not fit", "[losses]") {
  const Case c({0.9, 0.1});
  const at::Tensor wrong = c.target.index_fill(0, at::zeros({1}, at::kLong), classes);
  CHECK_THROWS_WITH(mixed_cross_entropy(c.logits, wrong, c.rows, c.weights),
                    ContainsSubstring("a target is 5, expected less than 5"));
  CHECK_THROWS_WITH(mixed_cross_entropy(c.logits, c.target.slice(0, 1), c.rows, c.weights),
                    ContainsSubstring("expected an index of a class for each of 7 outputs"));
  CHECK_THROWS_WITH(mixed_cross_entropy(c.logits, c.target.gt(0), c.rows, c.weights),
                    ContainsSubstring("the targets are Bool"));
  CHECK_THROWS_WITH(mixed_cross_entropy(c.logits.to(at::kLong), c.target, c.rows, c.weights),
                    ContainsSubstring("the outputs are Long[7, 5], expected floating"));
  CHECK_THROWS_WITH(mixed_cross_entropy(c.logits[0], c.target, c.rows, c.weights),
                    ContainsSubstring("expected floating [N, C]"));
  CHECK_THROWS_WITH(mixed_cross_entropy(c.logits, c.logits, c.rows, c.weights),
                    ContainsSubstring("expected an index of a class for each of 7 outputs"));
  CHECK_THROWS_WITH(mixed_cross_entropy(c.logits, c.target, c.rows, {1}),
                    ContainsSubstring("beside 1 weights, expected int64 [7, 1]"));
  CHECK_THROWS_WITH(mixed_cross_entropy(c.logits, c.target, c.rows, c.weights, 1.5),
                    ContainsSubstring("smoothing is 1.5, expected a number from 0 to 1"));
  CHECK_THROWS_WITH(mixed_cross_entropy(c.logits, c.target.add(classes), c.rows, c.weights),
                    ContainsSubstring("expected less than 5, the number of classes"));
  CHECK_THROWS_WITH(
      mixed_cross_entropy(c.logits, at::full_like(c.target, -1), c.rows, c.weights),
      ContainsSubstring("all targets are negative, so there is nothing to average over"));
  CHECK_THROWS(mixed_cross_entropy(c.logits, c.target, c.rows.add(examples), c.weights));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
