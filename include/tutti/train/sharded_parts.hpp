// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/checkpoint/module_state.hpp>
#include <tutti/checkpoint/shard_layout.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/dist/spread_model.hpp>

/// What a rank of a run whose model is sharded, or spread over ranks, gives to a sharded checkpoint
/// and takes from one.
namespace tutti::train {

/// Where rows of what this rank has of a spread parameter belong. first, rows: in its part, of
/// dimension 0. None where it has no element.
std::vector<checkpoint::PartPlace> places_of_rows(const dist::SpreadModel& model,
                                                  const dist::SpreadParameter& one,
                                                  std::int64_t first, std::int64_t rows);

/// Says where the parts of parameters belong. Of several copies of the model the ranks of the first
/// one write.
class PartWriter {
 public:
  explicit PartWriter(const State& state);

  /// Lists, if this rank is to write it, what it has of a tensor that is shaped as a parameter
  /// under `path`. parameter: the model's own tensor. part: its rows from `first` on. Returns what
  /// a tree is to hold of it.
  [[nodiscard]] at::Tensor note(const at::Tensor& parameter, std::int64_t first,
                                const at::Tensor& part, const std::string& path,
                                checkpoint::PartPlaces& parts) const;

  /// The same of a sharded one. part: shaped as its shard.
  [[nodiscard]] at::Tensor note(const dist::ShardedParameter& one, const at::Tensor& part,
                                const std::string& path, checkpoint::PartPlaces& parts) const {
    return note(one.whole, one.first, part, path, parts);
  }

 private:
  const dist::SpreadModel* spread_;
  bool writes_;
};

/// Puts what this rank has of the model's parameters into the archive, and on rank 0 all other
/// tensors of the model; as checkpoint::save_module() where every rank has all. The paths in
/// `parts` begin with "model/".
void save_model_parts(const State& state, Archive& archive, checkpoint::PartPlaces& parts);

/// Replaces this rank's parts of parameters, which `archive`, of the run's state, has under their
/// names, by what they are parts of; a collective. parts: set, they stay, and this lists them.
void save_policy_parts(const State& state, Archive& archive, checkpoint::PartPlaces* parts);

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/sharded_parts.inl.hpp>
#endif
