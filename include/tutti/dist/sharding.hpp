// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/dist/communicator.hpp>
#include <tutti/dist/data_parallel.hpp>

/// What a training loop asks of sharded data-parallel training, as an interface that costs no more
/// than the tensor header. `dist/sharded.hpp` implements it.

namespace tutti::dist {

/// What each rank keeps only its part of; each stage includes those before it.
enum class ShardStage : std::uint8_t {
  none,        ///< nothing: every rank keeps all
  optimizer,   ///< the optimizer's state (ZeRO-1)
  gradients,   ///< gradients, too (ZeRO-2; FSDP's SHARD_GRAD_OP)
  parameters,  ///< parameters, too (ZeRO-3; FSDP's FULL_SHARD)
};

/// "none", "optimizer", "gradients", "parameters".
constexpr std::string_view to_string(ShardStage stage) {
  constexpr std::string_view names[] = {"none", "optimizer", "gradients", "parameters"};
  return names[static_cast<std::size_t>(stage)];
}

/// How a model is sharded. All ranks have the same.
struct ShardingOptions {
  ShardStage stage = ShardStage::none;

  /// Ranks that share one copy of the model; 0: all. Less than all, which it has to divide: copies
  /// are kept equal by averaging their gradients (hybrid sharding). Ranks of a copy are neighbours:
  /// rank = copy * shard_degree + part.
  int shard_degree = 0;

  /// Names of modules that are units though they are no nn::Unit, as the blocks of a model that
  /// nobody can change: globs, as "layers.*", of which each counts for the outermost modules that
  /// it matches. An operator that reads their parameters brings them, and the last two units that
  /// were brought stay.
  std::vector<std::string> units{};

  /// Names of modules, or of parameters, that stay as they are, whole on every rank and in their
  /// own type, as buffers do: globs, as "teacher" or "*.table". Those of a module are all within
  /// it. None of them trains.
  std::vector<std::string> ignored{};

  /// With ShardStage::parameters a unit gives its memory back behind its forward pass, and gets it
  /// again for its gradients. With false it keeps it meanwhile: parameters travel once a pass where
  /// they travel twice, and every rank has all of them between the passes. With a number, which
  /// divides that of the ranks that share a copy, so many neighbours, as those of one machine, keep
  /// the unit together meanwhile and bring it for the gradients without the others. 1 is as false,
  /// the number of all ranks as true.
  std::variant<bool, int> reshard_after_forward = true;

  /// The type in which parameters compute and travel; none: their own. The parts that the optimizer
  /// has keep their own type.
  std::optional<at::ScalarType> param_dtype = std::nullopt;

  /// The type in which gradients are averaged, and added up over passes that are not averaged one
  /// by one; none: that in which parameters compute.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;

  /// The parts that this rank has of parameters, gradients and the optimizer's state are in the
  /// host's memory, where the optimizer steps; parts go to the device when the whole is gathered
  /// there, and averaged gradients come back. Below ShardStage::parameters the whole is there, too.
  bool cpu_offload = false;

  /// Gradients are averaged after the last backward pass and not while they are computed, so that
  /// no rank waits for one that failed there; not with ShardStage::parameters.
  bool reduce_at_end = false;

  /// The gradients of a unit are averaged while those of the unit before it are computed, for the
  /// memory of the unit's gradients and of a message as large. Without it: on GPUs, where the loop
  /// does not wait for a message; not on the CPU, which has to copy it.
  std::optional<bool> overlap_reduce = std::nullopt;
};

/// A parameter and this rank's part of it: rows of its dimension 0.
struct ShardedParameter {
  std::string name;    ///< in the model; the first one where it has several
  at::Tensor whole;    ///< the model's own tensor
  at::Tensor shard;    ///< [rows, ...], what the optimizer has; rows may be 0
  std::int64_t first;  ///< the first of these rows
};

/// Keeps the whole parameters in the model while it lives; see Sharding::summon().
class Summoned {
 public:
  Summoned() = default;
  Summoned(const Summoned&) = delete;
  Summoned& operator=(const Summoned&) = delete;
  virtual ~Summoned() = default;
};

/// A sharded model. The loop is DataParallel's with an optimizer over the shards of parameters(),
/// and after_step() behind its step.
class Sharding : public DataParallel {
 public:
  /// All parameters of the model, each once, also those that do not train; without those that
  /// ShardingOptions::ignored names.
  [[nodiscard]] virtual const std::vector<ShardedParameter>& parameters() const = 0;

  /// The part of a parameter of the model that the optimizer has; the tensor itself when it is no
  /// parameter of the model.
  [[nodiscard]] virtual at::Tensor shard_of(const at::Tensor& parameter) const = 0;

  /// The ranks that have one copy of the model together: norms over all gradients are sums over
  /// these.
  [[nodiscard]] virtual Communicator& shard_group() const = 0;

  /// The model always has its parameters whole, in their own type, also outside of summon().
  [[nodiscard]] virtual bool keeps_whole() const = 0;

  /// Ranks wait for each other in forward passes without gradients too, to gather parameters: all
  /// of them need as many.
  [[nodiscard]] virtual bool meets_in_forward() const = 0;

  /// Puts the whole parameters, in their own type, into the model; a collective. They may be read
  /// while the result lives; the model may run meanwhile without gradients, on any of the ranks.
  ///
  /// write_back: what they are at the end becomes the model's; every rank wrote the same. The
  /// destructor is a collective then.
  [[nodiscard]] virtual std::unique_ptr<Summoned> summon(bool write_back = false) = 0;

  /// This rank's part of a tensor shaped as `like.whole`, as the shard is laid out.
  [[nodiscard]] virtual at::Tensor part_of(const ShardedParameter& like,
                                           const at::Tensor& whole) const = 0;

  /// The whole of which every rank has such a part; a collective of shard_group().
  [[nodiscard]] virtual at::Tensor whole_of(const ShardedParameter& like,
                                            const at::Tensor& part) const = 0;
};

}  // namespace tutti::dist
