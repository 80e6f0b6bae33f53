#include <tutti/profiler/torch_profiler.hpp>

#include <set>
#include <string>

#include <tutti/core/recipe.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

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
