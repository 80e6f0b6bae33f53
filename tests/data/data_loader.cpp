#include <tutti/data/data_loader.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/data/tensor_loader.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
using tutti::DataLoader;
using tutti::DataLoaderOptions;
using tutti::Rng;
using Numbers = std::vector<std::int64_t>;

// Noisy examples, which note that they were read; some fail.
struct Noisy {
  struct Log {
    std::mutex mutex{};
    Numbers read{};
  };

  std::int64_t count = 23;
  Numbers bad{};
  std::shared_ptr<Log> log = std::make_shared<Log>();

  [[nodiscard]] std::int64_t size() const { return count; }
  Batch get(std::int64_t index, Rng& rng) const {
    {
      const std::lock_guard lock(log->mutex);
      log->read.push_back(index);
    }
    if (std::find(bad.begin(), bad.end(), index) != bad.end()) {
      throw std::runtime_error("the disk says no to " + std::to_string(index));
    }
    at::Tensor noise = at::empty({3, 2});
    for (std::int64_t i = 0; i < 6; ++i) {
      noise.view({6})[i] = rng.uniform();
    }
    return {noise + index, at::full({}, index, at::kLong)};
  }
};

std::vector<Batch> rest_of(tutti::AnyLoader loader, std::int64_t epoch, std::int64_t from = 0) {
  std::vector<Batch> out;
  loader.start(epoch, from);
  while (auto batch = loader.next()) {
    out.push_back(*batch);
  }
  return out;
}

bool same(const std::vector<Batch>& a, const std::vector<Batch>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Batch& x, const Batch& y) {
    return x.inputs().equal(y.inputs()) && x.targets().equal(y.targets());
  });
}

Numbers labels(const std::vector<Batch>& batches) {
  Numbers out;
  for (const Batch& batch : batches) {
    const at::Tensor targets = batch.targets().contiguous();
    const auto* first = targets.const_data_ptr<std::int64_t>();
    out.insert(out.end(), first, first + targets.numel());
  }
  return out;
}

Batch scale(Batch example, Rng& rng) {
  example.inputs() = example.inputs() * rng.uniform();
  return example;
}

struct NoConst {
  [[nodiscard]] std::int64_t size() const { return 1; }
  at::Tensor get(std::int64_t) { return at::ones(1); }
};

struct Pairs {
  [[nodiscard]] int size() const { return 3; }
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> get(std::int64_t i) const {
    return {at::full({2}, i, at::kLong), at::full({}, i, at::kLong)};
  }
};

}  // namespace

static_assert(tutti::Loader<DataLoader<Noisy>> && tutti::Dataset<Noisy> && tutti::Dataset<Pairs>);
static_assert(!tutti::Dataset<NoConst> && !tutti::Dataset<at::Tensor>);

TEST_CASE("DataLoader: batches are the same bit for bit with 0, 1 and 4 threads",
          "[data][data_loader][law]") {
  const auto make = [](std::int64_t workers, std::uint64_t seed = 5) {
    return DataLoader{Noisy{},
                      {.batch_size = 4,
                       .shuffle = true,
                       .seed = seed,
                       .num_workers = workers,
                       .transform = scale}};
  };
  const std::vector<Batch> alone = rest_of(make(0), 2);
  REQUIRE(alone.size() == 6);
  CHECK(alone[0].inputs().sizes() == at::IntArrayRef({4, 3, 2}));
  CHECK(alone[5].inputs().sizes() == at::IntArrayRef({3, 3, 2}));
  CHECK(alone[0].targets().sizes() == at::IntArrayRef({4}));
  for (const std::int64_t workers : {1, 4, 16}) {
    CHECK(same(rest_of(make(workers), 2), alone));
  }
  CHECK_FALSE(same(rest_of(make(4), 1), alone));
  CHECK_FALSE(same(rest_of(make(4, 6), 2), alone));
}

