#include <tutti/nn/rotary.hpp>

#include <cmath>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::nn::RopeType;
using tutti::nn::Rotary;
using tutti::nn::RotaryOptions;
using tutti::nn::RotaryTables;
namespace functional = tutti::functional;

at::Tensor positions(std::int64_t length) {
  return at::arange(length, at::kLong).unsqueeze(0);
}

// The rotation as complex numbers a + ib times e^(i angle), in double.
at::Tensor by_formula(const at::Tensor& x, const at::Tensor& angles) {
  const std::int64_t half = angles.size(-1);
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor z = at::complex(wide.narrow(-1, 0, half), wide.narrow(-1, half, half));
  const at::Tensor by = at::polar(at::ones_like(angles), angles).unsqueeze(2);
  const at::Tensor y = z * by;
  return at::cat({at::real(y), at::imag(y), wide.slice(-1, 2 * half)}, -1);
}

bool close(const at::Tensor& got, const std::vector<double>& want, double relative = 1e-6) {
  return got.to(at::kDouble).allclose(at::tensor(want, at::kDouble), relative, 0);
}

}  // namespace

TEST_CASE("rotating is multiplication by a complex number, and its gradient the way back",
          "[nn][law]") {
  torch::manual_seed(1);
  for (const std::int64_t half : {1, 4, 8, 13}) {
    for (const std::int64_t rest : {0, 3}) {
      for (const std::int64_t tables : {1, 2}) {
        INFO("half " << half << ", rest " << rest << ", tables " << tables);
        const at::Tensor angles = at::randn({tables, 5, half}, at::kDouble);
        const RotaryTables by{angles.cos().to(at::kFloat), angles.sin().to(at::kFloat)};
        const at::Tensor x = at::randn({2, 5, 3, 2 * half + rest}).requires_grad_();
        const at::Tensor y = functional::rotate(x, by);
        CHECK(y.to(at::kDouble).allclose(by_formula(x, angles), 1e-5, 1e-6));

        const at::Tensor dy = at::randn_like(y);
        y.backward(dy, /*retain_graph=*/true);
        CHECK(x.grad().to(at::kDouble).allclose(by_formula(dy, angles.neg()), 1e-5, 1e-6));
        // ATen's operators, which double takes, agree.
        const at::Tensor x2 = x.detach().to(at::kDouble).requires_grad_();
        const at::Tensor y2 = functional::rotate(x2, {angles.cos(), angles.sin()});
        y2.backward(dy.to(at::kDouble));
        CHECK(y2.to(at::kFloat).allclose(y, 1e-5, 1e-6));
        CHECK(x2.grad().to(at::kFloat).allclose(x.grad(), 1e-5, 1e-6));
      }
    }
  }
}

TEST_CASE("rotating takes views, as heads that were transposed", "[nn]") {
  torch::manual_seed(2);
  const at::Tensor angles = at::randn({1, 5, 4});
  const RotaryTables by{angles.cos(), angles.sin()};
  const at::Tensor x = at::randn({2, 3, 5, 8});
  const at::Tensor view = x.transpose(1, 2);
  CHECK(functional::rotate(view, by).equal(functional::rotate(view.contiguous(), by)));
  const at::Tensor strided = at::randn({2, 5, 3, 16}).slice(3, 0, 16, 2);
  CHECK(functional::rotate(strided, by).equal(functional::rotate(strided.contiguous(), by)));
}

TEST_CASE("gradients of a rotation have gradients", "[nn]") {
  const at::Tensor angles = at::ones({1, 2, 4});
  const RotaryTables by{angles.cos(), angles.sin()};
  const at::Tensor x = at::randn({1, 2, 1, 8}).requires_grad_();
  const auto first =
      torch::autograd::grad({functional::rotate(x, by).pow(3).sum()}, {x}, {}, true, true);
  const auto second = torch::autograd::grad({first[0].sum()}, {x});
  const at::Tensor x2 = x.detach().to(at::kDouble).requires_grad_();
  const RotaryTables by2{by.cos.to(at::kDouble), by.sin.to(at::kDouble)};
  const auto first2 =
      torch::autograd::grad({functional::rotate(x2, by2).pow(3).sum()}, {x2}, {}, true, true);
  const auto second2 = torch::autograd::grad({first2[0].sum()}, {x2});
  CHECK(second[0].to(at::kDouble).allclose(second2[0], 1e-4, 1e-4));
}

TEST_CASE("scores of rotated queries and keys depend on their distance alone", "[nn][law]") {
  torch::manual_seed(3);
  Rotary rotary(8, {});
  const at::Tensor q = at::randn({1, 1, 1, 8});
  const at::Tensor k = at::randn({1, 1, 1, 8});
  const auto score = [&](std::int64_t m, std::int64_t n) {
    const auto at = [&](const at::Tensor& x, std::int64_t place) {
      return functional::rotate(x, rotary.tables(at::full({1, 1}, place, at::kLong), x));
    };
    return (at(q, m) * at(k, n)).sum().item<double>();
  };
  CHECK(std::abs(score(9, 4) - score(105, 100)) < 1e-4);
  CHECK(std::abs(score(9, 4) - score(9, 5)) > 1e-3);
}

