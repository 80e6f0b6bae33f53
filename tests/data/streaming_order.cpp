#include <tutti/data/streaming_order.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using data::streaming_order;
using data::StreamingOrderOptions;
using data::StreamingState;
using data::StreamingWorld;
using data::StreamSizes;

const std::vector<StreamSizes> one_stream{{.shards = {37, 41, 29, 50, 43}}};
const std::vector<StreamSizes> two_streams{{.shards = {37, 41, 29}}, {.shards = {25, 60, 33, 47}}};

std::vector<std::int64_t> there(std::vector<std::int64_t> ids) {
  std::erase(ids, -1);
  return ids;
}

std::vector<std::int64_t> sorted(std::vector<std::int64_t> ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

// The sets of samples in the global batches from one on.
std::vector<std::multiset<std::int64_t>> global_batches(const data::StreamingOrder& order) {
  const std::vector<std::int64_t> ids = order.walk();
  const auto size = static_cast<std::size_t>(order.shape[0] * order.shape[1] * order.shape[4]);
  std::vector<std::multiset<std::int64_t>> out;
  for (std::size_t at = 0; at < ids.size(); at += size) {
    const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(at);
    out.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(size));
  }
  return out;
}

}  // namespace

TEST_CASE("every shuffle gives each sample of a stream once", "[data][streaming_order]") {
  std::vector<std::int64_t> all(200);
  std::iota(all.begin(), all.end(), 0);
  std::set<std::vector<std::int64_t>> orders;
  for (const char* algorithm : {"naive", "py1s", "py2s", "py1br", "py1e"}) {
    CAPTURE(algorithm);
    const StreamingOrderOptions options{.batch_size = 10,
                                        .num_canonical_nodes = 2,
                                        .shuffle = true,
                                        .shuffle_algo = algorithm,
                                        .shuffle_block_size = 40};
    const auto order = streaming_order(one_stream, {2, 1, 1}, options, 3);
    CHECK(sorted(there(order.ids)) == all);
    CHECK(order.ids == streaming_order(one_stream, {2, 1, 1}, options, 3).ids);
    CHECK(order.ids != streaming_order(one_stream, {2, 1, 1}, options, 4).ids);
    orders.insert(order.ids);
  }
  CHECK(orders.size() == 5);
}

TEST_CASE("without shuffling batches are dealt to ranks and workers in turn",
          "[data][streaming_order]") {
  const auto order = streaming_order(one_stream, {1, 2, 2}, {.batch_size = 3});
  CHECK(order.shape == std::array<std::int64_t, 5>{1, 2, 2, 17, 3});
  const std::vector<std::int64_t> first(order.ids.begin(), order.ids.begin() + 6);
  CHECK(first == std::vector<std::int64_t>{0, 2, 4, 12, 14, 16});  // rank 0, worker 0
  const std::vector<std::int64_t> walked = order.walk();
  CHECK(std::vector<std::int64_t>(walked.begin(), walked.begin() + 6) ==
        std::vector<std::int64_t>{0, 2, 4, 1, 3, 5});
}

TEST_CASE("a run goes on with other numbers of nodes and the same global batches",
          "[data][streaming_order]") {
  const auto options = [](std::int64_t batch) {
    return StreamingOrderOptions{
        .batch_size = batch, .num_canonical_nodes = 2, .shuffle = true, .shuffle_block_size = 40};
  };
  const auto before = global_batches(streaming_order(two_streams, {2, 1, 1}, options(4)));
  const StreamingState state{
      .sample_in_epoch = 48, .num_canonical_nodes = 2, .initial_physical_nodes = 2};
  for (const std::int64_t nodes : {1, 2, 4}) {
    CAPTURE(nodes);
    const auto after =
        global_batches(streaming_order(two_streams, {nodes, 1, 1}, options(8 / nodes), 0, state));
    REQUIRE(after.size() + 6 == before.size());
    for (std::size_t i = 0; i + 1 < after.size(); ++i) {  // the last one is padded
      CHECK(after[i] == before[i + 6]);
    }
  }
}

TEST_CASE("the partition orig refuses nodes that do not fit the canonical ones",
          "[data][streaming_order]") {
  const StreamingState state{.num_canonical_nodes = 2, .initial_physical_nodes = 2};
  StreamingOrderOptions options{.batch_size = 4, .num_canonical_nodes = 2};
  const auto relaxed = streaming_order(two_streams, {3, 1, 1}, options, 0, state);
  CHECK(relaxed.shape[0] == 3);
  options.partition_algo = "orig";
  CHECK_THROWS_WITH(streaming_order(two_streams, {3, 1, 1}, options, 0, state),
                    ContainsSubstring("there are 2 canonical nodes and 3 nodes"));
  CHECK(streaming_order(two_streams, {4, 1, 1}, options, 0, state).shape[0] == 4);
  options.partition_algo = "fixed";
  CHECK_THROWS_WITH(
      streaming_order(two_streams, {}, options),
      ContainsSubstring("partition_algo is \"fixed\", expected one of relaxed, orig"));
}

