#include <tutti/profiler/profiler.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/recipe.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/fake_communicator.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Profiler;
using tutti::detail::Json;

static_assert(tutti::Recipe<Profiler>::valid);
static_assert(tutti::Recorder<Profiler>);

namespace {

struct Watcher final {
  static constexpr std::string_view name = "Watcher";
  tutti::Profiler* profiler = nullptr;
  std::int64_t crash_at = -1;
  void apply(tutti::BeforeForward, const tutti::State& state) const {
    if (profiler != nullptr) {
      profiler->marker("seen", {.categories = {"a", "b"}}).instant();
      profiler->marker("load").counter({{"x", 1.5}, {"y", 2}});
    }
    if (state.timestamp.batch == crash_at) {
      throw std::runtime_error("crash");
    }
  }
};

struct Slow final {
  void apply(tutti::BeforeForward, const tutti::State&) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
};

tutti::TrainerOptions options(tutti::Time duration = "2ep") {
  return {.train = tiny::batches(4),
          .max_duration = duration,
          .optimizer = tutti::DecoupledSGDW{.lr = 0.1},
          .device = "cpu",
          .seed = 3,
          .run_name = "run",
          .progress_bar = false};
}

Json parsed(const std::filesystem::path& path) {
  return tutti::detail::parse_json(read_bytes(path));
}

// Names of the files in a folder.
std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    out.insert(entry.path().filename().string());
  }
  return out;
}

// The spans of a file as nested text; begins and ends must pair, and times not go back.
std::string tree(const Json& trace, const std::string& category = "event") {
  std::vector<std::string> open;
  std::map<std::int64_t, std::int64_t> last;
  std::string out;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const Json& event = trace[i];
    const std::string& phase = event["ph"].string();
    if (phase == "M") {
      continue;
    }
    CHECK(event["ts"].integer() >= last[event["tid"].integer()]);
    last[event["tid"].integer()] = event["ts"].integer();
    const std::string& name = event["name"].string();
    if (phase == "B") {
      open.push_back(name);
      if (event["cat"].string() == category) {
        out += name.substr(name.find('/') + 1) + "(";
      }
    } else if (phase == "E") {
      REQUIRE_FALSE(open.empty());
      CHECK(open.back() == name);
      open.pop_back();
      if (event["cat"].string() == category) {
        out += ")";
      }
    }
  }
  CHECK(open.empty());
  return out;
}

const std::string step = "batch(train_batch(forward()loss()backward()))";

}  // namespace

