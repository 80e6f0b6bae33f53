#include <tutti/checkpoint/weight_files.hpp>

#include <cstring>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/torch_archive.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::checkpoint;
namespace archive = torch_archive;

namespace {

std::vector<std::string> names(const WeightFiles& files) {
  std::vector<std::string> out;
  for (const StoredTensor& tensor : files.tensors()) {
    out.push_back(tensor.name);
  }
  return out;
}

// A folder with two shards, "a" in one, "b" and "c" in the other.
void write_shards(const TemporaryFolder& folder) {
  write_safetensors(folder / "m-1.safetensors", {{"a", at::ones({1})}});
  write_safetensors(folder / "m-2.safetensors", {{"b", at::ones({2})}, {"c", at::ones({3})}});
}

void write_index(const TemporaryFolder& folder, const std::string& map) {
  write_bytes(folder / "model.safetensors.index.json",
              "{\"metadata\": {\"total_size\": 24}, \"weight_map\": " + map + "}\n");
}

std::string torch_file(float value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  const std::string tensor = archive::tensor("FloatStorage", "0", 1, 0, {1}, {1});
  return archive::file(archive::pickle(archive::dict({{"w", tensor}})), {{"0", bytes}});
}

}  // namespace

TEST_CASE("a folder is read by its single file, else its index, else its pickle",
          "[checkpoint][weights]") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(WeightFiles::open(folder.path()), ContainsSubstring("has nothing, expected"));
  write_bytes(folder / "config.json", "{}");
  CHECK_THROWS_WITH(WeightFiles::open(folder.path()),
                    ContainsSubstring("has config.json, expected weights: model.safetensors"));
  write_bytes(folder / "pytorch_model.bin", torch_file(3));
  CHECK(WeightFiles::open(folder.path()).find("w")->view().item<float>() == 3);
  write_shards(folder);
  write_index(folder,
              R"({"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-2.safetensors"})");
  const auto sharded = WeightFiles::open(folder.path());
  CHECK(names(sharded) == std::vector<std::string>{"a", "b", "c"});
  CHECK(sharded.find("c")->view().equal(at::ones({3})));
  CHECK(sharded.find("d") == nullptr);
  CHECK_THAT(sharded.path(), ContainsSubstring("model.safetensors.index.json"));
  write_safetensors(folder / "model.safetensors", {{"single", at::ones({1})}});
  CHECK(names(WeightFiles::open(folder.path())) == std::vector<std::string>{"single"});
}

TEST_CASE("a pickle in shards is read by its index", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  write_bytes(folder / "pytorch_model-00001-of-00001.bin", torch_file(4));
  write_bytes(folder / "pytorch_model.bin.index.json",
              R"({"weight_map": {"w": "pytorch_model-00001-of-00001.bin"}})");
  CHECK(WeightFiles::open(folder.path()).find("w")->view().item<float>() == 4);
}

TEST_CASE("an index that does not agree with its shards is refused with both sides",
          "[checkpoint][weights]") {
  const TemporaryFolder folder;
  write_shards(folder);
  const auto says = [&](const std::string& map) {
    write_index(folder, map);
    try {
      WeightFiles::open(folder.path());
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("nothing");
  };
  CHECK(says(R"({"a": "m-1.safetensors"})") == "nothing");
  CHECK_THAT(says(R"({"a": "m-3.safetensors"})"),
             ContainsSubstring("the shard 'm-3.safetensors' is missing") &&
                 ContainsSubstring("the folder has m-1.safetensors, m-2.safetensors, model"));
  CHECK_THAT(says(R"({"a": "m-1.safetensors", "x": "m-1.safetensors"})"),
             ContainsSubstring("lists the tensor 'x' in 'm-1.safetensors', which lacks it"));
  CHECK_THAT(says(R"({"b": "m-2.safetensors"})"),
             ContainsSubstring("the shard 'm-2.safetensors' has the tensor 'c', which") &&
                 ContainsSubstring("does not list"));
  CHECK_THAT(says(R"({"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"})"),
             ContainsSubstring("has the tensor 'c', which") &&
                 ContainsSubstring("gives to 'm-1.safetensors'"));
  for (const std::string name :
       {"../m-1.safetensors", "/etc/passwd", "..", ".", "", "a\\\\b", "m-1.safetensors\\u0000"}) {
    INFO(name);
    CHECK_THAT(says(R"({"a": ")" + name + "\"}"), ContainsSubstring("expected a name without a"));
  }
  CHECK_THAT(says("[]"), ContainsSubstring("expected an object, got an array"));
}

TEST_CASE("a small file of weights that ends in a newline is no pointer", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  std::string header = R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})";
  header.resize(0x80, ' ');  // the file begins with 0x80, as a pickle does, and ends in a newline
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(0x80);
  write_bytes(folder / "model.safetensors", bytes + header + '\n');
  for (const auto& path : {folder.path(), folder / "model.safetensors"}) {
    CHECK(WeightFiles::open(path).find("a")->view().item<int>() == 10);
  }
  header.resize(0x4b50, ' ');  // "PK"
  bytes[0] = 'P';
  bytes[1] = 'K';
  write_bytes(folder / "model.safetensors", bytes + header + '\n');
  CHECK(WeightFiles::open(folder.path()).find("a")->view().item<int>() == 10);
  write_shards(folder);
  write_index(folder, R"({"a": "m-1.safetensors"})");
  CHECK(names(WeightFiles::open(folder / "model.safetensors.index.json")).size() == 1);
}

TEST_CASE("files of torch.save() are told apart", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  write_bytes(folder / "x.pth", torch_file(5));
  CHECK(WeightFiles::open(folder / "x.pth").find("w")->view().item<float>() == 5);
  write_bytes(folder / "old.pth", "\x80\x02\x8a\nl\xfc\x9c\x46\xf9");
  CHECK_THROWS_WITH(WeightFiles::open(folder / "old.pth"),
                    ContainsSubstring("before PyTorch 1.6") &&
                        ContainsSubstring("torch.save(torch.load(path, weights_only=True), path)"));
  write_bytes(folder / "none.pth", "hello");
  CHECK_THROWS_WITH(WeightFiles::open(folder / "none.pth"), ContainsSubstring("none.pth' is ref"));
  CHECK_THROWS_WITH(WeightFiles::open(folder / "absent"), ContainsSubstring("there is no"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
