#include <tutti/data/streaming_dataset.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tutti/data/data_loader.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/data/mds_writer.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/trainer.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/wrapped_store.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti::data;
using Catch::Matchers::ContainsSubstring;
using Numbers = std::vector<std::int64_t>;
using tutti::Batch;
using tutti::LocalObjectStore;

namespace {

void write_set(const std::string& folder, std::int64_t samples, const std::string& compression = "",
               std::int64_t first = 0) {
  MDSWriter out(folder, {.columns = {{"x", "int64"}},
                         .compression = compression,
                         .hashes = {"sha1"},
                         .size_limit = 350});  // some samples in each shard
  for (std::int64_t i = 0; i < samples; ++i) {
    out.write({{"x", first + i}});
  }
  out.finish();
}

// What a store of a test does to downloads, and how often it was asked.
struct Line {
  std::atomic<int> downloads{0};
  std::atomic<int> spoiled{0};  // so many of the next downloads of shards are damaged
  std::string spoils = "flip";  // or cut, throw, lose, kill
};

struct TestStore : WrappedStore {
  std::shared_ptr<Line> line = std::make_shared<Line>();

  void download_object(const std::string& name, const std::string& file) const {
    if (name.ends_with(".json")) {
      return store.download_object(name, file);
    }
    ++line->downloads;
    if (line->spoiled <= 0) {
      return store.download_object(name, file);
    }
    --line->spoiled;
    if (line->spoils == "throw") {
      throw std::runtime_error("the line is down");
    }
    if (line->spoils == "lose") {
      throw tutti::ObjectNotFound("there is no '" + name + "'");
    }
    std::string bytes = read_bytes(store.root + "/" + name);
    if (line->spoils == "flip") {
      bytes.back() = static_cast<char>(bytes.back() ^ 1);
    } else {
      bytes.resize(bytes.size() / 2);
    }
    write_bytes(file, bytes);
    if (line->spoils == "kill") {
      ::raise(SIGKILL);
    }
  }
};

// A set of numbers at a remote place and an empty folder for its shards.
struct Place {
  explicit Place(std::int64_t samples, const std::string& compression = "") {
    write_set(remote(), samples, compression);
    store.store.root = remote();
  }
  [[nodiscard]] std::string remote() const { return (folder / "remote").string(); }
  [[nodiscard]] std::string local() const { return (folder / "local").string(); }
  [[nodiscard]] std::vector<Stream> streams() const {
    return {{.remote = store, .local = local()}};
  }
  // Names of files in `local` but those of locks.
  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> out = sorted_names(local());
    std::erase_if(out, [](const std::string& name) { return name.ends_with(".lock"); });
    return out;
  }

  TemporaryFolder folder;
  TestStore store{};
};

Numbers numbers(const Batch& batch) {
  const at::Tensor x = batch.at("x").contiguous();
  return {x.const_data_ptr<std::int64_t>(), x.const_data_ptr<std::int64_t>() + x.numel()};
}

std::vector<Numbers> batches(StreamingDataLoader& loader, std::int64_t epoch,
                             std::int64_t first = 0) {
  std::vector<Numbers> out;
  loader.start(epoch, first);
  while (const auto batch = loader.next()) {
    out.push_back(numbers(*batch));
  }
  return out;
}

std::vector<Numbers> of_rank(const StreamingDataset& set, std::int64_t rank, std::int64_t world,
                             std::int64_t epoch = 0, std::int64_t first = 0,
                             StreamingDataLoaderOptions options = {}) {
  StreamingDataLoader loader(set, std::move(options));
  loader.shard(rank, world);
  return batches(loader, epoch, first);
}

// The samples of each global batch, sorted.
std::vector<Numbers> together(const StreamingDataset& set, std::int64_t world, std::int64_t epoch,
                              std::int64_t first, const StreamingDataLoaderOptions& options = {}) {
  std::vector<Numbers> out;
  for (std::int64_t rank = 0; rank < world; ++rank) {
    const auto own = of_rank(set, rank, world, epoch, first, options);
    out.resize(std::max(out.size(), own.size()));
    for (std::size_t k = 0; k < own.size(); ++k) {
      out[k].insert(out[k].end(), own[k].begin(), own[k].end());
    }
  }
  for (Numbers& one : out) {
    std::sort(one.begin(), one.end());
  }
  return out;
}

