#include <tutti/data/weighted_sampling.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include <tutti/data/data_loader.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
using tutti::DataLoader;
using tutti::DataLoaderOptions;
using tutti::data::WeightedSampling;
using Numbers = std::vector<std::int64_t>;

const std::vector<double> weights{0.1, 0.5, 0.0, 2.0, 1.0, 0.3};

// Examples with their number and a draw.
struct Noisy {
  std::int64_t count = 6;
  [[nodiscard]] std::int64_t size() const { return count; }
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> get(std::int64_t i, tutti::Rng& rng) const {
    return {at::full({}, rng.uniform(), at::kDouble), at::full({}, i, at::kLong)};
  }
};

std::vector<Batch> rest_of(DataLoader<Noisy> loader, std::int64_t epoch, std::int64_t from = 0) {
  std::vector<Batch> out;
  loader.start(epoch, from);
  while (auto batch = loader.next()) {
    out.push_back(*batch);
  }
  return out;
}

Numbers numbers(const at::Tensor& x) {
  return {x.const_data_ptr<std::int64_t>(), x.const_data_ptr<std::int64_t>() + x.numel()};
}

at::Tensor targets(const std::vector<Batch>& batches) {
  std::vector<at::Tensor> parts;
  for (const Batch& batch : batches) {
    parts.push_back(batch.targets());
  }
  return at::cat(parts);
}

DataLoader<Noisy> loader(WeightedSampling weighted, std::int64_t workers = 0) {
  return DataLoader<Noisy>{
      Noisy{},
      {.batch_size = 2, .weighted = std::move(weighted), .seed = 5, .num_workers = workers}};
}

}  // namespace

TEST_CASE("draws by weights are those of PyTorch's WeightedRandomSampler",
          "[data][weighted][golden]") {
  // list(WeightedRandomSampler(weights, n, replacement, generator=Generator().manual_seed(7)))
  CHECK(numbers(WeightedSampling{.weights = weights, .num_samples = 12}.draw(7)) ==
        Numbers{3, 3, 4, 3, 4, 4, 3, 3, 4, 4, 1, 1});
  CHECK(numbers(WeightedSampling{.weights = weights, .num_samples = 5, .replacement = false}.draw(
            7)) == Numbers{3, 1, 4, 0, 5});
}

TEST_CASE("DataLoader draws by weights with the seed and the epoch", "[data][weighted]") {
  const WeightedSampling twelve{.weights = weights, .num_samples = 12};
  CHECK(loader(twelve).size() == 6);
  CHECK(loader(twelve).dataset_size() == 12);
  CHECK(targets(rest_of(loader(twelve), 2)).equal(twelve.draw(7)));
  CHECK(targets(rest_of(loader(twelve), 2, 4)).equal(twelve.draw(7).slice(0, 8)));
  CHECK(targets(rest_of(loader(twelve), 0)).equal(twelve.draw(5)));
  CHECK(loader({.weights = weights}).size() == 3);
  const auto alone = rest_of(loader(twelve), 1);
  const auto threads = rest_of(loader(twelve, 3), 1);
  std::set<double> draws;
  for (std::size_t i = 0; i < alone.size(); ++i) {
    CHECK(alone[i].inputs().equal(threads[i].inputs()));
    draws.insert(alone[i].inputs()[0].item<double>());
    draws.insert(alone[i].inputs()[1].item<double>());
  }
  CHECK(draws.size() == 12);  // an example that comes twice has other random numbers
}

TEST_CASE("draws by weights are dealt to ranks", "[data][weighted][law]") {
  const WeightedSampling eleven{.weights = weights, .num_samples = 11};
  const Numbers all = numbers(eleven.draw(6));
  for (const std::int64_t world : {2, 3}) {
    for (std::int64_t rank = 0; rank < world; ++rank) {
      auto own = loader(eleven);
      own.shard(rank, world);
      Numbers expected;
      for (std::int64_t i = 0; i < (11 + world - 1) / world; ++i) {
        expected.push_back(all[static_cast<std::size_t>((i * world + rank) % 11)]);
      }
      CHECK(numbers(targets(rest_of(own, 1))) == expected);
    }
  }
}

TEST_CASE("balanced weights draw every class as often", "[data][weighted]") {
  const Numbers labels{7, 7, 7, 7, 7, 7, 7, 7, 7, -1};
  const WeightedSampling sampling{.weights = tutti::data::balanced_weights(labels),
                                  .num_samples = 4000};
  CHECK(sampling.weights.back() == 1);
  CHECK(sampling.weights.front() == 1.0 / 9);
  const Numbers draws = numbers(sampling.draw(1));
  const auto rare = std::count(draws.begin(), draws.end(), 9);
  CHECK(std::abs(rare - 2000) < 160);  // five standard deviations
}

TEST_CASE("weights that cannot be drawn by are refused", "[data][weighted][failure]") {
  const auto refused = [](WeightedSampling weighted, const char* why) {
    CHECK_THROWS_WITH(loader(std::move(weighted)), ContainsSubstring(why));
  };
  refused({.weights = {1, 1}}, "there are 2 weights and 6 examples");
  refused({.weights = {1, 1, -1, 1, 1, 1}}, "weight 2 is -1");
  refused({.weights = {1, 1, 1, std::numeric_limits<double>::quiet_NaN(), 1, 1}},
          "weight 3 is nan");
  refused({.weights = {0, 0, 0, 0, 0, 0}}, "no weight is above 0");
  refused({.weights = weights, .num_samples = 0}, "num_samples is 0, expected 1 or more");
  refused({.weights = weights, .replacement = false}, "num_samples is 6, expected at most 5");
  CHECK_THROWS_WITH((DataLoader{Noisy{}, {.shuffle = true, .weighted = {{.weights = weights}}}}),
                    ContainsSubstring("shuffle and weighted are both given"));
}

TEST_CASE("what is drawn by weights can be grouped by length", "[weighted_sampling]") {
  const auto all = [](std::vector<std::int64_t> lengths) {
    DataLoader<Noisy> one{Noisy{},
                          {.batch_size = 2,
                           .weighted = WeightedSampling{.weights = weights, .num_samples = 40},
                           .seed = 5,
                           .lengths = std::move(lengths)}};
    return numbers(targets(rest_of(one, 1)));
  };
  const Numbers plain = all({});
  const Numbers lengths{7, 1, 9, 3, 8, 2};
  const Numbers grouped = all(lengths);
  CHECK(grouped != plain);
  CHECK(std::is_permutation(grouped.begin(), grouped.end(), plain.begin(), plain.end()));
  std::int64_t padding = 0, before = 0;
  const auto wasted = [&](const Numbers& of, std::size_t i) {
    return std::abs(lengths[static_cast<std::size_t>(of[i])] -
                    lengths[static_cast<std::size_t>(of[i + 1])]);
  };
  for (std::size_t i = 0; i < plain.size(); i += 2) {
    padding += wasted(grouped, i);
    before += wasted(plain, i);
  }
  CHECK(padding < before);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
