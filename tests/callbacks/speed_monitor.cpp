#include <tutti/callbacks/speed_monitor.hpp>

#include <tutti/callbacks/detail/device_flops.hpp>
#include <tutti/core/with.hpp>

#include "callbacks/run.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace std::chrono_literals;
using callback_run::ByHand;

static_assert(role_of<SpeedMonitor> == Role::callback);
static_assert(Recipe<With<SpeedMonitor{.window_size = 10}>>::valid);

namespace {

struct CountingNet : tiny::Net {
  double flops_per_batch(const Batch& batch) {
    return 1000.0 * static_cast<double>(batch.num_samples());
  }
};

}  // namespace

TEST_CASE("throughput is that of the window", "[callbacks][speed_monitor]") {
  SpeedMonitor monitor{.window_size = 2, .time_unit = ClockUnit::seconds};
  ByHand run;
  run.state.world_size = 4;
  run.advance(100, 1000, 7s);  // before the window, as far as rates go
  monitor.apply(BatchEnd{}, run.state);
  run.advance(10, 50, 1s);
  monitor.apply(BatchEnd{}, run.state);
  CHECK_FALSE(run.memory.data.contains("throughput/batches_per_sec"));
  run.advance(20, 70, 3s);
  monitor.apply(BatchEnd{}, run.state);
  CHECK(run.memory.latest("throughput/batches_per_sec") == 2.0 / 4);
  CHECK(run.memory.latest("throughput/samples_per_sec") == 30.0 / 4);
  CHECK(run.memory.latest("throughput/tokens_per_sec") == 120.0 / 4);
  CHECK(run.memory.latest("throughput/device/batches_per_sec") == 2.0 / 16);
  CHECK(run.memory.latest("throughput/device/samples_per_sec") == 30.0 / 16);
  CHECK(run.memory.latest("throughput/device/tokens_per_sec") == 120.0 / 16);
  run.advance(40, 10, 1s);  // the window moves on
  monitor.apply(BatchEnd{}, run.state);
  CHECK(run.memory.latest("throughput/samples_per_sec") == 60.0 / 4);
  CHECK(run.memory.series("throughput/samples_per_sec").values.size() == 2);
  CHECK(run.memory.latest("time/train") == 12.0);
}

TEST_CASE("batches without tokens log no tokens per second", "[callbacks][speed_monitor]") {
  SpeedMonitor monitor{.window_size = 1};
  ByHand run;
  for (int i = 0; i < 3; ++i) {
    run.advance(8, 0, 1s);
    monitor.apply(BatchEnd{}, run.state);
  }
  CHECK(run.memory.latest("throughput/samples_per_sec") == 8.0);
  CHECK_FALSE(run.memory.data.contains("throughput/tokens_per_sec"));
  CHECK_FALSE(run.memory.data.contains("throughput/flops_per_sec"));
}

TEST_CASE("evaluation counts in time/val and time/total alone", "[callbacks][speed_monitor]") {
  SpeedMonitor monitor{.window_size = 1, .time_unit = ClockUnit::minutes};
  ByHand run;
  run.advance(8, 0, 30s);
  monitor.apply(BatchEnd{}, run.state);
  run.state.eval_timestamp = Timestamp{}.to_next_batch(100, 0, 90s);
  monitor.apply(EvalEnd{}, run.state);
  run.advance(8, 0, 30s);
  monitor.apply(BatchEnd{}, run.state);
  CHECK(run.memory.latest("throughput/samples_per_sec") == 8.0 / 30);
  CHECK(run.memory.latest("time/train") == 1.0);
  CHECK(run.memory.latest("time/val") == 1.5);
  CHECK(run.memory.latest("time/total") == 2.5);
}

