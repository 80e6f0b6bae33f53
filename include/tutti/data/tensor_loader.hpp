// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/pinned.hpp>
#include <tutti/data/detail/rows.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/data/sampler.hpp>

namespace tutti {

/// Options of TensorLoader.
struct TensorLoaderOptions {
  std::int64_t batch_size = 32;  ///< examples per batch of this rank; >= 1
  bool shuffle = false;          ///< a new order every epoch; else the order of the tensors
  bool drop_last = false;        ///< leave out the last batch of an epoch when it is not full
  std::optional<std::uint64_t> seed{};      ///< of the order, the same on every rank; not set: the
                                            ///< Trainer's, 0 without one
  std::int64_t rank = 0;                    ///< this rank, 0 .. world_size - 1; a Trainer sets it
  std::int64_t world_size = 1;              ///< ranks that share the examples; a Trainer sets it
  bool pin_memory = false;                  ///< in page-locked memory, where there is a CUDA device
  std::function<Batch(Batch)> transform{};  ///< applied to every batch; empty: nothing
};

/// Batches out of tensors in memory.
///
///     tutti::TensorLoader train{images, labels, {.batch_size = 64, .shuffle = true}};
///
/// The order of an epoch depends on the seed and the epoch's number alone, so a run resumes inside
/// an epoch at once. Without shuffle on one rank a batch is a view of the tensors: a transform or
/// an algorithm that writes in place would write into the data set. With pin_memory on a machine
/// that has a CUDA device only a transform sees the view, and the batch is a copy of it unless the
/// tensors are in page-locked memory themselves.
class TensorLoader {
 public:
  /// dataset: tensors whose dimension 0 counts examples and is the same for all; tensors without
  /// dimensions go into every batch.
  /// Throws c10::Error when they disagree, c10::ValueError when an option is out of range.
  explicit TensorLoader(Batch dataset, TensorLoaderOptions options = {});
  TensorLoader(at::Tensor inputs, at::Tensor targets, TensorLoaderOptions options = {})
      : TensorLoader(Batch(std::move(inputs), std::move(targets)), std::move(options)) {}

  /// Begins an epoch at one of its batches. epoch, first_batch: >= 0.
  void start(std::int64_t epoch, std::int64_t first_batch = 0);

  /// The next batch, or nothing when the epoch is over.
  std::optional<Batch> next();

  /// Batches per epoch on this rank.
  [[nodiscard]] std::int64_t size() const {
    const std::int64_t short_of_full = options_.drop_last ? 0 : options_.batch_size - 1;
    return (sampler_.size() + short_of_full) / options_.batch_size;
  }

  /// Examples in a full batch.
  [[nodiscard]] std::int64_t batch_size() const { return options_.batch_size; }

  /// Examples in the tensors.
  [[nodiscard]] std::int64_t dataset_size() const { return sampler_.dataset_size(); }

  /// 1 when the last example of the batch given last is there only to make ranks equally long.
  [[nodiscard]] std::int64_t repeated() const { return repeated_; }

  /// Deals the examples to ranks. Throws c10::ValueError when the options named another rank.
  void shard(std::int64_t rank, std::int64_t world_size);

  /// Takes the run's seed unless the options have one, from the next start() on.
  void follow_seed(std::uint64_t seed);

  [[nodiscard]] const TensorLoaderOptions& options() const { return options_; }
  [[nodiscard]] const Batch& dataset() const { return dataset_; }

 private:
  [[nodiscard]] SamplerOptions sampler_options() const;

  void renew_sampler();

  [[nodiscard]] bool in_order() const { return !options_.shuffle && options_.world_size == 1; }

  [[nodiscard]] Batch slice(std::int64_t from, std::int64_t to) const;

  [[nodiscard]] Batch gather(std::int64_t from, std::int64_t to);

  Batch dataset_;
  TensorLoaderOptions options_;
  std::uint64_t seed_ = 0;  // what is used
  DistributedSampler sampler_;
  detail::BatchMemory memory_;
  std::int64_t next_ = 0;
  std::int64_t repeated_ = 0;
};

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE struct AnyLoader::Holder<TensorLoader>;
#endif

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE TensorLoader::TensorLoader(Batch dataset, TensorLoaderOptions options)
    : dataset_(std::move(dataset)),
      options_(std::move(options)),
      seed_(options_.seed.value_or(0)),
      sampler_(dataset_.num_samples(), sampler_options()) {
  TUTTI_CHECK_VALUE(options_.batch_size >= 1, "TensorLoader: batch_size is ", options_.batch_size,
                    ", expected 1 or more");
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
  renew_sampler();
}

TUTTI_INLINE void TensorLoader::follow_seed(std::uint64_t seed) {
  if (!options_.seed && seed != seed_) {
    seed_ = seed;
    renew_sampler();
  }
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
          .seed = seed_};
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

#endif
