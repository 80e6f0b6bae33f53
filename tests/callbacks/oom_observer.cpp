#include <tutti/callbacks/oom_observer.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <tutti/core/with.hpp>

#include "callbacks/run.hpp"
#include "support/temporary_folder.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<OOMObserver> == Role::callback);
static_assert(Recipe<With<OOMObserver{.max_entries = 50}>>::valid);

namespace {

std::vector<std::string> calls;
std::function<void()> out_of_memory;
const MemoryRecorder fake{
    [](std::int64_t entries) { calls.push_back("start " + std::to_string(entries)); },
    [] { calls.emplace_back("stop"); }, [] { return std::string("pickled"); },
    [](std::function<void()> observer) { out_of_memory = std::move(observer); }};

/// Runs out of memory in the second batch.
struct Hungry final {
  void apply(BeforeForward, const State& state) const {
    if (state.timestamp.batch == 1) {
      out_of_memory();
      TORCH_CHECK(false, "CUDA out of memory");
    }
  }
};

}  // namespace

TEST_CASE("when memory runs out its history is written before the exception goes on",
          "[callbacks][oom_observer]") {
  calls.clear();
  const TemporaryFolder folder;
  const auto path = folder / "rank0_oom_snapshot.pickle";
  Trainer trainer{
      tiny::net(), callback_run::options(), Hungry{},
      OOMObserver{
          .folder = folder.path().string(), .remote_file_name = "oom/{rank}", .recorder = &fake},
      callback_run::Uploaded{}};
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("CUDA out of memory"));
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  CHECK(text.str() == "pickled");
  CHECK(calls == std::vector<std::string>{"start 100000", "stop"});
  CHECK(trainer.get<callback_run::Uploaded>().names ==
        std::vector<std::string>{"rank0_oom_snapshot.pickle as oom/0"});
  std::filesystem::remove(path);
  out_of_memory();  // after the run nobody listens
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a history that cannot be written is only warned of", "[callbacks][oom_observer]") {
  const TemporaryFolder folder;
  const auto sub = folder / "gone";
  Trainer trainer{tiny::net(), callback_run::options(),
                  OOMObserver{.folder = sub.string(), .recorder = &fake}};
  std::filesystem::remove(sub);
  const Warnings warnings;
  CHECK_NOTHROW(out_of_memory());
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("OOMObserver: cannot write"));
}

TEST_CASE("OOMObserver refuses a model on the CPU", "[callbacks][oom_observer]") {
  CHECK_THROWS_WITH((Trainer<OOMObserver>(tiny::net(), callback_run::options())),
                    ContainsSubstring("OOMObserver records CUDA's memory and the model is on cpu"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
