#include <tutti/data/tensor_loader.hpp>

#include <algorithm>
#include <vector>

#include <tutti/data/loader.hpp>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::AnyLoader;
using tutti::Batch;
using tutti::TensorLoader;
using tutti::TensorLoaderOptions;

namespace {
using Numbers = std::vector<std::int64_t>;

TensorLoader numbered(std::int64_t n, TensorLoaderOptions options) {
  return TensorLoader{at::arange(n, at::kLong).view({n, 1}), at::arange(n, at::kLong), options};
}

// All examples that the rest of an epoch gives, checking that inputs and targets stay together.
Numbers examples(TensorLoader& loader, std::int64_t epoch, std::int64_t first = 0) {
  Numbers out;
  loader.start(epoch, first);
  while (const auto batch = loader.next()) {
    CHECK(batch->inputs().squeeze(1).equal(batch->targets()));
    for (std::int64_t i = 0; i < batch->targets().size(0); ++i) {
      out.push_back(batch->targets()[i].item<std::int64_t>());
    }
  }
  return out;
}
}  // namespace

static_assert(tutti::Loader<TensorLoader>);

TEST_CASE("batches in order are views that cover all examples", "[data][law]") {
  auto loader = numbered(10, {.batch_size = 4});
  CHECK(loader.size() == 3);
  CHECK(examples(loader, 0) == Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  loader.start(0);
  CHECK(loader.next()->targets().data_ptr() == loader.dataset().targets().data_ptr());
}

TEST_CASE("drop_last leaves out the batch that is not full", "[data][law]") {
  auto loader = numbered(10, {.batch_size = 4, .drop_last = true});
  CHECK(loader.size() == 2);
  CHECK(examples(loader, 0) == Numbers{0, 1, 2, 3, 4, 5, 6, 7});
  auto nearly = numbered(11, {.batch_size = 4, .drop_last = true});
  CHECK(nearly.size() == 2);
  CHECK(examples(nearly, 0) == Numbers{0, 1, 2, 3, 4, 5, 6, 7});
  auto few = numbered(3, {.batch_size = 4, .drop_last = true});
  CHECK(few.size() == 0);
  CHECK(examples(few, 0).empty());
  auto kept = numbered(3, {.batch_size = 4});
  CHECK(kept.size() == 1);
  CHECK(examples(kept, 0) == Numbers{0, 1, 2});
}

TEST_CASE("shuffled epochs are permutations that differ and repeat by number", "[data][law]") {
  auto loader = numbered(50, {.batch_size = 8, .shuffle = true, .seed = 3});
  const Numbers first = examples(loader, 0);
  const Numbers second = examples(loader, 1);
  CHECK(first != second);
  CHECK(examples(loader, 0) == first);
  Numbers sorted = second;
  std::sort(sorted.begin(), sorted.end());
  auto plain = numbered(50, {.batch_size = 8});
  CHECK(sorted == examples(plain, 0));
  auto other = numbered(50, {.batch_size = 8, .shuffle = true, .seed = 30});
  CHECK(examples(other, 0) != first);
}

TEST_CASE("TensorLoader follows the run's seed unless it has one of its own", "[data][law]") {
  auto loader = numbered(50, {.batch_size = 8, .shuffle = true});
  auto zero = numbered(50, {.batch_size = 8, .shuffle = true, .seed = 0});
  auto three = numbered(50, {.batch_size = 8, .shuffle = true, .seed = 3});
  CHECK(examples(loader, 1) == examples(zero, 1));
  loader.follow_seed(3);
  CHECK(examples(loader, 1) == examples(three, 1));
  CHECK(examples(loader, 1) != examples(zero, 1));
  loader.shard(1, 2);
  three.shard(1, 2);
  const Numbers second_half = examples(loader, 0);
  CHECK(second_half == examples(three, 0));
  CHECK(second_half.size() == 25);

  const Numbers of_zero = examples(zero, 2);
  zero.follow_seed(3);
  three.follow_seed(4);
  CHECK(examples(zero, 2) == of_zero);
  CHECK(examples(three, 0) == second_half);
}

TEST_CASE("an epoch resumes at any batch", "[data][resume]") {
  for (const bool shuffle : {false, true}) {
    auto loader = numbered(21, {.batch_size = 4, .shuffle = shuffle});
    const Numbers whole = examples(loader, 2);
    for (std::int64_t first = 0; first <= loader.size() + 1; ++first) {
      const auto from = std::min<std::int64_t>(4 * first, 21);
      CHECK(examples(loader, 2, first) == Numbers(whole.begin() + from, whole.end()));
    }
  }
}

TEST_CASE("two ranks with a batch see what one with twice the batch sees", "[data][law][dist]") {
  auto one = numbered(22, {.batch_size = 6, .shuffle = true});
  auto rank0 = numbered(22, {.batch_size = 3, .shuffle = true});
  auto rank1 = rank0;
  rank0.shard(0, 2);
  rank1.shard(1, 2);
  CHECK(rank0.size() == one.size());
  one.start(5);
  rank0.start(5);
  rank1.start(5);
  while (const auto whole = one.next()) {
    const auto both = at::cat({rank0.next()->targets(), rank1.next()->targets()});
    CHECK(std::get<0>(both.sort()).equal(std::get<0>(whole->targets().sort())));
  }
  CHECK_FALSE(rank0.next().has_value());
}

TEST_CASE("the example that fills up a rank is reported as repeated", "[data][law][dist]") {
  auto rank0 = numbered(5, {.batch_size = 2});
  auto rank1 = rank0;
  rank0.shard(0, 2);
  rank1.shard(1, 2);
  CHECK(examples(rank0, 0) == Numbers{0, 2, 4});
  CHECK(rank0.repeated() == 0);
  CHECK(examples(rank1, 0) == Numbers{1, 3, 0});
  CHECK(rank1.repeated() == 1);
  rank1.start(0);
  (void)rank1.next();
  CHECK(rank1.repeated() == 0);
}

TEST_CASE("a transform sees every batch", "[data][law]") {
  auto loader = numbered(
      4, {.batch_size = 2, .transform = [](Batch batch) { return Batch(batch.inputs() + 10); }});
  loader.start(0);
  CHECK(loader.next()->inputs().equal(at::tensor({10, 11}, at::kLong).view({2, 1})));
}

TEST_CASE("tensors without dimensions go into every batch", "[data][law]") {
  const auto shared = at::full({}, 3.0);
  TensorLoader loader{Batch({{"inputs", at::zeros({4})}, {"scale", shared}}),
                      {.batch_size = 2, .shuffle = true}};
  loader.start(0);
  CHECK(loader.next()->at("scale").is_same(shared));
}

TEST_CASE("TensorLoader: pinned memory where there is a CUDA device", "[data][cuda]") {
  const auto plus_one = [](Batch batch) { return Batch(batch.inputs() + 1, batch.targets()); };
  const at::Tensor x = at::randn({10, 3});
  const Batch data{{"inputs", x},
                   {"targets", x.t().contiguous().t()},
                   {"same", at::ones({1}).expand({10})},
                   {"scale", at::full({}, 3.0)}};
  for (const bool shuffle : {false, true}) {
    for (const bool transforms : {false, true}) {
      TensorLoaderOptions options{.batch_size = 4, .shuffle = shuffle};
      if (transforms) {
        options.transform = plus_one;
      }
      TensorLoader plain{data, options};
      options.pin_memory = true;
      TensorLoader loader{data, options};
      while (const auto batch = loader.next()) {
        const auto expected = plain.next();
        REQUIRE(expected);
        REQUIRE(batch->names() == expected->names());
        for (const auto& [name, tensor] : *batch) {
          INFO(name << ", shuffle: " << shuffle << ", transforms: " << transforms);
          CHECK(tensor.equal(expected->at(name)));
          CHECK(tensor.is_pinned() == at::hasCUDA());
        }
      }
      CHECK_FALSE(plain.next());
    }
  }
}

TEST_CASE("TensorLoader: batches of another size go on in the same order", "[data][law]") {
  const Numbers all = [] {
    auto loader = numbered(10, {.batch_size = 10, .shuffle = true});
    return examples(loader, 1);
  }();
  auto loader = numbered(10, {.batch_size = 2, .shuffle = true});
  loader.start(1);
  (void)loader.next();
  loader.set_batch_size(4);
  CHECK(loader.batch_size() == 4);
  CHECK(loader.options().batch_size == 4);
  CHECK(loader.size() == 3);
  CHECK(examples(loader, 1) == all);
  CHECK(examples(loader, 1, 2) == Numbers(all.begin() + 8, all.end()));
  CHECK_THROWS_WITH(loader.set_batch_size(0), ContainsSubstring("batch_size is 0, expected 1"));
  CHECK(loader.batch_size() == 4);
}

TEST_CASE("TensorLoader: ranks that do not divide a batch share it all the same", "[data][law]") {
  auto alone = numbered(23, {.batch_size = 8, .shuffle = true});
  Numbers all = examples(alone, 1, 1);
  std::sort(all.begin(), all.end());
  Numbers shared;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    auto loader = numbered(23, {.batch_size = 5, .shuffle = true});
    loader.shard(rank, 3);
    CHECK(loader.global_batch_size() == 15);
    loader.set_global_batch_size(8);
    CHECK(loader.global_batch_size() == 8);
    CHECK(loader.batch_size() == (rank < 2 ? 3 : 2));
    CHECK(loader.options().batch_size == loader.batch_size());
    CHECK(loader.size() == 3);
    for (loader.start(1, 1); const auto batch = loader.next();) {
      for (std::int64_t i = 0; i < batch->targets().size(0) - loader.repeated(); ++i) {
        shared.push_back(batch->targets()[i].item<std::int64_t>());
      }
    }
  }
  std::sort(shared.begin(), shared.end());
  CHECK(shared == all);

  auto loader = numbered(23, {.batch_size = 5, .shuffle = true});
  loader.set_global_batch_size(8);  // and is dealt to ranks after that
  loader.shard(2, 3);
  CHECK(loader.batch_size() == 2);
  CHECK_THROWS_WITH(loader.set_global_batch_size(2),
                    ContainsSubstring("a batch of 2 examples cannot be shared by 3 ranks"));
  CHECK(loader.batch_size() == 2);
  loader.set_batch_size(5);  // each its own again
  CHECK(loader.global_batch_size() == 15);
  auto dealt = numbered(23, {.batch_size = 5, .shuffle = true, .rank = 2, .world_size = 3});
  CHECK(examples(loader, 1) == examples(dealt, 1));
}

TEST_CASE("options and tensors that make no sense are refused", "[data]") {
  CHECK_THROWS_WITH(numbered(4, {.batch_size = 0}),
                    ContainsSubstring("batch_size is 0, expected 1 or more"));
  CHECK_THROWS_WITH(numbered(4, {.rank = 2, .world_size = 2}), ContainsSubstring("rank is 2"));
  CHECK_THROWS_WITH((TensorLoader{at::zeros({3}), at::zeros({4})}),
                    ContainsSubstring("disagree on the number of examples"));
  auto loader = numbered(4, {.rank = 0, .world_size = 2});
  CHECK_THROWS_WITH(loader.shard(1, 2), ContainsSubstring("its options say rank 0 of 2"));
  CHECK_THROWS_WITH(loader.start(0, -1), ContainsSubstring("first_batch is -1"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