TEST_CASE("a cycle is one file whose spans nest as the loop does", "[profiler][trace]") {
  const TemporaryFolder folder;
  const std::string traces = (folder / "{run_name}").string();
  tutti::Trainer trainer{tiny::net(), options(),
                         Profiler{.schedule = {.skip_first = 1, .warmup = 1, .active = 2},
                                  .trace_handler = {.folder = traces}},
                         Watcher{}};
  trainer.fit();
  CHECK(names_in(folder / "run") ==
        std::set<std::string>{"ep0-ba4-rank0.json", "ep1-ba8-rank0.json", "merged_trace.json"});
  const Json first = parsed(folder / "run/ep0-ba4-rank0.json");
  CHECK(tree(first) == "fit(iteration(epoch(dataloader()" + step + "dataloader()" + step +
                           "dataloader()" + step + ")))");
  const Json second = parsed(folder / "run/ep1-ba8-rank0.json");
  CHECK_THAT(tree(second), ContainsSubstring("dataloader()" + step));
  CHECK(tree(second).starts_with("fit(iteration(epoch(dataloader()"));
  CHECK_THAT(tree(first, "callback"), ContainsSubstring("Watcher/event/before_forward()"));
  tree(parsed(folder / "run/merged_trace.json"));
  // One event on each line.
  const std::string text = read_bytes(folder / "run/ep0-ba4-rank0.json");
  CHECK(std::count(text.begin(), text.end(), '\n') ==
        static_cast<std::ptrdiff_t>(first.size()) + 2);
  std::map<std::string, Json> metadata;
  std::set<std::int64_t> batches;
  for (std::size_t i = 0; i < first.size(); ++i) {
    CHECK(first[i]["pid"].integer() == 0);
    if (first[i]["ph"].string() == "M") {
      metadata.emplace(first[i]["name"].string(), first[i]["args"]);
    } else if (first[i]["name"].string() == "event/batch") {
      CHECK(first[i]["args"]["epoch"].integer() == 0);
      batches.insert(first[i]["args"]["batch"].integer());
    }
  }
  CHECK(batches == std::set<std::int64_t>{1, 2, 3});
  CHECK(metadata.at("process_name")["name"].string() == "Rank 0 training loop process");
  CHECK(metadata.at("thread_sort_index")["sort_index"].integer() == 0);
  CHECK(metadata.at("clock_sync_timestamp_us")["value"].integer() > 1'700'000'000'000'000);
  CHECK(metadata.at("clock_sync_error_bound")["value"].integer() >= 0);
  CHECK(metadata.contains("global_rank"));
}

TEST_CASE("a run that ends or fails within a cycle leaves what it has", "[profiler][resume]") {
  const TemporaryFolder folder;
  const auto make = [&](const std::string& name, std::int64_t crash_at) {
    return std::make_unique<tutti::Trainer<Profiler, Watcher>>(
        tiny::net(), options("2ba"),
        Profiler{.trace_handler = {.folder = (folder / name).string()}},
        Watcher{.crash_at = crash_at});
  };
  make("ends", -1)->fit();
  CHECK(names_in(folder / "ends") ==
        std::set<std::string>{"ep0-ba2-rank0.json", "merged_trace.json"});
  CHECK_THAT(tree(parsed(folder / "ends/ep0-ba2-rank0.json")), ContainsSubstring(step));
  CHECK_THROWS_WITH(make("fails", 1)->fit(), "crash");
  CHECK(names_in(folder / "fails") == std::set<std::string>{"ep0-ba1-rank0.json"});
  CHECK_THAT(tree(parsed(folder / "fails/ep0-ba1-rank0.json")), ContainsSubstring(step));
  // Another run does not mix with it.
  CHECK_THROWS_WITH(make("fails", -1),
                    ContainsSubstring("has files from an earlier run; give this one another"));
}

TEST_CASE("a schedule that lets every epoch go by is warned of", "[profiler]") {
  const TemporaryFolder folder;
  const auto warned = [&](std::int64_t skip_first, const std::string& name) {
    Warnings warnings;
    tutti::Trainer{tiny::net(), options(),
                   Profiler{.schedule = {.skip_first = skip_first},
                            .trace_handler = {.folder = (folder / name).string()}}}
        .fit();
    return std::count_if(warnings.texts.begin(), warnings.texts.end(), [](const auto& text) {
      return text.find("no batch was recorded") != std::string::npos;
    });
  };
  CHECK(warned(4, "nothing") == 1);  // epochs have four batches
  CHECK(warned(2, "something") == 0);
}

TEST_CASE("the machine is sampled while batches are picked", "[profiler]") {
  const TemporaryFolder folder;
  const auto counters = [&](Profiler profiler, const std::string& name) {
    profiler.schedule = {.warmup = 0, .active = 2};
    profiler.trace_handler.folder = (folder / name).string();
    profiler.sys_prof_stats_thread_interval_seconds = 0.002;
    tutti::Trainer trainer{tiny::net(), options("2ba"), std::move(profiler), Slow{}};
    trainer.fit();
    std::map<std::string, std::set<std::string>> out;
    const Json trace = parsed(folder / (name + "/ep0-ba2-rank0.json"));
    for (std::size_t i = 0; i < trace.size(); ++i) {
      if (trace[i]["ph"].string() == "C") {
        for (const auto& [key, value] : trace[i]["args"].object()) {
          out[trace[i]["name"].string()].insert(key);
          CHECK(value.number() >= 0);
        }
      }
    }
    return out;
  };
  using Series = std::map<std::string, std::set<std::string>>;
  CHECK(counters({}, "usual") == Series{{"cpu", {"cpu_percent"}}});
  CHECK(counters({.sys_prof_cpu = false}, "none").empty());
  CHECK(counters({.sys_prof_memory = true, .sys_prof_disk = true, .sys_prof_net = true}, "all") ==
        Series{{"cpu", {"cpu_percent"}},
               {"memory", {"available", "cached", "used"}},
               {"disk", {"read_bytes", "read_count", "write_bytes", "write_count"}},
               {"network", {"bytes_recv", "bytes_sent"}}});
}

TEST_CASE("a disk's traffic is that of whole disks", "[profiler]") {
  const auto numbers = tutti::detail::disk_traffic(
      "   8       0 sda 10 1 20 5 30 2 40 6 0 7 8\n   8       1 sda1 9 1 18 5 3 2 4 6 0 7 8\n"
      " 259       0 nvme0n1 1 0 2 0 3 0 4 0 0 0 0\n",
      [](const std::string& name) { return name != "sda1"; });
  using Numbers = tutti::detail::NamedNumbers;
  CHECK(numbers == Numbers{{"read_count", 11},
                           {"write_count", 33},
                           {"read_bytes", 22 * 512},
                           {"write_bytes", 44 * 512}});
}

TEST_CASE("markers record while the action is theirs", "[profiler][law]") {
  Profiler profiler;
  const auto recorded = [&] { return profiler.run.recording->take({}); };
  auto marker = profiler.marker("work", {.record_instant_on_start = true, .categories = {"io"}});
  {
    const auto span = marker.scope();
  }
  marker.instant();
  CHECK(recorded() == "[\n]\n");
  profiler.run.recording->action = tutti::ProfilerAction::active;
  marker.start();
  CHECK_THROWS_WITH(marker.start(), ContainsSubstring("\"work\" is started twice"));
  profiler.run.recording->action = tutti::ProfilerAction::skip;
  marker.finish();  // although nothing is recorded any more
  CHECK_THROWS_WITH(marker.finish(),
                    ContainsSubstring("\"work\" is finished, but was not started"));
  profiler.run.recording->action = tutti::ProfilerAction::warmup;
  std::thread([&] {
    profiler.marker("other").counter({{"x", 0.5}, {"nan", std::nan("")}});
  }).join();
  profiler.marker("only", {.actions = {tutti::ProfilerAction::active}}).instant();
  const Json events = tutti::detail::parse_json(recorded());
  std::string phases;
  std::set<std::int64_t> threads;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Json& event = events[i];
    if (event["ph"].string() != "M") {
      phases += event["ph"].string() + ":" + event["name"].string() + " ";
      threads.insert(event["tid"].integer());
      CHECK(event.contains("s") == (event["ph"].string() == "i"));
      if (event["ph"].string() == "C") {
        CHECK(event["args"].size() == 1);
        CHECK(event["args"]["x"].number() == 0.5);
      } else {
        CHECK(event["cat"].string() == "io");
      }
    }
  }
  CHECK(phases == "B:work i:work E:work C:other ");
  CHECK(threads.size() == 2);
}

