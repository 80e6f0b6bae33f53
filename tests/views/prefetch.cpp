#include <tutti/views/prefetch.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

#include <tutti/trainer.hpp>
#include <tutti/views/filter.hpp>
#include <tutti/views/map.hpp>
#include <tutti/views/shuffle.hpp>

#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/views.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;
using namespace views_test;
using Catch::Matchers::ContainsSubstring;
using Example = std::pair<at::Tensor, at::Tensor>;

Example load(int i, Rng& rng) {
  at::Tensor x = at::full({4}, 0.01 * i);
  x[0] = rng.uniform();
  return {x, at::full({2}, 0.02 * i)};
}
bool wanted(const Example& pair) {
  return pair.first[0].item<float>() > 0.3;
}

const auto files = ranges::views::iota(0, 50);

// What can be had at once, or read in order.
AnyLoader numbered(std::int64_t ahead, std::int64_t threads) {
  return files | views::map(load) | views::shuffle() | views::batch(8) |
         views::prefetch(ahead, threads);
}
AnyLoader in_order(std::int64_t ahead, std::int64_t threads) {
  return files | views::shuffle() | views::map(load, threads) | views::filter(wanted) |
         views::batch(8) | views::prefetch(ahead);
}

struct Stop final {
  std::int64_t at = -1;
  void apply(BatchEnd, State& state) const {
    if (state.timestamp.batch == at) {
      state.stop_training();
    }
  }
};

at::Tensor weights(AnyLoader train, const std::string& folder = "", std::int64_t stop_at = -1,
                   bool resume = false) {
  TrainerOptions options{.train = std::move(train),
                         .max_duration = "3ep",
                         .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
                         .device = "cpu",
                         .seed = 3,
                         .run_name = "views",
                         .progress_bar = false};
  if (!folder.empty()) {
    options.save_folder = folder;
    options.save_interval = "1ba";
    options.autoresume = resume;
  }
  const auto net = tiny::net(1);
  Trainer<Stop> trainer{net, options, Stop{stop_at}};
  trainer.fit();
  return tiny::flat(*net);
}

}  // namespace

TEST_CASE("a Trainer learns the same from a pipeline with any number of threads",
          "[views][prefetch][law]") {
  for (const auto make : {numbered, in_order}) {
    const at::Tensor alone = weights(make(0, 1));
    for (const std::int64_t threads : {1, 4}) {
      CHECK(weights(make(1, threads)).equal(alone));
      CHECK(weights(make(5, threads)).equal(alone));
    }
  }
  CHECK(weights(in_order(0, 0)).equal(weights(in_order(2, 4))));
  CHECK_FALSE(weights(numbered(0, 1)).equal(weights(in_order(0, 1))));
}

TEST_CASE("a run resumes inside an epoch of a pipeline, bit for bit", "[views][prefetch][resume]") {
  for (const auto make : {numbered, in_order}) {
    const at::Tensor whole = weights(make(2, 3));
    const TemporaryFolder folder;
    CHECK_FALSE(weights(make(2, 3), folder.path().string(), 6).equal(whole));
    CHECK(weights(make(4, 1), folder.path().string(), -1, true).equal(whole));
  }
}

TEST_CASE("what a step throws comes out of fit() with its place", "[views][prefetch][failure]") {
  const auto fail = [](int i, Rng& rng) {
    return i == 33 ? throw std::runtime_error("the disk says no") : load(i, rng);
  };
  for (const std::int64_t ahead : {0, 3}) {
    CHECK_THROWS_WITH(
        weights(files | views::map(fail) | views::batch(8) | views::prefetch(ahead, 2)),
        ContainsSubstring("views::batch: example 33 of epoch 0 cannot be had: "
                          "views::map: element 33 cannot be had: the disk says no"));
    CHECK_THROWS_WITH(
        weights(files | views::map(fail, 2) | views::batch(8) | views::prefetch(ahead)),
        ContainsSubstring("example 33 of epoch 0 cannot be had: views::map: element "
                          "33 cannot be had: the disk says no"));
  }
}

TEST_CASE("evaluation counts every example of a pipeline once", "[views][prefetch]") {
  const auto net = tiny::net(1);
  Trainer<> trainer{
      net,
      {.eval = {{"views", files | views::map(load) | views::batch(8) | views::prefetch(2)}},
       .device = "cpu",
       .seed = 3,
       .progress_bar = false}};
  trainer.eval();
  CHECK(trainer.state().eval_timestamp.sample == 50);
}

TEST_CASE("prefetch checks its numbers", "[views][prefetch]") {
  CHECK_THROWS_WITH(views::prefetch(-1), ContainsSubstring("batches is -1, expected 0 or more"));
  CHECK_THROWS_WITH(views::prefetch(1, 0), ContainsSubstring("threads is 0, expected 1 or more"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
