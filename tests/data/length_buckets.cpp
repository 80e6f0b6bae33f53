#include <tutti/data/length_buckets.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/data/data_loader.hpp>
#include <tutti/data/instructions.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using data::LengthBuckets;
using data::LengthOrderOptions;
using data::order_by_length;
using Numbers = std::vector<std::int64_t>;

Numbers random_lengths(std::size_t count) {
  std::mt19937 random(3);
  Numbers out(count);
  for (std::int64_t& length : out) {
    length = 1 + static_cast<std::int64_t>(random() % 200);
  }
  return out;
}

struct Texts {
  Numbers lengths;
  [[nodiscard]] std::int64_t size() const { return std::ssize(lengths); }
  [[nodiscard]] Batch get(std::int64_t i) const {
    return Batch{{"input_ids", at::full({lengths.at(static_cast<std::size_t>(i))}, i)}};
  }
};

// The numbers of the examples of every batch of an epoch.
std::vector<Numbers> batches(DataLoader<Texts>& loader, std::int64_t epoch,
                             std::int64_t first = 0) {
  std::vector<Numbers> out;
  loader.start(epoch, first);
  while (const auto batch = loader.next()) {
    const at::Tensor ids = batch->at("input_ids").select(1, 0).contiguous();
    out.emplace_back(ids.const_data_ptr<std::int64_t>(),
                     ids.const_data_ptr<std::int64_t>() + ids.numel());
  }
  return out;
}

DataLoader<Texts> load(const Numbers& lengths, bool by_length, std::int64_t batch_size = 8) {
  return DataLoader{Texts{lengths},
                    {.batch_size = batch_size,
                     .shuffle = true,
                     .seed = 11,
                     .collate = data::PadSequences{.pad_token_id = -1},
                     .lengths = by_length ? lengths : Numbers{}}};
}

}  // namespace

TEST_CASE("windows are sorted by length, and the longest batch comes first",
          "[data][length_buckets]") {
  const Numbers lengths{1, 5, 3, 2, 9, 4, 8};
  const Numbers order{0, 1, 2, 3, 4, 5, 6};
  // Windows {0, 1, 2, 3} and {4, 5, 6} become {1, 2, 3, 0} and {4, 6, 5}.
  CHECK(order_by_length(order, lengths, {.batch_size = 2, .window = 2}) ==
        Numbers{4, 6, 3, 0, 1, 2, 5});
  CHECK(order_by_length(order, lengths, {.batch_size = 10}) == Numbers{4, 6, 1, 5, 2, 3, 0});
  CHECK(order_by_length({}, lengths, {.batch_size = 2}).empty());
}

TEST_CASE("an order by length has every example once and depends on the seed",
          "[data][length_buckets][law]") {
  const Numbers lengths = random_lengths(1003);
  Numbers order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  const LengthOrderOptions options{.batch_size = 8, .window = 10, .shuffle = true, .seed = 1};
  Numbers one = order_by_length(order, lengths, options);
  CHECK(one == order_by_length(order, lengths, options));
  LengthOrderOptions other = options;
  other.seed = 2;
  CHECK(one != order_by_length(order, lengths, other));
  CHECK(lengths[static_cast<std::size_t>(one.front())] ==
        *std::max_element(lengths.begin(), lengths.end()));
  std::sort(one.begin(), one.end());
  CHECK(one == order);
}

TEST_CASE("an order by length refuses what it cannot sort", "[data][length_buckets]") {
  CHECK_THROWS_WITH(order_by_length(Numbers{0, 2}, Numbers{1, 1}, {}),
                    ContainsSubstring("example 2 has no length of 0 or more; there are 2"));
  CHECK_THROWS_WITH(order_by_length(Numbers{0}, Numbers{-1}, {}), ContainsSubstring("example 0"));
  CHECK_THROWS_WITH(order_by_length({}, {}, {.batch_size = 0}),
                    ContainsSubstring("batch_size is 0"));
  CHECK_THROWS_WITH(
      (DataLoader{Texts{{1, 2}}, {.lengths = {1}}}),
      ContainsSubstring("there are 1 lengths, expected one for each of the 2 examples"));
}

