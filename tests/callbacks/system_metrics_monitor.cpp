#include <tutti/callbacks/system_metrics_monitor.hpp>

#include <tutti/core/with.hpp>

#include "callbacks/run.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

static_assert(role_of<SystemMetricsMonitor> == Role::callback);
static_assert(Recipe<With<SystemMetricsMonitor{.log_all_data = true}>>::valid);

namespace {

std::map<std::string, double> as_map(const tutti::detail::NamedNumbers& numbers) {
  return {numbers.begin(), numbers.end()};
}

}  // namespace

TEST_CASE("a processor's load is the busy part of the time between",
          "[callbacks][system_metrics_monitor]") {
  // user nice system idle iowait irq softirq steal guest guest_nice
  const auto before = tutti::detail::cpu_times("cpu  100 10 50 800 40 0 0 0 7 0\ncpu0 1 2 3\n");
  const auto now = tutti::detail::cpu_times("cpu  130 10 60 850 50 0 0 0 9 0\n");
  CHECK(before.total == 1000);
  CHECK(before.busy == 160);
  CHECK(tutti::detail::cpu_percentage(before, now) == 40.0);
  CHECK(tutti::detail::cpu_percentage(now, now) == 0.0);
}

TEST_CASE("memory is counted as psutil counts it", "[callbacks][system_metrics_monitor]") {
  const auto memory = as_map(tutti::detail::memory_numbers(
      "MemTotal:       1000 kB\nMemFree:         200 kB\nMemAvailable:    700 kB\n"
      "Buffers:          50 kB\nCached:          300 kB\nSwapCached:       11 kB\n"
      "Active:          400 kB\nInactive:        150 kB\nShmem:            20 kB\n"
      "Slab:             90 kB\nSReclaimable:     60 kB\nHugePages_Total:  0\n"));
  CHECK(memory.size() == 11);
  CHECK(memory.at("cpu_memory_total") == 1000 * 1024);
  CHECK(memory.at("cpu_memory_available") == 700 * 1024);
  CHECK(memory.at("cpu_memory_percent") == 30.0);
  CHECK(memory.at("cpu_memory_used") == (1000 - 200 - 360 - 50) * 1024);
  CHECK(memory.at("cpu_memory_free") == 200 * 1024);
  CHECK(memory.at("cpu_memory_active") == 400 * 1024);
  CHECK(memory.at("cpu_memory_inactive") == 150 * 1024);
  CHECK(memory.at("cpu_memory_buffers") == 50 * 1024);
  CHECK(memory.at("cpu_memory_cached") == 360 * 1024);
  CHECK(memory.at("cpu_memory_shared") == 20 * 1024);
  CHECK(memory.at("cpu_memory_slab") == 90 * 1024);
}

TEST_CASE("the network is the sum of its interfaces", "[callbacks][system_metrics_monitor]") {
  const auto network = as_map(tutti::detail::network_numbers(
      "Inter-|   Receive                            |  Transmit\n"
      " face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop\n"
      "    lo: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n"
      "  eth0:10 20 30 40 0 0 0 0 50 60 70 80 0 0 0 0\n"));
  CHECK(network == std::map<std::string, double>{{"network_bytes_sent", 55},
                                                 {"network_bytes_recv", 11},
                                                 {"network_packets_sent", 66},
                                                 {"network_packets_recv", 22},
                                                 {"network_errin", 33},
                                                 {"network_errout", 77},
                                                 {"network_dropin", 44},
                                                 {"network_dropout", 88}});
}

TEST_CASE("of many GPUs the least and the largest number are named with their rank",
          "[callbacks][system_metrics_monitor]") {
  const std::vector<tutti::detail::GpuLoad> loads{
      {50, 10, 60, 300}, {90, 5, 70, 310}, {20, 10, 65, 290}};
  const auto ends = as_map(tutti::detail::gpu_numbers(loads, false));
  CHECK(ends == std::map<std::string, double>{{"min_gpu_percentage_rank_2", 20},
                                              {"max_gpu_percentage_rank_1", 90},
                                              {"min_memory_percentage_rank_1", 5},
                                              {"max_memory_percentage_rank_0", 10},
                                              {"min_gpu_temperature_C_rank_0", 60},
                                              {"max_gpu_temperature_C_rank_1", 70},
                                              {"min_gpu_power_usage_W_rank_2", 290},
                                              {"max_gpu_power_usage_W_rank_1", 310}});
  const auto all = as_map(tutti::detail::gpu_numbers(loads, true));
  CHECK(all.size() == 12);
  CHECK(all.at("gpu_percentage_rank_1") == 90);
  CHECK(all.at("gpu_power_usage_W_rank_2") == 290);
}

TEST_CASE("the machine is looked at when a batch of any kind starts",
          "[callbacks][system_metrics_monitor]") {
  auto options = callback_run::options(3, "1ep");
  options.eval = {{"test", tiny::batches(2)}};
  Trainer trainer{tiny::net(), options, SystemMetricsMonitor{}, InMemoryLogger{}};
  trainer.fit();
  const auto& memory = trainer.get<InMemoryLogger>();
  CHECK(memory.series("cpu_percentage").values.size() == 5);
  CHECK(memory.latest("cpu_memory_total") > memory.latest("cpu_memory_used"));
  CHECK(memory.latest("cpu_memory_used") > 0);
  CHECK(memory.latest("disk_memory_total") > 0);
  CHECK(memory.data.contains("network_bytes_sent"));
  CHECK_FALSE(memory.data.contains("min_gpu_percentage_rank_0"));  // it trains on the CPU
}

}  // namespace UNITY_BUILD_UNIQUE_ID