TEST_CASE("DataLoader follows the run's seed, order and draws, unless it has one of its own",
          "[data][data_loader][law]") {
  const auto make = [](std::optional<std::uint64_t> seed) {
    return DataLoader{
        Noisy{},
        {.batch_size = 4, .shuffle = true, .seed = seed, .num_workers = 2, .transform = scale}};
  };
  const std::vector<Batch> of_three = rest_of(make(3), 1);
  const std::vector<Batch> of_zero = rest_of(make(0), 1);
  CHECK_FALSE(same(of_three, of_zero));
  auto loader = make(std::nullopt);
  CHECK(same(rest_of(loader, 1), of_zero));
  loader.follow_seed(3);
  CHECK(same(rest_of(loader, 1), of_three));
  auto own = make(0);
  own.follow_seed(3);
  CHECK(same(rest_of(own, 1), of_zero));
  own = make(std::nullopt);
  loader.shard(1, 2);
  own.shard(1, 2);
  own.follow_seed(3);
  CHECK(same(rest_of(own, 0), rest_of(loader, 0)));
}

TEST_CASE("DataLoader: sums have the same bits on any thread, whatever LibTorch's threads",
          "[data][data_loader][law]") {
  at::manual_seed(3);
  struct Sums {
    at::Tensor values = at::rand({1 << 21});
    [[nodiscard]] std::int64_t size() const { return 1; }
    [[nodiscard]] at::Tensor get(std::int64_t) const { return values.sum(); }
  };
  const Sums data;
  const int threads = at::get_num_threads();
  at::set_num_threads(4);
  const at::Tensor alone = rest_of(DataLoader{data}, 0).at(0).inputs();
  const at::Tensor worker = rest_of(DataLoader{data, {.num_workers = 1}}, 0).at(0).inputs();
  CHECK(at::get_num_threads() == 4);
  at::set_num_threads(1);
  CHECK(alone.item<float>() == data.values.sum().item<float>());
  CHECK(worker.item<float>() == alone.item<float>());
  at::set_num_threads(threads);
}

TEST_CASE("DataLoader: order, sharding and repetitions are those of TensorLoader",
          "[data][data_loader]") {
  for (const std::int64_t workers : {0, 2}) {
    for (const bool drop : {false, true}) {
      DataLoader loader{
          Noisy{.count = 13},
          {.batch_size = 3, .shuffle = true, .drop_last = drop, .seed = 5, .num_workers = workers}};
      const at::Tensor numbers = at::arange(13);
      tutti::TensorLoader reference(
          numbers, numbers, {.batch_size = 3, .shuffle = true, .drop_last = drop, .seed = 5});
      loader.shard(1, 2);
      reference.shard(1, 2);
      CHECK(loader.size() == reference.size());
      CHECK(loader.dataset_size() == 13);
      CHECK(loader.batch_size() == 3);
      for (const std::int64_t epoch : {0, 3}) {
        loader.start(epoch);
        reference.start(epoch);
        while (const auto batch = loader.next()) {
          CHECK(batch->targets().equal(reference.next()->targets()));
          CHECK(loader.repeated() == reference.repeated());
        }
        CHECK_FALSE(reference.next());
      }
    }
  }
}

