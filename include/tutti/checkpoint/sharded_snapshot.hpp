// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <tutti/checkpoint/shard_layout.hpp>
#include <tutti/checkpoint/sharded_checkpoint.hpp>
#include <tutti/checkpoint/sharded_files.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>

/// Snapshots of which the ranks of a run write and read parts.
namespace tutti::checkpoint {

/// What this rank writes of a snapshot: what `parts` lists, by its path behind "model/" or
/// "state/", and on rank 0 all else. The random streams "rng/<stream>" of the state are the rank's
/// own. stream: the rank's number among those that draw by themselves; none: `rank`.
///
/// The state of parameters is in the folder "optim", of further optimizers in "optim1" and so on,
/// under the names of Python's flattened optimizer state dict: `state.<parameter>.exp_avg`. There
/// are its numbers, too, as float scalars, `state.<parameter>.step`, for Python's readers. Other
/// tensors are in the folder "state", by their path.
ShardedSnapshot to_sharded(const Snapshot& snapshot, const PartPlaces& parts, int rank,
                           std::optional<int> stream = std::nullopt);

/// A sharded checkpoint that is being loaded: a snapshot whose tensors are placeholders, which have
/// shape and type and no memory, until their values are asked for.
class ShardedSource {
 public:
  /// Throws c10::Error, naming what is wrong, when the checkpoint is damaged.
  explicit ShardedSource(const std::filesystem::path& path) : saved_(path) {}

  [[nodiscard]] const ShardedCheckpoint& checkpoint() const { return saved_; }

  /// All of the checkpoint; of the random streams those of one rank, or of all, which are values.
  /// with_state: else the model alone.
  Snapshot snapshot(std::optional<int> rank, bool with_state);

  /// The value of a placeholder.
  [[nodiscard]] at::Tensor read(const at::Tensor& placeholder) const;
  /// A box of it, into a tensor of its sizes.
  void read_into(const at::Tensor& placeholder, const TensorBox& box,
                 const at::Tensor& target) const;
  /// The rows of it that rank `rank` of `ranks` has, see shard_box(); of a scalar rank 0 has
  /// one row.
  [[nodiscard]] at::Tensor read_rows(const at::Tensor& placeholder, int rank, int ranks) const;

  /// Returns what this rank has of a tensor of an optimizer's state that is shaped as the parameter
  /// of that name.
  using ReadPart =
      std::function<at::Tensor(const std::string& parameter, const at::Tensor& placeholder)>;

  /// The state with values in place of what is left of its placeholders. read: of the state of the
  /// optimizers' parameters; none: it is whole.
  [[nodiscard]] Archive filled(const Archive& state, const ReadPart& read = {}) const;

 private:
  struct Place {
    const ShardedFiles* files;
    std::string name;
    at::Tensor keeps_alive;
  };

  at::Tensor placeholder(const ShardedFiles& files, const std::string& name);
  [[nodiscard]] const Place& place_of(const at::Tensor& placeholder) const;

  ShardedCheckpoint saved_;
  std::unordered_map<const void*, Place> places_;
};

/// Reads a checkpoint into memory, be it whole or sharded. path, options, errors:
/// read_snapshot()'s.
Snapshot read_checkpoint(const std::filesystem::path& path, const ReadOptions& options = {});

namespace detail {

/// Whose state a tensor of a checkpoint is, by its path: `optimizers/<k>/own/param<i>/<key>`, or
/// `optimizers/<k>/state/<i>/<key>`.
struct OptimizerEntry {
  std::string optimizer;
  std::size_t parameter = 0;
  std::string key;
};

std::optional<OptimizerEntry> optimizer_entry(std::string_view path);

/// A list of texts that each optimizer of a state has, one for each of its parameters.
class OptimizerTexts {
 public:
  OptimizerTexts(const Archive& state, std::string list) : state_(state), list_(std::move(list)) {}

  /// That of the parameter; empty: there is none.
  const std::string& operator()(const OptimizerEntry& entry);

 private:
  const Archive& state_;
  std::string list_;
  std::map<std::string, std::vector<std::string>> known_;
  std::string none_;
};

}  // namespace detail

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/sharded_snapshot.inl.hpp>
#endif
