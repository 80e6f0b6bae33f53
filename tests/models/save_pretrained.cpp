#include <tutti/models/save_pretrained.hpp>

#include <string>

#include <ATen/ATen.h>

#include <tutti/models/from_pretrained.hpp>

#include "models/tiny_pretrained.hpp"
#include "support/catch.hpp"
#include "support/python.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::models;

namespace {

std::string path(const TemporaryFolder& folder, const char* name) {
  return (folder / name).string();
}

}  // namespace

TEST_CASE("a model that is saved reads back equal, with the keys that nobody knows",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  torch::manual_seed(1);
  Tiny net(TinyOptions{.width = 4});
  net->source_config.set("architectures", tutti::detail::Json::Array{"TinyModel"});
  net->source_config.set("unknown", 1e-5);
  save_pretrained(net, path(folder, "a"));
  CHECK(sorted_names(folder / "a") == std::vector<std::string>{"config.json", "model.safetensors"});
  Tiny back = from_pretrained<Tiny>(path(folder, "a"));
  CHECK(back->table.equal(net->table));
  CHECK(back->mix->weight.equal(net->mix->weight));
  const PretrainedConfig config = PretrainedConfig::read(path(folder, "a"));
  CHECK(config.number("unknown", 0) == 1e-5);
  CHECK(config.architecture() == "TinyModel");
  CHECK(config.text("dtype", "") == "float32");
  CHECK(config.integer("width") == 4);
  save_pretrained(back, path(folder, "b"));
  for (const char* file : {"config.json", "model.safetensors"}) {
    CHECK(read_bytes(folder / "a" / file) == read_bytes(folder / "b" / file));
  }
}

TEST_CASE("weights are written as they stand on disk, tied ones once", "[models][pretrained]") {
  const TemporaryFolder folder;
  const Tiny net;
  save_pretrained(net, path(folder, "a"), {.max_shard_size = 64});
  const auto files = tutti::checkpoint::WeightFiles::open(folder / "a");
  CHECK(files.tensors().size() == 7);
  CHECK(files.find("lm_head.weight") == nullptr);
  CHECK(files.find("base.mix.weight")->view().equal(net->mix->weight.t()));
  CHECK(from_pretrained<Tiny>(path(folder, "a"))->table.equal(net->table));
}

TEST_CASE("the type that is asked for is written and stands in the config",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  Tiny net;
  save_pretrained(net, path(folder, "a"), {.dtype = at::kBFloat16});
  CHECK(PretrainedConfig::read(path(folder, "a")).dtype() == at::kBFloat16);
  Tiny back = from_pretrained<Tiny>(path(folder, "a"));
  CHECK(back->table.equal(net->table.to(at::kBFloat16).to(at::kFloat)));
  CHECK(back->config().text("dtype", "") == "bfloat16");
  save_pretrained(back, path(folder, "a"), {.overwrite = true});
  CHECK(PretrainedConfig::read(path(folder, "a")).dtype() == at::kFloat);
  back->source_config.erase("dtype");
  back->source_config.set("torch_dtype", "bfloat16");  // an older file keeps its key
  save_pretrained(back, path(folder, "b"));
  CHECK(PretrainedConfig::read(path(folder, "b")).text("torch_dtype", "") == "float32");
  CHECK(!PretrainedConfig::read(path(folder, "b")).has("dtype"));
}

TEST_CASE("a folder that is there is not written over unless that is asked for",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  const Tiny net;
  save_pretrained(net, path(folder, "a"));
  CHECK_THROWS_WITH(save_pretrained(net, path(folder, "a")), ContainsSubstring("set overwrite"));
}

TEST_CASE("a folder to copy from that is not there is named with its option",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  const Tiny net;
  const std::string from = path(folder, "none");
  CHECK_THROWS_WITH(save_pretrained(net, path(folder, "a"), {.copy_files_from = from}),
                    ContainsSubstring("copy_files_from is '" + from + "', and there is no such"));
  CHECK(sorted_names(folder.path()).empty());
}

TEST_CASE("what was saved stands in the file as Python expects it", "[models][pretrained]") {
  const std::string python = tutti_test::python_with("json, struct");
  if (python.empty()) {
    return tutti_test::skip("there is no Python here");
  }
  const TemporaryFolder folder;
  torch::manual_seed(1);
  const Tiny net;
  save_pretrained(net, path(folder, "a"), {.dtype = at::kHalf});
  const std::string script = R"(
import json, struct, sys
data = open(sys.argv[1] + "/model.safetensors", "rb").read()
size, = struct.unpack("<Q", data[:8])
header = json.loads(data[8:8 + size])
assert header.pop("__metadata__") == {"format": "pt"}
assert header["base.mix.weight"]["shape"] == [3, 2], header
assert header["base.mix.weight"]["dtype"] == "F16" and header["base.count"]["dtype"] == "I64"
assert len(header) == 7 and "lm_head.weight" not in header
config = json.load(open(sys.argv[1] + "/config.json"))
assert config["dtype"] == "float16" and config["model_type"] == "tiny"
)";
  CHECK(tutti_test::run_python(python, script, path(folder, "a")));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
