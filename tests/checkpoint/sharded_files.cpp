#include <tutti/checkpoint/sharded_files.hpp>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "support/bytes_read.hpp"
#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::checkpoint;
using tutti::checkpoint::detail::shard_file_name;
using tutti::checkpoint::detail::to_sharding_info;

namespace {

using Pieces = std::vector<std::pair<TensorBox, std::string>>;

at::Tensor part_of(at::Tensor whole, const TensorBox& box) {
  for (std::size_t i = 0; i < box.sizes.size(); ++i) {
    whole = whole.narrow(static_cast<std::int64_t>(i), box.offsets[i], box.sizes[i]);
  }
  return whole;
}

// One file with one box of each tensor.
void write_boxes(const std::filesystem::path& path, const std::vector<NamedTensor>& whole,
                 const std::vector<TensorBox>& boxes) {
  std::vector<NamedTensor> parts;
  std::vector<std::pair<std::string, TensorBox>> named;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    parts.emplace_back(whole[i].first, part_of(whole[i].second, boxes[i]));
    named.emplace_back(whole[i].first, boxes[i]);
  }
  std::filesystem::create_directories(path.parent_path());
  write_safetensors(path, parts, {{"DCP_SHARDING_INFO", to_sharding_info(named)}});
}

void write_shards(const std::filesystem::path& folder, const std::vector<NamedTensor>& whole,
                  int ranks, std::size_t dim = 0) {
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<TensorBox> boxes;
    for (const auto& [name, tensor] : whole) {
      boxes.push_back(shard_box(tensor.sizes().vec(), rank, ranks, dim));
    }
    write_boxes(folder / shard_file_name(rank), whole, boxes);
  }
}

std::vector<NamedTensor> model() {
  return {{"w", at::arange(36, at::kFloat).view({9, 4})},
          {"half", at::arange(60).view({5, 3, 4}).to(at::kBFloat16)},
          {"n", at::arange(8, at::kLong).view({4, 2})},
          {"mask", at::arange(12).view({3, 4}).remainder(2).to(at::kBool)}};
}

std::string refusal(const std::filesystem::path& folder) {
  return message([&] { ShardedFiles files(folder); });
}

}  // namespace

