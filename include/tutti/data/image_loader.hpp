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

namespace tutti {

TUTTI_INLINE void ImageLoader::start(std::int64_t epoch, std::int64_t first_batch) {
  ahead_.clear();
  loader_.start(epoch, first_batch);
  epoch_ = epoch;
  position_ = first_batch;
}

TUTTI_INLINE std::optional<Batch> ImageLoader::next() {
  const std::int64_t workers = options_.num_workers;
  if (ahead_.size() == 0) {
    loader_.start(epoch_, position_);  // a copy has drawn nothing ahead
  }
  ++position_;
  if (workers == 0) {
    const auto one = work();
    return one ? hand_over((*one)()) : std::nullopt;
  }
  while (ahead_.size() < workers * options_.prefetch_factor) {
    auto one = work();
    if (!one) {
      break;
    }
    ahead_.submit(workers, [one = std::move(*one)] {
      const detail::OneThread one_thread;
      return one();
    });
  }
  return ahead_.size() > 0 ? hand_over(ahead_.take()) : std::nullopt;
}

TUTTI_INLINE void ImageLoader::shard(std::int64_t rank, std::int64_t world_size) {
  ahead_.clear();
  loader_.shard(rank, world_size);
}

TUTTI_INLINE void ImageLoader::follow_seed(std::uint64_t seed) {
  if (!options_.seed) {
    ahead_.clear();
    seed_ = seed;
    loader_.follow_seed(seed);
  }
}

TUTTI_INLINE Batch ImageLoader::number(Batch dataset) {
  const at::Tensor images = dataset.inputs();
  TUTTI_CHECK_VALUE(images.dim() == 4 && images.scalar_type() == at::kByte && images.is_cpu(),
                    "ImageLoader: the images are ", images.scalar_type(), images.sizes(), " on ",
                    images.device(),
                    "; expected uint8 [N, C, H, W] on the CPU (for others take TensorLoader)");
  dataset[index_key] = at::arange(images.size(0), at::TensorOptions().dtype(at::kLong));
  return dataset;
}

TUTTI_INLINE TensorLoaderOptions ImageLoader::loader_options() const {
  return {.batch_size = options_.batch_size,
          .shuffle = options_.shuffle,
          .drop_last = options_.drop_last,
          .seed = options_.seed,
          .pin_memory = options_.pin_memory && !options_.to_float};  // the bytes are the batch
}

TUTTI_INLINE void ImageLoader::check_workers() const {
  TUTTI_CHECK_VALUE(options_.num_workers >= 0 && options_.prefetch_factor >= 1,
                    "ImageLoader: num_workers is ", options_.num_workers, " and prefetch_factor ",
                    options_.prefetch_factor, ", expected 0 or more and 1 or more");
}

TUTTI_INLINE void ImageLoader::make_values() {
  const auto channels = static_cast<std::size_t>(loader_.dataset().inputs().size(1));
  const auto fits = [&](const std::vector<double>& values) {
    return values.empty() || (options_.to_float && values.size() == channels);
  };
  TUTTI_CHECK_VALUE(fits(options_.mean) && fits(options_.std), "ImageLoader: mean has ",
                    options_.mean.size(), " values and std ", options_.std.size(),
                    ", expected none, or with to_float one for each of ", channels, " channels");
  data::detail::ByteValues table;
  for (std::size_t channel = 0; options_.to_float && channel < channels; ++channel) {
    const auto mean = options_.mean.empty() ? 0.0F : static_cast<float>(options_.mean[channel]);
    const auto std = options_.std.empty() ? 1.0F : static_cast<float>(options_.std[channel]);
    TUTTI_CHECK_VALUE(std > 0, "ImageLoader: std is ", std, " in channel ", channel,
                      ", expected more than 0");
    auto& values = table.emplace_back();
    for (std::size_t byte = 0; byte < values.size(); ++byte) {
      values[byte] = (static_cast<float>(byte) / 255.0F - mean) / std;
    }
  }
  values_ = std::make_shared<const data::detail::ByteValues>(std::move(table));
}

TUTTI_INLINE std::optional<Batch> ImageLoader::hand_over(Prepared prepared) {
  repeated_ = prepared.repeated;
  return std::move(prepared.batch);
}

}  // namespace tutti

#endif
