#include <tutti/checkpoint/model_folder.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/weight_files.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::checkpoint;
using tutti::detail::Json;
using Names = std::vector<std::string>;

namespace {

const Json config = Json::Object{{"model_type", "x"}};

// The names of the tensors in a folder, in the order of its files.
Names tensors_of(const std::filesystem::path& folder) {
  const auto files = WeightFiles::open(folder);
  Names out;
  for (const StoredTensor& tensor : files.tensors()) {
    out.push_back(tensor.name);
  }
  return out;
}

std::vector<NamedTensor> three() {
  return {{"b", at::ones({10})}, {"a", at::full({20}, 2.0)}, {"c", at::full({10}, 3, at::kLong)}};
}

}  // namespace

TEST_CASE("weights go into one file, or into shards that are filled in order",
          "[checkpoint][weights]") {
  const TemporaryFolder folder;
  write_model_folder(folder / "one", three(), config);
  CHECK(sorted_names(folder / "one") == Names{"config.json", "model.safetensors"});
  CHECK(SafetensorsFile(folder / "one/model.safetensors").metadata().at("format") == "pt");
  write_model_folder(folder / "two", three(), config, {.max_shard_size = 120});
  CHECK(sorted_names(folder / "two") == Names{"config.json", "model-00001-of-00002.safetensors",
                                              "model-00002-of-00002.safetensors",
                                              "model.safetensors.index.json"});
  const std::string index = read_bytes(folder / "two/model.safetensors.index.json");
  CHECK(index == R"({
  "metadata": {
    "total_parameters": 40,
    "total_size": 200
  },
  "weight_map": {
    "a": "model-00001-of-00002.safetensors",
    "b": "model-00001-of-00002.safetensors",
    "c": "model-00002-of-00002.safetensors"
  }
}
)");
  const auto back = WeightFiles::open(folder / "two");
  for (const auto& [name, tensor] : three()) {
    CHECK(back.find(name)->view().equal(tensor));
  }
  write_model_folder(folder / "each", three(), config, {.max_shard_size = 1});
  CHECK(sorted_names(folder / "each").size() == 5);
  CHECK(tensors_of(folder / "each").size() == 3);
}

TEST_CASE("floating tensors are written as the type that is asked for", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  write_model_folder(folder / "m", three(), config, {.dtype = at::kBFloat16});
  const auto files = WeightFiles::open(folder / "m");
  CHECK(files.find("a")->dtype == at::kBFloat16);
  CHECK(files.find("a")->view().to(at::kFloat).equal(at::full({20}, 2.0)));
  CHECK(files.find("c")->dtype == at::kLong);
}

TEST_CASE("a folder that is there is replaced only when it is one of weights and that is asked for",
          "[checkpoint][weights]") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "m");
  write_model_folder(folder / "m", three(), config, {.max_shard_size = 1});  // it was empty
  CHECK_THROWS_WITH(write_model_folder(folder / "m", three(), config),
                    ContainsSubstring("has files; set overwrite"));
  write_bytes(folder / "m/tokenizer.json", "{}");
  write_model_folder(folder / "m/", {{"x", at::ones({1})}}, config, {.overwrite = true});
  CHECK(sorted_names(folder / "m") == Names{"config.json", "model.safetensors", "tokenizer.json"});
  CHECK(tensors_of(folder / "m") == Names{"x"});

  std::filesystem::create_directory(folder / "m/data");
  CHECK_THROWS_WITH(write_model_folder(folder / "m", three(), config, {.overwrite = true}),
                    ContainsSubstring("has the folder 'data' in it"));
  write_bytes(folder / "file", "x");
  CHECK_THROWS_WITH(write_model_folder(folder / "file", three(), config, {.overwrite = true}),
                    ContainsSubstring("is a file"));
  std::filesystem::create_directory(folder / "home");
  write_bytes(folder / "home/letter.txt", "x");
  CHECK_THROWS_WITH(write_model_folder(folder / "home", three(), config, {.overwrite = true}),
                    ContainsSubstring("has no config.json"));
  CHECK(sorted_names(folder / "home") == Names{"letter.txt"});
}

TEST_CASE("what fails leaves nothing and what was there", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  write_model_folder(folder / "m", three(), config);
  auto broken = three();
  broken.emplace_back("b", at::ones({1}));  // a name twice
  CHECK_THROWS_AS(write_model_folder(folder / "m", broken, config, {.overwrite = true}),
                  c10::Error);
  CHECK_THROWS_AS(write_model_folder(folder / "n", broken, config), c10::Error);
  CHECK(sorted_names(folder.path()) == Names{"m"});
  CHECK(tensors_of(folder / "m").size() == 3);
  CHECK_THROWS_WITH(write_model_folder(folder / "n", three(), config, {.max_shard_size = 0}),
                    ContainsSubstring("max_shard_size"));
}

TEST_CASE("the files that go with a model are copied from where it came from",
          "[checkpoint][weights]") {
  const TemporaryFolder folder;
  write_model_folder(folder / "from", {{"old", at::ones({1})}}, Json::Object{{"old", true}});
  write_bytes(folder / "from/tokenizer.json", std::string(3 << 20, 'x'));
  write_bytes(folder / "from/generation_config.json", "{}");
  write_bytes(folder / "from/pytorch_model.bin", "x");
  write_model_folder(folder / "to", three(), config, {.copy_files_from = folder / "from"});
  CHECK(sorted_names(folder / "to") ==
        Names{"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"});
  CHECK(read_bytes(folder / "to/tokenizer.json").size() == 3 << 20);
  CHECK(read_json(folder / "to/config.json") == config);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