std::vector<Numbers> from(const std::vector<Numbers>& all, std::size_t first, std::size_t less) {
  return {all.begin() + static_cast<std::ptrdiff_t>(std::min(first, all.size() - less)),
          all.end() - static_cast<std::ptrdiff_t>(less)};
}

}  // namespace

static_assert(tutti::Loader<StreamingDataLoader>);
static_assert(tutti::Dataset<StreamingDataset>);

TEST_CASE("StreamingDataset: shards are fetched when they are needed", "[data][streaming]") {
  for (const char* compression : {"", "zstd"}) {
    std::unique_ptr<Place> place;
    try {
      place = std::make_unique<Place>(50, compression);
    } catch (const c10::NotImplementedError&) {
      continue;
    }
    const StreamingDataset set(place->streams());
    REQUIRE(set.size() == 50);
    REQUIRE(set.sizes()[0].shards.size() > 3);
    CHECK(place->files() == std::vector<std::string>{"index.json"});
    CHECK(set.sample(30).integer("x") == 30);
    CHECK(place->files() ==
          std::vector<std::string>{"index.json",
                                   "shard.0000" + std::to_string(set.shard_of(30)) + ".mds"});
    CHECK(set.is_open(set.shard_of(30)));
    CHECK_FALSE(set.is_open(0));
    for (std::int64_t i = 0; i < 50; ++i) {
      CHECK(set.get(i).at("x").item<std::int64_t>() == i);
    }
    CHECK(place->store.line->downloads == std::ssize(set.sizes()[0].shards));
    const StreamingDataset again(place->streams());
    CHECK(again.sample(49).integer("x") == 49);
    CHECK(place->store.line->downloads == std::ssize(set.sizes()[0].shards));
    CHECK_THROWS_AS(set.sample(50), c10::IndexError);
    CHECK_THROWS_AS(set.sample(-1), c10::IndexError);
    CHECK(place->files().size() == set.sizes()[0].shards.size() + 1);
  }
}

TEST_CASE("StreamingDataset: compressed files are kept where keep_zip says so, and served alone",
          "[data][streaming]") {
  std::unique_ptr<Place> place;
  try {
    place = std::make_unique<Place>(20, "gz");
  } catch (const c10::NotImplementedError&) {
    return tutti_test::skip("this program was built without zlib, TUTTI_WITH_ZLIB");
  }
  auto streams = place->streams();
  streams[0].keep_zip = true;
  CHECK(StreamingDataset(streams).sample(0).integer("x") == 0);
  CHECK(place->files() ==
        std::vector<std::string>{"index.json", "shard.00000.mds", "shard.00000.mds.gz"});
  std::filesystem::remove(place->local() + "/shard.00000.mds");
  CHECK(StreamingDataset(streams).sample(0).integer("x") == 0);
  CHECK(place->store.line->downloads == 1);
  write_bytes(place->local() + "/shard.00000.mds.gz",
              std::string(std::filesystem::file_size(place->local() + "/shard.00000.mds.gz"), 'x'));
  std::filesystem::remove(place->local() + "/shard.00000.mds");
  CHECK(StreamingDataset(streams).sample(0).integer("x") == 0);  // fetched again
  CHECK(place->store.line->downloads == 2);

  const StreamingDataset local({{.local = place->remote()}});  // without a remote
  CHECK(local.sample(19).integer("x") == 19);
  CHECK(std::filesystem::exists(place->remote() + "/shard.00000.mds.gz"));
}

TEST_CASE("StreamingDataset: streams and splits follow one another", "[data][streaming]") {
  const TemporaryFolder folder;
  write_set((folder / "a/train").string(), 10);
  write_set((folder / "b").string(), 10, "", 100);
  const StreamingDataset set({{.remote = LocalObjectStore{(folder / "a").string()},
                               .local = (folder / "here").string(),
                               .split = "train"},
                              {.local = (folder / "b").string(), .repeat = 2}});
  CHECK(set.size() == 20);
  CHECK(set.sample(3).integer("x") == 3);
  CHECK(set.sample(13).integer("x") == 103);
  CHECK(std::filesystem::exists(folder / "here/train/shard.00000.mds"));
  CHECK(StreamingDataLoader(set).dataset_size() == 30);
}

