#include <tutti/core/rng.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sort.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// Statistical bounds are five standard deviations of the estimate for a fixed seed: they hold or
// fail on every machine alike, and a wrong distribution misses them by far.

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Rng;
using tutti::Tape;

template <class Draw>
std::vector<double> sample(std::size_t count, Draw draw) {
  std::vector<double> values(count);
  std::generate(values.begin(), values.end(), draw);
  return values;
}

struct Moments {
  double mean = 0;
  double variance = 0;
};

Moments moments(const std::vector<double>& values) {
  Moments out;
  for (const double value : values) {
    out.mean += value / static_cast<double>(values.size());
  }
  for (const double value : values) {
    out.variance += (value - out.mean) * (value - out.mean) / static_cast<double>(values.size());
  }
  return out;
}

std::vector<double> mixed_draws(Rng& rng) {
  std::vector<double> out;
  for (int i = 0; i < 3; ++i) {
    out.push_back(rng.uniform());
    out.push_back(static_cast<double>(rng.integer(0, 1000)));
    out.push_back(rng.beta(0.2, 0.2));
    out.push_back(rng.permutation(9)[0].item<double>());
  }
  return out;
}

}  // namespace

TEST_CASE("the same seed and stream give the same draws, others give others", "[core][rng][law]") {
  Rng a(17, 3);
  Rng b(17, 3);
  Rng other_seed(18, 3);
  Rng other_stream(17, 4);
  const auto draws = mixed_draws(a);
  CHECK(draws == mixed_draws(b));
  CHECK(draws != mixed_draws(other_seed));
  CHECK(draws != mixed_draws(other_stream));
  CHECK(draws != mixed_draws(a));
}

TEST_CASE("the stream of a policy depends on the seed and on its name alone", "[core][rng]") {
  Rng mixup = Rng::for_policy(5, "MixUp");
  Rng again = Rng::for_policy(5, "MixUp");
  Rng cutmix = Rng::for_policy(5, "CutMix");
  const double first = mixup.uniform();
  CHECK(first == again.uniform());
  CHECK(first != cutmix.uniform());
  CHECK(mixup.seed() == 5);
}

TEST_CASE("a stream goes on bit for bit from a saved position", "[core][rng][resume]") {
  Rng rng(7, 1);
  for (const std::uint64_t blocks : {1U, 2U, 3U}) {  // 53 bits take two numbers of a block's four
    rng.uniform();
    CHECK(rng.position() == blocks);
  }
  mixed_draws(rng);
  const auto position = rng.position();
  CHECK(position > 0);
  const auto rest = mixed_draws(rng);
  Rng restored;
  restored.restore(7, 1, position);
  CHECK(mixed_draws(restored) == rest);
  CHECK(restored.position() == rng.position());
}

TEST_CASE("no two draws of a stream use the same bits", "[core][rng][law]") {
  Rng rng(1);
  std::set<double> seen;
  for (int i = 0; i < 10000; ++i) {
    seen.insert(rng.uniform());
  }
  CHECK(seen.size() == 10000);
}

TEST_CASE("uniform has the moments of [0, 1) and stays inside", "[core][rng]") {
  Rng rng(2024);
  const auto values = sample(20000, [&] { return rng.uniform(); });
  CHECK(*std::min_element(values.begin(), values.end()) >= 0);
  CHECK(*std::max_element(values.begin(), values.end()) < 1);
  const auto [mean, variance] = moments(values);
  CHECK(std::abs(mean - 0.5) < 5 * std::sqrt(1.0 / 12 / 20000));
  CHECK(std::abs(variance - 1.0 / 12) < 5 * std::sqrt(1.0 / 180 / 20000));

  const auto shifted = sample(1000, [&] { return rng.uniform(-2, 3); });
  CHECK(*std::min_element(shifted.begin(), shifted.end()) < -1.9);
  CHECK(*std::max_element(shifted.begin(), shifted.end()) > 2.9);
}

TEST_CASE("integer reaches every number of its range equally often and never the end",
          "[core][rng]") {
  Rng rng(99);
  std::array<int, 7> counts{};
  const int draws = 21000;
  for (int i = 0; i < draws; ++i) {
    ++counts.at(static_cast<std::size_t>(rng.integer(-3, 4) + 3));
  }
  const double expected = draws / 7.0;
  for (const int count : counts) {
    CHECK(std::abs(count - expected) < 5 * std::sqrt(expected * 6 / 7));
  }
  CHECK(rng.integer(5, 6) == 5);
  CHECK_THROWS_WITH(rng.integer(3, 3), ContainsSubstring("range [3, 3) is empty"));
}

