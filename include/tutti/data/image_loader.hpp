// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/detail/host_empty.hpp>
#include <tutti/core/detail/one_thread.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/ahead.hpp>
#include <tutti/data/detail/pinned.hpp>
#include <tutti/data/detail/thrown.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/data/transforms.hpp>

namespace tutti::data::detail {

// What becomes of each byte, by channel; empty: it stays a byte.
using ByteValues = std::vector<std::array<float, 256>>;

// The images of a batch on their way into it, one epoch's.
struct ImageBatches {
  Transforms transforms;
  std::uint64_t seed;
  std::int64_t before;  // images of the epochs before
  std::shared_ptr<const ByteValues> table;
  bool pins;  // what it makes is in page-locked memory

  // images: uint8 [n, C, H, W]. index: int64 [n], which images of the data set these are.
  // Returns [n, C, H', W'], floats unless the table is empty.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& images, const at::Tensor& index) const {
    if (transforms.empty() && table->empty()) {
      return images;
    }
    std::vector<at::Tensor> done(static_cast<std::size_t>(images.size(0)));
    const auto* example = index.const_data_ptr<std::int64_t>();
    ::tutti::detail::parallel_each(images.size(0), [&](std::int64_t i) {
      try {
        done[static_cast<std::size_t>(i)] =
            transforms(images.select(0, i), static_cast<std::uint64_t>(before + example[i]), seed);
      } catch (...) {
        throw_over("ImageLoader: image " + std::to_string(example[i]) +
                   " of the data set cannot be transformed: ");
      }
    });
    return stack(done, images.size(1));
  }

 private:
  [[nodiscard]] at::Tensor stack(const std::vector<at::Tensor>& images,
                                 std::int64_t channels) const {
    const at::Tensor& first = images.front();
    for (const at::Tensor& image : images) {
      TUTTI_CHECK(image.sizes() == first.sizes() && image.scalar_type() == at::kByte &&
                      image.dim() == 3 && image.size(0) == channels,
                  "ImageLoader: after its transforms an image is ", image.scalar_type(),
                  image.sizes(), " and the batch's first ", first.scalar_type(), first.sizes(),
                  "; expected uint8 with ", channels, " channels and one size for all");
    }
    std::vector<std::int64_t> shape = first.sizes().vec();
    shape.insert(shape.begin(), std::ssize(images));
    const at::ScalarType type = table->empty() ? at::kByte : at::kFloat;
    at::Tensor out = pins ? pinned_empty(shape, type) : ::tutti::detail::host_empty(shape, type);
    ::tutti::detail::parallel_each(std::ssize(images), [&](std::int64_t i) {
      const at::Tensor image = images[static_cast<std::size_t>(i)].contiguous();
      if (table->empty()) {
        out.select(0, i).copy_(image);
      } else {
        look_up(image, out.select(0, i));
      }
    });
    return out;
  }

  void look_up(const at::Tensor& image, const at::Tensor& out) const {
    const auto* from = image.const_data_ptr<std::uint8_t>();
    auto* to = out.mutable_data_ptr<float>();
    const std::int64_t pixels = image.size(1) * image.size(2);
    for (const auto& channel : *table) {
      for (std::int64_t i = 0; i < pixels; ++i) {
        *to++ = channel[*from++];
      }
    }
  }
};

}  // namespace tutti::data::detail

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

  /// Makes batches of another size, from the next start() on. Throws c10::ValueError below 1.
  void set_batch_size(std::int64_t batch_size);

  /// Makes batches of so many examples of all ranks together, from the next start() on, of which
  /// this rank has data::rank_batch_size(). Throws c10::ValueError below one for each rank.
  void set_global_batch_size(std::int64_t global_batch_size);

  /// Examples of all ranks in a full batch.
  [[nodiscard]] std::int64_t global_batch_size() const { return loader_.global_batch_size(); }

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