TEST_CASE("StreamingDataset: a damaged download is fetched again, then refused by name",
          "[data][streaming]") {
  for (const char* how : {"flip", "cut", "throw"}) {
    CAPTURE(how);
    const Place place(20);
    place.store.line->spoils = how;
    place.store.line->spoiled = 2;
    CHECK(StreamingDataset(place.streams()).sample(0).integer("x") == 0);
    CHECK(place.store.line->downloads == 3);
    const StreamingDataset set(place.streams());
    place.store.line->spoiled = 3;
    const std::string said = message([&] { (void)set.sample(19); });
    CHECK_THAT(said, ContainsSubstring("remote/shard.0000" + std::to_string(set.shard_of(19)) +
                                       ".mds' cannot be fetched, tried 3 times"));
    CHECK_THAT(said, ContainsSubstring(*how == 'f'   ? "its sha1 is "
                                       : *how == 'c' ? "and the index says"
                                                     : "the line is down"));
    CHECK(place.files() == std::vector<std::string>{"index.json", "shard.00000.mds"});
    CHECK(set.sample(19).integer("x") == 19);  // the next time it works
  }
  const Place place(20);
  auto streams = place.streams();
  streams[0].download_retry = 0;
  place.store.line->spoiled = 1;
  CHECK_THAT(message([&] { (void)StreamingDataset(streams).sample(0); }),
             ContainsSubstring("tried 1 times"));
  streams[0].validate_hash = false;
  place.store.line->spoiled = 1;
  CHECK(StreamingDataset(streams).sample(0).integer("x") == 0);  // the damage is in a later sample
  std::filesystem::remove(place.remote() + "/shard.00001.mds");
  const StreamingDataset set(place.streams());
  place.store.line->downloads = 0;
  CHECK_THROWS_AS(set.prepare_shard(1), tutti::ObjectNotFound);
  CHECK(place.store.line->downloads == 3);
  const Place other(20);
  other.store.line->spoils = "lose";
  other.store.line->spoiled = 2;
  CHECK(StreamingDataset(other.streams()).sample(0).integer("x") == 0);
  CHECK(other.store.line->downloads == 3);  // the index lists it, so the store was mistaken
}

