// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/one_thread.hpp>
#include <tutti/data/detail/ahead.hpp>
#include <tutti/data/detail/collate.hpp>
#include <tutti/data/detail/pinned.hpp>
#include <tutti/data/detail/to_batch.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/views/detail/dealt.hpp>
#include <tutti/views/examples.hpp>

namespace tutti::views {

/// Options of batch.
struct BatchOptions {
  std::int64_t size = 32;   ///< examples per batch of this rank; >= 1
  bool drop_last = false;   ///< leave out the last batch of an epoch when it is not full
  bool pin_memory = false;  ///< in page-locked memory, where there is a CUDA device
  std::function<Batch(std::vector<Batch> examples)> collate{};  ///< empty: stacks every tensor
};

/// The batches of a pipeline, a loader that a Trainer takes; made by batch and prefetch.
///
/// Examples are dealt to ranks here, unless views::shard did it, as DataLoader deals them. Copies
/// share what the pipeline began with, and have a place and threads of their own.
class Batches {
 public:
  /// One of the two is not empty: the examples with numbers, or one after the other.
  Batches(detail::Open<Batch, true> indexed, detail::Open<Batch, false> stream,
          BatchOptions options);

  /// Begins an epoch at one of its batches. epoch, first_batch: >= 0.
  ///
  /// Where a step has to make examples to know which to leave out, start(epoch, first_batch) reads
  /// again what comes before, and warns with the step's name and the number; see reads_again().
  void start(std::int64_t epoch, std::int64_t first_batch = 0);

  /// The next batch, or nothing when the epoch is over.
  ///
  /// Throws c10::Error, with the exception that caused it nested inside, when an example cannot be
  /// had or a batch not be put together; the next call goes on behind it.
  std::optional<Batch> next();

  /// Batches per epoch on this rank; -1: known at its end.
  [[nodiscard]] std::int64_t size() const;

  /// Examples in a full batch.
  [[nodiscard]] std::int64_t batch_size() const { return options_->size; }

  /// Examples of all ranks in an epoch; -1: known at its end.
  [[nodiscard]] std::int64_t dataset_size() const;

  /// 1 when the last example of the batch given last is there only to make ranks equally long.
  [[nodiscard]] std::int64_t repeated() const { return repeated_; }

  /// Examples that the last start() had to read to get to its batch; 0: it was there at once.
  [[nodiscard]] std::int64_t reads_again() const { return reads_again_; }

  /// Deals the examples to ranks.
  /// Throws c10::Error (ValueError) when a step cannot be dealt out, with its name.
  void shard(std::int64_t rank, std::int64_t world_size);

  /// The run's seed, for the steps that have none of their own, from the next start() on.
  void follow_seed(std::uint64_t seed) { pass_.seed = seed; }

  /// Batches prepared ahead by threads; see views::prefetch.
  [[nodiscard]] Batches prefetched(std::int64_t batches, std::int64_t threads) const;

  [[nodiscard]] const BatchOptions& options() const { return *options_; }

 private:
  struct Prepared {
    Batch batch;  // empty: the epoch is over
    std::int64_t repeated = 0;
  };

  // What is there of an epoch, of one kind or the other.
  struct Epoch {
    std::int64_t number = 0;
    std::shared_ptr<detail::Indexed<Batch>> indexed{};
    DistributedSampler share{0};                         // of indexed
    std::shared_ptr<detail::Stream<Batch>> stream{};     // dealt
    std::shared_ptr<detail::DealtStream<Batch>> ends{};  // the same where it was dealt here
    std::int64_t all = -1;                               // examples of all ranks
    std::int64_t own = -1;                               // of this one
    std::int64_t read = 0;                               // of stream
  };

  [[nodiscard]] std::shared_ptr<Epoch> open(std::int64_t number) const;
  [[nodiscard]] const Epoch& sizes() const;
  [[nodiscard]] std::int64_t batches_of(std::int64_t examples) const;
  [[nodiscard]] std::function<Prepared()> work(std::int64_t number) const;
  static Prepared prepare(Epoch& epoch, const BatchOptions& options, std::int64_t number);

