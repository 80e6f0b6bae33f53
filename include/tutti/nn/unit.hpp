// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

#include <tutti/core/detail/unit_slot.hpp>

namespace tutti::nn {

/// A part of a model whose parameters travel together when they are sharded over ranks; a base
/// class beside torch::nn::Module.
/// @code
///   struct BlockImpl : torch::nn::Module, tutti::nn::Unit {
///     at::Tensor forward(const at::Tensor& x) {
///       return in_unit(x, [&](const at::Tensor& x) { return x + down(up(x).relu()); });
///     }
///     ...
///   };
/// @endcode
/// With ShardStage::parameters the unit's parameters are there from the beginning of in_unit() to
/// its end, and again while gradients go through it; at other times their memory is given back.
/// Take as a unit what is repeated and large: a block of a transformer. What belongs to no unit is
/// always there. A unit may contain others; a parameter belongs to the innermost that has all of
/// its uses. All blocks of tutti::models are units. Without sharding in_unit() is a call of `run`.
/// Source: PyTorch's `torch.distributed.fsdp.fully_shard`, which is called on such modules.
class Unit : public ::tutti::detail::UnitSlot {
 protected:
  /// Returns `run(x)`.
  ///
  /// x: what the block's input mainly is. Other inputs come by capture; gradients of those that
  /// need any are complete once that of x is. run: maps x to one tensor by the unit's parameters,
  /// and uses these nowhere else.
  template <class F>
  at::Tensor in_unit(const at::Tensor& x, F&& run) {
    ::tutti::detail::UnitHolder* const held = holder();
    if (held == nullptr) {
      return std::forward<F>(run)(x);
    }
    return held->leave(std::forward<F>(run)(held->enter(x)));
  }
};

}  // namespace tutti::nn