TEST_CASE("StreamingDataset: a process killed in a download leaves nothing taken for a shard",
          "[data][streaming]") {
  const Place place(20);
  place.store.line->spoils = "kill";
  place.store.line->spoiled = 1;
  const ::pid_t child = ::fork();
  if (child == 0) {
    (void)StreamingDataset(place.streams()).sample(0);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(place.files() == std::vector<std::string>{".shard.00000.mds.part", "index.json"});
  place.store.line->spoiled = 0;
  const StreamingDataset set(place.streams());
  for (std::int64_t i = 0; i < 20; ++i) {
    CHECK(set.sample(i).integer("x") == i);
  }
  CHECK(place.files().size() == set.sizes()[0].shards.size() + 1);
}

TEST_CASE("StreamingDataset: a shard cut off in `local` is fetched again", "[data][streaming]") {
  const Place place(20);
  CHECK(StreamingDataset(place.streams()).sample(0).integer("x") == 0);
  const std::string path = place.local() + "/shard.00000.mds";
  write_bytes(path, read_bytes(path).substr(0, 100));
  CHECK(StreamingDataset(place.streams()).sample(0).integer("x") == 0);
  CHECK(place.store.line->downloads == 2);
}

TEST_CASE("StreamingDataset: of those who want a shard one fetches it", "[data][streaming]") {
  const Place place(200);
  std::vector<std::thread> threads;
  std::atomic<std::int64_t> sum = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const StreamingDataset set(place.streams());  // one each, as processes have
      for (std::int64_t k = 0; k < set.size(); ++k) {
        sum += set.sample(k).integer("x");
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(sum == 4 * 199 * 100);
  CHECK(place.store.line->downloads ==
        std::ssize(StreamingDataset(place.streams()).sizes()[0].shards));
}

TEST_CASE("StreamingDataset: cache_limit removes the shards that were used the longest ago",
          "[data][streaming]") {
  const Place place(200);
  const std::int64_t limit = 1600;
  const auto bytes = [&] {
    std::int64_t out = 0;
    for (const std::string& name : place.files()) {
      out +=
          name == "index.json"
              ? 0
              : static_cast<std::int64_t>(std::filesystem::file_size(place.local() + "/" + name));
    }
    return out;
  };
  const StreamingDataset set(place.streams(), {.cache_limit = limit});
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < set.size(); ++i) {
    CHECK(set.sample(i).integer("x") == i);
    most = std::max(most, bytes());
    CHECK(most <= limit);
  }
  CHECK(most > limit / 2);
  const auto last = std::ssize(set.sizes()[0].shards);
  CHECK(place.store.line->downloads == last);
  CHECK(std::filesystem::exists(place.local() + "/shard.000" + std::to_string(last - 1) + ".mds"));
  CHECK_FALSE(std::filesystem::exists(place.local() + "/shard.00000.mds"));
  const MDSSample kept = set.sample(0);
  for (std::int64_t i = set.size() - 1; i >= 0; --i) {
    CHECK(set.sample(i).integer("x") == i);
  }
  CHECK(kept.integer("x") == 0);  // its bytes stay for it
  StreamingDataLoader loader(
      StreamingDataset(place.streams(), {.batch_size = 10, .cache_limit = limit, .shuffle = true}),
      {.num_workers = 2});
  std::set<std::int64_t> seen;
  for (const Numbers& batch : batches(loader, 0)) {
    seen.insert(batch.begin(), batch.end());
  }
  CHECK(seen.size() == 200);
  CHECK(bytes() <= limit);
  CHECK_THAT(message([&] { StreamingDataset(place.streams(), {.cache_limit = 1000}); }),
             ContainsSubstring("cache_limit is 1000, expected at least four times"));
}

TEST_CASE("StreamingDataset: cache_limit keeps a shard that was opened first and is used again",
          "[data][streaming]") {
  const Place place(200);
  const StreamingDataset set(place.streams(), {.cache_limit = 1600});
  std::int64_t first = 0;
  const auto fetched = [&](std::int64_t sample) {  // downloads that it took
    const int before = place.store.line->downloads;
    CHECK(set.sample(sample).integer("x") == sample);
    return place.store.line->downloads - before;
  };
  for (const std::int64_t samples : set.sizes()[0].shards) {
    CHECK(fetched(first) == 1);
    if (first > 0) {
      CHECK(fetched(0) == 0);
    }
    first += samples;
  }
  CHECK(std::filesystem::exists(place.local() + "/shard.00000.mds"));
  CHECK_FALSE(std::filesystem::exists(place.local() + "/shard.00001.mds"));
}

TEST_CASE("StreamingDataset: a shard that is used marks its file for other processes",
          "[data][streaming]") {
  const Place place(200);
  const StreamingDataset set(place.streams(), {.cache_limit = 1600});
  (void)set.sample(0);
  const std::filesystem::path file = place.local() + "/shard.00000.mds";
  const auto opened = std::filesystem::last_write_time(file);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  (void)set.sample(1);
  CHECK(std::filesystem::last_write_time(file) > opened);
}

TEST_CASE("StreamingDataLoader: each rank has its part of streaming_order's order",
          "[data][streaming]") {
  const TemporaryFolder folder;
  write_set((folder / "a").string(), 90);
  write_set((folder / "b").string(), 67, "", 90);
  for (const char* method : {"random", "stratified", "per_stream", "device_per_stream"}) {
    const StreamingDataset set(
        {{.local = (folder / "a").string()}, {.local = (folder / "b").string()}},
        {.batch_size = 4, .shuffle = true, .shuffle_block_size = 40, .batching_method = method});
    for (const std::int64_t world : {1, 2, 4}) {
      CAPTURE(method, world);
      const auto order =
          streaming_order(set.sizes(), {.ranks_per_node = world}, set.options().order(), 3);
      std::int64_t count = -1;
      for (std::int64_t rank = 0; rank < world; ++rank) {
        const auto found = of_rank(set, rank, world, 3);
        CHECK(of_rank(set, rank, world, 3, 0, {.num_workers = 2}) == found);
        const auto row = order.ids.begin() + rank * order.shape[3] * 4;
        Numbers want(row, row + order.shape[3] * 4);
        std::erase(want, -1);
        Numbers flat;
        for (const Numbers& one : found) {
          flat.insert(flat.end(), one.begin(), one.end());
        }
        want.resize(std::min(want.size(), flat.size()));
        CHECK(flat == want);
        count = count < 0 ? std::ssize(found) : count;
        CHECK(std::ssize(found) == count);  // of all ranks
        CHECK(count >= order.shape[3] - (std::string(method) == "device_per_stream" ? 2 : 0));
      }
    }
  }
}

TEST_CASE("StreamingDataLoader: an epoch goes on at every batch as it would have",
          "[data][streaming][resume]") {
  const Place place(61);
  const StreamingDataset set(place.streams(), {.batch_size = 3, .shuffle = true});
  for (const std::int64_t world : {1, 2, 4}) {
    for (std::int64_t rank = 0; rank < world; ++rank) {
      CAPTURE(world, rank);
      const auto whole = of_rank(set, rank, world, 1);
      CHECK(whole != of_rank(set, rank, world, 0));
      for (std::size_t first = 0; first <= whole.size() + 1; ++first) {
        CHECK(of_rank(set, rank, world, 1, static_cast<std::int64_t>(first),
                      {.num_workers = rank}) == from(whole, first, 0));
      }
    }
  }
}

TEST_CASE("StreamingDataLoader: a resumed epoch fetches no shard of what came before",
          "[data][streaming][resume]") {
  const Place place(100);
  StreamingDataLoader loader(StreamingDataset(place.streams(), {.batch_size = 10}));
  CHECK(batches(loader, 0, 8).size() == 2);
  CHECK(place.store.line->downloads < 6);
}

TEST_CASE("StreamingDataLoader: a run goes on with other numbers of ranks and the same batches",
          "[data][streaming][resume]") {
  for (const std::int64_t samples : {96, 103}) {
    const Place place(samples);
    const auto set_of = [&](std::int64_t world, std::optional<std::int64_t> canonical) {
      return StreamingDataset(place.streams(), {.batch_size = 12 / world,
                                                .num_canonical_nodes = canonical,
                                                .shuffle = true,
                                                .shuffle_block_size = 30});
    };
    const std::size_t padded = samples % 12 == 0 ? 0 : 1;
    const auto before = together(set_of(2, {}), 2, 0, 0);
    CHECK(before.size() == 8 + padded);
    for (const std::int64_t world : {1, 2, 3, 4}) {
      for (std::size_t first = 0; first < before.size(); ++first) {
        const auto after = together(set_of(world, {}), world, 0, static_cast<std::int64_t>(first));
        CHECK(from(after, 0, padded) == from(before, first, padded));
      }
    }
    const auto machines = together(set_of(2, 2), 2, 0, 0, {.ranks_per_node = 1});
    CHECK(machines != before);
    for (const std::int64_t world : {1, 3, 4, 6}) {  // ranks on as many machines
      auto after = together(set_of(world, 2), world, 0, 3, {.ranks_per_node = 1});
      after.resize(machines.size() - 4);  // 3 machines leave out the last batch
      CHECK(after == from(machines, 3, 1));
      const std::int64_t per_node = world % 2 == 0 ? world / 2 : world;
      const auto fewer = together(set_of(world, 2), world, 0, 3, {.ranks_per_node = per_node});
      CHECK(from(fewer, 0, 1) == from(machines, 3, 1));
    }
  }
}

TEST_CASE("StreamingDataLoader: ranks that replicate have the same batches", "[data][streaming]") {
  const Place place(48);
  const auto set = [&](std::int64_t replication) {
    return StreamingDataset(place.streams(),
                            {.batch_size = 3, .shuffle = true, .replication = replication});
  };
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    CHECK(of_rank(set(2), rank, 4) == of_rank(set(1), rank / 2, 2));
  }
  StreamingDataLoader loader(set(3));
  loader.shard(0, 4);
  CHECK_THROWS_WITH(loader.start(0), ContainsSubstring("replication is 3, but there are 4 ranks"));
}