TEST_CASE("a loader with lengths pads little, and sees every example once an epoch",
          "[data][length_buckets][law]") {
  const Numbers lengths = random_lengths(1000);
  const auto padding = [&](bool by_length) {
    auto loader = load(lengths, by_length);
    std::int64_t padded = 0;
    Numbers seen;
    for (loader.start(0); const auto batch = loader.next();) {
      padded += batch->at("attention_mask").eq(0).sum().item<std::int64_t>();
    }
    for (const Numbers& batch : batches(loader, 0)) {
      seen.insert(seen.end(), batch.begin(), batch.end());
    }
    std::sort(seen.begin(), seen.end());
    Numbers all(lengths.size());
    std::iota(all.begin(), all.end(), 0);
    CHECK(seen == all);
    return padded;
  };
  CHECK(padding(true) * 20 < padding(false));
  auto loader = load(lengths, true);
  CHECK(batches(loader, 0) != batches(loader, 1));
}

TEST_CASE("a loader with lengths resumes inside an epoch", "[data][length_buckets]") {
  auto loader = load(random_lengths(100), true);
  auto all = batches(loader, 2);
  all.erase(all.begin(), all.begin() + 5);
  CHECK(batches(loader, 2, 5) == all);
}

TEST_CASE("ranks share global batches, the same for any number of them", "[data][length_buckets]") {
  const Numbers lengths = random_lengths(96);
  const auto global = [&](std::int64_t world) {
    std::vector<Numbers> out;
    for (std::int64_t rank = 0; rank < world; ++rank) {
      auto loader = load(lengths, true, 16 / world);
      loader.shard(rank, world);
      const auto mine = batches(loader, 1);
      out.resize(mine.size());
      for (std::size_t i = 0; i < mine.size(); ++i) {
        out[i].insert(out[i].end(), mine[i].begin(), mine[i].end());
      }
    }
    for (Numbers& batch : out) {
      std::sort(batch.begin(), batch.end());
    }
    return out;
  };
  const auto one = global(1);
  CHECK(one.size() == 6);
  CHECK(global(2) == one);
  CHECK(global(4) == one);
}

TEST_CASE("a bucket gives its batch when it is full", "[data][length_buckets]") {
  LengthBuckets<char> buckets({.boundaries = {10, 20}, .batch_sizes = {3, 2, 1}});
  using Letters = std::vector<char>;
  CHECK_FALSE(buckets.push('a', 0));
  CHECK_FALSE(buckets.push('b', 10));
  CHECK_FALSE(buckets.push('c', 9));
  CHECK(buckets.push('d', 19) == Letters{'b', 'd'});
  CHECK(buckets.push('e', 20) == Letters{'e'});
  CHECK(buckets.push('f', 5) == Letters{'a', 'c', 'f'});
  CHECK_FALSE(buckets.push('g', 15));
  CHECK_FALSE(buckets.push('h', 1));
  CHECK(buckets.finish() == std::vector<Letters>{{'h'}, {'g'}});
  CHECK(buckets.finish().empty());
  LengthBuckets<char> cut({.batch_sizes = {2}, .drop_last = true});
  CHECK_FALSE(cut.push('a', 1));
  CHECK(cut.finish().empty());
  CHECK_FALSE(cut.push('b', 1));
}

TEST_CASE("buckets refuse what is out of range", "[data][length_buckets]") {
  const auto refused = [](const data::LengthBucketsOptions& options, const char* says) {
    CHECK_THROWS_WITH(LengthBuckets<int>(options), ContainsSubstring(says));
  };
  refused({.boundaries = {4, 4}}, "boundary 1 is 4, expected ascending numbers");
  refused({.boundaries = {0}}, "boundary 0 is 0");
  refused({.boundaries = {4}, .batch_sizes = {1, 2, 3}},
          "there are 3 batch_sizes, expected 1 or 2");
  refused({.batch_sizes = {0}}, "a batch size is 0");
  LengthBuckets<int> buckets({});
  CHECK_THROWS_WITH(buckets.push(1, -1), ContainsSubstring("has the length -1"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