TEST_CASE("a state whose canonical and initial nodes do not divide one another is refused",
          "[data][streaming_order]") {
  const std::vector<StreamSizes> short_shard{{.shards = {7}}};
  const StreamingState state{.num_canonical_nodes = 3, .initial_physical_nodes = 2};
  CHECK_THROWS_WITH(streaming_order(short_shard, {4, 1, 1}, {}, 0, state),
                    ContainsSubstring("the state has 3 canonical nodes and 2 initial nodes, "
                                      "expected that one divides the other"));
  CHECK(streaming_order(short_shard, {3, 1, 1}, {}, 0, state).shape[0] == 3);  // has no use for it
}

TEST_CASE("a state of an epoch before the one asked for is ignored", "[data][streaming_order]") {
  const StreamingOrderOptions options{.batch_size = 4, .shuffle = true, .shuffle_block_size = 40};
  const StreamingState state{.epoch = 2, .sample_in_epoch = 48, .shuffle_seed = 5};
  const auto at = [&](std::int64_t epoch, const std::optional<StreamingState>& from) {
    return streaming_order(two_streams, {}, options, epoch, from).ids;
  };
  CHECK(at(3, state) == at(3, {}));
  CHECK(at(2, state) == at(0, state));  // a later one is where the run goes on
  CHECK(at(2, state).size() + 48 == at(2, {}).size());
}

TEST_CASE("many more nodes than samples repeat the samples of their canonical node",
          "[data][streaming_order]") {
  const std::vector<StreamSizes> short_shard{{.shards = {3}}};
  for (const std::int64_t nodes : {6, 8, 20}) {
    CAPTURE(nodes);
    const auto order = streaming_order(short_shard, {nodes, 1, 1}, {.num_canonical_nodes = 2});
    CHECK(std::ssize(order.ids) == nodes);
    for (std::size_t k = 0; k < order.ids.size(); k += 2) {
      CHECK(order.ids[k] == 0);
      CHECK((order.ids[k + 1] == 1 || order.ids[k + 1] == 2));
    }
  }
}

TEST_CASE("proportions, repeats and choices decide how much of a stream an epoch takes",
          "[data][streaming_order]") {
  auto streams = two_streams;  // 107 and 165 samples
  CHECK(samples_per_stream(streams, {}) == std::vector<std::int64_t>{107, 165});
  streams[0].repeat = 2.5;
  streams[1].choose = 20;
  CHECK(samples_per_stream(streams, {}) == std::vector<std::int64_t>{267, 20});
  CHECK_THROWS_WITH(samples_per_stream(streams, {.epoch_size = 100}),
                    ContainsSubstring("epoch_size is 100, but stream 0 has repeat"));
  streams = two_streams;
  streams[0].proportion = 3;
  streams[1].proportion = 1;
  CHECK(samples_per_stream(streams, {.epoch_size = 100}) == std::vector<std::int64_t>{75, 25});
  const auto order = streaming_order(
      streams, {}, {.batch_size = 8, .batching_method = "stratified", .epoch_size = 100});
  for (std::size_t at = 0; at < order.ids.size(); at += 8) {
    const auto begin = order.ids.begin() + static_cast<std::ptrdiff_t>(at);
    CHECK(std::count_if(begin, begin + 8, [](std::int64_t id) { return id < 107; }) == 6);
  }
}

TEST_CASE("a stream of which an epoch takes nothing leaves the others as they are alone",
          "[data][streaming_order]") {
  for (const char* const method : {"random", "per_stream", "device_per_stream"}) {
    INFO(method);
    const StreamingOrderOptions options{
        .batch_size = 8, .shuffle = true, .batching_method = method};
    const auto alone = streaming_order(std::span(two_streams).first(1), {}, options);
    auto streams = two_streams;
    streams[1].choose = 0;
    CHECK(samples_per_stream(streams, {}) == std::vector<std::int64_t>{107, 0});
    CHECK(streaming_order(streams, {}, options).ids == alone.ids);
    streams[1] = two_streams[1];
    streams[0].proportion = 1;
    streams[1].proportion = 0;
    StreamingOrderOptions sized = options;
    sized.epoch_size = 107;
    CHECK(streaming_order(streams, {}, sized).ids == alone.ids);
  }
}

TEST_CASE("batches of one stream each have all whole batches of it", "[data][streaming_order]") {
  const auto order = streaming_order(
      two_streams, {}, {.batch_size = 8, .shuffle = true, .batching_method = "per_stream"});
  std::array<int, 2> batches{};
  for (std::size_t at = 0; at < order.ids.size(); at += 8) {
    const std::size_t stream = order.ids[at] < 107 ? 0 : 1;
    for (std::size_t i = at; i < at + 8; ++i) {
      CHECK((order.ids[i] < 107 ? 0U : 1U) == stream);
    }
    ++batches.at(stream);
  }
  CHECK(batches == std::array<int, 2>{13, 20});
}

