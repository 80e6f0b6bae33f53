// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/sampler.hpp>

#include <algorithm>
#include <iterator>

#include <tutti/data/length_buckets.hpp>

namespace tutti {

TUTTI_INLINE std::int64_t data::rank_batch_size(std::int64_t global_batch_size, std::int64_t rank,
                                                std::int64_t world_size) {
  TUTTI_CHECK_VALUE(global_batch_size >= world_size, "a batch of ", global_batch_size,
                    " examples cannot be shared by ", world_size,
                    " ranks, expected one example or more for each");
  return global_batch_size / world_size + (rank < global_batch_size % world_size ? 1 : 0);
}

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
  if (options.global_batch_size != 0) {
    share_ = data::rank_batch_size(options.global_batch_size, options.rank, options.world_size);
  }
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

TUTTI_INLINE std::int64_t DistributedSampler::size_in_batches() const noexcept {
  const std::int64_t full = epoch_size() / options_.global_batch_size * share_;
  const std::int64_t tail = epoch_size() % options_.global_batch_size;
  if (options_.drop_last) {
    return full;
  }
  return full + std::min((tail + options_.world_size - 1) / options_.world_size, share_);
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
      const auto grouped = data::order_by_length(
          {from, static_cast<std::size_t>(epoch_size())}, *options_.lengths,
          {.batch_size = options_.global_batch_size > 0 ? options_.global_batch_size
                                                        : options_.batch_size * options_.world_size,
           .shuffle = options_.shuffle || options_.weighted,
           .seed = seed});
      std::copy(grouped.begin(), grouped.end(), from);
    }
  }
  drawn_ = order_.const_data_ptr<std::int64_t>();
  return drawn_;
}

}  // namespace tutti
