#include <tutti/data/loader.hpp>

#include <iterator>
#include <map>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <torch/data.h>

#include <tutti/data/tensor_loader.hpp>
#include <tutti/data/transforms.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::AnyLoader;
using tutti::Batch;

namespace {

std::vector<Batch> numbered(std::int64_t n) {
  std::vector<Batch> out;
  for (std::int64_t i = 0; i < n; ++i) {
    out.emplace_back(at::full({2, 1}, i), at::full({2}, i));
  }
  return out;
}

// The number that each batch of an epoch carries.
std::vector<std::int64_t> numbers(AnyLoader& loader, std::int64_t epoch, std::int64_t first = 0) {
  std::vector<std::int64_t> out;
  loader.start(epoch, first);
  while (const auto batch = loader.next()) {
    out.push_back(batch->inputs().select(0, 0).item<std::int64_t>());
  }
  return out;
}

using Numbers = std::vector<std::int64_t>;

struct Countdown {  // a Loader with nothing but what it must have
  std::int64_t left = 0;
  void start(std::int64_t epoch, std::int64_t first) { left = epoch - first; }
  std::optional<Batch> next() {
    if (left <= 0) {
      return std::nullopt;
    }
    return Batch(at::full({1}, left--));
  }
};

struct Telling : Countdown {  // a Loader with all that it may have
  std::int64_t place = 0;
  std::uint64_t seed = 0;
  tutti::data::Transforms list{};
  [[nodiscard]] int size() const { return 3; }
  [[nodiscard]] std::int64_t batch_size() const { return 5; }
  [[nodiscard]] std::int64_t dataset_size() const { return 14; }
  [[nodiscard]] std::int64_t repeated() const { return 2; }
  void shard(std::int64_t rank, std::int64_t world_size) { place = 10 * world_size + rank; }
  void follow_seed(std::uint64_t of_run) { seed = of_run; }
  [[nodiscard]] tutti::data::Transforms& transforms() { return list; }
};

struct OnePass {  // what a stream or a generator is like
  struct iterator {
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    Batch operator*() const;
    iterator& operator++();
    void operator++(int);
    bool operator==(const iterator&) const;
  };
  [[nodiscard]] iterator begin() const;
  [[nodiscard]] iterator end() const;
};

struct Shuffling : std::vector<Batch> {
  using std::vector<Batch>::vector;
  void set_epoch(std::int64_t epoch) { seen.push_back(epoch); }
  [[nodiscard]] std::int64_t batch_size() const { return 2; }
  std::vector<std::int64_t> seen;
};

}  // namespace

static_assert(std::convertible_to<std::vector<Batch>, AnyLoader>);
static_assert(std::convertible_to<std::shared_ptr<Countdown>, AnyLoader>);
static_assert(std::convertible_to<std::unique_ptr<Countdown>, AnyLoader>);
static_assert(!std::convertible_to<int, AnyLoader>);
static_assert(!std::convertible_to<at::Tensor, AnyLoader>);
static_assert(tutti::RestartableRange<std::vector<std::pair<at::Tensor, at::Tensor>>>);
static_assert(tutti::RestartableRange<std::vector<std::map<std::string, at::Tensor>>>);
static_assert(tutti::RestartableRange<std::vector<torch::data::Example<>>>);
static_assert(!tutti::RestartableRange<std::vector<int>>);
static_assert(!tutti::RestartableRange<OnePass>);

TEST_CASE("a range is an epoch that can be gone through again", "[data][law]") {
  AnyLoader loader = numbered(3);
  CHECK(loader.size() == 3);
  CHECK(loader.batch_size() == 0);
  CHECK(loader.dataset_size() == -1);
  CHECK(numbers(loader, 0) == Numbers{0, 1, 2});
  CHECK(numbers(loader, 1) == Numbers{0, 1, 2});
  CHECK_FALSE(loader.next().has_value());
}

TEST_CASE("a range resumes at a batch inside the epoch", "[data][resume]") {
  AnyLoader loader = numbered(4);
  CHECK(numbers(loader, 0, 2) == Numbers{2, 3});
  CHECK(numbers(loader, 0, 4).empty());
  CHECK(numbers(loader, 0, 9).empty());
}

TEST_CASE("a range can be left before its end and begun again", "[data][law]") {
  AnyLoader loader = numbered(3);
  loader.start(0);
  (void)loader.next();
  CHECK(numbers(loader, 1) == Numbers{0, 1, 2});
}

TEST_CASE("an empty range is an empty epoch", "[data][law]") {
  AnyLoader loader = std::vector<Batch>{};
  CHECK(loader.size() == 0);
  CHECK(numbers(loader, 0).empty());
}