namespace {

// Rank 0 of two, of which the other one's file is there already.
class Two final : public FakeCommunicator {
 public:
  explicit Two(std::string others) : others_(std::move(others)) {}
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return {bytes, "0:" + others_};
  }
  void barrier() override { ++barriers; }
  int barriers = 0;

 private:
  std::string others_;
};

}  // namespace

TEST_CASE("ranks meet once a cycle, and one of a node merges its files", "[profiler][dist]") {
  const TemporaryFolder folder;
  write_bytes(folder / "other",
              "[\n{\"name\": \"clock_sync_timestamp_us\", \"ph\": \"M\", \"ts\": 0, \"pid\": 1, "
              "\"tid\": 1, \"args\": {\"value\": 50}},\n{\"name\": \"theirs\", \"ph\": \"i\", "
              "\"ts\": 50, \"pid\": 1, \"tid\": 1, \"args\": {}}\n]\n");
  const auto world = std::make_shared<Two>((folder / "other").string());
  tutti::State state;
  state.run_name = "run";
  state.world_size = 2;
  state.communicator = world;
  state.dataloader_len = 8;
  Profiler profiler{.schedule = {.warmup = 0, .active = 2},
                    .trace_handler = {.folder = (folder / "t").string()}};
  profiler.apply(tutti::Init{}, state);
  profiler.apply(tutti::AfterLoad{}, state);
  for (int i = 0; i < 3; ++i) {
    profiler.apply(tutti::BeforeDataloader{}, state);
    profiler.apply(tutti::AfterDataloader{}, state);
    profiler.apply(tutti::BatchStart{}, state);
    state.timestamp = state.timestamp.to_next_batch(4);
    profiler.apply(tutti::BatchEnd{}, state);
  }
  CHECK(world->barriers == 2);
  CHECK(names_in(folder / "t") == std::set<std::string>{"ep0-ba2-rank0.json", "merged_trace.json"});
  const Json merged = parsed(folder / "t/merged_trace.json");
  std::map<std::string, std::int64_t> times;
  for (std::size_t i = 0; i < merged.size(); ++i) {
    times[merged[i]["name"].string()] = merged[i]["ts"].integer();
  }
  CHECK(times.at("theirs") == profiler.run.sync);
  CHECK(times.contains("event/batch"));
  profiler.trace_handler.filename = "one.json";
  CHECK_THROWS_WITH(profiler.apply(tutti::Init{}, state), ContainsSubstring("put {rank} into it"));
}