TEST_CASE("DataLoader: drop_last leaves out a batch that lacks but one", "[data][data_loader]") {
  const DataLoader loader{Noisy{.count = 11}, {.batch_size = 4, .drop_last = true}};
  CHECK(loader.size() == 2);
  CHECK(labels(rest_of(loader, 0)) == Numbers{0, 1, 2, 3, 4, 5, 6, 7});
  const DataLoader kept{Noisy{.count = 9}, {.batch_size = 4}};
  CHECK(kept.size() == 3);
  CHECK(labels(rest_of(kept, 0)) == Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(DataLoader{Noisy{.count = 3}, {.batch_size = 4, .drop_last = true}}.size() == 0);
}

TEST_CASE("DataLoader: a resumed epoch goes on as it would have, and reads nothing before",
          "[data][data_loader][resume]") {
  for (const std::int64_t workers : {0, 3}) {
    const Noisy data;
    const DataLoader loader{data, {.batch_size = 5, .shuffle = true, .num_workers = workers}};
    std::vector<Batch> whole = rest_of(loader, 1);
    whole.erase(whole.begin(), whole.begin() + 3);
    data.log->read.clear();
    CHECK(same(rest_of(loader, 1, 3), whole));
    Numbers read = data.log->read;
    Numbers expected = labels(whole);
    std::sort(read.begin(), read.end());
    std::sort(expected.begin(), expected.end());
    CHECK(read == expected);
    CHECK(rest_of(loader, 1, 5).empty());
  }
}

TEST_CASE("DataLoader: num_workers times prefetch_factor batches are read ahead, and no more",
          "[data][data_loader]") {
  const Noisy data;
  const auto read = [&] {
    const std::lock_guard lock(data.log->mutex);
    return data.log->read.size();
  };
  {
    DataLoader loader{data, {.batch_size = 2, .num_workers = 2, .prefetch_factor = 2}};
    loader.start(0);
    CHECK(read() == 0);
    CHECK(loader.next());
    for (int tenths = 0; tenths < 300 && read() < 8; ++tenths) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
  CHECK(read() == 8);
}

TEST_CASE("DataLoader: an epoch begun anew and copies in the middle of one start clean",
          "[data][data_loader]") {
  DataLoader loader{Noisy{}, {.batch_size = 4, .shuffle = true, .num_workers = 3}};
  const std::vector<Batch> whole = rest_of(loader, 0);
  loader.start(1);
  CHECK(loader.next());
  loader.start(0);
  CHECK(loader.next()->inputs().equal(whole[0].inputs()));
  DataLoader copy = loader;
  CHECK(copy.next()->inputs().equal(whole[1].inputs()));
  CHECK(loader.next()->inputs().equal(whole[1].inputs()));
  const DataLoader moved = std::move(loader);
  DataLoader assigned{Noisy{.count = 1}};
  assigned = moved;
  CHECK(assigned.next()->inputs().equal(whole[2].inputs()));
  CHECK(&assigned.dataset() == &copy.dataset());
}

TEST_CASE("DataLoader: what a worker throws comes out with the example's number",
          "[data][data_loader]") {
  for (const std::int64_t workers : {0, 1, 4}) {
    DataLoader loader{Noisy{.bad = {9}}, {.batch_size = 4, .num_workers = workers}};
    loader.start(0);
    CHECK(loader.next());
    CHECK(loader.next());
    try {
      static_cast<void>(loader.next());
      FAIL("nothing was thrown");
    } catch (const c10::Error& error) {
      CHECK(std::string(error.what_without_backtrace()) ==
            "DataLoader: example 9 of the data set cannot be had: the disk says no to 9");
      CHECK(std::string(error.what()) == error.what_without_backtrace());  // no stack trace
      CHECK_THROWS_AS(std::rethrow_if_nested(error), std::runtime_error);
    }
    CHECK(loader.next()->targets().equal(at::tensor(Numbers{12, 13, 14, 15}, at::kLong)));
  }
  DataLoader odd{Pairs{}, {.num_workers = 1, .transform = [](Batch, Rng&) -> Batch { throw 3; }}};
  CHECK_THROWS_WITH(odd.next(), ContainsSubstring("example 0 of the data set cannot be had: an "
                                                  "exception that is no std::exception"));
}

TEST_CASE("DataLoader: bad examples can be left out, counted, with one warning and a limit",
          "[data][data_loader]") {
  struct Warnings : c10::WarningHandler {
    std::vector<std::string> said;
    void process(const c10::Warning& warning) override { said.push_back(warning.msg()); }
  };
  std::vector<Batch> alone;
  for (const std::int64_t workers : {0, 4}) {
    Warnings warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    auto loader = std::make_shared<DataLoader<Noisy>>(
        Noisy{.count = 12, .bad = {1, 2, 11}}, DataLoaderOptions{.batch_size = 4,
                                                                 .num_workers = workers,
                                                                 .on_error = tutti::OnError::skip,
                                                                 .max_skipped = 3});
    const std::vector<Batch> batches = rest_of(loader, 0);
    CHECK(labels(batches) == Numbers{0, 3, 4, 5, 6, 7, 8, 9, 10});
    CHECK(batches[0].num_samples() == 2);
    CHECK(loader->skipped() == 3);
    CHECK(rest_of(loader, 1).size() == 3);
    CHECK(loader->skipped() == 6);
    REQUIRE(warnings.said.size() == 1);
    CHECK_THAT(warnings.said[0],
               ContainsSubstring("example 1 of the data set is left out: the disk says no to 1"));
    alone = alone.empty() ? batches : alone;
    CHECK(same(batches, alone));

    DataLoader strict{Noisy{.count = 12, .bad = {1, 2, 11}},
                      {.num_workers = workers, .on_error = tutti::OnError::skip, .max_skipped = 2}};
    CHECK_THROWS_WITH(strict.next(),
                      ContainsSubstring("3 examples of this epoch cannot be had, expected at most "
                                        "max_skipped = 2; the last is example 11: the disk"));
    DataLoader none{Noisy{.count = 2, .bad = {0, 1}},
                    {.num_workers = workers, .on_error = tutti::OnError::skip}};
    CHECK_THROWS_WITH(none.next(), ContainsSubstring("no example of batch 0 can be had; the first "
                                                     "is example 0: the disk says no to 0"));
  }
}

TEST_CASE("DataLoader: a repetition that is skipped is not left out of an evaluation again",
          "[data][data_loader]") {
  DataLoader loader{Noisy{.count = 3, .bad = {0}}, {.on_error = tutti::OnError::skip}};
  loader.shard(1, 2);  // examples 1 and 0, the latter a repetition
  CHECK(loader.next()->num_samples() == 1);
  CHECK(loader.repeated() == 0);
}

TEST_CASE("DataLoader: examples that do not go together are refused by number",
          "[data][data_loader]") {
  const auto loader = [](auto change) {
    DataLoader out{Pairs{}, {.transform = [change](Batch example, Rng&) {
                     if (example.targets().item<int>() == 2) {
                       change(example);
                     }
                     return example;
                   }}};
    return out;
  };
  auto longer = loader([](Batch& example) { example.inputs() = at::zeros({3}, at::kLong); });
  CHECK_THROWS_WITH(longer.next(), ContainsSubstring("\"inputs\" of example 2 is Long[3] and of "
                                                     "example 0 Long[2]; expected one type"));
  auto more = loader([](Batch& example) { example["mask"] = at::ones(2); });
  CHECK_THROWS_WITH(more.next(), ContainsSubstring("example 2 has inputs, targets, mask and "
                                                   "example 0 inputs, targets; expected the same"));
  auto empty = loader([](Batch& example) { example.inputs() = at::Tensor(); });
  CHECK_THROWS_WITH(empty.next(), ContainsSubstring("\"inputs\" of example 2 is an undefined"));
  DataLoader padded{Pairs{}, {.collate = [](std::vector<Batch> examples) {
                      return Batch(at::full({std::ssize(examples)}, 7, at::kLong));
                    }}};
  CHECK(padded.next()->inputs().equal(at::full({3}, 7, at::kLong)));
  DataLoader none{Pairs{}, {.collate = [](const std::vector<Batch>&) { return Batch(); }}};
  CHECK_THROWS_WITH(none.next(), ContainsSubstring("collate made an empty batch of the examples of "
                                                   "batch 0"));
}

TEST_CASE("DataLoader: no gradients are recorded on any thread", "[data][data_loader]") {
  struct Weights {
    at::Tensor value = at::ones(2).requires_grad_();
    [[nodiscard]] std::int64_t size() const { return 2; }
    [[nodiscard]] at::Tensor get(std::int64_t) const { return value * 2; }
  };
  for (const std::int64_t workers : {0, 1}) {
    DataLoader loader{Weights{}, {.num_workers = workers}};
    CHECK_FALSE(loader.next()->inputs().requires_grad());
  }
}

TEST_CASE("DataLoader: pinned memory where there is a CUDA device", "[data][data_loader][cuda]") {
  DataLoader loader{Pairs{}, {.num_workers = 1, .pin_memory = true}};
  const auto batch = loader.next();
  CHECK(batch->inputs().equal(at::tensor(Numbers{0, 0, 1, 1, 2, 2}, at::kLong).view({3, 2})));
  CHECK(batch->inputs().is_pinned() == at::hasCUDA());
}

namespace {

// Images whose every pixel is their number.
struct Flat {
  [[nodiscard]] std::int64_t size() const { return 5; }
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> get(std::int64_t index) const {
    return {at::full({1, 2, 2}, index, at::kByte), at::full({}, index, at::kLong)};
  }
};

tutti::data::ImageTransform plus(int number) {
  return [number](const at::Tensor& image, Rng&) { return image + number; };
}

}  // namespace

TEST_CASE("DataLoader: transforms of images come one after another, before the example's",
          "[data][data_loader]") {
  DataLoaderOptions options{
      .batch_size = 5,
      .transforms = {{"double", [](const at::Tensor& image, Rng&) { return image * 2; }}},
      .transform = [](Batch example, Rng&) {
        return Batch(example.inputs().to(at::kFloat) / 10, example.targets());
      }};
  DataLoader loader{Flat{}, options};
  loader.transforms().put("plus", plus(3));
  loader.start(0);
  const Batch batch = *loader.next();
  CHECK(batch.inputs().sizes() == at::IntArrayRef{5, 1, 2, 2});
  CHECK(at::allclose(batch.inputs().select(3, 0).flatten().slice(0, 0, 10, 2),
                     at::tensor({0.3, 0.5, 0.7, 0.9, 1.1}).to(at::kFloat)));
  loader.transforms().remove("plus");
  loader.start(0);
  CHECK(loader.next()->inputs()[1].max().item<float>() == 0.2F);
  tutti::AnyLoader any = loader;  // as a trainer holds it, for AugMix, RandAugment and ColOut
  REQUIRE(any.transforms() != nullptr);
  any.transforms()->put("plus", plus(4));
  any.start(0);
  CHECK(any.next()->inputs()[1].max().item<float>() == 0.6F);
}

TEST_CASE("DataLoader: what transforms draw depends on seed, epoch and example alone",
          "[data][data_loader]") {
  const auto noisy = [](std::int64_t workers) {
    return DataLoader{Flat{},
                      {.batch_size = 2,
                       .shuffle = true,
                       .num_workers = workers,
                       .transforms = {{"noise", [](const at::Tensor& image, Rng& rng) {
                                         return image + rng.integer(0, 100);
                                       }}}}};
  };
  const auto none = rest_of(noisy(0), 3);
  const auto three = rest_of(noisy(3), 3);
  const auto later = rest_of(noisy(0), 3, 1);
  const auto other = rest_of(noisy(0), 4);
  REQUIRE(none.size() == 3);
  for (std::size_t i = 0; i < none.size(); ++i) {
    CHECK(at::equal(none[i].inputs(), three[i].inputs()));
    CHECK((i == 0 || at::equal(none[i].inputs(), later[i - 1].inputs())));
  }
  CHECK_FALSE(at::equal(none[0].inputs(), other[0].inputs()));
}

TEST_CASE("DataLoader: transforms of what is no 8-bit image are refused", "[data][data_loader]") {
  DataLoader loader{Noisy{}, {.transforms = {{"plus", plus(1)}}}};
  loader.start(0);
  CHECK_THROWS_WITH(loader.next(), ContainsSubstring("example 0 of the data set cannot be had") &&
                                       ContainsSubstring("transforms take 8-bit images"));
}

TEST_CASE("DataLoader: batches of another size go on in the same order", "[data][data_loader]") {
  for (const std::int64_t workers : {0, 2}) {
    const DataLoaderOptions options{.batch_size = 2, .shuffle = true, .num_workers = workers};
    DataLoaderOptions larger = options;
    larger.batch_size = 3;
    const DataLoader expected{Noisy{}, larger};
    DataLoader loader{Noisy{}, options};
    loader.start(1);
    (void)loader.next();
    loader.set_batch_size(3);
    CHECK(loader.batch_size() == 3);
    CHECK(loader.size() == expected.size());
    CHECK(same(rest_of(loader, 1), rest_of(expected, 1)));
    CHECK(same(rest_of(loader, 1, 2), rest_of(expected, 1, 2)));
    CHECK_THROWS_WITH(loader.set_batch_size(0), ContainsSubstring("batch_size is 0, expected 1"));
  }
}

TEST_CASE("DataLoader: ranks that do not divide a batch share it all the same",
          "[data][data_loader][law]") {
  for (const std::int64_t workers : {0, 2}) {
    const DataLoader alone{Noisy{}, {.batch_size = 8, .shuffle = true}};
    Numbers all = labels(rest_of(alone, 1, 1));
    std::sort(all.begin(), all.end());
    Numbers shared;
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      DataLoader loader{Noisy{}, {.batch_size = 5, .shuffle = true, .num_workers = workers}};
      loader.shard(rank, 3);
      CHECK(loader.global_batch_size() == 15);
      loader.set_global_batch_size(8);
      CHECK(loader.global_batch_size() == 8);
      CHECK(loader.batch_size() == (rank < 2 ? 3 : 2));
      CHECK(loader.size() == 3);
      for (loader.start(1, 1); const auto batch = loader.next();) {
        const Numbers own = labels({*batch});
        shared.insert(shared.end(), own.begin(), own.end() - loader.repeated());
      }
    }
    std::sort(shared.begin(), shared.end());
    CHECK(shared == all);
  }
  DataLoader loader{Noisy{}, {.batch_size = 5}};
  loader.set_global_batch_size(8);  // and is dealt to ranks after that
  loader.shard(2, 3);
  CHECK(loader.batch_size() == 2);
  loader.set_batch_size(5);  // each its own again
  CHECK(loader.global_batch_size() == 15);
  CHECK(loader.size() == 2);
  CHECK_THROWS_WITH(loader.set_global_batch_size(2),
                    ContainsSubstring("a batch of 2 examples cannot be shared by 3 ranks"));
}

TEST_CASE("DataLoader: options out of range are refused", "[data][data_loader]") {
  const DataLoader least{
      Pairs{}, {.batch_size = 1, .num_workers = 1, .prefetch_factor = 1, .max_skipped = 0}};
  CHECK(labels(rest_of(least, 0)) == Numbers{0, 1, 2});
  CHECK(rest_of(least, 0).size() == 3);
  CHECK_THROWS_WITH((DataLoader{Pairs{}, {.batch_size = 0}}),
                    ContainsSubstring("batch_size is 0, expected 1 or more"));
  CHECK_THROWS_WITH((DataLoader{Pairs{}, {.num_workers = -1}}),
                    ContainsSubstring("num_workers is -1, expected 0 or more"));
  CHECK_THROWS_WITH((DataLoader{Pairs{}, {.prefetch_factor = 0}}),
                    ContainsSubstring("prefetch_factor is 0, expected 1 or more"));
  CHECK_THROWS_WITH((DataLoader{Pairs{}, {.max_skipped = -1}}),
                    ContainsSubstring("max_skipped is -1, expected 0 or more"));
  DataLoader loader{Pairs{}};
  CHECK_THROWS_WITH(loader.start(0, -1), ContainsSubstring("first_batch is -1"));
  CHECK(rest_of(DataLoader{Noisy{.count = 0}, {.num_workers = 2}}, 0).empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
