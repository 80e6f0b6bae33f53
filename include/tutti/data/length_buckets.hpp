// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

/// Batches of examples that are about equally long, so that little is padded.
namespace tutti::data {

/// Options of order_by_length().
struct LengthOrderOptions {
  std::int64_t batch_size = 1;  ///< examples in a batch of all ranks; >= 1
  std::int64_t window = 50;     ///< batches among whose examples lengths are compared; >= 1
  bool shuffle = false;         ///< batches come in a random order; else the longer ones of a
                                ///< window first
  std::uint64_t seed = 0;       ///< of that order
};

/// The same examples in an order in which neighbours, batch_size by batch_size, have similar
/// lengths.
///
/// order: numbers of examples, shuffled or not; lengths: of each example by its number. Each window
/// of `order` is sorted by length, the longest first, and cut into batches; with shuffle the
/// batches of all windows change places. The batch with the longest example comes first, so that a
/// lack of memory shows at once, and one that is not full comes last. It depends on nothing else,
/// so that it is the same on all ranks, and for any number of ranks whose batches together have
/// batch_size examples.
/// Throws c10::ValueError when an option is out of range, an example has no length or it is below
/// 0. Source: Hugging Face Transformers, `LengthGroupedSampler`.
std::vector<std::int64_t> order_by_length(std::span<const std::int64_t> order,
                                          std::span<const std::int64_t> lengths,
                                          const LengthOrderOptions& options);

/// Options of LengthBuckets.
struct LengthBucketsOptions {
  /// Where buckets begin, ascending: {128, 512} are those of lengths up to 127, of 128 to 511, and
  /// of 512 and more. Empty: one bucket.
  std::vector<std::int64_t> boundaries = {};
  /// Examples in a batch of each bucket, one more than boundaries; or one number for all. >= 1.
  std::vector<std::int64_t> batch_sizes = {32};
  bool drop_last = false;  ///< finish() leaves out batches that are not full

  /// The bucket of a length, 0 .. boundaries.size().
  [[nodiscard]] std::size_t bucket_of(std::int64_t length) const {
    return static_cast<std::size_t>(std::upper_bound(boundaries.begin(), boundaries.end(), length) -
                                    boundaries.begin());
  }

  /// The size of batches of a bucket.
  [[nodiscard]] std::size_t batch_size_of(std::size_t bucket) const {
    return static_cast<std::size_t>(batch_sizes.size() == 1 ? batch_sizes.front()
                                                            : batch_sizes.at(bucket));
  }

  /// Throws c10::ValueError naming an option that is out of range.
  void validate() const;
};

/// Examples in, batches of similar lengths out: for what comes one by one.
///
/// A batch comes out as soon as a bucket has enough, so that batches and their order depend on the
/// examples and their order alone. Source: TensorFlow, `tf.data.Dataset.bucket_by_sequence_length`.
template <class T>
class LengthBuckets {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit LengthBuckets(LengthBucketsOptions options) : options_(std::move(options)) {
    options_.validate();
    buckets_.resize(options_.boundaries.size() + 1);
  }

  /// Takes an example of `length`, >= 0; returns the batch that it fills, if any.
  /// Throws c10::ValueError for another length.
  std::optional<std::vector<T>> push(T example, std::int64_t length) {
    TUTTI_CHECK_VALUE(length >= 0, "LengthBuckets: an example has the length ", length,
                      ", expected 0 or more");
    const std::size_t which = options_.bucket_of(length);
    std::vector<T>& bucket = buckets_[which];
    bucket.push_back(std::move(example));
    return bucket.size() < options_.batch_size_of(which) ? std::nullopt
                                                         : std::optional(std::exchange(bucket, {}));
  }

  /// What is left, a batch for each bucket that has some, the short ones first. None with
  /// drop_last. The buckets are empty then.
  std::vector<std::vector<T>> finish() {
    std::vector<std::vector<T>> out;
    for (std::vector<T>& bucket : buckets_) {
      std::vector<T> rest = std::exchange(bucket, {});
      if (!rest.empty() && !options_.drop_last) {
        out.push_back(std::move(rest));
      }
    }
    return out;
  }

  [[nodiscard]] const LengthBucketsOptions& options() const { return options_; }

 private:
  LengthBucketsOptions options_;
  std::vector<std::vector<T>> buckets_{};
};

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/length_buckets.inl.hpp>
#endif