TEST_CASE("only the newest traces are kept, and a folder that cannot be written does not stop",
          "[profiler]") {
  const TemporaryFolder folder;
  const auto train = [&](const std::string& traces) {
    tutti::Trainer<Profiler, Watcher> trainer{
        tiny::net(), options("3ep"),
        Profiler{.schedule = {.active = 1, .repeat = 0},
                 .trace_handler = {.folder = traces,
                                   .merged_trace_filename = "",
                                   .num_traces_to_keep = 2}},
        Watcher{}};
    trainer.fit();
  };
  train((folder / "t").string());
  CHECK(names_in(folder / "t") ==
        std::set<std::string>{"ep2-ba10-rank0.json", "ep2-ba12-rank0.json"});
  write_bytes(folder / "file", "");
  CHECK_NOTHROW(train((folder / "file/below").string()));
}

TEST_CASE("a profiler's options out of range are refused", "[profiler]") {
  CHECK_NOTHROW((Profiler{.trace_handler = {.num_traces_to_keep = -1},
                          .sys_prof_stats_thread_interval_seconds = 0.001}
                     .validate()));
  CHECK_THROWS_WITH((Profiler{.schedule = {.active = 0}}.validate()),
                    ContainsSubstring("active is 0"));
  CHECK_THROWS_WITH((Profiler{.trace_handler = {.folder = ""}}.validate()),
                    ContainsSubstring("trace_handler has an empty folder or filename"));
  CHECK_THROWS_WITH((Profiler{.trace_handler = {.filename = ""}}.validate()),
                    ContainsSubstring("trace_handler has an empty folder or filename"));
  CHECK_THROWS_WITH((Profiler{.trace_handler = {.num_traces_to_keep = -2}}.validate()),
                    ContainsSubstring("num_traces_to_keep is -2, expected -1 (all) or more"));
  CHECK_THROWS_WITH(
      (Profiler{.sys_prof_stats_thread_interval_seconds = 0}.validate()),
      ContainsSubstring("sys_prof_stats_thread_interval_seconds is 0, expected more"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
