#include <tutti/core/state.hpp>

#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::State;

static_assert(!std::is_convertible_v<State&, State> && std::is_move_constructible_v<State>);

struct Numbers {
  std::vector<std::string> lines;
  void log_metrics(std::span<const tutti::LoggedMetric> metrics, std::int64_t step) {
    for (const auto& metric : metrics) {
      lines.push_back(std::to_string(step) + " " + std::string(metric.name));
    }
  }
};

}  // namespace

TEST_CASE("a fresh state is a run of one process at its beginning", "[core][state]") {
  const State state;
  CHECK(state.world_size == 1);
  CHECK(state.rank == 0);
  CHECK(state.device.is_cpu());
  CHECK(state.precision == tutti::Precision::fp32);
  CHECK(!state.max_duration);
  CHECK(state.timestamp == tutti::Timestamp{});
  CHECK(state.dataloader_len == -1);
}

TEST_CASE("a metric is found by its set and name, or both are told", "[core][state]") {
  State state;
  state.train_metric_values = {{"Loss", 0.5}};
  state.eval_metric_values = {{"small", {{"Accuracy", 0.25}, {"Loss", 1}}}, {"test", {}}};
  CHECK(state.metric("train", "Loss") == 0.5);
  CHECK(state.metric("small", "Accuracy") == 0.25);
  CHECK_THROWS_WITH(state.metric("small", "accuracy"),
                    ContainsSubstring("the set \"small\" has no metric \"accuracy\"; there are: "
                                      "Accuracy, Loss"));
  CHECK_THROWS_WITH(state.metric("tset", "Loss"),
                    ContainsSubstring("no metric of the set \"tset\" has a value; those with "
                                      "values are: small, test"));
  CHECK_THROWS_WITH(state.metric("test", "Loss"), ContainsSubstring("there are: (none)"));
}

TEST_CASE("precisions have the reference's names", "[core][state]") {
  CHECK(tutti::to_string(tutti::Precision::fp32) == "fp32");
  CHECK(tutti::to_string(tutti::Precision::amp_fp16) == "amp_fp16");
  CHECK(tutti::to_string(tutti::Precision::amp_bf16) == "amp_bf16");
}

TEST_CASE("stopping makes the present the end, in batches when the run counts epochs",
          "[core][state]") {
  State state;
  state.timestamp.epoch = 2;
  state.timestamp.batch = 25;
  state.timestamp.sample = 200;

  state.max_duration = "10ep";
  state.stop_training();
  CHECK(state.max_duration == tutti::Time::batches(25));

  state.max_duration = "1000sp";
  state.stop_training();
  CHECK(state.max_duration == tutti::Time::samples(200));

  state.max_duration = "100ba";
  state.stop_training();
  CHECK(state.max_duration == tutti::Time::batches(25));
  CHECK(!(state.timestamp < state.max_duration));
}

TEST_CASE("progress tells where the run is and, once a batch is done, where it was",
          "[core][state]") {
  State state;
  state.max_duration = "4ep";
  state.train_dataloader_len = 5;
  CHECK(!state.progress().previous_timestamp);
  state.previous_timestamp = state.timestamp;
  state.timestamp = state.timestamp.to_next_batch(8);
  const auto now = state.progress();
  CHECK(now.timestamp.batch == 1);
  REQUIRE(now.previous_timestamp);
  CHECK(now.previous_timestamp->batch == 0);
  CHECK(now.max_duration == tutti::Time::epochs(4));
  CHECK(now.dataloader_len == 5);
}

TEST_CASE("metrics are logged at the number of batches trained", "[core][state]") {
  State state;
  Numbers numbers;
  state.logger.add(numbers);
  state.timestamp.batch = 12;
  state.log_metrics({{"loss", 1.0}, {"lr", 2.0}});
  CHECK(numbers.lines == std::vector<std::string>{"12 loss", "12 lr"});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
