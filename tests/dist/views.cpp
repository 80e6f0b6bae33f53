#include <tutti/views/prefetch.hpp>

#include <cstdint>
#include <utility>
#include <vector>

#include <range/v3/view/iota.hpp>

#include <tutti/dist/ddp.hpp>
#include <tutti/trainer.hpp>
#include <tutti/views/filter.hpp>
#include <tutti/views/map.hpp>
#include <tutti/views/shuffle.hpp>

#include "dist/alone.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using tutti_test::all_passed;
using tutti_test::alone;
using tutti_test::run_ranks;

namespace {

using Example = std::pair<at::Tensor, at::Tensor>;

// Remembers which examples this rank is given.
struct Dealt final {
  std::vector<at::Tensor> numbers{};
  void apply(AfterDataloader, State& state) {
    numbers.push_back(state.batch.inputs().select(1, 0));
  }
};

Example load(int i) {
  return {at::full({4}, static_cast<float>(i)), at::full({2}, 0.01 * i)};
}

// Batches of all ranks together, in the order of one process.
std::vector<at::Tensor> seen(AnyLoader train) {
  Trainer<Dealt> trainer{tiny::net(1),
                         {.train = std::move(train),
                          .max_duration = "2ep",
                          .optimizer = SGD{.lr = 1e-6},
                          .device = "cpu",
                          .seed = 3,
                          .progress_bar = false}};
  trainer.fit();
  std::vector<at::Tensor> out;
  for (const at::Tensor& own : trainer.get<Dealt>().numbers) {
    out.push_back(at::stack(trainer.state().communicator->all_gather(own), 1).flatten());
  }
  return out;
}

AnyLoader numbered(std::int64_t size) {
  return ranges::views::iota(0, 36) | views::shuffle() | views::map(load) | views::batch(size) |
         views::prefetch(2, 2);
}
AnyLoader in_order(std::int64_t size) {
  return ranges::views::iota(0, 48) | views::shuffle() |
         views::filter([](int i) { return i % 4 != 0; }) | views::map(load, 2) |
         views::batch(size) | views::prefetch(2);
}

}  // namespace

TEST_CASE("rank body: pipelines of views", "[.rank]") {
  const std::int64_t world = dist::initialize()->size();
  const std::vector<std::vector<at::Tensor>> together{seen(numbered(12 / world)),
                                                      seen(in_order(12 / world))};
  const auto one = alone([] { return std::vector{seen(numbered(12)), seen(in_order(12))}; });
  for (std::size_t k = 0; k < 2; ++k) {
    REQUIRE(together[k].size() == 6);
    REQUIRE(one[k].size() == 6);
    for (std::size_t i = 0; i < 6; ++i) {
      CHECK(together[k][i].equal(one[k][i]));
    }
  }
}

TEST_CASE("ranks share the batches of one process that reads a pipeline of views", "[dist]") {
  CHECK(run_ranks("rank body: pipelines of views", 2) == all_passed);
  CHECK(run_ranks("rank body: pipelines of views", 3) == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
