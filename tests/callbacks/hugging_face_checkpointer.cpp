#include <tutti/callbacks/hugging_face_checkpointer.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <tutti/algorithms/ema.hpp>
#include <tutti/models/from_pretrained.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

static_assert(Callback<HuggingFaceCheckpointer>);

namespace {

// A network that stands in files with one weight transposed.
struct Written : tiny::Net {
  models::WeightLayout weight_layout() const {
    models::WeightLayout layout{.model = "Written"};
    layout.add("in.weight", in->weight.t());
    layout.add("in.bias", in->bias);
    layout.add_module("out.", *out);
    return layout;
  }
  models::PretrainedConfig config() const {
    return models::PretrainedConfig(
        tutti::detail::Json::Object{{"model_type", "written"}, {"kept", 1e-5}});
  }
};

std::shared_ptr<Written> written() {
  at::manual_seed(1);
  return std::make_shared<Written>();
}

TrainerOptions options(Time length = "6ba") {
  return {.train = tiny::batches(8),
          .max_duration = length,
          .optimizer = SGD{.lr = 0.1},
          .device = "cpu",
          .seed = 3,
          .run_name = "calm-motet",
          .progress_bar = false};
}

HuggingFaceCheckpointer checkpointer(const std::shared_ptr<Written>& net,
                                     const TemporaryFolder& folder) {
  return {.model = net, .folder = (folder / "{run_name}/hf").string(), .save_interval = "2ba"};
}

at::Tensor saved_weight(const fs::path& folder) {
  return checkpoint::WeightFiles::open(folder).find("in.weight")->view().clone();
}

}  // namespace

TEST_CASE("folders that Python reads are written at an interval and pointed to",
          "[callbacks][hugging_face]") {
  const TemporaryFolder folder;
  const auto net = written();
  Trainer trainer(net, options(), checkpointer(net, folder));
  trainer.fit();
  const fs::path hf = folder / "calm-motet/hf";
  CHECK(sorted_names(hf) == Names{"ba2", "ba4", "ba6", "latest"});
  CHECK(fs::read_symlink(hf / "latest") == "ba6");
  CHECK(sorted_names(hf / "ba4") == Names{"config.json", "model.safetensors"});
  CHECK(saved_weight(hf / "ba6").equal(net->in->weight.t()));
  CHECK(!saved_weight(hf / "ba4").equal(net->in->weight.t()));
  const auto config = models::PretrainedConfig::read((hf / "ba6").string());
  CHECK(config.number("kept", 0) == 1e-5);
  CHECK(config.dtype() == at::kFloat);
  CHECK(trainer.get<HuggingFaceCheckpointer>().saved().size() == 3);
}

TEST_CASE("only the newest folders that this run wrote are kept", "[callbacks][hugging_face]") {
  const TemporaryFolder folder;
  const fs::path hf = folder / "calm-motet/hf";
  const auto net = written();
  models::save_pretrained(net, (hf / "mine").string());
  HuggingFaceCheckpointer keeping = checkpointer(net, folder);
  keeping.num_checkpoints_to_keep = 1;
  keeping.dtype = at::kBFloat16;
  keeping.max_shard_size = 100;
  Trainer(net, options(), keeping).fit();
  CHECK(sorted_names(hf) == Names{"ba6", "latest", "mine"});
  CHECK(fs::exists(hf / "ba6/model.safetensors.index.json"));
  CHECK(saved_weight(hf / "ba6").equal(net->in->weight.t().to(at::kBFloat16)));
}

TEST_CASE("a folder of another's of the same name is not replaced", "[callbacks][hugging_face]") {
  const TemporaryFolder folder;
  const auto net = written();
  models::save_pretrained(net, (folder / "calm-motet/hf/ba2").string());
  HuggingFaceCheckpointer own = checkpointer(net, folder);
  CHECK_THROWS_WITH(Trainer(net, options(), own).fit(), ContainsSubstring("ba2"));
  own.overwrite = true;
  CHECK_NOTHROW(Trainer(net, options(), own).fit());
}

TEST_CASE("a folder is written in the background with what the weights were then",
          "[callbacks][hugging_face]") {
  const TemporaryFolder folder;
  const auto save = [&](bool async, const char* name) {
    const auto net = written();
    TrainerOptions how = options();
    how.save_async = async;
    HuggingFaceCheckpointer own = checkpointer(net, folder);
    own.folder = (folder / name).string();
    Trainer(net, how, own).fit();
    return saved_weight(folder / name / "ba4");
  };
  CHECK(save(true, "a").equal(save(false, "b")));
}

TEST_CASE("averaged weights are what is written", "[callbacks][hugging_face][ema]") {
  const TemporaryFolder folder;
  const auto net = written();
  Trainer trainer(net, options(), EMA{.smoothing = 0.9}, checkpointer(net, folder));
  trainer.fit();
  const auto averages = trainer.get<EMA>().averages();
  REQUIRE(!averages.empty());
  CHECK(averages.front().first == "in.weight");
  CHECK(saved_weight(folder / "calm-motet/hf/ba6").equal(averages.front().second.t()));
}

TEST_CASE("a resumed run goes on with the list of what it keeps", "[callbacks][hugging_face]") {
  const TemporaryFolder folder;
  const auto run = [&](Time length, bool resume) {
    const auto net = written();
    TrainerOptions how = options(length);
    how.save_folder = (folder / "own").string();
    how.save_interval = "2ba";
    how.autoresume = resume;
    HuggingFaceCheckpointer own = checkpointer(net, folder);
    own.num_checkpoints_to_keep = 2;
    Trainer(net, how, own).fit();
  };
  run("4ba", false);
  run("6ba", true);
  CHECK(sorted_names(folder / "calm-motet/hf") == Names{"ba4", "ba6", "latest"});
}

TEST_CASE("options that make no sense are refused", "[callbacks][hugging_face]") {
  const TemporaryFolder folder;
  const auto net = written();
  CHECK_THROWS_WITH(HuggingFaceCheckpointer{}.validate(),
                    ContainsSubstring("model is empty, expected the network"));
  HuggingFaceCheckpointer wrong = checkpointer(net, folder);
  wrong.filename = "a/b";
  CHECK_THROWS_WITH(wrong.validate(), ContainsSubstring("a name without slashes"));
  wrong = checkpointer(net, folder);
  wrong.num_checkpoints_to_keep = -2;
  CHECK_THROWS_AS(wrong.validate(), c10::ValueError);
}
