#include <tutti/profiler/torch_profiler.hpp>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/recipe.hpp>
#include <tutti/profiler/profiler.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::TorchProfiler;

static_assert(tutti::Recipe<TorchProfiler>::valid);

TEST_CASE("LibTorch's profiler runs over the picked batches", "[profiler]") {
  const TemporaryFolder folder;
  const auto train = [&](const std::string& traces, std::int64_t keep) {
    tutti::Trainer trainer{
        tiny::net(),
        tutti::TrainerOptions{.train = tiny::batches(4),
                              .max_duration = "7ba",
                              .optimizer = tutti::DecoupledSGDW{.lr = 0.1},
                              .device = "cpu",
                              .run_name = "run",
                              .progress_bar = false},
        TorchProfiler{
            .schedule = {.warmup = 1, .active = 2}, .folder = traces, .num_traces_to_keep = keep}};
    trainer.fit();
  };
  train((folder / "a").string(), -1);
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "a")) {
    names.insert(entry.path().filename().string());
    CHECK_THAT(read_bytes(entry.path()), ContainsSubstring("aten::addmm"));
  }
  CHECK(names == std::set<std::string>{"rank0.3.pt.trace.json", "rank0.7.pt.trace.json"});
  CHECK_THROWS_WITH(train((folder / "a").string(), -1),
                    ContainsSubstring("TorchProfiler: the folder '") &&
                        ContainsSubstring("has files from an earlier run"));
  train((folder / "b").string(), 0);
  CHECK(std::filesystem::is_empty(folder / "b"));
}

TEST_CASE("its traces go into a Profiler's merged one", "[profiler][trace]") {
  const TemporaryFolder folder;
  const std::string merged = (folder / "loop/merged_trace.json").string();
  const tutti::CyclicSchedule schedule{.warmup = 1, .active = 2};
  tutti::Trainer trainer{tiny::net(),
                         tutti::TrainerOptions{.train = tiny::batches(4),
                                               .max_duration = "6ba",
                                               .optimizer = tutti::DecoupledSGDW{.lr = 0.1},
                                               .device = "cpu",
                                               .run_name = "run",
                                               .progress_bar = false},
                         tutti::Profiler{.schedule = schedule,
                                         .trace_handler = {.folder = (folder / "loop").string()}},
                         TorchProfiler{.schedule = schedule,
                                       .folder = (folder / "torch").string(),
                                       .num_traces_to_keep = 0,
                                       .merged_trace = merged}};
  trainer.fit();
  CHECK(std::filesystem::is_empty(folder / "torch"));
  const tutti::detail::Json trace = tutti::detail::parse_json(read_bytes(merged));
  std::vector<std::pair<double, double>> forwards;  // begin, end
  std::vector<double> products;
  std::set<std::int64_t> places;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const auto& event = trace[i];
    const std::string& name = event["name"].string();
    CHECK(event["pid"].integer() == 0);
    if (name == "event/forward" && event["ph"].string() == "B") {
      forwards.emplace_back(event["ts"].number(), 0);
    } else if (name == "event/forward") {
      forwards.back().second = event["ts"].number();
    } else if (name == "aten::addmm") {
      products.push_back(event["ts"].number());
    } else if (name == "thread_sort_index") {
      places.insert(event["args"]["sort_index"].integer());
    }
    CHECK(name != "Record Window End");
  }
  CHECK(forwards.size() == 5);    // of the first epoch's cycle three, of the second's two
  REQUIRE(products.size() == 6);  // while it is active: two batches of two layers, and one
  for (const double time : products) {
    CHECK(std::any_of(forwards.begin(), forwards.end(), [&](const auto& forward) {
      return forward.first <= time && time <= forward.second;
    }));
  }
  CHECK(places == std::set<std::int64_t>{0});
}

TEST_CASE("options of LibTorch's profiler out of range are refused", "[profiler]") {
  CHECK_NOTHROW(TorchProfiler{}.validate());
  CHECK_THROWS_WITH((TorchProfiler{.schedule = {.active = 0}}.validate()),
                    ContainsSubstring("active is 0"));
  CHECK_THROWS_WITH((TorchProfiler{.folder = ""}.validate()),
                    ContainsSubstring("folder or filename is empty"));
  CHECK_THROWS_WITH((TorchProfiler{.filename = ""}.validate()),
                    ContainsSubstring("folder or filename is empty"));
  CHECK_THROWS_WITH((TorchProfiler{.num_traces_to_keep = -2}.validate()),
                    ContainsSubstring("num_traces_to_keep is -2, expected -1 (all) or more"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