TEST_CASE("tensors that any number of ranks cut in any dimension are read whole and by box",
          "[checkpoint][sharded]") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const std::size_t dim : {0U, 1U}) {
      const TemporaryFolder folder;
      write_shards(folder.path(), model(), ranks, dim);
      const ShardedFiles files(folder.path());
      CHECK(files.files().size() == static_cast<std::size_t>(ranks));
      CHECK(files.tensors().size() == 4);
      for (const auto& [name, tensor] : model()) {
        files.expect(name, tensor.sizes().vec(), tensor.scalar_type());
        CHECK(files.read(name).equal(tensor));
        for (const int readers : {1, 2, 3, 5}) {
          for (int rank = 0; rank < readers; ++rank) {
            for (const std::size_t cut : {0U, 1U}) {
              const TensorBox box = shard_box(tensor.sizes().vec(), rank, readers, cut);
              CHECK(files.read(name, box).equal(part_of(tensor, box)));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a box is read into a tensor of another type and other strides",
          "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  write_shards(folder.path(), model(), 3);
  const ShardedFiles files(folder.path());
  const TensorBox box{{2, 1}, {5, 2}};
  const at::Tensor expected = part_of(model()[0].second, box);
  at::Tensor plain = at::empty({5, 2}).requires_grad_();
  files.read_into("w", box, plain);
  CHECK(plain.equal(expected));
  CHECK(plain.is_leaf());
  at::Tensor wide = at::empty({2, 5}, at::kDouble).t();
  files.read_into("w", box, wide);
  CHECK(wide.equal(expected.to(at::kDouble)));
  CHECK_THAT(message([&] { files.read_into("w", box, at::empty({5})); }),
             ContainsSubstring("[2:7, 1:3] of the tensor 'w' was to be read into a tensor of "
                               "sizes [5]"));
  CHECK_THAT(message([&] { files.read("w", {{8, 0}, {2, 4}}); }),
             ContainsSubstring("[8:10, 0:4] of the tensor 'w'"));
  CHECK_THAT(message([&] { files.read("x"); }),
             ContainsSubstring("no tensor 'x' in") && ContainsSubstring("4 tensors in 3 files"));
}

TEST_CASE("scalars, replicated tensors and empty shards are in any of the files",
          "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  const std::vector<NamedTensor> scale{{"scale", at::arange(2, at::kFloat)}};
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<NamedTensor> tensors = scale;
    std::vector<TensorBox> boxes{shard_box({2}, rank, 4)};
    if (rank == 2) {
      tensors.emplace_back("step", at::scalar_tensor(2.5));
      boxes.push_back({{}, {}});
      tensors.emplace_back("mean", at::ones({6}));
      boxes.push_back(whole_box({6}));
    }
    write_boxes(folder / shard_file_name(rank), tensors, boxes);
  }
  const ShardedFiles files(folder.path());
  CHECK(files.read("scale").equal(scale[0].second));
  CHECK(files.read("step").item<double>() == 2.5);
  CHECK(files.read("mean").equal(at::ones({6})));
}

TEST_CASE("a reader takes the bytes of its own rows and no others", "[checkpoint][sharded]") {
  if (bytes_read() < 0) {
    return tutti_test::skip("this system has no /proc/self/io");
  }
  const TemporaryFolder folder;
  const std::vector<NamedTensor> whole{{"w", at::rand({1000, 1000})}};
  write_shards(folder / "rows", whole, 3);
  write_shards(folder / "columns", whole, 3, 1);
  for (const char* name : {"rows", "columns"}) {
    const ShardedFiles files(folder / name);
    for (int rank = 0; rank < 4; ++rank) {
      const TensorBox box = shard_box({1000, 1000}, rank, 4);
      const std::int64_t before = bytes_read();
      const at::Tensor part = files.read("w", box);
      const std::int64_t read = bytes_read() - before;
      CHECK(part.equal(part_of(whole[0].second, box)));
      CHECK(read >= 1'000'000);
      CHECK(read < 1'002'000);  // /proc/self/io counts itself
    }
  }
}

TEST_CASE("a lost file is an error that names the tensor, the rows and the file",
          "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  const std::vector<NamedTensor> whole{{"w", at::ones({9, 4})}};
  write_shards(folder / "middle", whole, 3);
  std::filesystem::remove(folder / "middle" / shard_file_name(1));
  CHECK_THAT(refusal(folder / "middle"),
             ContainsSubstring("the tensor 'w' of shape [0:9, 0:4] has no value at [3:6, 0:4]: no "
                               "file has it, and there is no file of rank 1, "
                               "'shard-00002-model-00001-of-00001.safetensors' for example"));
  write_shards(folder / "last", whole, 3);
  std::filesystem::remove(folder / "last" / shard_file_name(2));
  const ShardedFiles files(folder / "last");
  CHECK_THAT(message([&] { files.expect("w", {9, 4}, at::kFloat); }),
             ContainsSubstring("the tensor 'w' is F32[0:6, 0:4], expected F32[0:9, 0:4]") &&
                 ContainsSubstring("the file of its last rows is lost"));
}

TEST_CASE("files of an older checkpoint of more ranks are noticed unless they are equal",
          "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  const std::vector<NamedTensor> old{{"w", at::zeros({9, 4})}};
  const std::vector<NamedTensor> whole{{"w", at::ones({9, 4})}};
  for (const auto& [name, left_over] : {std::pair("other", old), std::pair("equal", whole)}) {
    write_shards(folder / name, left_over, 3);
    for (const int rank : {0, 1}) {
      std::filesystem::remove(folder / name / shard_file_name(rank));
    }
    const TemporaryFolder two;
    write_shards(two.path(), whole, 2);
    for (const int rank : {0, 1}) {
      std::filesystem::copy(two / shard_file_name(rank), folder / name);
    }
  }
  CHECK_THAT(refusal(folder / "other"),
             ContainsSubstring("the tensor 'w' has two values at [6:9, 0:4]") &&
                 ContainsSubstring("are these files of two checkpoints?"));
  CHECK(ShardedFiles(folder / "equal").read("w").equal(whole[0].second));
}

TEST_CASE("a folder of whole tensors is read as it is, and held to its index",
          "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  write_safetensors(folder / "model-00001-of-00002.safetensors", {{"a", at::ones({2})}});
  write_safetensors(folder / "model-00002-of-00002.safetensors", {{"b", at::ones({3})}});
  write_bytes(folder / "model.safetensors.index.json",
              R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
                                 "b": "model-00002-of-00002.safetensors"}})");
  CHECK(ShardedFiles(folder.path()).read("b").equal(at::ones({3})));
  std::filesystem::remove(folder / "model-00002-of-00002.safetensors");
  CHECK_THAT(refusal(folder.path()),
             ContainsSubstring("lists the tensor 'b' in 'model-00002-of-00002.safetensors', which "
                               "is missing or lacks it"));
}

TEST_CASE("a sharded folder becomes one file, scalars and integers included",
          "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  write_shards(folder / "in", model(), 3);
  write_boxes(folder / "in" / "shard-00004-model-00001-of-00001.safetensors",
              {{"step", at::scalar_tensor(2.5)}, {"count", at::scalar_tensor(41, at::kLong)}},
              {{{}, {}}, {{}, {}}});
  const WrittenFile written = consolidate(ShardedFiles(folder / "in"), folder / "out.safetensors");
  CHECK(written.size == std::filesystem::file_size(folder / "out.safetensors"));
  const SafetensorsFile out(folder / "out.safetensors");
  for (const auto& [name, tensor] : model()) {
    CHECK(out.read(name).equal(tensor));
  }
  CHECK(out.read("step").item<double>() == 2.5);
  CHECK(out.read("count").item<std::int64_t>() == 41);
  CHECK_THAT(message([&] { consolidate(ShardedFiles(folder / "in"), folder / "out.safetensors"); }),
             ContainsSubstring("cannot create"));
}

TEST_CASE("folders and headers that are no sharded checkpoint are refused with the reason",
          "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  CHECK_THAT(refusal(folder / "none"), ContainsSubstring("there is no folder"));
  write_bytes(folder / "file", "x");
  CHECK_THAT(refusal(folder / "file"), ContainsSubstring("is a file, expected a folder"));
  std::filesystem::create_directories(folder / "pickles");
  write_bytes(folder / "pickles/__0_0.distcp", "x");
  CHECK_THAT(refusal(folder / "pickles"), ContainsSubstring("are pickles and are not read"));
  std::filesystem::create_directories(folder / "outer/sharded");
  CHECK_THAT(refusal(folder / "outer"), ContainsSubstring("its folder 'sharded' may have them"));

  int count = 0;
  const auto with = [&](const std::string& info, const at::Tensor& tensor) {
    const auto inside = folder / std::to_string(++count);
    std::filesystem::create_directories(inside);
    write_safetensors(inside / "a.safetensors", {{"w", tensor}}, {{"DCP_SHARDING_INFO", info}});
    return refusal(inside);
  };
  const at::Tensor tensor = at::ones({2, 2});
  CHECK_THAT(with("{", tensor), ContainsSubstring("its DCP_SHARDING_INFO is damaged"));
  std::filesystem::create_directories(folder / "empty");  // as a file without
  write_safetensors(folder / "empty/a.safetensors", {{"w", tensor}}, {{"DCP_SHARDING_INFO", ""}});
  CHECK(ShardedFiles(folder / "empty").read("w").equal(tensor));
  CHECK_THAT(with(R"({"w": 1})", tensor), ContainsSubstring("its DCP_SHARDING_INFO is damaged"));
  CHECK_THAT(with("{}", tensor), ContainsSubstring("has no offsets for the tensor 'w'"));
  CHECK_THAT(with(R"({"w": {"saved_offsets": [0]}})", tensor),
             ContainsSubstring("has 1 offsets for the tensor 'w' of 2 dimensions"));
  CHECK_THAT(with(R"({"w": {"saved_offsets": [-1, 0]}})", tensor),
             ContainsSubstring("a piece begins at -1"));
  CHECK_THAT(with(R"({"w": {"saved_offsets": [9223372036854775807, 0]}})", tensor),
             ContainsSubstring("which no tensor has"));
  CHECK_THAT(with(R"({"w": {"saved_offsets": [4611686018427387904, 0]}})", tensor),
             ContainsSubstring("more than any tensor has"));
  CHECK_THAT(with(R"({"w": {"saved_offsets": [1, 0]}})", tensor),
             ContainsSubstring("has no value at [0:1, 0:2]"));
  CHECK_THAT(with(R"({"w": {"saved_offsets": [0, 0]}, "w": {"saved_offsets": [0, 0]}})", tensor),
             ContainsSubstring("twice"));

  std::filesystem::create_directories(folder / "types");
  write_boxes(folder / "types/a.safetensors", {{"w", at::ones({4})}}, {{{0}, {2}}});
  write_boxes(folder / "types/b.safetensors", {{"w", at::ones({4}, at::kDouble)}}, {{{2}, {2}}});
  CHECK_THAT(refusal(folder / "types"),
             ContainsSubstring("is F32 in 'a.safetensors' and F64 in 'b.safetensors'"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
