#include <tutti/data/split.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include <tutti/data/data_loader.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::data::split;
using tutti::data::Subset;
using Numbers = std::vector<std::int64_t>;
using Parts = std::vector<Numbers>;

struct Squares {
  std::int64_t count = 10;
  [[nodiscard]] std::int64_t size() const { return count; }
  [[nodiscard]] at::Tensor get(std::int64_t i) const { return at::full({1}, i * i, at::kLong); }
};
struct Noise {
  [[nodiscard]] std::int64_t size() const { return 4; }
  at::Tensor get(std::int64_t i, tutti::Rng& rng) const {
    return at::full({1}, static_cast<double>(i) + rng.uniform());
  }
};

static_assert(tutti::Dataset<Subset<Squares>> && tutti::Dataset<Subset<Noise>>);

Numbers sorted(const Parts& parts) {
  Numbers out;
  for (const Numbers& part : parts) {
    out.insert(out.end(), part.begin(), part.end());
  }
  std::sort(out.begin(), out.end());
  return out;
}

Numbers first(std::int64_t n) {
  Numbers out(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    out[static_cast<std::size_t>(i)] = i;
  }
  return out;
}

}  // namespace

TEST_CASE("split gives the numbers of PyTorch's random_split", "[data][split][golden]") {
  // [list(part.indices) for part in random_split(range(13), [0.6, 0.3, 0.1],
  //                                              generator=Generator().manual_seed(7))]
  CHECK(split(13, {0.6, 0.3, 0.1}, 7) == Parts{{6, 5, 3, 9, 8, 4, 12, 0}, {11, 10, 1, 7}, {2}});
}

TEST_CASE("every number is in one part", "[data][split][law]") {
  for (const std::int64_t n : {0, 1, 2, 9, 100}) {
    const Parts parts = split(n, {0.7, 0.2, 0.1}, 3);
    CHECK(sorted(parts) == first(n));
    CHECK(split(n, {0.7, 0.2, 0.1}, 3) == parts);
  }
  CHECK(split(100, {0.8, 0.2}, 1).front() != split(100, {0.8, 0.2}, 2).front());
  const Parts some = split(100, {0.5, 0.25}, 1);
  CHECK(some[0].size() == 50);
  CHECK(some[1].size() == 25);
}

TEST_CASE("a split by labels keeps every class's share", "[data][split][law]") {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    Numbers labels;
    for (std::int64_t label = 0; label < 9; ++label) {
      labels.insert(labels.end(), static_cast<std::size_t>(1 + label * 7), -label);
    }
    const std::vector<double> fractions{0.7, 0.2, 0.1};
    const Parts parts = split(labels, fractions, seed);
    CHECK(sorted(parts) == first(std::ssize(labels)));
    for (std::size_t part = 0; part < 3; ++part) {
      std::map<std::int64_t, double> counts;
      for (const std::int64_t i : parts[part]) {
        ++counts[labels[static_cast<std::size_t>(i)]];
      }
      for (std::int64_t label = 0; label < 9; ++label) {
        CHECK(std::abs(counts[-label] - fractions[part] * static_cast<double>(1 + label * 7)) < 1);
      }
      CHECK(std::abs(static_cast<double>(parts[part].size()) -
                     fractions[part] * static_cast<double>(labels.size())) <= 2);
      CHECK_FALSE(std::is_sorted(parts[part].begin(), parts[part].end()));
    }
    CHECK(split(labels, fractions, seed) == parts);
  }
  const Parts half = split(Numbers{1, 1, 1, 1, 2, 2, 2, 2}, {0.5, 0.0, 0.25}, 1);
  CHECK(half[0].size() == 4);
  CHECK(half[1].empty());
  CHECK(half[2].size() == 2);
}

TEST_CASE("parts of a data set are data sets that DataLoader takes", "[data][split]") {
  const auto parts = split(Squares{}, {0.8, 0.2}, 4);
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].size() == 8);
  CHECK(parts[1].indices() == split(10, {0.8, 0.2}, 4)[1]);
  CHECK(&parts[0].dataset() == &parts[1].dataset());
  tutti::DataLoader loader{parts[1], {.batch_size = 2}};
  loader.start(0);
  const at::Tensor got = loader.next()->inputs().flatten();
  CHECK(got[0].item<std::int64_t>() == parts[1].indices()[0] * parts[1].indices()[0]);
  CHECK(got[1].item<std::int64_t>() == parts[1].indices()[1] * parts[1].indices()[1]);
  const Numbers labels{0, 0, 0, 0, 0, 1, 1, 1, 1, 1};
  CHECK(split(Squares{}, {0.8, 0.2}, 4, labels)[1].indices() == split(labels, {0.8, 0.2}, 4)[1]);
  const Subset<Noise> noise(Noise{}, {2, 2, 0});
  tutti::Rng rng(1);
  tutti::Rng same(1);
  CHECK(noise.get(1, rng).equal(Noise{}.get(2, same)));
}

TEST_CASE("split refuses what it cannot divide by", "[data][split][failure]") {
  CHECK_THROWS_WITH(split(-1, {1.0}, 0), ContainsSubstring("n is -1"));
  CHECK_THROWS_WITH(split(4, {}, 0), ContainsSubstring("the sum of 0 fractions"));
  CHECK_THROWS_WITH(split(4, {0.9, 0.2}, 0), ContainsSubstring("sum of at most 1"));
  CHECK_THROWS_WITH(split(4, {-0.1, 0.2}, 0), ContainsSubstring("a fraction is -0.1"));
  CHECK_THROWS_WITH(split(4, {std::numeric_limits<double>::quiet_NaN()}, 0),
                    ContainsSubstring("a fraction is nan"));
  CHECK_THROWS_WITH(split(Squares{}, {1.0}, 0, Numbers{1, 2}),
                    ContainsSubstring("there are 2 labels and 10 examples"));
  CHECK_THROWS_WITH(Subset(Squares{}, {1, 10}), ContainsSubstring("no example 10"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