TEST_CASE("StreamingDataLoader: samples that make ranks equally long are told",
          "[data][streaming]") {
  for (const std::int64_t samples : {40, 41, 42, 43, 47}) {
    const Place place(samples);
    for (const std::int64_t world : {1, 2, 4}) {
      std::int64_t repeated = 0;
      std::multiset<std::int64_t> seen;
      for (std::int64_t rank = 0; rank < world; ++rank) {
        StreamingDataLoader loader(StreamingDataset(place.streams(), {.batch_size = 3}));
        loader.shard(rank, world);
        CHECK(loader.dataset_size() == samples);
        const std::int64_t size = loader.size();
        loader.start(0);
        std::int64_t count = 0;
        while (const auto batch = loader.next()) {
          ++count;
          CHECK((loader.repeated() == 0 || count == size));
          const Numbers found = numbers(*batch);
          seen.insert(found.begin(), found.end() - loader.repeated());
          repeated += loader.repeated();
        }
        CHECK(count == size);
      }
      CHECK(repeated == (world - samples % world) % world);
      CHECK(std::ssize(seen) == samples);  // each once
      CHECK(std::set<std::int64_t>(seen.begin(), seen.end()).size() == seen.size());
    }
  }
}

TEST_CASE("StreamingDataLoader: transforms draw the same whatever rank or thread has the sample",
          "[data][streaming]") {
  const Place place(48);
  const auto drawn = [&](std::int64_t world, std::int64_t workers, std::uint64_t seed) {
    const StreamingDataset set(
        place.streams(), {.batch_size = 8 / world, .transform = [](const MDSSample& sample) {
                            return Batch{{"x", at::scalar_tensor(sample.integer("x"), at::kLong)}};
                          }});
    return together(
        set, world, 2, 1,
        {.num_workers = workers, .seed = seed, .transform = [](Batch example, tutti::Rng& rng) {
           return Batch{{"x", example.at("x") * 1000 + rng.integer(0, 1000)}};
         }});
  };
  const auto first = drawn(1, 0, 5);
  CHECK(drawn(2, 2, 5) == first);
  CHECK(drawn(4, 0, 5) == first);
  CHECK(drawn(1, 0, 6) != first);
}

