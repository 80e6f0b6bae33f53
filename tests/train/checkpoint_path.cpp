#include <tutti/train/checkpoint_path.hpp>

#include <filesystem>
#include <string>

#include <tutti/train/options.hpp>

#include "support/catch.hpp"

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("a checkpoint path takes what a string takes, and is one", "[train]") {
  const std::string text = "run";
  CHECK(TrainerOptions{.save_folder = text}.save_folder == "run");
  CHECK(TrainerOptions{.save_folder = "run"}.save_folder + "/last" == "run/last");
  CHECK(TrainerOptions{.load_path = std::filesystem::path("a") / "b"}.load_path == "a/b");
  TrainerOptions options;
  CHECK(options.save_folder.empty());
  options.save_folder = text + "/last";
  const TrainerOptions copy = options;
  const std::filesystem::path path = copy.save_folder;
  CHECK(path.filename() == "last");
  options.save_folder.clear();
  CHECK(options.save_folder.empty());
}

TEST_CASE("a checkpoint path that was assigned brings the code for checkpoints along", "[train]") {
  State state;
  train::Run run;
  CHECK(CheckpointPath("run").checkpoints(state, run) != nullptr);
}

TEST_CASE("a checkpoint path that was only changed in place is refused with what to do",
          "[train]") {
  State state;
  train::Run run;
  CheckpointPath path;
  path += "run";
  CHECK_THROWS_WITH(path.checkpoints(state, run), ContainsSubstring("in place to \"run\"") &&
                                                      ContainsSubstring("assign the whole path"));
}