TEST_CASE("beta has the moments of its distribution, small parameters included", "[core][rng]") {
  Rng rng(4);
  for (const auto& [a, b] : {std::pair{1.0, 1.0}, {0.2, 0.2}, {2.0, 5.0}, {0.7, 0.7}}) {
    INFO("a " << a << " b " << b);
    const auto values = sample(20000, [&, a = a, b = b] { return rng.beta(a, b); });
    CHECK(*std::min_element(values.begin(), values.end()) >= 0);
    CHECK(*std::max_element(values.begin(), values.end()) <= 1);
    const auto [mean, variance] = moments(values);
    const double expected = a * b / ((a + b) * (a + b) * (a + b + 1));
    CHECK(std::abs(mean - a / (a + b)) < 5 * std::sqrt(expected / 20000));
    CHECK(std::abs(variance - expected) < 0.05 * expected);
  }
  for (const double value : sample(1000, [&] { return rng.beta(1e-4, 1e-4); })) {
    CHECK(!std::isnan(value));
  }
  CHECK_THROWS_WITH(rng.beta(0, 1), ContainsSubstring("parameters are 0, 1, expected > 0"));
}

TEST_CASE("permutation is a permutation, each as likely", "[core][rng][law]") {
  Rng rng(12);
  for (const std::int64_t n : {0, 1, 2, 17}) {
    const at::Tensor drawn = rng.permutation(n);
    CHECK(drawn.scalar_type() == at::kLong);
    CHECK(at::equal(std::get<0>(drawn.sort()), at::arange(n)));
  }
  std::array<int, 6> counts{};
  for (int i = 0; i < 6000; ++i) {
    const at::Tensor p = rng.permutation(3);
    const auto first = p[0].item<std::int64_t>();
    const auto second = p[1].item<std::int64_t>();
    ++counts.at(static_cast<std::size_t>(first * 2 + (second > first ? second - 1 : second)));
  }
  for (const int count : counts) {
    CHECK(std::abs(count - 1000) < 5 * std::sqrt(1000 * 5.0 / 6));
  }
}

TEST_CASE("recorded draws come back by kind in the order recorded, then it says that none is left",
          "[core][rng]") {
  auto tape = std::make_shared<Tape>();
  tape->betas = {0.25, 0.75};
  tape->uniforms = {0.5};
  tape->integers = {3, 1};
  tape->permutations = {at::arange(4).flip(0)};
  Rng rng(1);
  const auto position = rng.position();
  rng.replay(tape);
  CHECK(rng.replays());
  CHECK(rng.integer(0, 8) == 3);
  CHECK(rng.beta(0.2, 0.2) == 0.25);
  CHECK(at::equal(rng.permutation(4), at::arange(4).flip(0)));
  CHECK(rng.uniform(2, 4) == 3);
  CHECK(rng.beta(9, 9) == 0.75);
  CHECK(rng.integer(0, 8) == 1);
  CHECK_THROWS_WITH(rng.beta(1, 1), ContainsSubstring("no recorded beta is left to replay"));
  CHECK_THROWS_WITH(rng.permutation(4), ContainsSubstring("no recorded permutation"));
  CHECK(rng.position() == position);

  tape->permutations.push_back(at::arange(4));
  CHECK_THROWS_WITH(rng.permutation(5), ContainsSubstring("has 4 entries, expected 5"));

  rng.replay(nullptr);
  CHECK(!rng.replays());
  CHECK(rng.uniform() == Rng(1).uniform());
}

TEST_CASE("Rng::dirichlet gives weights that sum to 1, each with mean 1/n", "[core][rng]") {
  Rng rng(11);
  std::vector<double> firsts;
  for (int i = 0; i < 4000; ++i) {
    const std::vector<double> weights = rng.dirichlet(0.5, 3);
    REQUIRE(weights.size() == 3);
    CHECK(std::abs(weights[0] + weights[1] + weights[2] - 1) < 1e-12);
    firsts.push_back(weights[0]);
  }
  const Moments got = moments(firsts);
  CHECK(std::abs(got.mean - 1.0 / 3) < 5 * std::sqrt(4.0 / 45 / 4000));
  CHECK(std::abs(got.variance - 4.0 / 45) < 0.008);
  CHECK_THROWS_WITH(rng.dirichlet(0, 3), ContainsSubstring("alpha is 0 and n 3"));
}

TEST_CASE("Rng::choose draws by weight among those that are left, each once", "[core][rng]") {
  Rng rng(12);
  std::array<double, 3> first{};
  double second_is_one = 0;
  const int n = 20000;
  for (int i = 0; i < n; ++i) {
    const at::Tensor chosen = rng.choose({1, 2, 5}, 2);
    const auto* pair = chosen.const_data_ptr<std::int64_t>();
    REQUIRE(pair[0] != pair[1]);
    first[static_cast<std::size_t>(pair[0])] += 1.0 / n;
    second_is_one += pair[0] == 2 && pair[1] == 1 ? 1.0 / n : 0;
  }
  CHECK(std::abs(first[0] - 1.0 / 8) < 0.012);
  CHECK(std::abs(first[2] - 5.0 / 8) < 0.018);
  CHECK(std::abs(second_is_one - 5.0 / 8 * 2 / 3) < 0.018);
  CHECK(rng.choose({1, 1}, 0).numel() == 0);
  CHECK_THROWS_WITH(rng.choose({1, 1}, 3), ContainsSubstring("count is 3, expected 0 to 2"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