TEST_CASE("StreamingDataLoader: its transform follows the run's seed, and its order does not",
          "[data][streaming]") {
  const Place place(48);
  const auto drawn = [&](std::optional<std::uint64_t> own, std::optional<std::uint64_t> of_run) {
    StreamingDataLoader loader(
        StreamingDataset(place.streams(), {.batch_size = 8, .shuffle = true}),
        {.seed = own, .transform = [](Batch example, tutti::Rng& rng) {
           return Batch{{"x", example.at("x") * 10000 + rng.integer(0, 1000)}};
         }});
    if (of_run) {
      loader.follow_seed(*of_run);
    }
    return batches(loader, 1);
  };
  const auto samples = [](std::vector<Numbers> all) {
    for (Numbers& batch : all) {
      for (std::int64_t& x : batch) {
        x /= 10000;
      }
    }
    return all;
  };
  const auto three = drawn(3, std::nullopt);
  CHECK(drawn(std::nullopt, 3) == three);
  CHECK(drawn(std::nullopt, 4) != three);
  CHECK(drawn(3, 4) == three);
  CHECK(samples(drawn(std::nullopt, 4)) == samples(three));
}

TEST_CASE("StreamingDataLoader: batches are collated, dropped and counted as asked",
          "[data][streaming]") {
  const Place place(22);
  const StreamingDataset set(place.streams(), {.batch_size = 4});
  tutti::AnyLoader any = StreamingDataLoader(set, {.drop_last = true});
  CHECK(any.size() == 5);
  CHECK(any.batch_size() == 4);
  CHECK(any.dataset_size() == 22);
  StreamingDataLoader collated(
      set, {.num_workers = 1, .collate = [](std::vector<Batch> examples) {
              return Batch{{"x", at::full({1}, std::ssize(examples), at::kLong)}};
            }});
  CHECK_FALSE(collated.next());  // not started
  CHECK(batches(collated, 0) == std::vector<Numbers>{{4}, {4}, {4}, {4}, {4}, {2}});
  collated.start(0);
  CHECK(numbers(*collated.next()) == Numbers{4});
  StreamingDataLoader copy = collated;  // in the middle of an epoch
  std::int64_t rest = 0;
  while (copy.next()) {
    ++rest;
  }
  CHECK(rest == 5);
  tutti::DataLoader plain{set, {.batch_size = 22}};
  plain.start(0);
  CHECK(plain.next()->at("x").equal(at::arange(22)));
}