TEST_CASE("an order that cannot be made says why", "[data][streaming_order]") {
  const auto refused = [](const std::vector<StreamSizes>& streams, const StreamingWorld& world,
                          const StreamingOrderOptions& options, const std::string& says) {
    CHECK_THROWS_WITH(streaming_order(streams, world, options), ContainsSubstring(says));
  };
  refused({}, {}, {}, "there is no stream");
  refused({{.shards = {}}}, {}, {}, "stream 0 has no shard");
  refused({{.shards = {3, 0}}}, {}, {}, "a shard of stream 0 has 0 samples");
  refused({{.shards = {3}, .proportion = 1, .choose = 2}}, {}, {}, "more than one of");
  refused({{.shards = {3}, .proportion = 1}, {.shards = {3}}}, {}, {}, "has no proportion");
  refused({{.shards = {3}, .repeat = -1}}, {}, {}, "below 0");
  refused({{.shards = {3}, .proportion = NAN}}, {}, {}, "below 0, or one that is no number");
  refused({{.shards = {3}, .repeat = 0}, {.shards = {3}, .choose = 0}}, {}, {},
          "an epoch takes no sample of any stream");
  refused({{.shards = {3}, .proportion = 0}}, {}, {}, "an epoch takes no sample of any stream");
  refused({{.shards = {3}, .proportion = 1}, {.shards = {3}, .proportion = 0}}, {},
          {.batching_method = "stratified"}, "stream 1 has no sample in a stratified global batch");
  refused({{.shards = {3}}, {.shards = {3}, .repeat = 2}}, {}, {.epoch_size = 9},
          "epoch_size is 9, but stream 1 has repeat");
  refused({{.shards = {3}, .choose = 2}}, {}, {.epoch_size = 9},
          "epoch_size is 9, but stream 0 has choose");
  refused(one_stream, {}, {.shuffle_algo = "py3"},
          "shuffle_algo is \"py3\", expected one of naive");
  refused(one_stream, {}, {.sampling_method = "any"}, "sampling_method is \"any\"");
  refused(one_stream, {}, {.batching_method = "any"}, "batching_method is \"any\"");
  refused(one_stream, {}, {.batch_size = 0}, "batch_size is 0");
  refused(one_stream, {3, 1, 1}, {.num_canonical_nodes = 2}, "one divides the other");
  refused(one_stream, {1, 3, 1}, {.replication = 2}, "replication is 2, but there are 3 ranks");
  refused(one_stream, {}, {.shuffle = true, .shuffle_block_size = 0}, "shuffle_block_size is 0");
  refused(one_stream, {}, {.shuffle = true, .shuffle_algo = "py1br", .shuffle_block_size = 1},
          "shuffle_block_size is 1 for py1br, expected at least 2");
  refused(
      two_streams, {},
      {.batch_size = 4, .shuffle = true, .shuffle_block_size = 2, .batching_method = "stratified"},
      "shuffle_block_size is 0 for py1e, expected at least 1");
  CHECK_THROWS_WITH(streaming_order(one_stream, {}, {}, -1), ContainsSubstring("epoch is -1"));
}

TEST_CASE("blocks may be as small as two samples", "[data][streaming_order]") {
  // As StreamingDataset 0.13.0 has it.
  const std::vector<StreamSizes> long_shard{{.shards = {28}}};
  const auto staggered = streaming_order(long_shard, {2, 2, 3},
                                         {.batch_size = 3,
                                          .num_canonical_nodes = 6,
                                          .shuffle = true,
                                          .shuffle_algo = "py1br",
                                          .shuffle_seed = std::uint64_t{1} << 40,
                                          .shuffle_block_size = 2});
  CHECK(staggered.ids == std::vector<std::int64_t>{0,  18, 10, 2,  20, 12, 3,  22, -1, 9,  1,  19,
                                                   11, 3,  21, 13, 13, -1, 4,  23, 15, 6,  25, 17,
                                                   8,  27, -1, 14, 5,  24, 16, 7,  26, 17, 17, -1});
  const std::vector<StreamSizes> short_shards{{.shards = {2, 6, 1}}};
  const auto extended = streaming_order(short_shards, {6, 2, 1},
                                        {.batch_size = 1,
                                         .num_canonical_nodes = 6,
                                         .shuffle = true,
                                         .shuffle_block_size = 2,
                                         .sampling_granularity = 1000,
                                         .epoch_size = 17},
                                        10);
  CHECK(extended.ids == std::vector<std::int64_t>{0, 1, 1, 1, 3, 2, 4, 4, 6, 7, 5, 5,
                                                  8, 3, 2, 2, 5, 4, 6, 6, 8, 1, 0, 0});
}

TEST_CASE("ranks that get the same samples count as one for device_per_stream",
          "[data][streaming_order]") {
  const StreamingOrderOptions options{
      .batch_size = 4, .num_canonical_nodes = 1, .batching_method = "device_per_stream"};
  CHECK_THROWS_WITH(streaming_order(two_streams, {2, 2, 3}, options),
                    ContainsSubstring("1 canonical nodes and 2 nodes"));
  StreamingOrderOptions replicated = options;
  replicated.replication = 4;
  CHECK(streaming_order(two_streams, {2, 2, 3}, replicated).ids ==
        streaming_order(two_streams, {1, 1, 3}, options).ids);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