  detail::Open<Batch, true> indexed_;
  detail::Open<Batch, false> stream_;
  std::shared_ptr<const BatchOptions> options_;
  std::int64_t ahead_batches_ = 0;
  std::int64_t threads_ = 0;
  detail::Pass pass_;
  std::shared_ptr<Epoch> epoch_;
  mutable std::shared_ptr<Epoch> sizes_;
  data::detail::Ahead<Prepared> ahead_;
  std::int64_t position_ = 0;  // the batch that next() gives
  std::int64_t repeated_ = 0;
  std::int64_t reads_again_ = 0;
};

namespace detail {

// Examples as Batch, whatever looks like one.
template <class T>
class IndexedBatches final : public Indexed<Batch> {
 public:
  explicit IndexedBatches(std::shared_ptr<Indexed<T>> of) : of_(std::move(of)) {}
  std::int64_t size() const override { return of_->size(); }
  Batch at(std::int64_t i) const override { return tutti::detail::to_batch(of_->at(i)); }

 private:
  std::shared_ptr<Indexed<T>> of_;
};

template <class T>
class StreamOfBatches final : public Over<Batch, T> {
 public:
  explicit StreamOfBatches(std::shared_ptr<Stream<T>> of) : Over<Batch, T>(std::move(of)) {}
  std::int64_t size() const override { return this->of_->size(); }
  std::optional<Batch> next() override {
    std::optional<T> element = this->of_->next();
    return element ? std::optional<Batch>(tutti::detail::to_batch(std::move(*element)))
                   : std::nullopt;
  }
  std::int64_t skip(std::int64_t n) override { return this->of_->skip(n); }
  void expect_stride(std::int64_t stride) override { this->of_->expect_stride(stride); }
};

template <class T>
inline constexpr bool is_example = tutti::detail::BatchLike<T>;

// The flow of any step, as batches of one example each.
template <class T, bool indexed>
Open<Batch, indexed> as_batches(Examples<T, indexed> of) {
  return [of = std::move(of)](Pass& pass) -> std::shared_ptr<Flow<Batch, indexed>> {
    using Made = std::conditional_t<indexed, IndexedBatches<T>, StreamOfBatches<T>>;
    return std::make_shared<Made>(of.open(pass));
  };
}

}  // namespace detail

/// Refuses elements that are no examples.
template <class T>
struct ExampleCheck {
  static_assert(detail::is_example<T>,
                "tutti: views::batch cannot put these elements together; map them to a "
                "tutti::Batch, a tensor, a pair of tensors, or a struct with data and target.");
};

/// Batches of `options.size` examples of one rank: a loader for a Trainer.
///
/// An example is a Batch without the dimension that counts examples, a tensor, a pair of tensors or
/// a struct with `data` and `target`.
/// Throws c10::ValueError when the size is 0 or negative.
inline auto batch(BatchOptions options) {
  TUTTI_CHECK_VALUE(options.size >= 1, "views::batch: size is ", options.size,
                    ", expected 1 or more");
  return detail::step([options = std::move(options)](auto&& range) {
    auto of = detail::examples(std::forward<decltype(range)>(range));
    using T = detail::value_of<decltype(of)>;
    static_assert(sizeof(ExampleCheck<T>) > 0);
    if constexpr (!detail::is_example<T>) {
      return;
    } else if constexpr (detail::indexed_of<decltype(of)>) {
      return Batches(detail::as_batches(std::move(of)), nullptr, options);
    } else {
      return Batches(nullptr, detail::as_batches(std::move(of)), options);
    }
  });
}

/// The same with a size alone.
inline auto batch(std::int64_t size) {
  return batch(BatchOptions{.size = size});
}

}  // namespace tutti::views

#if TUTTI_BODIES
#include <tutti/views/batch.inl.hpp>
#endif
