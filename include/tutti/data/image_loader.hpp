// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/detail/one_thread.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/ahead.hpp>
#include <tutti/data/detail/image_batches.hpp>
#include <tutti/data/detail/pinned.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/data/transforms.hpp>

namespace tutti {

/// Options of ImageLoader.
struct ImageLoaderOptions {
  std::int64_t batch_size = 32;  ///< examples per batch of this rank; >= 1
  bool shuffle = false;          ///< a new order every epoch; else the order of the images
  bool drop_last = false;        ///< leave out the last batch of an epoch when it is not full
  std::optional<std::uint64_t> seed{};  ///< of order and transforms, the same on every rank; not
                                        ///< set: the Trainer's, 0 without one
  data::Transforms transforms{};  ///< what is done to each image; policies add theirs at the end
  bool to_float = true;           ///< floats from 0 to 1; else the bytes as they are
  std::vector<double> mean{};     ///< subtracted, a value per channel; empty: nothing
  std::vector<double> std{};      ///< divided by then, a value per channel; empty: nothing
  std::int64_t num_workers = 0;   ///< threads that prepare batches ahead; 0: next() does it; >= 0
  std::int64_t prefetch_factor = 2;  ///< batches that are prepared ahead for each thread; >= 1
  bool pin_memory = false;           ///< in page-locked memory, where there is a CUDA device
};

/// Batches out of 8-bit images in memory, each image transformed on its own.
///
///     tutti::ImageLoader train{images, labels, {.batch_size = 128, .shuffle = true,
///                                               .mean = {0.49, 0.48, 0.45},
///                                               .std = {0.25, 0.24, 0.26}}};
///
/// Transforms run for several images at a time, or with num_workers for several batches ahead. What
/// they draw depends on the seed, the epoch and the image alone: a run gives the same batches with
/// any number of threads, and resumes inside an epoch at once. The trainer hands the list of
/// transforms to policies that augment single images.
class ImageLoader {
 public:
  /// dataset: inputs() is uint8 [N, C, H, W]; all tensors with dimensions have N examples.
  /// Throws c10::Error (ValueError) when that does not hold or an option is out of range.
  explicit ImageLoader(Batch dataset, ImageLoaderOptions options = {})
      : options_(std::move(options)),
        seed_(options_.seed.value_or(0)),
        loader_(number(std::move(dataset)), loader_options()) {
    check_workers();
    make_values();
  }
  ImageLoader(at::Tensor images, at::Tensor targets, ImageLoaderOptions options = {})
      : ImageLoader(Batch(std::move(images), std::move(targets)), std::move(options)) {}

  /// Begins an epoch at one of its batches. epoch, first_batch: >= 0.
  void start(std::int64_t epoch, std::int64_t first_batch = 0);

  /// The next batch, or nothing when the epoch is over. Its inputs are [n, C, H', W'], as the
  /// transforms left them, which must be one size for all of a batch.
  /// Throws c10::Error, with the image's number, when a transform throws; the next call goes on
  /// with the batch after it.
  std::optional<Batch> next();

  [[nodiscard]] std::int64_t size() const { return loader_.size(); }
  [[nodiscard]] std::int64_t batch_size() const { return loader_.batch_size(); }
  [[nodiscard]] std::int64_t dataset_size() const { return loader_.dataset_size(); }
  [[nodiscard]] std::int64_t repeated() const { return repeated_; }

  /// Deals the examples to ranks.
  void shard(std::int64_t rank, std::int64_t world_size);

  /// Takes the run's seed unless the options have one, from the next start() on.
  void follow_seed(std::uint64_t seed);

  /// What is done to each image.
  [[nodiscard]] data::Transforms& transforms() { return options_.transforms; }

  [[nodiscard]] const ImageLoaderOptions& options() const { return options_; }

 private:
  static constexpr const char* index_key = "tutti_example_index";

  // The data set with each example's number, which a batch then brings along.
  static Batch number(Batch dataset);

  [[nodiscard]] TensorLoaderOptions loader_options() const;

  void check_workers() const;

  // What becomes of each byte, channel by channel.
  void make_values();

  struct Prepared {
    Batch batch;
    std::int64_t repeated;
  };

  // The next batch's preparation, which any thread can do, also when the loader is gone.
  std::optional<std::function<Prepared()>> work() {
    std::optional<Batch> drawn = loader_.next();
    if (!drawn) {
      return std::nullopt;
    }
    data::detail::ImageBatches prepare{options_.transforms, seed_, epoch_ * dataset_size(), values_,
                                       data::detail::pins(options_.pin_memory)};
    return [drawn = std::move(*drawn), prepare = std::move(prepare),
            repeated = loader_.repeated()]() -> Prepared {
      Batch batch;
      for (const auto& [name, tensor] : drawn) {
        if (name != index_key) {
          batch[name] = tensor;
        }
      }
      batch.inputs() = prepare(batch.inputs(), drawn.at(index_key));
      return {prepare.pins ? data::detail::pinned(std::move(batch)) : std::move(batch), repeated};
    };
  }

  std::optional<Batch> hand_over(Prepared prepared);

  ImageLoaderOptions options_;
  std::uint64_t seed_;  // what is used
  TensorLoader loader_;
  std::shared_ptr<const data::detail::ByteValues> values_;
  data::detail::Ahead<Prepared> ahead_;
  std::int64_t epoch_ = 0;
  std::int64_t position_ = 0;  // the batch that next() gives
  std::int64_t repeated_ = 0;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/data/image_loader.inl.hpp>
#endif
