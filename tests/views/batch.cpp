#include <tutti/views/batch.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <list>
#include <ranges>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <range/v3/view/enumerate.hpp>
#include <range/v3/view/filter.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/take.hpp>
#include <range/v3/view/transform.hpp>
#include <range/v3/view/zip.hpp>

#include <tutti/data/data_loader.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/views/filter.hpp>
#include <tutti/views/map.hpp>
#include <tutti/views/prefetch.hpp>
#include <tutti/views/shard.hpp>
#include <tutti/views/shuffle.hpp>

#include "support/views.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace views_test;
using Catch::Matchers::ContainsSubstring;
using tutti::Batch;

static_assert(tutti::Loader<views::Batches>);

struct Numbered {
  std::int64_t count;
  [[nodiscard]] std::int64_t size() const { return count; }
  [[nodiscard]] at::Tensor get(std::int64_t i) const { return example(i); }
};

}  // namespace

TEST_CASE("batches of views are those of DataLoader, on any rank", "[views][batch][law]") {
  for (const bool drop : {false, true}) {
    for (const std::int64_t world : {1, 2, 3}) {
      for (std::int64_t rank = 0; rank < world; ++rank) {
        tutti::AnyLoader here(ranges::views::iota(0, 13) | ranges::views::transform(example) |
                              views::shuffle(5) | views::batch({.size = 3, .drop_last = drop}) |
                              views::prefetch(2));
        tutti::DataLoader there{Numbered{13},
                                {.batch_size = 3, .shuffle = true, .drop_last = drop, .seed = 5}};
        REQUIRE(here.shard(rank, world));
        there.shard(rank, world);
        CHECK(here.size() == there.size());
        CHECK(here.batch_size() == 3);
        CHECK(here.dataset_size() == 13);
        for (const std::int64_t epoch : {0, 2}) {
          for (const std::int64_t from : {0, 1}) {
            here.start(epoch, from);
            there.start(epoch, from);
            while (const auto batch = there.next()) {
              const auto ours = here.next();
              REQUIRE(ours);
              CHECK(ours->inputs().equal(batch->inputs()));
              CHECK(here.repeated() == there.repeated());
            }
            CHECK_FALSE(here.next());
          }
        }
      }
    }
  }
}

TEST_CASE("a stream is dealt as numbers are", "[views][batch][law]") {
  for (const bool drop : {false, true}) {
    for (const std::int64_t n : {0, 1, 2, 5, 12, 13, 14}) {
      for (const std::int64_t world : {1, 2, 3, 5}) {
        for (std::int64_t rank = 0; rank < world; ++rank) {
          INFO("drop " << drop << ", n " << n << ", rank " << rank << " of " << world);
          const auto numbers = ranges::views::iota(std::int64_t(0), n);
          auto all = numbers | views::map(example) | views::batch({.size = 2, .drop_last = drop});
          auto stream = numbers | ranges::views::filter([](std::int64_t) { return true; }) |
                        views::map(example, 2) | views::batch({.size = 2, .drop_last = drop}) |
                        views::prefetch(3, 4);
          all.shard(rank, world);
          stream.shard(rank, world);
          CHECK(stream.size() == -1);
          CHECK(stream.dataset_size() == -1);
          for (const std::int64_t from : {0, 1, 2}) {
            all.start(0, from);
            stream.start(0, from);
            while (const auto batch = all.next()) {
              const auto ours = stream.next();
              REQUIRE(ours);
              CHECK(ours->inputs().equal(batch->inputs()));
              CHECK(stream.repeated() == all.repeated());
            }
            CHECK_FALSE(stream.next());
            CHECK_FALSE(stream.next());
          }
        }
      }
    }
  }
}

TEST_CASE("views of range-v3 and of the standard library stand anywhere among the steps",
          "[views][batch]") {
  const std::vector<std::int64_t> files{4, 7, 1, 9, 12, 3, 8};
  const auto plain = rest_of(files | views::shuffle(3) | views::map(example) | views::batch(2), 2);
  CHECK(same(
      rest_of(files | views::shuffle(3) | ranges::views::transform(example) | views::batch(2), 2),
      plain));
#if !defined(__clang__) || __clang_major__ >= 16  // older ones cannot read GCC's std::views
  CHECK(
      same(rest_of(files | std::views::transform(example) | views::shuffle(3) | views::batch(2), 2),
           plain));
#endif
  CHECK(same(
      rest_of(files | views::shuffle(3) | ranges::views::enumerate |
                  ranges::views::transform([](const auto& pair) { return example(pair.second); }) |
                  ranges::views::take(7) | views::batch(2),
              2),
      plain));
  const auto odd = [](std::int64_t i) { return i % 2 == 1; };
  const auto kept = rest_of(
      files | views::shuffle(3) | views::filter(odd) | views::map(example) | views::batch(2), 2);
  CHECK(kept.size() == 2);
  CHECK(same(rest_of(files | views::shuffle(3) | ranges::views::filter(odd) |
                         ranges::views::transform(example) | views::batch(2),
                     2),
             kept));
  CHECK_FALSE(same(rest_of(files | views::shuffle(3) | ranges::views::filter(odd) |
                               ranges::views::transform(example) | views::batch(2),
                           1),
                   kept));
  const auto steps = ranges::views::transform(example) | views::shuffle(3) | views::batch(2);
  CHECK(same(rest_of(files | steps, 2), plain));
  const auto before = views::shuffle(3) | ranges::views::transform(example);
  CHECK(same(rest_of(files | before | views::batch(2), 2), plain));
  const std::list<std::int64_t> list(files.begin(), files.end());
  CHECK(same(rest_of(list | views::map(example) | views::batch(2), 2),
             rest_of(files | views::map(example) | views::batch(2), 2)));
}

