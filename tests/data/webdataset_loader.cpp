#include <tutti/data/webdataset_loader.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/data/shard_writer.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::data;
using Numbers = std::vector<std::int64_t>;

std::string shards_of(const TemporaryFolder& folder, std::int64_t count, std::int64_t per_shard) {
  ShardWriter writer((folder / "s-%03d.tar").string(), {.maxcount = per_shard});
  for (std::int64_t i = 0; i < count; ++i) {
    writer.write("k" + std::to_string(i), {{"cls", i}});
  }
  writer.close();
  return (folder / "s-").string() + "{000.." + std::to_string(writer.shards().size() - 1) + "}.tar";
}

Numbers numbers(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<std::int64_t>(),
          tensor.const_data_ptr<std::int64_t>() + tensor.numel()};
}

std::vector<Numbers> batches(WebDatasetLoader& loader, std::int64_t epoch, std::int64_t first = 0) {
  std::vector<Numbers> out;
  loader.start(epoch, first);
  while (const auto batch = loader.next()) {
    out.push_back(numbers(batch->inputs()));
  }
  return out;
}

Numbers flat(const std::vector<Numbers>& all) {
  Numbers out;
  for (const Numbers& one : all) {
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

Numbers up_to(std::int64_t n) {
  Numbers out;
  for (std::int64_t i = 0; i < n; ++i) {
    out.push_back(i);
  }
  return out;
}

}  // namespace

static_assert(tutti::Loader<WebDatasetLoader>);

TEST_CASE("WebDatasetLoader: without shuffling samples come as they are read",
          "[data][webdataset]") {
  const TemporaryFolder folder;
  const std::string urls = shards_of(folder, 23, 4);
  for (const std::int64_t workers : {0, 3}) {
    WebDatasetLoader loader(urls, {.batch_size = 5, .num_workers = workers});
    const auto found = batches(loader, 0);
    CHECK(flat(found) == up_to(23));
    CHECK(found.size() == 5);
    CHECK(found.back().size() == 3);
    CHECK(loader.size() == -1);
  }
  WebDatasetLoader dropping(urls, {.batch_size = 5, .drop_last = true});
  CHECK(batches(dropping, 0).size() == 4);
}

TEST_CASE("WebDatasetLoader: shuffled batches depend on seed and epoch alone, and a run resumes",
          "[data][webdataset]") {
  const TemporaryFolder folder;
  const std::string urls = shards_of(folder, 60, 7);
  const auto made = [&](std::int64_t workers, std::uint64_t seed) {
    return WebDatasetLoader(urls, {.batch_size = 8,
                                   .shuffle = true,
                                   .shuffle_buffer = 15,
                                   .seed = seed,
                                   .num_workers = workers});
  };
  WebDatasetLoader alone = made(0, 1);
  WebDatasetLoader threads = made(3, 1);
  WebDatasetLoader other = made(0, 2);
  const auto first = batches(alone, 0);
  CHECK(batches(threads, 0) == first);
  CHECK(batches(alone, 1) != first);
  CHECK(batches(other, 0) != first);
  CHECK(batches(alone, 0) == first);
  Numbers sorted = flat(first);
  CHECK(sorted != up_to(60));
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted == up_to(60));
  for (std::int64_t from = 0; from <= std::ssize(first); ++from) {
    CHECK(batches(threads, 0, from) == std::vector<Numbers>(first.begin() + from, first.end()));
  }
}

TEST_CASE("WebDatasetLoader: it follows the run's seed unless it has one of its own",
          "[data][webdataset]") {
  const TemporaryFolder folder;
  const std::string urls = shards_of(folder, 40, 4);
  WebDatasetLoader loader(urls, {.batch_size = 8, .shuffle = true});
  WebDatasetLoader zero(urls, {.batch_size = 8, .shuffle = true, .seed = 0});
  WebDatasetLoader three(urls, {.batch_size = 8, .shuffle = true, .seed = 3});
  const auto of_zero = batches(zero, 1);
  const auto of_three = batches(three, 1);
  CHECK(of_three != of_zero);
  CHECK(batches(loader, 1) == of_zero);
  loader.follow_seed(3);
  CHECK(batches(loader, 1) == of_three);
  zero.follow_seed(3);
  CHECK(batches(zero, 1) == of_zero);
}

TEST_CASE("WebDatasetLoader: every epoch has an order of tar files of its own",
          "[data][webdataset]") {
  const TemporaryFolder folder;
  WebDatasetLoader loader(shards_of(folder, 12, 1), {.batch_size = 12, .shuffle = true});
  std::set<Numbers> orders;
  for (std::int64_t epoch = 0; epoch < 8; ++epoch) {
    orders.insert(flat(batches(loader, epoch)));
  }
  CHECK(orders.size() == 8);
}

