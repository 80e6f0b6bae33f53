// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

/// How an optimizer that looks at whole tensors steps where each rank has rows of them.

namespace tutti::optim {

/// The ranks that have one copy of the model together. Of a parameter with n rows, slices of its
/// dimension 0 (a scalar has one), rank r has those from r * c to (r + 1) * c, c = rows_of_rank(n);
/// the last ranks may have less or none. Its optimizer has these rows in place of the parameter.
///
/// sum() and exchange() are collectives: all ranks make the same calls in the same order, also for
/// parameters of which a rank has no row.
class Shards {
 public:
  Shards() = default;
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;
  virtual ~Shards() = default;

  [[nodiscard]] virtual int ranks() const = 0;
  [[nodiscard]] virtual int rank() const = 0;

  /// The rows that a rank has, but the last ones, of a parameter with so many.
  [[nodiscard]] std::int64_t rows_of_rank(std::int64_t rows) const {
    return (rows + ranks() - 1) / ranks();
  }

  /// The sizes of the whole parameter. shard: this rank's rows of it.
  /// Throws c10::Error for a tensor that is no rows of the model's.
  [[nodiscard]] virtual at::IntArrayRef whole_sizes(const at::Tensor& shard) const = 0;

  /// Replaces `values`, of the same shape and type on every rank, by their sum over the ranks.
  virtual void sum(const at::Tensor& values) const = 0;

  /// Gives parts[r] to rank r. parts: [ranks, ...], of the same shape and type on every rank,
  /// contiguous. Returns [ranks, ...]: what each rank gives to this one.
  [[nodiscard]] virtual at::Tensor exchange(const at::Tensor& parts) const = 0;
};

}  // namespace tutti::optim