TEST_CASE("a pipeline owns a container that is moved into it", "[views][batch]") {
  const auto loader = [] {
    std::vector<std::int64_t> files{1, 2, 3};
    return std::move(files) | views::map(example) | views::batch(3);
  }();
  CHECK(rest_of(loader, 0).at(0).inputs().select(1, 0).equal(at::tensor({1.0F, 2.0F, 3.0F})));
}

TEST_CASE("steps see the epoch through views of range-v3 in a plain range of batches too",
          "[views][batch]") {
  const std::vector<std::int64_t> files{4, 7, 1, 9, 12, 3, 8};
  const auto to_batch = [](std::int64_t i) { return Batch(at::full({2, 1}, i)); };
  tutti::AnyLoader range(files | views::shuffle() | ranges::views::transform(to_batch));
  tutti::AnyLoader batches(files | views::shuffle(9) | views::map(example) | views::batch(1));
  range.follow_seed(9);
  for (const std::int64_t epoch : {0, 1, 2}) {
    range.start(epoch);
    batches.start(epoch);
    while (const auto batch = batches.next()) {
      CHECK(range.next()->inputs()[0].item<float>() == batch->inputs()[0][0].item<float>());
    }
  }
}

TEST_CASE("a stream says how much it reads again when it resumes", "[views][batch]") {
  const auto numbers = ranges::views::iota(0, 100);
  const auto even = [](int i) { return i % 2 == 0; };
  auto all = numbers | views::shuffle(1) | views::map(example) | views::batch(4);
  all.start(1, 5);
  CHECK(all.reads_again() == 0);
  auto threads = numbers | views::shuffle(1) | views::map(example, 3) | views::batch(4);
  threads.start(1, 5);
  CHECK(threads.reads_again() == 0);
  auto some = numbers | views::filter(even) | views::map(example, 3) | views::batch(4);
  Warnings warnings;
  some.start(1, 5);
  CHECK(some.reads_again() == 39);
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("views::filter reads 39 examples again to go on at "
                               "batch 5 of epoch 1"));
  CHECK(some.next()->inputs()[0][0].item<float>() == 40);
}

TEST_CASE("what fails says where, and the batches behind it come all the same",
          "[views][batch][failure]") {
  const auto read = [](std::int64_t i) {
    return i == 4 ? throw std::runtime_error("the disk says no") : example(i);
  };
  const auto numbers = ranges::views::iota(std::int64_t(0), std::int64_t(8));
  const auto check = [&](views::Batches loader, const std::string& step) {
    loader.start(3);
    CHECK(loader.next()->inputs().size(0) == 2);
    CHECK(loader.next());
    try {
      (void)loader.next();
      FAIL("example 4 was had");
    } catch (const c10::Error& error) {
      CHECK_THAT(error.what(), ContainsSubstring("views::batch: example 4 of epoch 3 cannot be "
                                                 "had: " +
                                                 step +
                                                 " 4 cannot be had: the disk says "
                                                 "no"));
    }
    CHECK(loader.next()->inputs()[0][0].item<float>() >= 5);
  };
  for (const std::int64_t ahead : {0, 1, 3}) {
    check(numbers | ranges::views::transform(read) | views::batch(2) | views::prefetch(ahead, 2),
          "views: element");
    check(numbers | views::map(read) | views::batch(2) | views::prefetch(ahead, 2),
          "views::map: element");
    check(numbers | views::map(read, 3) | views::batch(2) | views::prefetch(ahead),
          "views::map: element");
  }
  auto uneven = numbers | views::map([](std::int64_t i) { return at::ones({i < 3 ? 1 : 2}); }) |
                views::batch(4);
  uneven.start(0);
  CHECK_THROWS_WITH(uneven.next(), ContainsSubstring("views::batch: \"inputs\" of example 3 is"));
}

TEST_CASE("batch takes a function that puts examples together, and checks its numbers",
          "[views][batch]") {
  const auto pad = [](std::vector<Batch> examples) {
    std::vector<at::Tensor> parts;
    for (const Batch& one : examples) {
      parts.push_back(one.inputs());
    }
    return Batch(at::cat(parts).unsqueeze(0));
  };
  const auto grow = [](std::int64_t i) { return at::full({i + 1}, i); };
  auto loader = ranges::views::iota(std::int64_t(0), std::int64_t(4)) | views::map(grow) |
                views::batch({.size = 2, .collate = pad});
  loader.start(0);
  CHECK(loader.next()->inputs().sizes() == at::IntArrayRef({1, 3}));
  CHECK(loader.options().size == 2);
  CHECK_THROWS_WITH(views::batch(0), ContainsSubstring("size is 0, expected 1 or more"));
  CHECK_THROWS_WITH(loader.start(-1), ContainsSubstring("epoch is -1"));
  CHECK_THROWS_WITH(loader.start(0, -1), ContainsSubstring("first_batch -1"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