TEST_CASE("a model that counts its flops adds them and their part of the peak",
          "[callbacks][speed_monitor]") {
  SpeedMonitor monitor{.window_size = 2, .gpu_flops_available = 50e3};
  ByHand run;
  run.state.task = std::make_shared<CountingNet>();
  monitor.apply(Init{}, run.state);
  for (std::int64_t size : {9, 6, 4}) {
    run.state.batch = Batch(at::zeros({size, 4}));
    run.advance(size, 0, 1s);
    monitor.apply(BatchEnd{}, run.state);
  }
  CHECK(run.memory.latest("throughput/flops_per_sec") == 10000.0 / 2);
  CHECK(run.memory.latest("throughput/device/flops_per_sec") == 5000.0);
  CHECK(run.memory.latest("throughput/device/mfu") == Approx(0.1));
}

TEST_CASE("the peak of a device is found by its name", "[callbacks][speed_monitor]") {
  CHECK(tutti::detail::peak_flops_of("NVIDIA H200").bf16 == 989.5e12);
  CHECK(tutti::detail::peak_flops_of("NVIDIA H100 80GB HBM3").fp8 == 1979e12);
  CHECK(tutti::detail::peak_flops_of("NVIDIA H100 PCIe").fp16 == 756.5e12);
  CHECK(tutti::detail::peak_flops_of("NVIDIA A100-SXM4-80GB").fp32 == 19.5e12);
  CHECK(tutti::detail::peak_flops_of("NVIDIA A10G").fp16 == 125e12);
  CHECK(tutti::detail::peak_flops_of("Tesla V100-SXM2-16GB").fp16 == 125e12);
  CHECK(tutti::detail::peak_flops_of("Tesla V100-PCIE-16GB").fp16 == 112e12);
  CHECK(tutti::detail::peak_flops_of("Tesla V100S-PCIE-32GB").fp16 == 130e12);
  CHECK(tutti::detail::peak_flops_of("Tesla V100-SXM2-16GB").bf16 == 0);
  CHECK(tutti::detail::peak_flops_of("Tesla T4").fp16 == 65e12);
  CHECK(tutti::detail::peak_flops_of("GeForce GTX 1080").fp16 == 0);
}

TEST_CASE("a resumed run goes on with the window it had", "[callbacks][speed_monitor][resume]") {
  const TemporaryFolder folder;
  auto options = callback_run::options(4, "1ep");
  options.save_folder = folder.path().string();
  options.save_interval = "2ba";
  Trainer first{std::make_shared<CountingNet>(), options, SpeedMonitor{.window_size = 2},
                InMemoryLogger{}};
  first.fit();
  CHECK(first.get<InMemoryLogger>().series("throughput/samples_per_sec").values.size() == 2);
  CHECK(first.get<InMemoryLogger>().series("throughput/flops_per_sec").values.size() == 2);

  auto again = callback_run::options(4, "1ep");
  again.load_path = (folder.path() / "ep0-ba2").string();
  Trainer second{std::make_shared<CountingNet>(), again, SpeedMonitor{.window_size = 2},
                 InMemoryLogger{}};
  CHECK(second.get<SpeedMonitor>().run.window->times.size() == 2);
  second.fit();
  const auto& memory = second.get<InMemoryLogger>();
  REQUIRE(memory.series("throughput/samples_per_sec").values.size() == 2);
  CHECK(memory.series("throughput/samples_per_sec").timestamps[0].batch == 3);
  CHECK(memory.series("throughput/flops_per_sec").timestamps[0].batch == 3);
  CHECK_FALSE(memory.data.contains("throughput/device/mfu"));  // of no known peak
  CHECK(memory.latest("time/train") > 0);
}

TEST_CASE("options of SpeedMonitor that make no sense are refused", "[callbacks][speed_monitor]") {
  SpeedMonitor{.window_size = 1, .gpu_flops_available = 0.0}.validate();
  CHECK_THROWS_WITH(
      SpeedMonitor{.window_size = 0}.validate(),
      Catch::Matchers::ContainsSubstring("window_size is 0, expected at least 1 batch"));
  CHECK_THROWS_WITH(
      SpeedMonitor{.gpu_flops_available = -1.0}.validate(),
      Catch::Matchers::ContainsSubstring("gpu_flops_available is -1, expected 0 or more"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
