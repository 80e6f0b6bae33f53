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
  std::shared_ptr<const data::WeightedSampling> weighted{};  ///< Draws by weights instead.
};

/// Deals the examples of a data set to ranks like cards: rank r gets number r, r + world_size, ...
/// of the epoch's order, so that every rank gets equally many.
///
/// The order is a permutation seeded with seed + epoch, bit for bit that of PyTorch's
/// DistributedSampler, or 0, 1, 2, ... When the ranks do not divide the data set, examples from the
/// start of the order are repeated, or with drop_last the tail is left out. With lengths the order
/// is passed through data::order_by_length(). Positions can be asked for in any order, so that a
/// resumed run starts in the middle of an epoch at once.
class DistributedSampler {
 public:
  /// dataset_size: number of examples; >= 0.
  /// Throws c10::ValueError when a number is out of range.
  explicit DistributedSampler(std::int64_t dataset_size, const SamplerOptions& options = {});

  /// Examples per epoch on this rank, the same on all ranks.
  std::int64_t size() const noexcept {
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
    return position * options_.world_size + options_.rank;
  }

 private:
  /// The order is another one than 0, 1, 2, ...
  bool has_order() const noexcept { return options_.shuffle || options_.weighted || has_lengths(); }
  bool has_lengths() const noexcept { return options_.lengths && !options_.lengths->empty(); }
  const std::int64_t* order() const;
  void refuse(std::int64_t position) const;

  std::int64_t dataset_size_;
  SamplerOptions options_;
  std::int64_t epoch_ = 0;
  mutable at::Tensor order_;  // (epoch_size), int64; undefined until it is needed
  mutable const std::int64_t* drawn_ = nullptr;  // its numbers
};

}  // namespace tutti

#if TUTTI_BODIES

#include <algorithm>
#include <iterator>

#include <tutti/data/length_buckets.hpp>

namespace tutti {

TUTTI_INLINE DistributedSampler::DistributedSampler(std::int64_t dataset_size,
                                                    const SamplerOptions& options)
    : dataset_size_(dataset_size), options_(options) {
  TUTTI_CHECK_VALUE(dataset_size >= 0, "DistributedSampler: dataset_size is ", dataset_size,
                    ", expected 0 or more");
  TUTTI_CHECK_VALUE(options.world_size >= 1, "DistributedSampler: world_size is ",
                    options.world_size, ", expected 1 or more");
  TUTTI_CHECK_VALUE(options.rank >= 0 && options.rank < options.world_size,
                    "DistributedSampler: rank is ", options.rank, ", expected 0 to ",
                    options.world_size - 1);
  if (has_lengths()) {
    TUTTI_CHECK_VALUE(std::ssize(*options.lengths) == dataset_size,
                      "DistributedSampler: there are ", options.lengths->size(),
                      " lengths, expected one for each of the ", dataset_size, " examples");
    TUTTI_CHECK_VALUE(options.batch_size >= 1, "DistributedSampler: batch_size is ",
                      options.batch_size, ", expected 1 or more");
  }
  if (options.weighted) {
    TUTTI_CHECK_VALUE(!options.shuffle,
                      "DistributedSampler: shuffle and weighted are both given; what is drawn by "
                      "weights comes in a random order, so leave shuffle out");
    options.weighted->validate(dataset_size);
  }
}

TUTTI_INLINE void DistributedSampler::set_epoch(std::int64_t epoch) {
  TUTTI_CHECK_VALUE(epoch >= 0, "DistributedSampler: epoch is ", epoch, ", expected 0 or more");
  if (epoch != epoch_) {
    epoch_ = epoch;
    order_.reset();
    drawn_ = nullptr;
  }
}

TUTTI_INLINE void DistributedSampler::refuse(std::int64_t position) const {
  TUTTI_CHECK_INDEX(false, "DistributedSampler: position is ", position, ", expected 0 to ",
                    size() - 1);
}

TUTTI_INLINE std::vector<std::int64_t> DistributedSampler::indices(std::int64_t position) const {
  TUTTI_CHECK_INDEX(position >= 0 && position <= size(), "DistributedSampler: position is ",
                    position, ", expected 0 to ", size());
  std::vector<std::int64_t> result;
  result.reserve(static_cast<std::size_t>(size() - position));
  for (; position < size(); ++position) {
    result.push_back((*this)[position]);
  }
  return result;
}

TUTTI_INLINE const std::int64_t* DistributedSampler::order() const {
  if (!order_.defined()) {
    const std::uint64_t seed = options_.seed + static_cast<std::uint64_t>(epoch_);
    const auto type = at::TensorOptions().dtype(at::kLong);
    if (options_.weighted) {
      order_ = options_.weighted->draw(seed);
    } else if (options_.shuffle) {
      order_ = at::randperm(dataset_size_, at::detail::createCPUGenerator(seed), type);
    } else {
      order_ = at::arange(dataset_size_, type);
    }
    if (has_lengths()) {
      auto* from = order_.mutable_data_ptr<std::int64_t>();
      const auto grouped =
          data::order_by_length({from, static_cast<std::size_t>(epoch_size())}, *options_.lengths,
                                {.batch_size = options_.batch_size * options_.world_size,
                                 .shuffle = options_.shuffle || options_.weighted,
                                 .seed = seed});
      std::copy(grouped.begin(), grouped.end(), from);
    }
  }
  drawn_ = order_.const_data_ptr<std::int64_t>();
  return drawn_;
}

}  // namespace tutti

#endif
