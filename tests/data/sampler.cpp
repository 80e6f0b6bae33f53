#include <tutti/data/sampler.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::DistributedSampler;
using tutti::SamplerOptions;
using Indices = std::vector<std::int64_t>;

namespace {

Indices epoch_of(std::int64_t size, const SamplerOptions& options, std::int64_t epoch = 0) {
  DistributedSampler sampler(size, options);
  sampler.set_epoch(epoch);
  return sampler.indices();
}

std::string error_of(std::int64_t size, const SamplerOptions& options) {
  try {
    DistributedSampler{size, options};
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

}  // namespace

// Values printed by torch.utils.data.distributed.DistributedSampler of PyTorch 2.11.
TEST_CASE("the order is PyTorch's", "[data][sampler][golden]") {
  CHECK(epoch_of(10, {.shuffle = true}) == Indices{4, 1, 7, 5, 3, 9, 0, 8, 6, 2});
  CHECK(epoch_of(10, {.shuffle = true, .world_size = 3}) == Indices{4, 5, 0, 2});
  const SamplerOptions padded{.shuffle = true, .rank = 1, .world_size = 3, .seed = 17};
  CHECK(epoch_of(10, padded, 2) == Indices{8, 4, 2, 5});
  const SamplerOptions cut{
      .shuffle = true, .drop_last = true, .rank = 2, .world_size = 3, .seed = 17};
  CHECK(epoch_of(10, cut, 2) == Indices{7, 9, 3});
  CHECK(epoch_of(10, {.rank = 3, .world_size = 4}) == Indices{3, 7, 1});
  CHECK(epoch_of(7, {.drop_last = true, .rank = 2, .world_size = 3}) == Indices{2, 5});
}

TEST_CASE("fewer examples than ranks are repeated as PyTorch does", "[data][sampler][golden]") {
  CHECK(epoch_of(2, {.rank = 4, .world_size = 5}) == Indices{0});
  CHECK(epoch_of(2, {.shuffle = true, .rank = 3, .world_size = 5, .seed = 3}, 1) == Indices{1});
}

TEST_CASE("a long order and a seed beyond 32 bits are PyTorch's", "[data][sampler][golden]") {
  const Indices order =
      epoch_of(50000, {.shuffle = true, .rank = 1, .world_size = 2, .seed = 4294967290U}, 9);
  REQUIRE(order.size() == 25000);
  CHECK(Indices(order.begin(), order.begin() + 4) == Indices{17124, 20135, 4400, 15902});
  CHECK(Indices(order.end() - 3, order.end()) == Indices{8274, 15487, 46052});
  std::int64_t weighted = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    weighted += order[i] * static_cast<std::int64_t>(i + 1);
  }
  CHECK(weighted == 7786639519697);
}

// The examples of each batch of all ranks, in the order of the epoch.
std::vector<Indices> shared_batches(std::int64_t size, SamplerOptions options, std::int64_t ranks) {
  std::vector<Indices> all;
  const auto batches = [&](const DistributedSampler& sampler, std::int64_t share) {
    return static_cast<std::size_t>((sampler.size() + share - 1) / share);
  };
  options.world_size = ranks;
  for (options.rank = 0; options.rank < ranks; ++options.rank) {
    const std::int64_t share =
        tutti::data::rank_batch_size(options.global_batch_size, options.rank, ranks);
    const DistributedSampler sampler(size, options);
    if (options.rank == 0) {
      all.resize(batches(sampler, share));
    }
    REQUIRE(batches(sampler, share) == all.size());  // ranks make equally many steps
    for (std::int64_t i = 0; i < sampler.size(); ++i) {
      if (!sampler.is_repeated(i)) {
        all[static_cast<std::size_t>(i / share)].push_back(sampler[i]);
      }
    }
  }
  for (Indices& batch : all) {
    std::sort(batch.begin(), batch.end());
  }
  return all;
}

TEST_CASE("batches that ranks share have the same examples for any number of ranks",
          "[data][sampler][law]") {
  for (const std::int64_t size : {48, 49, 53, 55, 59, 7, 1, 0}) {
    for (const bool drop_last : {false, true}) {
      const SamplerOptions options{
          .shuffle = true, .drop_last = drop_last, .seed = 3, .global_batch_size = 12};
      const auto expected = shared_batches(size, options, 1);
      REQUIRE(std::ssize(expected) == (size + (drop_last ? 0 : 11)) / 12);
      for (std::int64_t ranks = 2; ranks <= 12; ++ranks) {
        CAPTURE(size, drop_last, ranks);
        CHECK(shared_batches(size, options, ranks) == expected);
      }
    }
  }
}

TEST_CASE("batches that ranks share equally are dealt as without", "[data][sampler][law]") {
  for (const std::int64_t size : {48, 50, 53}) {
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      const SamplerOptions dealt{.shuffle = true, .rank = rank, .world_size = 4, .seed = 8};
      SamplerOptions shared = dealt;
      shared.global_batch_size = 12;
      CHECK(epoch_of(size, shared, 1) == epoch_of(size, dealt, 1));
    }
  }
}

