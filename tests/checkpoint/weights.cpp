#include <tutti/checkpoint/weights.hpp>

#include <filesystem>
#include <string>

#include <ATen/ATen.h>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

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

TEST_CASE("a pickle is refused with how to convert it", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  write_bytes(folder / "model.pt", "PK\x03\x04zip");
  CHECK_THROWS_WITH(read_weights(folder / "model.pt"),
                    ContainsSubstring("safetensors.torch.save_file"));
  write_bytes(folder / "model.bin", "\x80\x02pickle");
  CHECK_THROWS_WITH(read_weights(folder / "model.bin"), ContainsSubstring("can run code"));
  write_bytes(folder / "x", "?");
  CHECK_THROWS_WITH(read_weights(folder / "x"), ContainsSubstring("is refused"));
  CHECK_THROWS_WITH(read_weights(folder / "none"), ContainsSubstring("there is no"));
}
