// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/detail/weight_index.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/checkpoint/shard_layout.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint {

/// A tensor of which several files hold pieces.
struct ShardedTensor {
  /// Where the bytes of a piece are.
  struct Source {
    std::size_t file = 0;     ///< Its place in ShardedFiles::files().
    std::uint64_t begin = 0;  ///< Of the piece's first element, bytes into the file.
  };

  c10::ScalarType dtype = c10::ScalarType::Undefined;
  TensorPieces pieces;
  std::vector<Source> sources;  ///< One for each of pieces.boxes().

  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return pieces.shape(); }
};

/// The tensors of a folder of safetensors files of which each holds pieces, as
/// torch.distributed.checkpoint's HuggingFaceStorageWriter writes them, on any number of ranks:
///
///     const ShardedFiles files("ep1-ba200/model");
///     at::Tensor mine = files.read("wte.weight", shard_box({50257, 768}, rank, ranks));
///
/// All headers are read and checked, and that the pieces of each tensor cover it: each element has
/// one value. A folder of whole tensors, Hugging Face's, is one of pieces that begin at 0. Sources:
/// the offsets are those of the header's DCP_SHARDING_INFO; no file has a tensor's whole shape,
/// which is how far its pieces reach, so a lost last piece is seen by expect() alone, or by the
/// manifest of a ShardedCheckpoint.
class ShardedFiles {
 public:
  /// Every `.safetensors` file of the folder. Throws c10::Error that names the folder, the tensor
  /// and the place for a damaged file, a part of a tensor that no file has, and one for which two
  /// files have different values.
  explicit ShardedFiles(const std::filesystem::path& folder);

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// Names of the files, in alphabetical order.
  [[nodiscard]] const std::vector<std::string>& files() const { return files_; }
  /// By name.
  [[nodiscard]] const std::map<std::string, ShardedTensor, std::less<>>& tensors() const& {
    return tensors_;
  }
  std::map<std::string, ShardedTensor, std::less<>>& tensors() && = delete;
  [[nodiscard]] bool contains(std::string_view name) const { return tensors_.contains(name); }

  /// Throws c10::Error when there is no tensor of that name, or its shape or type is another.
  void expect(std::string_view name, const std::vector<std::int64_t>& shape,
              c10::ScalarType dtype) const;

  /// A tensor whole, on the CPU. Throws c10::Error when there is none, or a file has changed.
  at::Tensor read(std::string_view name) const;

  /// A box of a tensor, on the CPU. No other bytes of the data are read.
  at::Tensor read(std::string_view name, const TensorBox& box) const;

  /// Reads a box into a tensor of its sizes; straight from the files where it is contiguous in host
  /// memory and of the stored type, else by a copy of the box. Gradients are not recorded.
  void read_into(std::string_view name, const TensorBox& box, const at::Tensor& target) const;

 private:
  [[noreturn]] void refuse(std::string_view tensor, const std::string& why) const;
  void open(const std::string& file);
  void check_coverage(std::string_view name, const ShardedTensor& tensor) const;
  const ShardedTensor& at(std::string_view name) const;
  // The box, if it is in the tensor.
  const TensorBox& checked(std::string_view name, const TensorBox& box) const;
  std::string lost_files() const;

  // Fills `out`, contiguous and of the sizes of `box`, with the box; with the part of one piece.
  void fill(std::string_view name, const TensorBox& box, const at::Tensor& out) const;
  void read_part(const ShardedTensor& tensor, const TensorPieces::Part& part, const TensorBox& box,
                 const at::Tensor& out) const;

  struct Piece {
    TensorBox box;
    c10::ScalarType dtype;
    ShardedTensor::Source source;
  };

  std::filesystem::path folder_;
  std::vector<std::string> files_;
  std::vector<std::uint64_t> sizes_;
  std::map<std::string, std::vector<Piece>> pieces_;  // while the headers are read
  std::map<std::string, ShardedTensor, std::less<>> tensors_;
};

/// Writes the tensors of a sharded folder whole, as one new safetensors file, scalars and integers
/// included; one tensor at a time is in memory. Throws c10::Error when the file exists or cannot be
/// written; what was begun is then removed. Returns size and checksum.
WrittenFile consolidate(const ShardedFiles& from, const std::filesystem::path& target);

namespace detail {

/// "shard-00001-model-00001-of-00001.safetensors": a file of one rank, which has so many. rank,
/// file: counted from 0.
std::string shard_file_name(int rank, std::size_t file = 0, std::size_t files = 1);

/// The number of the rank that wrote a file of that name, from 1; 0 for other names.
int rank_of_shard_file(std::string_view name);

/// The text of DCP_SHARDING_INFO: the offsets of each tensor.
std::string to_sharding_info(const std::vector<std::pair<std::string, TensorBox>>& boxes);

/// The offsets that DCP_SHARDING_INFO has. Throws std::invalid_argument when that is no such text.
std::map<std::string, std::vector<std::int64_t>> parse_sharding_info(std::string_view text);

}  // namespace detail

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/sharded_files.inl.hpp>
#endif
