#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/json_file.hpp>
#include <tutti/checkpoint/sharded_files.hpp>

#include "golden_dist/runner.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// Sharded checkpoints of torch.distributed.checkpoint: every tensor whole, and the shards of any
// number of ranks.

namespace {

using golden_dist::Case;
using golden_dist::Tensors;
using namespace tutti::checkpoint;

at::Tensor part_of(at::Tensor whole, const TensorBox& box) {
  for (std::size_t i = 0; i < box.sizes.size(); ++i) {
    whole = whole.narrow(static_cast<std::int64_t>(i), box.offsets[i], box.sizes[i]);
  }
  return whole;
}

// NaN and the sign of zero count too.
bool same_bits(const at::Tensor& got, const at::Tensor& want) {
  const auto bytes = [](const at::Tensor& of) { return of.contiguous().flatten().view(at::kByte); };
  return got.sizes() == want.sizes() && got.scalar_type() == want.scalar_type() &&
         bytes(got).equal(bytes(want));
}

void check_folder(const Case& c, const std::filesystem::path& folder, const Tensors& whole) {
  const ShardedFiles files(folder);
  for (const auto& [name, tensor] : files.tensors()) {
    const auto want = whole.find(name);
    if (want == whole.end()) {
      c.check(false, name + " is not in full.safetensors");
      continue;
    }
    files.expect(name, want->second.sizes().vec(), want->second.scalar_type());
    c.check(same_bits(files.read(name), want->second), name + " differs");
    std::size_t faults = 0;
    tensor.pieces.each_fault([&](const auto&) { ++faults; });
    c.check(faults == 0, name + " has elements that are not covered once");
    for (int ranks = 1; ranks <= 6 && want->second.dim() > 0; ++ranks) {
      for (int rank = 0; rank < ranks; ++rank) {
        for (std::size_t dim = 0; dim < tensor.shape().size(); ++dim) {
          const TensorBox box = shard_box(tensor.shape(), rank, ranks, dim);
          c.check(same_bits(files.read(name, box), part_of(want->second, box)),
                  name + box.text() + " differs");
        }
      }
    }
  }
  // PyTorch consolidates neither integers nor scalars right, so such folders may lack them.
  const bool floats = c.path.filename().string().find("consolidated") != std::string::npos;
  for (const auto& [name, tensor] : whole) {
    const bool may_lack =
        floats && (tensor.dim() == 0 || tensor.numel() == 0 || !tensor.is_floating_point());
    c.check(may_lack || files.contains(name), name + " is missing");
  }
}

// What each rank held when it was written is what shard_box() says.
void check_layout(const Case& c, const Tensors& whole) {
  const auto layout = read_json(c.path / "layout.json");
  const int ranks = static_cast<int>(layout.size());
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& [name, entry] : layout[static_cast<std::size_t>(rank)].object()) {
      const TensorBox box = shard_box(whole.at(name).sizes().vec(), rank, ranks,
                                      static_cast<std::size_t>(entry[std::size_t{1}].integer()));
      std::vector<std::int64_t> sizes;
      for (const auto& size : entry[std::size_t{0}].array()) {
        sizes.push_back(size.integer());
      }
      c.check(box.sizes == sizes,
              "rank " + std::to_string(rank) + " holds another part of " + name);
    }
  }
}

void run(const Case& c) {
  if (!std::filesystem::is_directory(c.path)) {
    throw golden_dist::Unmapped("a checkpoint is a folder");
  }
  const Tensors whole = golden_dist::read_tensors(c.path.parent_path() / "full.safetensors");
  check_folder(c, c.path, whole);
  if (std::filesystem::exists(c.path / "sharded")) {
    check_folder(c, c.path / "sharded", whole);
  }
  if (std::filesystem::exists(c.path / "layout.json")) {
    check_layout(c, whole);
  }
}

const bool registered = golden_dist::register_kind("dcp", run);

}  // namespace

}  // namespace UNITY_BUILD_UNIQUE_ID