TEST_CASE("a batch that is shared has an example for each rank", "[data][sampler]") {
  using tutti::data::rank_batch_size;
  CHECK(Indices{rank_batch_size(12, 0, 5), rank_batch_size(12, 1, 5), rank_batch_size(12, 2, 5),
                rank_batch_size(12, 4, 5)} == Indices{3, 3, 2, 2});
  CHECK(error_of(20, {.world_size = 5, .global_batch_size = 4}) ==
        "a batch of 4 examples cannot be shared by 5 ranks, expected one example or more for each");
  CHECK_THAT(error_of(20, {.global_batch_size = -1}), ContainsSubstring("a batch of -1 examples"));
}

TEST_CASE("lengths are sorted within the batches that ranks share", "[data][sampler]") {
  const auto lengths = std::make_shared<std::vector<std::int64_t>>();
  for (std::int64_t i = 0; i < 40; ++i) {
    lengths->push_back(i * 7 % 40);
  }
  const SamplerOptions options{.shuffle = true, .lengths = lengths, .global_batch_size = 10};
  CHECK(shared_batches(40, options, 3) == shared_batches(40, options, 1));
}

TEST_CASE("together the ranks see every example once, and padding again", "[data][sampler][law]") {
  for (const bool shuffle : {false, true}) {
    Indices seen;
    Indices repeated;
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      const DistributedSampler sampler(
          10, {.shuffle = shuffle, .rank = rank, .world_size = 4, .seed = 5});
      REQUIRE(sampler.size() == 3);
      for (std::int64_t i = 0; i < sampler.size(); ++i) {
        (sampler.is_repeated(i) ? repeated : seen).push_back(sampler[i]);
      }
    }
    std::sort(seen.begin(), seen.end());
    CHECK(seen == Indices{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    CHECK(repeated.size() == 2);
  }
}

TEST_CASE("with drop_last nothing is repeated", "[data][sampler][law]") {
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const DistributedSampler sampler(10, {.drop_last = true, .rank = rank, .world_size = 4});
    CHECK(sampler.size() == 2);
    CHECK_FALSE(sampler.is_repeated(0));
    CHECK_FALSE(sampler.is_repeated(1));
  }
}

TEST_CASE("each epoch has its own order, and the same each time", "[data][sampler][law]") {
  DistributedSampler sampler(100, {.shuffle = true, .seed = 1});
  const Indices first = sampler.indices();
  sampler.set_epoch(1);
  CHECK(sampler.epoch() == 1);
  const Indices second = sampler.indices();
  CHECK(first != second);
  CHECK(sampler.indices_for(0) == first);
  CHECK(sampler.indices() == second);
  sampler.set_epoch(0);
  CHECK(sampler.indices() == first);
  CHECK(DistributedSampler(100, {.shuffle = true, .seed = 2}).indices() == second);
}

TEST_CASE("an epoch can be entered at any position", "[data][sampler][law]") {
  const DistributedSampler sampler(23, {.shuffle = true, .rank = 1, .world_size = 3});
  const Indices whole = sampler.indices();
  for (std::int64_t position = 0; position <= sampler.size(); ++position) {
    CHECK(sampler.indices(position) == Indices(whole.begin() + position, whole.end()));
  }
  CHECK(sampler[5] == whole[5]);
}

TEST_CASE("numbers out of range are refused with what was expected", "[data][sampler]") {
  CHECK_THAT(error_of(-1, {}), ContainsSubstring("dataset_size is -1, expected 0 or more"));
  CHECK_THAT(error_of(1, {.world_size = 0}),
             ContainsSubstring("world_size is 0, expected 1 or more"));
  CHECK_THAT(error_of(1, {.rank = 2, .world_size = 2}),
             ContainsSubstring("rank is 2, expected 0 to 1"));
  DistributedSampler sampler(3);
  CHECK_THROWS_WITH(sampler.set_epoch(-1), ContainsSubstring("epoch is -1"));
  CHECK_THROWS_WITH(sampler[3], ContainsSubstring("position is 3, expected 0 to 2"));
  CHECK_THROWS_WITH(sampler.indices(4), ContainsSubstring("position is 4, expected 0 to 3"));
  CHECK(DistributedSampler(0).indices().empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
