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

  /// Makes batches of another size, from the next start() on. Throws c10::ValueError below 1.
  void set_batch_size(std::int64_t batch_size);

  /// Makes batches of so many examples of all ranks together, from the next start() on, of which
  /// this rank has data::rank_batch_size(). Throws c10::ValueError below one for each rank.
  void set_global_batch_size(std::int64_t global_batch_size);

  /// Examples of all ranks in a full batch.
  [[nodiscard]] std::int64_t global_batch_size() const {
    return global_batch_size_ > 0 ? global_batch_size_ : options_.batch_size * options_.world_size;
  }

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
  std::uint64_t seed_ = 0;              // what is used
  std::int64_t global_batch_size_ = 0;  // that was set; 0: batches have one size on all ranks
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
#include <tutti/data/tensor_loader.inl.hpp>
#endif
