// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

/// What a training loop asks of data-parallel training, as an interface that costs no more than
/// the tensor header. `dist/ddp.hpp` implements it.

namespace tutti::dist {

/// When gradients of several microbatches are averaged over the ranks.
enum class SyncStrategy {
  single_auto_sync,  ///< In the last microbatch's backward pass; the others stay local.
  multi_auto_sync,   ///< In every backward pass.
  forced_sync,       ///< After the last backward pass, outside of it; see `all_reduce_gradients`.
};

/// "single_auto_sync", "multi_auto_sync", "forced_sync".
constexpr std::string_view to_string(SyncStrategy strategy) {
  switch (strategy) {
    case SyncStrategy::single_auto_sync:
      return "single_auto_sync";
    case SyncStrategy::multi_auto_sync:
      return "multi_auto_sync";
    case SyncStrategy::forced_sync:
      return "forced_sync";
  }
  return "unknown";
}

/// What is sent of the gradients. All but `none` change them; the parameters stay equal on all
/// ranks.
enum class GradientCompression {
  none,
  fp16,       ///< Halves: the mean of the gradients divided by the ranks, in float16.
  bf16,       ///< The same in bfloat16: fewer digits, no overflow.
  power_sgd,  ///< Two thin factors of each matrix; see PowerSGDOptions.
};

/// "none", "fp16", "bf16", "power_sgd".
constexpr std::string_view to_string(GradientCompression compression) {
  switch (compression) {
    case GradientCompression::none:
      return "none";
    case GradientCompression::fp16:
      return "fp16";
    case GradientCompression::bf16:
      return "bf16";
    case GradientCompression::power_sgd:
      return "power_sgd";
  }
  return "unknown";
}

/// Options of GradientCompression::power_sgd; the defaults are PyTorch's.
///
/// A gradient of n rows and m columns is sent as (n + m) * rank numbers; what that leaves out is
/// added to the next gradient.
struct PowerSGDOptions {
  std::int64_t rank = 1;  ///< Of the factors; >= 1. More: closer, and more is sent.
  /// Averaged passes that come before, with gradients as they are; >= 2.
  std::int64_t start_iteration = 1000;
  double min_compression_rate = 2;  ///< Matrices that become smaller by less stay as they are; > 0.
  bool error_feedback = true;       ///< Add what was left out to the next gradient.
  bool warm_start = true;           ///< Begin with the factors of the step before.
  std::uint64_t seed = 0;           ///< Of the first factors; the same on all ranks.
};

/// Options of `dist::wrap`; the defaults are PyTorch's.
struct DataParallelOptions {
  /// None: single_auto_sync, or multi_auto_sync with find_unused_parameters or static_graph.
  std::optional<SyncStrategy> sync_strategy = std::nullopt;

  /// Some parameters get no gradient in some steps. Costs a walk over the graph in every step;
  /// without it such a step is an error.
  bool find_unused_parameters = false;

  /// Gradients are views of the buffers that are sent: saves one copy of the gradients. Clear them
  /// by `parameter.mutable_grad().reset()`; LibTorch's Optimizer::zero_grad() refuses views.
  bool gradient_as_bucket_view = false;

  /// Rank 0's buffers (BatchNorm's running statistics) are sent to all ranks before a forward.
  bool broadcast_buffers = true;

  /// MiB of gradients that travel together; > 0, at most 1e12. Smaller: earlier start, more
  /// messages.
  double bucket_cap_mb = 25;

  /// What is sent of the gradients; not with SyncStrategy::forced_sync.
  GradientCompression compression = GradientCompression::none;
  PowerSGDOptions power_sgd{};

  /// Every step uses the same parameters, each as often as in the first: unused ones are then found
  /// once, and a parameter may be reached several times, as with activation checkpointing. Every
  /// backward pass is averaged then, so neither another strategy nor NoSync goes with it.
  bool static_graph = false;

  SyncStrategy strategy() const {
    return sync_strategy.value_or(find_unused_parameters || static_graph
                                      ? SyncStrategy::multi_auto_sync
                                      : SyncStrategy::single_auto_sync);
  }
};

/// A model whose gradients are averaged over all ranks while the loop runs:
/// @code
///   for each microbatch:
///     parallel->before_forward(is_last);
///     loss = ...;                              // the model itself is called as usual
///     parallel->before_backward(loss);
///     loss.backward();                         // parallel->explain(error) when it throws
///     parallel->after_backward();
/// @endcode
/// All ranks make the same calls in the same order.
class DataParallel {
 public:
  DataParallel() = default;
  virtual ~DataParallel() = default;
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Decides whether this microbatch's gradients are averaged, and sends rank 0's buffers.
  ///
  /// last: this is the last microbatch before the optimizer's step.
  virtual void before_forward(bool last) = 0;

  /// Arms the averaging. loss: what `backward` is called on; the parameters it does not reach
  /// are the unused ones of find_unused_parameters.
  virtual void before_backward(const at::Tensor& loss) = 0;

  /// Averages what the strategy has left to the end.
  virtual void after_backward() = 0;

  /// Brings to this rank what the optimizer's step has changed on others: call it behind the step.
  virtual void after_step() {}

  /// Sends rank 0's buffers to all ranks now: before an evaluation, so that all ranks evaluate
  /// the same model.
  virtual void broadcast_buffers() = 0;

  /// Forgets a forward or backward pass that failed half-way, so that the next can start. Only
  /// safe when no rank has sent gradients of it, which `forced_sync` guarantees.
  virtual void reset() = 0;

  /// Whether ranks wait for each other in every pass, not in the last of a step alone: all of them
  /// need as many.
  [[nodiscard]] virtual bool meets_in_every_pass() const { return false; }

  /// Says what a failed backward pass means when it failed in an averaging of gradients.
  ///
  /// error: what `backward` threw.
  /// Throws c10::Error that names this rank, the call, the timeout and `error` when another rank is
  /// gone or did not answer; returns when `error` is this rank's own.
  virtual void explain(const std::exception& error) const { static_cast<void>(error); }

  /// Whether gradients are averaged at all; false accumulates local gradients, which the next
  /// averaged backward pass then includes. See NoSync.
  void require_sync(bool required) noexcept { required_ = required; }
  bool requires_sync() const noexcept { return required_; }

 private:
  bool required_ = true;
};

/// Keeps gradients local while it lives, as PyTorch's `no_sync()`: for the first closure of SAM.
class NoSync final {
 public:
  /// parallel: may be null, in a run of one process; must outlive this.
  explicit NoSync(DataParallel* parallel)
      : parallel_(parallel), before_(parallel != nullptr && parallel->requires_sync()) {
    if (parallel_ != nullptr) {
      parallel_->require_sync(false);
    }
  }
  ~NoSync() {
    if (parallel_ != nullptr) {
      parallel_->require_sync(before_);
    }
  }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  DataParallel* parallel_;
  bool before_;
};

}  // namespace tutti::dist
