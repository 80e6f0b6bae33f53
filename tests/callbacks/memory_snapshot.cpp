#include <tutti/callbacks/memory_snapshot.hpp>

#include <fstream>
#include <sstream>

#include <tutti/core/with.hpp>

#include "callbacks/run.hpp"
#include "support/temporary_folder.hpp"

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

TEST_CASE("MemorySnapshot refuses a model on the CPU", "[callbacks][memory_snapshot]") {
  CHECK_THROWS_WITH((Trainer<MemorySnapshot>(tiny::net(), callback_run::options())),
                    ContainsSubstring("MemorySnapshot records CUDA's memory and the model is on "
                                      "cpu; train on a CUDA device or take MemorySnapshot out"));
}