TEST_CASE("StreamingDataLoader: batches of another size are those of such options",
          "[data][streaming]") {
  const Place place(22);
  const StreamingDataset set(place.streams(), {.batch_size = 4, .shuffle = true});
  const StreamingDataset other(place.streams(), {.batch_size = 6, .shuffle = true});
  StreamingDataLoader expected(other);
  StreamingDataLoader loader(set);
  loader.start(1);
  (void)loader.next();
  loader.set_batch_size(6);
  CHECK_FALSE(loader.next());  // not started
  CHECK(loader.batch_size() == 6);
  CHECK(loader.size() == expected.size());
  CHECK(batches(loader, 1) == batches(expected, 1));
  CHECK_THROWS_WITH(loader.set_batch_size(0), ContainsSubstring("batch_size is 0, expected 1"));
}

TEST_CASE("StreamingDataLoader: a sample that cannot be had is named, and the next batch comes",
          "[data][streaming]") {
  const Place place(20);
  for (const std::int64_t workers : {0, 2}) {
    const TemporaryFolder local;
    place.store.line->spoiled = 1000;
    StreamingDataLoader loader(
        StreamingDataset({{.remote = place.store, .local = local.path().string()}},
                         {.batch_size = 5}),
        {.num_workers = workers});
    loader.start(0);
    CHECK_THAT(message([&] { (void)loader.next(); }),
               ContainsSubstring("StreamingDataLoader: sample 0 cannot be had: ") &&
                   ContainsSubstring("shard.00000.mds' cannot be fetched"));
    place.store.line->spoiled = 0;
    loader.start(0, 1);
    CHECK(numbers(*loader.next()) == Numbers{5, 6, 7, 8, 9});
  }
}

TEST_CASE("StreamingDataset: what does not fit together is refused in one sentence",
          "[data][streaming]") {
  const Place place(20);
  const auto refused = [&](StreamingDatasetOptions options) {
    const std::string said =
        message([&] { StreamingDataset(place.streams(), std::move(options)); });
    CHECK_FALSE(std::filesystem::exists(place.local()));  // before anything is fetched
    return said;
  };
  CHECK_THAT(refused({.batch_size = 0}), ContainsSubstring("batch_size is 0, expected at least 1"));
  CHECK_THAT(refused({.predownload = -1}), ContainsSubstring("predownload is -1, expected 0"));
  CHECK_THAT(refused({.partition_algo = "x"}), ContainsSubstring("partition_algo is \"x\""));
  CHECK_THAT(refused({.num_canonical_nodes = 0}), ContainsSubstring("num_canonical_nodes is 0"));
  CHECK_THAT(refused({.shuffle_algo = "x"}), ContainsSubstring("shuffle_algo is \"x\""));
  CHECK_THAT(refused({.sampling_method = "x"}), ContainsSubstring("sampling_method is \"x\""));
  CHECK_THAT(refused({.sampling_granularity = 0}), ContainsSubstring("sampling_granularity is 0"));
  CHECK_THAT(refused({.batching_method = "x"}), ContainsSubstring("batching_method is \"x\""));
  CHECK_THAT(refused({.replication = 0}), ContainsSubstring("replication is 0, expected 1"));
  const auto bad = [&](auto change) {
    std::vector<Stream> streams = place.streams();
    change(streams);
    return message([&] { StreamingDataset set(streams); });
  };
  CHECK_THAT(bad([](auto& s) { s.clear(); }), ContainsSubstring("there is no stream"));
  CHECK_THAT(bad([](auto& s) { s[0].local = ""; }), ContainsSubstring("has no `local`"));
  CHECK_THAT(bad([](auto& s) { s.push_back(s[0]); }), ContainsSubstring("have the same folder"));
  CHECK_THAT(bad([](auto& s) { s[0].download_retry = -1; }), ContainsSubstring("download_retry"));
  CHECK_THAT(bad([](auto& s) { s[0].repeat = -1; }), ContainsSubstring("below 0"));
  CHECK_THAT(bad([](auto& s) { s[0].remote = {}; }), ContainsSubstring("index.json"));
  CHECK_THAT(bad([](auto& s) { s[0].split = "val"; }), ContainsSubstring("val/index.json"));
  const StreamingDataset set(place.streams());
  CHECK_THROWS_AS(StreamingDataLoader(set, {.num_workers = -1}), c10::ValueError);
  CHECK_THROWS_AS(StreamingDataLoader(set, {.prefetch_factor = 0}), c10::ValueError);
  CHECK_THROWS_AS(StreamingDataLoader(set, {.ranks_per_node = 0}), c10::ValueError);
  StreamingDataLoader loader(set, {.ranks_per_node = 2});
  CHECK_THROWS_AS(loader.shard(3, 3), c10::ValueError);
  CHECK_THROWS_AS(loader.start(-1), c10::ValueError);
  loader.shard(0, 3);
  CHECK_THROWS_WITH(loader.start(0), ContainsSubstring("ranks_per_node is 2, and there are 3"));
}