TEST_CASE("frequencies by kind are those of the reference", "[nn][golden]") {
  // inv_freq of Transformers 5.23.0 for heads of 8.
  const auto of = [](const RotaryOptions& options) { return Rotary(8, options); };
  CHECK(close(of({}).frequencies(1), {1.0, 0.1, 0.01, 0.001}));
  CHECK(close(of({.rope_type = RopeType::linear, .factor = 4}).frequencies(1),
              {0.25, 0.025, 0.0025, 0.00025}));
  const Rotary dynamic =
      of({.rope_type = RopeType::dynamic, .factor = 2, .max_position_embeddings = 16});
  CHECK(close(dynamic.frequencies(40),
              {1.0, 0.06299605220556259, 0.00396850286051631, 0.0002500000118743628}));
  CHECK(close(dynamic.frequencies(16), {1.0, 0.1, 0.01, 0.001}));
  CHECK(close(
      of({.rope_type = RopeType::llama3,
          .factor = 8,
          .max_position_embeddings = 64,
          .original_max_position_embeddings = 16})
          .frequencies(1),
      {0.5760563611984253, 0.012500000186264515, 0.0012499999720603228, 0.0001250000059371814}));
  const Rotary yarn = of({.rope_type = RopeType::yarn,
                          .factor = 4,
                          .max_position_embeddings = 64,
                          .original_max_position_embeddings = 16});
  CHECK(close(yarn.frequencies(1),
              {1.0, 0.02500000037252903, 0.0024999999441206455, 0.0002500000118743628}));
  CHECK(std::abs(yarn.attention_factor() - 1.138629436111989) < 1e-12);
  CHECK(of({}).attention_factor() == 1);
}

TEST_CASE("a longer model's factor, scales and divisors come from the options", "[nn]") {
  RotaryOptions yarn{.rope_type = RopeType::yarn,
                     .max_position_embeddings = 64,
                     .original_max_position_embeddings = 16};
  const double four = Rotary(8, yarn).attention_factor();  // the factor is 64 / 16
  CHECK(std::abs(four - (0.1 * std::log(4) + 1)) < 1e-12);
  yarn.mscale = 2;
  yarn.mscale_all_dim = 1;
  const double ratio = (0.2 * std::log(4) + 1) / (0.1 * std::log(4) + 1);
  CHECK(std::abs(Rotary(8, yarn).attention_factor() - ratio) < 1e-12);
  yarn.attention_factor = 1.5;
  CHECK(Rotary(8, yarn).attention_factor() == 1.5);

  const Rotary longrope(8, {.rope_type = RopeType::longrope,
                            .max_position_embeddings = 64,
                            .original_max_position_embeddings = 16,
                            .short_factor = {1, 2, 4, 5},
                            .long_factor = {2, 10, 1, 1}});
  CHECK(close(longrope.frequencies(16), {1.0, 0.05, 0.0025, 0.0002}));
  CHECK(close(longrope.frequencies(17), {0.5, 0.01, 0.01, 0.001}));
  CHECK(std::abs(longrope.attention_factor() - std::sqrt(1 + std::log(4) / std::log(16))) < 1e-12);
}

TEST_CASE("tables take positions as they come, and the type of the model", "[nn]") {
  Rotary rotary(8, {.partial_rotary_factor = 0.5});
  CHECK(rotary.dim() == 4);
  const at::Tensor given = at::tensor({0, 3, 1, 7}, at::kLong).view({2, 2});
  const RotaryTables by = rotary.tables(given, at::empty({}, at::kBFloat16));
  CHECK(by.cos.sizes() == at::IntArrayRef{2, 2, 2});
  CHECK(by.cos.scalar_type() == at::kBFloat16);
  const at::Tensor angles = given.to(at::kFloat).unsqueeze(-1) * rotary.frequencies(1);
  CHECK(by.sin.equal(angles.sin().to(at::kBFloat16)));

  Rotary dynamic(8, {.rope_type = RopeType::dynamic, .factor = 2, .max_position_embeddings = 16});
  const at::Tensor like = at::empty({});
  const at::Tensor late = at::full({1, 1}, 39, at::kLong);
  const at::Tensor want = (late.to(at::kFloat).unsqueeze(-1) * dynamic.frequencies(40)).cos();
  CHECK(dynamic.tables(late, like).cos.equal(want));
  CHECK(dynamic.tables(late, like, 40).cos.equal(want));
  CHECK(dynamic.depends_on_length(17));
  CHECK_FALSE(dynamic.depends_on_length(16));  // nothing to look up
  const at::Tensor early = positions(4);  // the frequencies of the long text are not kept for it
  CHECK(dynamic.tables(early, like)
            .cos.equal((early.to(at::kFloat).unsqueeze(-1) * dynamic.frequencies(16)).cos()));
}

TEST_CASE("RoPE says which option is missing or out of range", "[nn]") {
  CHECK_THROWS_WITH(Rotary(7, {}), ContainsSubstring("head_dim is 7"));
  CHECK_THROWS_WITH(Rotary(8, {.rope_theta = 0}), ContainsSubstring("rope_theta is 0"));
  CHECK_THROWS_WITH(Rotary(8, {.rope_type = RopeType::linear}),
                    ContainsSubstring("\"linear\" and there is no factor"));
  CHECK_THROWS_WITH(Rotary(8, {.rope_type = RopeType::linear, .factor = -1}),
                    ContainsSubstring("factor is -1"));
  CHECK_THROWS_WITH(Rotary(2, {.rope_type = RopeType::dynamic, .factor = 2}),
                    ContainsSubstring("more than 2"));
  CHECK_THROWS_WITH(Rotary(8, {.rope_type = RopeType::llama3, .factor = 2, .low_freq_factor = 4}),
                    ContainsSubstring("low_freq_factor is 4"));
  CHECK_THROWS_WITH(Rotary(8, {.rope_type = RopeType::longrope, .short_factor = {1}}),
                    ContainsSubstring("short_factor has 1 numbers"));
  const at::Tensor x = at::ones({1, 3, 1, 8});
  const at::Tensor table = at::ones({1, 2, 4});
  CHECK_THROWS_WITH(functional::rotate(x, {table, table}), ContainsSubstring("[1, 3, 1, 8]"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