TEST_CASE("a range with set_epoch hears of every epoch", "[data][law]") {
  auto data = std::make_shared<Shuffling>();
  data->push_back(Batch(at::zeros({2}, at::kLong)));
  AnyLoader loader = data;
  CHECK(loader.batch_size() == 2);
  (void)numbers(loader, 4);
  (void)numbers(loader, 5);
  CHECK(data->seen == Numbers{4, 5});
}

TEST_CASE("pairs, examples and maps are batches", "[data][law]") {
  const auto x = at::full({2}, 7);
  const auto y = at::full({2}, 8);
  AnyLoader pairs = std::vector<std::pair<at::Tensor, at::Tensor>>{{x, y}};
  AnyLoader examples = std::vector<torch::data::Example<>>{{x, y}};
  AnyLoader maps = std::vector<std::map<std::string, at::Tensor>>{{{"inputs", x}, {"targets", y}}};
  for (AnyLoader* loader : {&pairs, &examples, &maps}) {
    loader->start(0);
    const auto batch = loader->next();
    REQUIRE(batch.has_value());
    CHECK(batch->inputs().is_same(x));
    CHECK(batch->targets().is_same(y));
  }
}

TEST_CASE("a loader needs start and next alone", "[data][law]") {
  AnyLoader loader = Countdown{};
  CHECK(loader.size() == -1);
  CHECK(loader.batch_size() == 0);
  CHECK(loader.repeated() == 0);
  CHECK(numbers(loader, 3) == Numbers{3, 2, 1});
  CHECK(numbers(loader, 3, 1) == Numbers{2, 1});
  CHECK(loader.shard(0, 1));
  CHECK_FALSE(loader.shard(0, 2));
}

TEST_CASE("what a loader tells is passed on", "[data][law]") {
  const auto telling = std::make_shared<Telling>();
  AnyLoader loader = telling;
  CHECK(loader.size() == 3);
  CHECK(loader.batch_size() == 5);
  CHECK(loader.dataset_size() == 14);
  CHECK(loader.repeated() == 2);
  CHECK(loader.shard(1, 4));
  CHECK(telling->place == 41);
  loader.follow_seed(17);
  CHECK(telling->seed == 17);
  CHECK(loader.transforms() == &telling->list);
  AnyLoader silent = Countdown{};
  CHECK(silent.dataset_size() == -1);
  CHECK(silent.transforms() == nullptr);
  CHECK_NOTHROW(silent.follow_seed(17));
  CHECK_FALSE(silent.set_batch_size(3));
  AnyLoader rows = tutti::TensorLoader{at::zeros({6, 2}), at::zeros({6}), {.batch_size = 2}};
  CHECK(rows.set_batch_size(3));
  CHECK(rows.batch_size() == 3);
  CHECK(rows.given_batch_size() == 2);
  CHECK(AnyLoader(rows).given_batch_size() == 2);
  CHECK(silent.given_batch_size() == silent.batch_size());
  CHECK_FALSE(silent.set_global_batch_size(3));
  CHECK(silent.global_batch_size() == 0);
  CHECK(rows.shard(1, 2));
  CHECK(rows.global_batch_size() == 6);
  CHECK(rows.set_global_batch_size(5));
  CHECK(rows.global_batch_size() == 5);
  CHECK(rows.batch_size() == 2);
  CHECK(rows.given_batch_size() == 2);
  CHECK_FALSE(static_cast<bool>(AnyLoader{}));
}

TEST_CASE("copies of a loader share its position", "[data][law]") {
  AnyLoader loader = numbered(3);
  AnyLoader copy = loader;
  loader.start(0);
  (void)loader.next();
  CHECK(copy.next()->inputs().select(0, 0).item<std::int64_t>() == 1);
}

TEST_CASE("a torch::data loader trains for many epochs, even when left early", "[data][law]") {
  auto dataset =
      torch::data::datasets::TensorDataset(at::arange(10, at::kLong))
          .map(torch::data::transforms::BatchLambda<std::vector<torch::data::TensorExample>,
                                                    torch::data::Example<>>(
              [](std::vector<torch::data::TensorExample> in) {
                std::vector<at::Tensor> rows;
                for (auto& example : in) {
                  rows.push_back(example.data);
                }
                return torch::data::Example<>(at::stack(rows), at::stack(rows));
              }));
  AnyLoader loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      std::move(dataset), torch::data::DataLoaderOptions().batch_size(4).workers(1));
  CHECK(loader.batch_size() == 4);
  CHECK(numbers(loader, 0) == Numbers{0, 4, 8});
  loader.start(1);
  (void)loader.next();
  CHECK(numbers(loader, 2, 1) == Numbers{4, 8});
}

TEST_CASE("a null pointer to a loader is refused", "[data]") {
  CHECK_THROWS_WITH(AnyLoader(std::shared_ptr<std::vector<Batch>>()),
                    ContainsSubstring("the pointer to a loader is null"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
