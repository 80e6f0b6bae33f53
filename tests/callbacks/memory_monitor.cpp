#include <tutti/callbacks/memory_monitor.hpp>

#include <tutti/core/with.hpp>

#include "callbacks/run.hpp"
#include "support/fake_communicator.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using callback_run::ByHand;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<MemoryMonitor> == Role::callback);
static_assert(Recipe<With<MemoryMonitor{.memory_keys = {"peak_active_mem"}}>>::valid);

namespace {

c10::CachingDeviceAllocator::DeviceStats some_stats() {
  c10::CachingDeviceAllocator::DeviceStats stats;
  stats.allocated_bytes[0].current = 1'234'567'891;
  stats.allocated_bytes[0].peak = 2'000'000'000;
  stats.active_bytes[0].current = 1'500;
  stats.inactive_split_bytes[0].peak = 123'456'789;
  stats.reserved_bytes[0].current = 98'765'432'100;
  stats.num_alloc_retries = 3;
  return stats;
}

/// Two processes, of which the other one holds twice as much.
struct Twice final : FakeCommunicator {
  using FakeCommunicator::all_reduce;
  Twice() : FakeCommunicator(0, 1) {}
  void all_reduce(std::span<double> values, dist::ReduceOp op) override {
    for (double& value : values) {
      value *= op == dist::ReduceOp::mean ? 1.5 : op == dist::ReduceOp::maximum ? 2 : 1;
    }
  }
};

}  // namespace

TEST_CASE("memory is logged in GB with five digits", "[callbacks][memory_monitor]") {
  ByHand run;
  MemoryMonitor{}.report(run.state, tutti::detail::memory_report(some_stats()));
  CHECK(run.memory.data.size() == 9);
  CHECK(run.memory.latest("memory/current_allocated_mem") == 1.2346);
  CHECK(run.memory.latest("memory/peak_allocated_mem") == 2.0);
  CHECK(run.memory.latest("memory/current_active_mem") == Approx(1.5e-6));
  CHECK(run.memory.latest("memory/peak_active_mem") == 0.0);
  CHECK(run.memory.latest("memory/current_inactive_mem") == 0.0);
  CHECK(run.memory.latest("memory/peak_inactive_mem") == 0.12346);
  CHECK(run.memory.latest("memory/current_reserved_mem") == 98.765);
  CHECK(run.memory.latest("memory/alloc_retries") == 3.0);
}

TEST_CASE("chosen numbers are also logged over all processes", "[callbacks][memory_monitor]") {
  ByHand run;
  run.state.communicator = std::make_shared<Twice>();
  const MemoryMonitor monitor{.memory_keys = {"peak_allocated_mem", "alloc_retries"},
                              .dist_aggregate_batch_interval = 2};
  const auto numbers = tutti::detail::memory_report(some_stats());
  monitor.report(run.state, numbers);
  run.advance(1, 0, std::chrono::nanoseconds(1));
  monitor.report(run.state, numbers);
  CHECK(run.memory.data.size() == 8);
  CHECK(run.memory.latest("memory/peak_allocated_mem") == 2.0);
  CHECK(run.memory.latest("memory/peak_allocated_mem_avg") == 3.0);
  CHECK(run.memory.latest("memory/peak_allocated_mem_min") == 2.0);
  CHECK(run.memory.latest("memory/peak_allocated_mem_max") == 4.0);
  CHECK(run.memory.latest("memory/alloc_retries_max") == 6.0);
  CHECK(run.memory.series("memory/alloc_retries").values.size() == 2);
  CHECK(run.memory.series("memory/alloc_retries_avg").values.size() == 1);
}

TEST_CASE("on a CPU it warns and logs nothing", "[callbacks][memory_monitor]") {
  const Warnings warnings;
  Trainer trainer{tiny::net(), callback_run::options(2, "1ep"), MemoryMonitor{}, InMemoryLogger{}};
  trainer.fit();
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("MemoryMonitor watches CUDA devices"));
  CHECK_FALSE(trainer.get<InMemoryLogger>().data.contains("memory/alloc_retries"));
}

TEST_CASE("a name of a number that does not exist is refused", "[callbacks][memory_monitor]") {
  CHECK_THROWS_WITH((MemoryMonitor{.memory_keys = {"peak_mem"}}.validate()),
                    ContainsSubstring("a name in memory_keys is peak_mem, expected"));
  CHECK_THROWS_WITH((MemoryMonitor{.dist_aggregate_batch_interval = -1}.validate()),
                    ContainsSubstring("dist_aggregate_batch_interval is -1, expected 0 or more"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
