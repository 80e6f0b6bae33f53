#include <tutti/callbacks/hugging_face_checkpointer.hpp>

#include <csignal>
#include <filesystem>
#include <string>

#include <tutti/models/from_pretrained.hpp>

#include "crash/file_calls.hpp"
#include "crash/runs.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
namespace fs = std::filesystem;

namespace {

// The network of the other runs, with names on disk.
struct Written : tiny::Net {
  models::WeightLayout weight_layout() const {
    models::WeightLayout layout{.model = "Written"};
    layout.add_module("", *this);
    return layout;
  }
  static models::PretrainedConfig config() {
    return models::PretrainedConfig(tutti::detail::Json::Object{{"model_type", "written"}});
  }
};

void run(const std::string& folder) {
  at::manual_seed(1);
  const auto net = std::make_shared<Written>();
  TrainerOptions options = crash::options("", "3ba");
  options.save_folder.clear();
  options.autoresume = false;
  Trainer(net, options,
          HuggingFaceCheckpointer{.model = net,
                                  .folder = folder,
                                  .save_interval = "1ba",
                                  .num_checkpoints_to_keep = 2,
                                  .max_shard_size = 200})
      .fit();
}

// Reads whatever has the name of a folder of weights; each has to be whole.
int whole_folders(const std::string& folder) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("ba") || name == "latest") {
      INFO(name);
      at::manual_seed(2);
      Written net;
      CHECK_NOTHROW(models::PretrainedConfig::read(entry.path().string()));
      CHECK_NOTHROW(models::load_pretrained(net.weight_layout(), entry.path().string()));
      CHECK(fs::exists(entry.path() / "model.safetensors.index.json"));
      ++count;
    }
  }
  return count;
}

}  // namespace

TEST_CASE("a run killed at any operation on files leaves no folder of weights that is not whole",
          "[crash][hugging_face]") {
  const TemporaryFolder folder;
  bool finished = false;
  int kills = 0;
  int most = 0;
  for (unsigned after = 1; !finished; ++after) {
    INFO("killed at operation " << after);
    const std::string target = folder / std::to_string(after);
    fs::create_directories(target);
    const int status = crash::wait_for(crash::start([&] {
      unsigned count = 0;
      const crash::Watch watch(target, [&](const crash::Call&) {
        if (++count == after) {
          ::raise(SIGKILL);
        }
      });
      run(target);
    }));
    finished = crash::went_well(status);
    REQUIRE((finished || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)));
    kills += finished ? 0 : 1;
    most = std::max(most, whole_folders(target));
    fs::remove_all(target);
  }
  CHECK(kills > 30);
  CHECK(most == 4);  // two to be kept, the one that they replace, and the pointer
  std::printf("killed at each of %d operations on files\n", kills);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
