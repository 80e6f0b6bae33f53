// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/tensor_loader.hpp>

#include <utility>

namespace tutti {

TUTTI_INLINE TensorLoader::TensorLoader(Batch dataset, TensorLoaderOptions options)
    : dataset_(std::move(dataset)),
      options_(std::move(options)),
      seed_(options_.seed.value_or(0)),
      sampler_(dataset_.num_samples(), sampler_options()) {
  set_batch_size(options_.batch_size);
}

TUTTI_INLINE void TensorLoader::start(std::int64_t epoch, std::int64_t first_batch) {
  TUTTI_CHECK_VALUE(first_batch >= 0, "TensorLoader: first_batch is ", first_batch,
                    ", expected 0 or more");
  sampler_.set_epoch(epoch);
  next_ = first_batch;
}

TUTTI_INLINE std::optional<Batch> TensorLoader::next() {
  if (next_ >= size()) {
    return std::nullopt;
  }
  const std::int64_t from = next_++ * options_.batch_size;
  const std::int64_t to = std::min(from + options_.batch_size, sampler_.size());
  repeated_ = sampler_.is_repeated(to - 1) ? 1 : 0;
  Batch batch = in_order() ? slice(from, to) : gather(from, to);
  if (options_.transform) {
    batch = options_.transform(std::move(batch));
  }
  return options_.pin_memory ? data::detail::pinned(std::move(batch)) : std::move(batch);
}

TUTTI_INLINE void TensorLoader::shard(std::int64_t rank, std::int64_t world_size) {
  const bool free = options_.world_size == 1;
  TUTTI_CHECK_VALUE(free || (options_.rank == rank && options_.world_size == world_size),
                    "TensorLoader: its options say rank ", options_.rank, " of ",
                    options_.world_size, ", the run says rank ", rank, " of ", world_size,
                    "; leave them out");
  options_.rank = rank;
  options_.world_size = world_size;
  if (global_batch_size_ > 0) {
    set_global_batch_size(global_batch_size_);
  } else {
    renew_sampler();
  }
}

TUTTI_INLINE void TensorLoader::follow_seed(std::uint64_t seed) {
  if (!options_.seed && seed != seed_) {
    seed_ = seed;
    renew_sampler();
  }
}

TUTTI_INLINE void TensorLoader::set_batch_size(std::int64_t batch_size) {
  TUTTI_CHECK_VALUE(batch_size >= 1, "TensorLoader: batch_size is ", batch_size,
                    ", expected 1 or more");
  options_.batch_size = batch_size;
  if (std::exchange(global_batch_size_, 0) != 0) {
    renew_sampler();
  }
}

TUTTI_INLINE void TensorLoader::set_global_batch_size(std::int64_t global_batch_size) {
  options_.batch_size =
      data::rank_batch_size(global_batch_size, options_.rank, options_.world_size);
  global_batch_size_ = global_batch_size;
  renew_sampler();
}

TUTTI_INLINE void TensorLoader::renew_sampler() {
  const std::int64_t epoch = sampler_.epoch();
  sampler_ = DistributedSampler(sampler_.dataset_size(), sampler_options());
  sampler_.set_epoch(epoch);
}

TUTTI_INLINE SamplerOptions TensorLoader::sampler_options() const {
  return {.shuffle = options_.shuffle,
          .drop_last = options_.drop_last,
          .rank = options_.rank,
          .world_size = options_.world_size,
          .seed = seed_,
          .global_batch_size = global_batch_size_};
}

TUTTI_INLINE Batch TensorLoader::slice(std::int64_t from, std::int64_t to) const {
  Batch batch = dataset_;
  for (auto& [name, tensor] : batch) {
    if (tensor.dim() > 0) {
      tensor = tensor.narrow(0, from, to - from);
    }
  }
  return batch;
}

TUTTI_INLINE Batch TensorLoader::gather(std::int64_t from, std::int64_t to) {
  std::vector<std::int64_t> rows;
  rows.reserve(static_cast<std::size_t>(to - from));
  for (std::int64_t position = from; position < to; ++position) {
    rows.push_back(sampler_[position]);
  }
  const bool pins = data::detail::pins(options_.pin_memory);
  Batch batch = dataset_;
  for (auto& [name, tensor] : batch) {
    if (tensor.dim() > 0) {
      tensor = data::detail::take_rows(tensor, rows, memory_, pins);
    }
  }
  return batch;
}

}  // namespace tutti
