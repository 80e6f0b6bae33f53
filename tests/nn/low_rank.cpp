#include <tutti/nn/low_rank.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti::functional;

}  // namespace

TEST_CASE("the largest useful rank is just below the break-even of multiplications",
          "[nn][factorize]") {
  for (const auto& [fan_in, out, rank] : {std::tuple{8, 8, 3},
                                          {10, 10, 4},
                                          {7, 5, 2},
                                          {512, 512, 255},
                                          {256, 512, 170},
                                          {2, 2, 0},
                                          {64 * 9, 64, 57},
                                          {512 * 9, 512, 460}}) {
    CHECK(largest_useful_rank(fan_in, out) == rank);
  }
  CHECK(latent_size(0.25, 512, 256) == 64);
  CHECK(latent_size(0.001, 8, 8) == 1);
  CHECK(latent_size(12.7, 8, 8) == 12);
}

TEST_CASE("the error of a product falls with its rank and with the rounds of refinement",
          "[nn][factorize][law]") {
  at::manual_seed(5);
  const at::Tensor X = at::randn({128, 48}, at::kDouble);
  const at::Tensor W = at::randn({48, 40}, at::kDouble);
  const at::Tensor Y = X.matmul(W) + 3;
  double last = 1;
  for (const int rank : {1, 4, 16, 32}) {
    const auto product = factorize_matrix(X, Y, W, {}, {}, rank);
    CHECK(product.rank == rank);
    CHECK(product.nmse < last);
    const at::Tensor got = X.matmul(product.Wa).matmul(product.Wb) + product.bias;
    CHECK(std::abs((got - Y).square().mean().item<double>() / Y.var().item<double>() -
                   product.nmse) < 1e-9);
    last = product.nmse;
  }
  last = 1;
  for (const int rounds : {0, 1, 2, 4}) {
    const double error = factorize_matrix(X, Y, W, {}, {}, 8, rounds).nmse;
    CHECK(error <= last + 1e-12);
    last = error;
  }
}

TEST_CASE("the best round counts unless the last is asked for", "[nn][factorize]") {
  int worse = 0;  // times that the last round is not the best
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    at::manual_seed(seed);
    const at::Tensor X = at::randn({30, 5}, at::kDouble);
    const at::Tensor W = at::randn({5, 5}, at::kDouble);
    const at::Tensor Y = X.matmul(W);
    double least = 1;
    double last = 0;
    for (const int rounds : {0, 1, 2, 3}) {
      last = factorize_matrix(X, Y, W, {}, {}, 2, rounds, /*keep_best=*/false).nmse;
      least = std::min(least, last);
    }
    CHECK(std::abs(factorize_matrix(X, Y, W, {}, {}, 2, 3).nmse - least) < 1e-12);
    worse += last > least + 1e-6 ? 1 : 0;
  }
  CHECK(worse > 0);
}

TEST_CASE("a rank that saves nothing gives the input back", "[nn][factorize]") {
  const at::Tensor X = at::randn({20, 6});
  const at::Tensor W = at::randn({6, 8});
  const auto same = factorize_matrix(X, X.matmul(W), W, {}, {}, 6);
  CHECK(same.rank == -1);
  CHECK(same.Wa.allclose(W, 1e-4, 1e-4));
  CHECK(same.bias.equal(at::zeros({8})));
  CHECK_FALSE(same.Wb.defined());
  // The best map of the data, which need not be the one given.
  const at::Tensor Y = X.matmul(W).add(at::randn({20, 8}));
  const auto best = factorize_matrix(X, Y, W, {}, at::ones({8}), 8);
  CHECK(best.Wa.allclose(std::get<0>(at::linalg_lstsq(X, Y.sub(1))), 1e-4, 1e-4));
  CHECK(factorize_matrix(X, Y, at::randn({6, 7}), at::randn({7, 8}), {}, 7).Wb.defined() == false);
  const at::Tensor a = at::randn({6, 3});
  const at::Tensor b = at::randn({3, 8});
  const auto product = factorize_matrix(X, X.matmul(W), a, b, {}, 3);
  CHECK(product.rank == -1);
  CHECK(product.Wb.is_same(b));
  // a fraction is of X's width, 6
  CHECK(factorize_matrix(X, X.matmul(W), a, b, {}, 0.75).rank == -1);
  CHECK(factorize_matrix(X, X.matmul(W), a, b, {}, 0.4).rank == 2);
  CHECK(factorize_matrix(X, X.matmul(W), W, {}, {}, 0.1).rank == 1);
  CHECK_THROWS_AS(factorize_matrix(X, X, W), c10::ValueError);
  CHECK_THROWS_AS(factorize_matrix(X, X.matmul(W), W, {}, {}, -1), c10::ValueError);
}

TEST_CASE("a convolution of low rank is found again, strides and dilation included",
          "[nn][factorize]") {
  at::manual_seed(2);
  const at::Tensor X = at::randn({4, 5, 9, 8});
  const at::Tensor a = at::randn({3, 5, 3, 3});
  const at::Tensor b = at::randn({6, 3, 1, 1});
  const at::Tensor kernel = b.flatten(1).matmul(a.flatten(1)).view({6, 5, 3, 3});
  const at::Tensor bias = at::randn({6});
  for (const Walk2d& walk :
       {Walk2d{}, Walk2d{.stride = 2, .padding = 1}, Walk2d{.padding = 2, .dilation = 2}}) {
    const auto found = factorize_conv2d(X, kernel, {}, 3, bias, {}, 3, walk);
    CHECK(found.rank == 3);
    CHECK(found.nmse < 1e-6);
    const at::Tensor y =
        at::conv2d(at::conv2d(X, found.Wa, {}, *walk.stride, *walk.padding, *walk.dilation),
                   found.Wb, found.bias);
    const at::Tensor want =
        at::conv2d(X, kernel, bias, *walk.stride, *walk.padding, *walk.dilation);
    CHECK(y.allclose(want, 1e-3, 1e-3));
  }
  CHECK_THROWS_AS(factorize_conv2d(X, at::randn({4, 1, 3, 3})), c10::NotImplementedError);
  CHECK_THROWS_WITH(
      factorize_conv2d(X, kernel, {}, 3, {}, bias),
      Catch::Matchers::ContainsSubstring("there is a bias_b and no Wb") &&
          Catch::Matchers::ContainsSubstring("the bias of a single convolution as bias_a"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
