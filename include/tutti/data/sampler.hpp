// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randperm.h>
#include <c10/util/Exception.h>

#include <tutti/data/weighted_sampling.hpp>

/// Which examples of a data set a rank sees in an epoch, and in which order.

namespace tutti {

/// Options of DistributedSampler.
struct SamplerOptions {
  bool shuffle = false;         ///< A new order every epoch; else 0, 1, 2, ...
  bool drop_last = false;       ///< Drop the tail that does not fill all ranks; else repeat some.
  std::int64_t rank = 0;        ///< This rank, 0 .. world_size - 1.
  std::int64_t world_size = 1;  ///< Number of ranks; >= 1.
  std::uint64_t seed = 0;       ///< The same on every rank.
  /// Of every example: those of a batch get similar ones, see data::order_by_length(). Null or
  /// empty: lengths do not matter.
  std::shared_ptr<const std::vector<std::int64_t>> lengths{};
  std::int64_t batch_size = 1;  ///< With lengths: examples in a batch of a rank; >= 1.
  /// Examples of all ranks in a batch, of which the ranks get shares: see data::rank_batch_size().
  /// 0: the epoch is dealt without batches; else >= world_size.
  std::int64_t global_batch_size = 0;
  std::shared_ptr<const data::WeightedSampling> weighted{};  ///< Draws by weights instead.
};

namespace data {

/// Examples of `rank` in a batch of global_batch_size examples that world_size ranks share: the
/// first global_batch_size % world_size ranks have one more than the others.
/// Throws c10::ValueError when a rank would have none.
std::int64_t rank_batch_size(std::int64_t global_batch_size, std::int64_t rank,
                             std::int64_t world_size);

}  // namespace data

/// Deals the examples of a data set to ranks like cards: rank r gets number r, r + world_size, ...
/// of the epoch's order, so that every rank gets equally many.
///
/// The order is a permutation seeded with seed + epoch, bit for bit that of PyTorch's
/// DistributedSampler, or 0, 1, 2, ... When the ranks do not divide the data set, examples from the
/// start of the order are repeated, or with drop_last the tail is left out. With lengths the order
/// is passed through data::order_by_length(). With global_batch_size each batch of the order is
/// dealt anew, from rank 0 on, so that its examples are the same for any number of ranks; a last
/// batch that is not full is filled up until all ranks have equally many, or with drop_last left
/// out. Positions can be asked for in any order, so that a
/// resumed run starts in the middle of an epoch at once.
class DistributedSampler {
 public:
  /// dataset_size: number of examples; >= 0.
  /// Throws c10::ValueError when a number is out of range.
  explicit DistributedSampler(std::int64_t dataset_size, const SamplerOptions& options = {});

  /// Examples per epoch on this rank; without global_batch_size the same on all ranks.
  std::int64_t size() const noexcept {
    if (options_.global_batch_size > 0) {
      return size_in_batches();
    }
    const std::int64_t world = options_.world_size;
    const std::int64_t dealt = options_.drop_last ? epoch_size() : epoch_size() + world - 1;
    return world == 1 ? dealt : dealt / world;
  }

  /// Examples per epoch of all ranks: dataset_size(), or what is drawn by weights.
  std::int64_t epoch_size() const noexcept {
    return options_.weighted ? options_.weighted->size() : dataset_size_;
  }

  std::int64_t dataset_size() const noexcept { return dataset_size_; }
  const SamplerOptions& options() const noexcept { return options_; }

  /// Chooses the order of `epoch` (>= 0). Costs nothing until an index is asked for.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const noexcept { return epoch_; }

  /// The example at `position` (0 .. size() - 1) of this rank's epoch: 0 .. dataset_size - 1.
  std::int64_t operator[](std::int64_t position) const {
    if (position < 0 || position >= size()) {
      refuse(position);
    }
    const std::int64_t all = epoch_size();
    const std::int64_t place = turn_of(position);
    const std::int64_t turn = place < all ? place : place % all;  // a division takes long
    return !has_order() ? turn : drawn_ != nullptr ? drawn_[turn] : order()[turn];
  }

  /// This rank's examples from `position` (0 .. size()) to the end of the epoch.
  std::vector<std::int64_t> indices(std::int64_t position = 0) const;

  /// The examples of another epoch; the chosen epoch stays.
  std::vector<std::int64_t> indices_for(std::int64_t epoch) const {
    DistributedSampler other(dataset_size_, options_);
    other.set_epoch(epoch);
    return other.indices();
  }

  /// Whether the example at `position` is a repetition, which an exact evaluation leaves out.
  bool is_repeated(std::int64_t position) const noexcept {
    return turn_of(position) >= epoch_size();
  }

  /// The place in the order of all ranks of this rank's `position`; epoch_size() and more where
  /// examples are repeated.
  std::int64_t turn_of(std::int64_t position) const noexcept {
    if (options_.global_batch_size > 0) {
      const std::int64_t batch = position / share_ * options_.global_batch_size;
      return batch + position % share_ * options_.world_size + options_.rank;
    }
    return position * options_.world_size + options_.rank;
  }

 private:
  /// The order is another one than 0, 1, 2, ...
  bool has_order() const noexcept { return options_.shuffle || options_.weighted || has_lengths(); }
  bool has_lengths() const noexcept { return options_.lengths && !options_.lengths->empty(); }
  const std::int64_t* order() const;
  void refuse(std::int64_t position) const;
  std::int64_t size_in_batches() const noexcept;

  std::int64_t dataset_size_;
  SamplerOptions options_;
  std::int64_t share_ = 0;  // of this rank in a global batch; 0: there is none
  std::int64_t epoch_ = 0;
  mutable at::Tensor order_;  // (epoch_size), int64; undefined until it is needed
  mutable const std::int64_t* drawn_ = nullptr;  // its numbers
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/data/sampler.inl.hpp>
#endif
