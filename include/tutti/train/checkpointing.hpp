// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/ignore.hpp>
#include <tutti/checkpoint/manifest.hpp>
#include <tutti/checkpoint/module_state.hpp>
#include <tutti/checkpoint/saver.hpp>
#include <tutti/checkpoint/sharded_snapshot.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/init_tape.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/xxh64.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/train/detail/sharding_support.hpp>
#include <tutti/train/load_report.hpp>
#include <tutti/train/policy_states.hpp>
#include <tutti/train/rank_state.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/run_state.hpp>
#include <tutti/train/sharded_parts.hpp>
#include <tutti/train/together.hpp>

namespace tutti::train {

/// What a checkpoint holds.
struct SaveOptions {
  bool weights_only = false;
  bool metrics = false;                    ///< the metrics' counts and last values, too
  std::vector<std::string> ignore_keys{};  ///< what is left out, see checkpoint::IgnoreKeys
  bool warn_unmatched = false;             ///< of those that match nothing
};

/// What load_checkpoint() takes.
struct LoadOptions {
  bool weights_only = false;
  bool strict = true;                      ///< weights must agree in names and shapes
  std::vector<std::string> ignore_keys{};  ///< what is left out, see checkpoint::IgnoreKeys
  int shards = 0;  ///< so many ranks are going to share a sharded optimizer's state; 0: it is whole
};

/// Tensors of the model, and what a checkpoint has for them.
using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

namespace detail {

// Names of weights that the program brings, not the checkpoint, by what policies say.
std::vector<std::string> kept_elsewhere(const PolicyStates& policies, const State& state);

// Those of them that the checkpoint has left to the program. Throws c10::Error when the program has
// others than the one that wrote it.
std::vector<std::string> left_to_program(const PolicyStates& policies, const State& state,
                                         const checkpoint::Snapshot& snapshot);

// Removes what the globs match. The tree's paths are "state/model/...", "state/...", "rng/...".
void leave_out(checkpoint::IgnoreKeys& keys, checkpoint::Snapshot& snapshot,
               std::vector<std::string>& left_out);

// What of the weights is to be copied. Says what to do about those that differ, and names the
// policies of the saved recipe that may be why. left_out: full paths that are not in the snapshot
// any more.
checkpoint::LoadReport match_weights(const PolicyStates& policies, State& state,
                                     const checkpoint::Snapshot& snapshot,
                                     const LoadOptions& options,
                                     const std::vector<std::string>& left_out, Copies& copies);

// Puts tensors without values yet in place of the placeholders of what policies keep of whole
// parameters. Returns them with these.
Copies room_for_parts(const PolicyStates& policies, Archive& state);

// Rows of this rank's part of a spread parameter, of what a placeholder stands for, on the CPU.
at::Tensor read_part(const checkpoint::ShardedSource& source, const at::Tensor& placeholder,
                     const dist::SpreadModel& model, const dist::SpreadParameter& one,
                     std::int64_t first, std::int64_t rows);

// Reads weights of which a file has parts: each rank its rows, which the others then get from it.
class SharedReading {
 public:
  // device: where ranks speak to each other. spread: over which the model is; null: it is not.
  SharedReading(std::shared_ptr<const checkpoint::ShardedSource> source, dist::Communicator& world,
                at::Device device, const dist::SpreadModel* spread = nullptr)
      : source_(std::move(source)), world_(world), device_(device), spread_(spread) {}

  // Reads this rank's rows, and what is not worth a message whole.
  void read(const Copies& copies);
  // Sends them to all that have the same. A collective. Throws c10::Error on every rank when ranks
  // have read others.
  void exchange();

 private:
  static bool is_cut(const at::Tensor& tensor, const dist::Communicator& group) {
    return group.size() > 1 && tensor.numel() > 0 && tensor.dim() > 0 &&
           tensor.size(0) >= group.size();
  }
  void exchange(const Copies& all_rows, dist::Communicator& group) const;
  // Whether all ranks read the same, before any of them waits for another's rows.
  void agree();

  std::shared_ptr<const checkpoint::ShardedSource> source_;
  dist::Communicator& world_;
  at::Device device_;
  const dist::SpreadModel* spread_;
  Copies rows_;                // the whole tensor and this rank's rows of it
  Copies rows_of_part_;        // the same of this rank's part of a spread parameter
  tutti::detail::Xxh64 read_;  // types and whole sizes
};

}  // namespace detail

/// The whole run as a checkpoint keeps it; a collective. Tensors are shared with the run.
///
/// saver: the options' own, whose list the checkpoint keeps; null: none. parts: set, the snapshot
/// has only this rank's parts of what is sharded, and of random streams, and this lists them, see
/// to_sharded(); null: all of it, on every rank.
checkpoint::Snapshot collect(const PolicyStates& policies, const State& state, const Run& run,
                             const checkpoint::Saver* saver, const SaveOptions& options,
                             checkpoint::PartPlaces* parts = nullptr);

/// Puts the run where a checkpoint left it: weights, optimizers, schedule, policies, time, random
/// streams. The generators of LibTorch are set just before the next training batch.
///
/// saver: the options' own, which takes its list back; null: none.
/// Returns what was taken and what not. Throws c10::Error on every rank when the checkpoint is
/// damaged or does not fit, saying what differs.
RunLoadReport load_checkpoint(const std::string& path, const PolicyStates& policies, State& state,
                              Run& run, checkpoint::Saver* saver, const LoadOptions& options);

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/checkpointing.inl.hpp>
#endif
