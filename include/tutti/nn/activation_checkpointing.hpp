// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/nn/unit.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

/// Activation checkpointing: memory for time.
namespace tutti::functional {

/// `run(x)`, of which only x is kept for the backward pass; there it is computed again.
///
/// block: the module whose parameters `run` uses; all of them that learn get their gradients. run:
/// maps x to one new tensor by `block`, and keeps what it needs alive. Gradients are those without
/// checkpointing, also with autocast and with dropout: types and the state of the default
/// generators are in the backward pass what they were in the forward pass. Without gradients it is
/// `run(x)`.
/// Throws c10::Error when a layer of `block` keeps masks of its own (GyroDropout), which a second
/// computation would advance; in the backward pass where gradients of gradients are asked for, or
/// where `run` uses a tensor that needs a gradient and is neither x nor a parameter of `block`.
/// Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016;
/// `torch.utils.checkpoint`.
at::Tensor checkpoint_activations(const torch::nn::Module& block,
                                  std::function<at::Tensor(const at::Tensor&)> run,
                                  const at::Tensor& x);

}  // namespace tutti::functional

namespace tutti::nn {

/// A module that the backward pass can compute a second time, so that its activations need not be
/// kept; a base class beside torch::nn::Module. Recompute finds it by its name.
///
/// nn::Block is one for blocks of models; nn::Sequential is one, too.
class Recomputable {
 public:
  virtual ~Recomputable();

  /// From now on only the input is kept for the backward pass, which computes the module a second
  /// time. No effect on numbers, nor without gradients.
  void set_activation_checkpointing(bool on) { checkpoints_ = on; }
  [[nodiscard]] bool activation_checkpointing() const { return checkpoints_; }

 protected:
  /// Returns `run(x)`, by functional::checkpoint_activations() where that is switched on.
  ///
  /// run: maps x to one new tensor by the module's parameters. It is copied and may be called long
  /// after forward() has returned: what is no member of the module is captured by value, and needs
  /// no gradient.
  template <class F>
  at::Tensor recomputed(const at::Tensor& x, F&& run) {
    return checkpoints_ ? checkpointed(std::forward<F>(run), x) : std::forward<F>(run)(x);
  }

 private:
  at::Tensor checkpointed(std::function<at::Tensor(const at::Tensor&)> run, const at::Tensor& x);

  bool checkpoints_ = false;
};

/// A block of a model, base class beside torch::nn::Module: a Unit that is Recomputable.
/// @code
///   struct BlockImpl : torch::nn::Module, tutti::nn::Block {
///     at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
///       return in_block(x, [this, mask](const at::Tensor& x) { return x + down(up(x) * mask); });
///     }
///     ...
///   };
/// @endcode
/// All blocks of tutti::models are such.
class Block : public Unit, public Recomputable {
 protected:
  /// in_unit() of what the backward pass may call again: captures are by value, see
  /// Recomputable::recomputed(). Parameters that are sharded come once in the backward pass, for
  /// the second computation and the gradients.
  template <class F>
  at::Tensor in_block(const at::Tensor& x, F&& run) {
    return in_unit(
        x, [&](const at::Tensor& input) { return recomputed(input, std::forward<F>(run)); });
  }
};

/// A model whose blocks can be checkpointed, base class of the language models.
class CheckpointsBlocks {
 public:
  virtual ~CheckpointsBlocks();

  /// From now on only the inputs of the blocks are kept for the backward pass, which computes each
  /// block a second time: much less memory, a third more time. No effect on numbers. Recompute does
  /// so for some of the blocks.
  void set_activation_checkpointing(bool on);

  /// Some block is checkpointed.
  [[nodiscard]] bool activation_checkpointing() const;
};

}  // namespace tutti::nn

#if TUTTI_BODIES
#include <tutti/nn/activation_checkpointing.inl.hpp>
#endif
