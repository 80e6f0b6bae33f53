#include <tutti/train/together.hpp>

#include <atomic>
#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/thread_ranks.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using dist::Communicator;
using train::error_of_any;
using train::on_rank_zero;
using train::run_while_others_wait;
using Names = std::vector<std::string>;

namespace {

void rethrow(const std::exception_ptr& error) {
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace

TEST_CASE("what one rank throws is thrown on all", "[train][dist]") {
  CHECK(ThreadRanks::run(3, [](Communicator& world) {
          rethrow(error_of_any(world, [&] { TORCH_CHECK(world.rank() != 1, "the disk is full"); }));
        }) == Names{"rank 1: the disk is full", "the disk is full", "rank 1: the disk is full"});
  CHECK(ThreadRanks::run(3, [](Communicator& world) { rethrow(error_of_any(world, [] {})); }) ==
        Names(3, "nothing"));
  CHECK(ThreadRanks::run(2, [](Communicator& world) {
          rethrow(on_rank_zero(world, [] { TORCH_CHECK(false, "no folder"); }));
        }) == Names{"no folder", "rank 0: no folder"});
}

TEST_CASE("the others wait for a rank as long as it works", "[train][dist]") {
  std::atomic<int> done{0};
  const auto texts = ThreadRanks::run(3, [&](Communicator& world) {
    run_while_others_wait(world, world.rank() == 2, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      ++done;
    });
    TORCH_CHECK(done == 1, "it was left alone");
    run_while_others_wait(world, true, [&] { TORCH_CHECK(world.rank() != 0, "it has failed"); });
  });
  CHECK(done == 1);
  CHECK(texts == Names{"it has failed", "rank 0: it has failed", "rank 0: it has failed"});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
