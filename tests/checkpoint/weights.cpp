#include <tutti/checkpoint/weights.hpp>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include "support/bounded.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::checkpoint;

TEST_CASE("weights come from a checkpoint, from latest and from a plain file",
          "[checkpoint][weights]") {
  const TemporaryFolder folder;
  Snapshot snapshot;
  snapshot.model.put("fc.weight", at::arange(4));
  snapshot.state.put("x", at::ones({1}));
  write_snapshot(folder / "ep1", snapshot);
  point_latest(folder / "latest", "ep1");
  CHECK(read_weights(folder / "ep1").tensor("fc.weight").equal(at::arange(4)));
  CHECK(read_weights(folder / "latest").tensor("fc.weight").equal(at::arange(4)));
  CHECK(read_weights(folder / "ep1/model.safetensors").size() == 1);
}

TEST_CASE("a model in several files comes through its index", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  write_safetensors(folder / "m-1.safetensors", {{"a", at::ones({1})}});
  write_safetensors(folder / "m-2.safetensors", {{"b", at::ones({2})}, {"c", at::ones({3})}});
  const std::string index = R"({"metadata":{"total_size":24},"weight_map":{"a":"m-1.safetensors",)"
                            R"("b":"m-2.safetensors","c":"m-2.safetensors"}})";
  write_bytes(folder / "model.safetensors.index.json", index);
  const auto weights = read_weights(folder / "model.safetensors.index.json");
  CHECK(weights.names() == std::vector<std::string>{"a", "b", "c"});
  CHECK(weights.tensor("c").numel() == 3);
  for (const std::string name : {"../m-1.safetensors", "/etc/passwd", "..", ""}) {
    INFO(name);
    write_bytes(folder / "bad.json", R"({"weight_map":{"a":")" + name + R"("}})");
    CHECK_THROWS_AS(read_weights(folder / "bad.json"), c10::Error);
  }
  write_bytes(folder / "bad.json", "{}");
  CHECK_THROWS_WITH(read_weights(folder / "bad.json"), ContainsSubstring("no member 'weight_map'"));
}

namespace {

// A file whose header of `length` bytes has one tensor of nothing.
std::string padded(std::uint64_t length) {
  std::string header = R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})";
  header.resize(length, ' ');
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + header;
}

// What read_weights() says of a file, in little memory and without waiting.
std::string says(const std::filesystem::path& path, std::uint64_t bytes = 64 << 20) {
  return tutti_test::in_bounds(bytes, [&] { read_weights(path); });
}

}  // namespace

TEST_CASE("a safetensors file is one whatever its first bytes are", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  for (const std::uint64_t length : {0x0280U, 0x0480U, 0x4b50U, 0x8b1fU}) {
    INFO(length);  // the bytes begin as a pickle, as a zip archive and as gzip do
    write_bytes(folder / "a.safetensors", padded(length));
    CHECK(read_weights(folder / "a.safetensors").tensor("a").numel() == 0);
  }
}

TEST_CASE("a file of torch.save() that is no state dict is refused with the cure for its kind",
          "[checkpoint][weights]") {
  const TemporaryFolder folder;
  torch::save(torch::nn::Linear(2, 2), (folder / "module.pt").string());
  torch::save(at::ones({2}), (folder / "tensor.pt").string());
  for (const char* name : {"module.pt", "tensor.pt"}) {
    const std::string words = says(folder / name);
    CHECK_THAT(words, ContainsSubstring("is an archive of C++'s torch::save() or of TorchScript"));
    CHECK_THAT(words, ContainsSubstring("can run code"));
    CHECK_THAT(words, ContainsSubstring("state = torch.jit.load(path).state_dict()"));
    CHECK_THAT(words, ContainsSubstring("save_file({k: v.contiguous().clone() for k, v in"));
  }
  const std::vector<char> pickle = torch::pickle_save(at::ones({2}));  // as Python's torch.save()
  write_bytes(folder / "python.pt", std::string(pickle.begin(), pickle.end()));
  CHECK_THAT(says(folder / "python.pt"), ContainsSubstring("holds a tensor, expected a state"));
  write_bytes(folder / "old.pt", "\x80\x02\x8a\nl\xfc\x9c\x46\xf9");  // before 1.6
  CHECK_THAT(says(folder / "old.pt"), ContainsSubstring("before PyTorch 1.6"));
}

TEST_CASE("weights come from a file of torch.save() and from a folder of Hugging Face",
          "[checkpoint][weights]") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "hf");
  write_bytes(folder / "hf/config.json", "{}");
  write_safetensors(folder / "hf/model.safetensors", {{"a", at::ones({2})}});
  CHECK(read_weights(folder / "hf").tensor("a").equal(at::ones({2})));
  const auto kept = read_weights(TUTTI_SOURCE_DIR "/tests/checkpoint/files/state_dict.pth");
  CHECK(kept.tensor("fc.weight").equal(at::arange(6, at::kFloat).reshape({2, 3})));
  at::Tensor own = kept.tensor("fc.weight");
  own.zero_();  // owns its memory: "tied" has the same storage in the file
  CHECK(kept.tensor("tied").sum().item<float>() == 15);
}

TEST_CASE("weights of other formats are refused in words", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  write_bytes(folder / "x", "?");
  CHECK_THAT(says(folder / "x"), ContainsSubstring("is refused"));
  write_bytes(folder / "x.zip", "PK\x03\x04" + std::string(100, 'x'));
  CHECK_THAT(says(folder / "x.zip"), ContainsSubstring("the zip archive has no directory"));
  CHECK_THAT(says(folder / "none"), ContainsSubstring("there is no"));
}

TEST_CASE("names of many levels take no memory and no stack", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  for (const int levels : {33, 10'000, 60'000}) {
    std::string name;
    for (int i = 1; i < levels; ++i) {
      name += "a/";
    }
    std::string header = R"({")" + name + R"(a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})";
    const std::uint64_t length = header.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    write_bytes(folder / "a.safetensors", bytes + header);
    INFO(levels);
    CHECK_THAT(says(folder / "a.safetensors"),
               ContainsSubstring("a.safetensors' is refused: tensor 'a/a/") &&
                   ContainsSubstring(levels == 33 ? "33 levels, expected at most 32"
                                                  : "bytes, expected at most 4096"));
  }
}

TEST_CASE("an index of nothing but numbers takes no memory", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  std::string text = R"({"weight_map":[0)";
  for (int i = 0; i < 4'000'000; ++i) {
    text += ",0";
  }
  write_bytes(folder / "a.json", text + "]}");
  const std::uint64_t most = 24 * text.size();
  CHECK_THAT(says(folder / "a.json", most), ContainsSubstring("is refused: JSON: more than"));
}

TEST_CASE("no reader of checkpoints waits for a named pipe", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "run");
  for (const char* name : {"a.safetensors", "a.json", "latest", "run/manifest.json"}) {
    REQUIRE(::mkfifo((folder / name).c_str(), 0600) == 0);
  }
  for (const char* name : {"a.safetensors", "a.json", "latest", "run"}) {
    INFO(name);
    CHECK_THAT(says(folder / name), ContainsSubstring("it is a named pipe, not a regular file"));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
