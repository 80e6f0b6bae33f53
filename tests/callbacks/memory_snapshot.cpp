#include <tutti/callbacks/memory_snapshot.hpp>

#include <fstream>
#include <sstream>

#include <tutti/core/with.hpp>

#include "callbacks/run.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<MemorySnapshot> == Role::callback);
static_assert(Recipe<With<MemorySnapshot{.skip_batches = 5}>>::valid);

namespace {

std::vector<std::string> calls;
const MemoryRecorder fake{
    [](std::int64_t entries) { calls.push_back("start " + std::to_string(entries)); },
    [] { calls.emplace_back("stop"); },
    [] {
      calls.emplace_back("snapshot");
      return std::string("pickled");
    },
    [](std::function<void()>) {}};

std::string content(const std::filesystem::path& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

}  // namespace

TEST_CASE("recording starts after the skipped batches and ends with a file",
          "[callbacks][memory_snapshot]") {
  calls.clear();
  const TemporaryFolder folder;
  auto options = callback_run::options(9, "1ep");
  options.run_name = "brisk-otter";
  Trainer trainer{tiny::net(), options,
                  MemorySnapshot{.skip_batches = 2,
                                 .max_entries = 7,
                                 .folder = folder.path().string() + "/{run_name}",
                                 .recorder = &fake},
                  callback_run::Uploaded{}};
  trainer.fit();
  CHECK(trainer.get<callback_run::Uploaded>().names ==
        std::vector<std::string>{"rank0.5.memory_snapshot.pickle as "
                                 "brisk-otter/torch_memory_traces/rank0.5.memory_snapshot.pickle"});
  CHECK(calls == std::vector<std::string>{"start 7", "snapshot", "stop"});
  CHECK(content(folder / "brisk-otter/rank0.5.memory_snapshot.pickle") == "pickled");

  Trainer again{
      tiny::net(), options,
      MemorySnapshot{
          .skip_batches = 2, .folder = folder.path().string() + "/{run_name}", .recorder = &fake}};
  CHECK_THROWS_WITH(again.fit(), ContainsSubstring("exists; set overwrite to replace it"));
}

TEST_CASE("a run that ends first stops the recording", "[callbacks][memory_snapshot]") {
  calls.clear();
  {
    Trainer trainer{tiny::net(), callback_run::options(2, "1ep"),
                    MemorySnapshot{.skip_batches = 0, .recorder = &fake}};
    trainer.fit();
  }
  CHECK(calls == std::vector<std::string>{"start 100000", "stop"});
}

TEST_CASE("recording lasts an interval of any unit, and is done once",
          "[callbacks][memory_snapshot]") {
  calls.clear();
  const TemporaryFolder folder;
  Trainer trainer{tiny::net(), callback_run::options(3, "2ep"),
                  MemorySnapshot{.skip_batches = 0,
                                 .interval = "1ep",
                                 .folder = folder.path().string(),
                                 .recorder = &fake}};
  CHECK(calls.empty());  // fit() begins
  trainer.fit();
  CHECK(sorted_names(folder.path()) == std::vector<std::string>{"rank0.4.memory_snapshot.pickle"});
  trainer.fit("2ep");
  CHECK(calls == std::vector<std::string>{"start 100000", "snapshot", "stop"});
}

TEST_CASE("MemorySnapshot's options out of range are refused", "[callbacks][memory_snapshot]") {
  CHECK_NOTHROW(
      (MemorySnapshot{.skip_batches = 0, .interval = "1sec", .max_entries = 1}.validate()));
  CHECK_THROWS_WITH((MemorySnapshot{.skip_batches = -1}.validate()),
                    ContainsSubstring("skip_batches is -1, expected 0 or more"));
  for (const Time interval : {Time("0ba"), Time("0.5dur")}) {
    CHECK_THROWS_WITH((MemorySnapshot{.interval = interval}.validate()),
                      ContainsSubstring("expected more than 0 in any unit but dur"));
  }
  CHECK_THROWS_WITH((MemorySnapshot{.max_entries = 0}.validate()),
                    ContainsSubstring("max_entries is 0, expected at least 1"));
}

TEST_CASE("MemorySnapshot refuses a model on the CPU", "[callbacks][memory_snapshot]") {
  CHECK_THROWS_WITH((Trainer<MemorySnapshot>(tiny::net(), callback_run::options())),
                    ContainsSubstring("MemorySnapshot records CUDA's memory and the model is on "
                                      "cpu; train on a CUDA device or take MemorySnapshot out"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