namespace {

// Appends the numbers that this rank trains on to a file of its own.
struct Recorded : tiny::Net {
  tutti::Loss loss(const tutti::Outputs& outputs, const Batch& batch) {
    std::string line;
    for (const std::int64_t one : numbers(batch)) {
      line += std::to_string(one) + " ";
    }
    const std::string path = std::string(std::getenv("TUTTI_TEST_ROOT")) + "/seen." +
                             std::to_string(tutti::dist::rank());
    const std::string before = std::filesystem::exists(path) ? read_bytes(path) : "";
    write_bytes(path, before + line + "\n");
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
};

// The samples of each global batch, as the ranks wrote them, sorted; and removes the files.
std::vector<Numbers> trained(const std::string& root, int world) {
  std::vector<Numbers> out;
  for (int rank = 0; rank < world; ++rank) {
    const std::string path = root + "/seen." + std::to_string(rank);
    std::istringstream lines(read_bytes(path));
    std::size_t k = 0;
    for (std::string line; std::getline(lines, line); ++k) {
      out.resize(std::max(out.size(), k + 1));
      std::istringstream words(line);
      for (std::int64_t one = 0; words >> one;) {
        out[k].push_back(one);
      }
    }
    std::filesystem::remove(path);
  }
  for (Numbers& one : out) {
    std::sort(one.begin(), one.end());
  }
  return out;
}

}  // namespace

TEST_CASE("rank body: trains on streamed shards", "[.rank]") {
  const std::string root = std::getenv("TUTTI_TEST_ROOT");
  const std::string until = std::getenv("TUTTI_TEST_UNTIL");
  const std::int64_t world = tutti::dist::Environment::read().world_size;
  const StreamingDataset set(
      {{.remote = LocalObjectStore{root + "/remote"}, .local = root + "/local"}},
      {.batch_size = 8 / world, .shuffle = true, .transform = [](const MDSSample& sample) {
         const at::Tensor x = at::scalar_tensor(sample.integer("x"), at::kLong);
         return Batch{
             {"inputs", x.to(at::kFloat).expand({4})}, {"targets", at::zeros({2})}, {"x", x}};
       }});
  tutti::TrainerOptions options{.train = StreamingDataLoader(set, {.num_workers = 1}),
                                .optimizer = tutti::SGD{.lr = 0.01},
                                .device = "cpu",
                                .seed = 3,
                                .progress_bar = false};
  options.max_duration = "1ep";
  if (until == "3ba") {
    options.max_duration = "3ba";
    options.save_folder = root + "/saved";
    options.save_interval = "3ba";
  } else if (until == "rest") {
    options.load_path = root + "/saved/latest";
  }
  tutti::Trainer trainer{std::make_shared<Recorded>(), std::move(options)};
  trainer.fit();
  CHECK(trainer.state().timestamp.batch == (until == "3ba" ? 3 : 12));
}

TEST_CASE("StreamingDataLoader: a Trainer's run on 2 ranks goes on with 1 and 4, same batches",
          "[data][streaming][resume][dist]") {
  const TemporaryFolder folder;
  const std::string root = folder.path().string();
  write_set(root + "/remote", 96);
  const EnvironmentVariable place("TUTTI_TEST_ROOT", root.c_str());
  const auto run = [&](int world, const char* until) {
    const EnvironmentVariable length("TUTTI_TEST_UNTIL", until);
    REQUIRE(tutti_test::run_ranks("rank body: trains on streamed shards", world) ==
            tutti_test::all_passed);
    return trained(root, world);
  };
  const auto whole = run(2, "whole");
  REQUIRE(whole.size() == 12);
  CHECK(run(2, "3ba") == from(whole, 0, 9));
  for (const int world : {1, 2, 4}) {
    CHECK(run(world, "rest") == from(whole, 3, 0));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