TEST_CASE("WebDatasetLoader: the buffer mixes samples of several tar files", "[data][webdataset]") {
  const TemporaryFolder folder;
  WebDatasetLoader loader(shards_of(folder, 40, 4), {.batch_size = 40, .shuffle_buffer = 40});
  const Numbers found = flat(batches(loader, 0));
  std::int64_t neighbours = 0;
  for (std::size_t i = 1; i < found.size(); ++i) {
    neighbours += found[i] / 4 == found[i - 1] / 4 ? 1 : 0;
  }
  CHECK(neighbours < 15);  // 30 where tar files follow one another
}

TEST_CASE("WebDatasetLoader: ranks share the tar files and have equally many batches",
          "[data][webdataset]") {
  const TemporaryFolder folder;
  const std::string urls = shards_of(folder, 22, 4);  // 4, 4, 4, 4, 4, 2
  std::vector<std::set<std::int64_t>> seen;
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    WebDatasetLoader loader(urls, {.batch_size = 4, .shuffle = true, .seed = 3, .with_epoch = 7});
    loader.shard(rank, 2);
    const auto found = batches(loader, 0);
    CHECK(found.size() == 7);
    CHECK(loader.size() == 7);
    for (const Numbers& one : found) {
      CHECK(one.size() == 4);
    }
    CHECK(batches(loader, 0, 5) == std::vector<Numbers>(found.begin() + 5, found.end()));
    const Numbers once = flat({found[0], found[1]});
    seen.emplace_back(once.begin(), once.end());
  }
  for (const std::int64_t one : seen[0]) {
    CHECK(seen[1].count(one) == 0);
  }
  WebDatasetLoader endless(urls, {.batch_size = 4});
  endless.shard(0, 2);
  CHECK_THROWS_WITH(endless.start(0), ContainsSubstring("set with_epoch"));
  CHECK_THROWS_WITH(endless.shard(0, 7), ContainsSubstring("6 tar files cannot be dealt"));
}

TEST_CASE("WebDatasetLoader: transforms draw the same numbers with any number of threads",
          "[data][webdataset]") {
  const TemporaryFolder folder;
  const std::string urls = shards_of(folder, 20, 4);
  const auto noise = [](tutti::Batch example, tutti::Rng& rng) {
    return tutti::Batch{{"inputs", example.inputs() * 1000 + rng.integer(0, 1000)}};
  };
  WebDatasetLoader alone(urls, {.batch_size = 4, .transform = noise});
  WebDatasetLoader threads(urls, {.batch_size = 4, .num_workers = 2, .transform = noise});
  const auto first = batches(alone, 0);
  CHECK(batches(threads, 0) == first);
  CHECK(batches(alone, 1) != first);
}

TEST_CASE("WebDatasetLoader: a damaged tar file is an error behind the batches before it",
          "[data][webdataset]") {
  const TemporaryFolder folder;
  const std::string urls = shards_of(folder, 12, 4);
  write_bytes(shard_paths(urls)[1], std::string(2048, 'x'));
  for (const std::int64_t workers : {0, 1, 3}) {
    INFO(workers);
    WebDatasetLoader loader(urls, {.batch_size = 2, .num_workers = workers});
    for (int again = 0; again < 2; ++again) {
      loader.start(again);
      CHECK(numbers(loader.next()->inputs()) == Numbers{0, 1});
      CHECK(numbers(loader.next()->inputs()) == Numbers{2, 3});
      CHECK_THROWS_WITH(loader.next(), ContainsSubstring("is no tar file"));
      CHECK(numbers(loader.next()->inputs()) == Numbers{8, 9});
    }
  }
}

TEST_CASE("WebDatasetLoader: errors name the sample, and options are checked",
          "[data][webdataset]") {
  const TemporaryFolder folder;
  const std::string urls = shards_of(folder, 4, 4);
  WebDatasetLoader loader(urls, {.num_workers = 1, .fields = {{"inputs", "jpg"}}});
  loader.start(0);
  CHECK_THROWS_WITH(loader.next(), ContainsSubstring("the sample 'k0' has no field 'jpg'"));
  CHECK_THROWS_AS(WebDatasetLoader(urls, {.batch_size = 0}), c10::ValueError);
  CHECK_THROWS_AS(WebDatasetLoader(urls, {.shuffle_buffer = -1}), c10::ValueError);
  CHECK_THROWS_AS(WebDatasetLoader(std::vector<std::string>{}), c10::ValueError);
  tutti::AnyLoader any = WebDatasetLoader(urls);
  CHECK(any.shard(0, 1));
  any.start(0);
  CHECK(any.next()->inputs().numel() == 4);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
