#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/data/transforms.hpp>

namespace tutti {

/// Options of ImageLoader.
struct ImageLoaderOptions {
  std::int64_t batch_size = 32;   ///< examples per batch of this rank; >= 1
  bool shuffle = false;           ///< a new order every epoch; else the order of the images
  bool drop_last = false;         ///< leave out the last batch of an epoch when it is not full
  std::uint64_t seed = 0;         ///< of order and transforms; the same on every rank
  data::Transforms transforms{};  ///< what is done to each image; policies add theirs at the end
  bool to_float = true;           ///< floats from 0 to 1; else the bytes as they are
  std::vector<double> mean{};     ///< subtracted, a value per channel; empty: nothing
  std::vector<double> std{};      ///< divided by then, a value per channel; empty: nothing
};

/// Batches out of 8-bit images in memory, each image transformed on its own.
///
///     tutti::ImageLoader train{images, labels, {.batch_size = 128, .shuffle = true,
///                                               .mean = {0.49, 0.48, 0.45},
///                                               .std = {0.25, 0.24, 0.26}}};
///
/// Transforms run for several images at a time. What they draw depends on the seed, the epoch and
/// the image alone: a run gives the same batches with any number of threads, and resumes inside an
/// epoch at once. The trainer hands the list of transforms to policies that augment single images.
class ImageLoader {
 public:
  /// dataset: inputs() is uint8 [N, C, H, W]; all tensors with dimensions have N examples.
  /// Throws c10::Error (ValueError) when that does not hold or an option is out of range.
  explicit ImageLoader(Batch dataset, ImageLoaderOptions options = {})
      : options_(std::move(options)), loader_(number(std::move(dataset)), loader_options()) {
    make_values();
  }
  ImageLoader(at::Tensor images, at::Tensor targets, ImageLoaderOptions options = {})
      : ImageLoader(Batch(std::move(images), std::move(targets)), std::move(options)) {}

  /// Begins an epoch at one of its batches. epoch, first_batch: >= 0.
  void start(std::int64_t epoch, std::int64_t first_batch = 0) {
    loader_.start(epoch, first_batch);
    epoch_ = epoch;
  }

  /// The next batch, or nothing when the epoch is over. Its inputs are [n, C, H', W'], as the
  /// transforms left them, which must be one size for all of a batch.
  std::optional<Batch> next() {
    std::optional<Batch> drawn = loader_.next();
    if (!drawn) {
      return std::nullopt;
    }
    const at::Tensor index = drawn->at(index_key);
    Batch batch;
    for (const auto& [name, tensor] : *drawn) {
      if (name != index_key) {
        batch[name] = tensor;
      }
    }
    batch.inputs() = prepare(batch.inputs(), index);
    return batch;
  }

  [[nodiscard]] std::int64_t size() const { return loader_.size(); }
  [[nodiscard]] std::int64_t batch_size() const { return loader_.batch_size(); }
  [[nodiscard]] std::int64_t dataset_size() const { return loader_.dataset_size(); }
  [[nodiscard]] std::int64_t repeated() const { return loader_.repeated(); }

  /// Deals the examples to ranks.
  void shard(std::int64_t rank, std::int64_t world_size) { loader_.shard(rank, world_size); }

  /// What is done to each image.
  [[nodiscard]] data::Transforms& transforms() { return options_.transforms; }

  [[nodiscard]] const ImageLoaderOptions& options() const { return options_; }

 private:
  static constexpr const char* index_key = "tutti_example_index";

  // The data set with each example's number, which a batch then brings along.
  static Batch number(Batch dataset) {
    const at::Tensor images = dataset.inputs();
    TORCH_CHECK_VALUE(images.dim() == 4 && images.scalar_type() == at::kByte && images.is_cpu(),
                      "ImageLoader: the images are ", images.scalar_type(), images.sizes(), " on ",
                      images.device(),
                      "; expected uint8 [N, C, H, W] on the CPU (for others take TensorLoader)");
    dataset[index_key] = at::arange(images.size(0), at::TensorOptions().dtype(at::kLong));
    return dataset;
  }

  [[nodiscard]] TensorLoaderOptions loader_options() const {
    return {.batch_size = options_.batch_size,
            .shuffle = options_.shuffle,
            .drop_last = options_.drop_last,
            .seed = options_.seed};
  }

  // What becomes of each byte, channel by channel.
  void make_values() {
    const auto channels = static_cast<std::size_t>(loader_.dataset().inputs().size(1));
    const auto fits = [&](const std::vector<double>& values) {
      return values.empty() || (options_.to_float && values.size() == channels);
    };
    TORCH_CHECK_VALUE(fits(options_.mean) && fits(options_.std), "ImageLoader: mean has ",
                      options_.mean.size(), " values and std ", options_.std.size(),
                      ", expected none, or with to_float one for each of ", channels, " channels");
    for (std::size_t channel = 0; channel < channels; ++channel) {
      const auto mean = options_.mean.empty() ? 0.0F : static_cast<float>(options_.mean[channel]);
      const auto std = options_.std.empty() ? 1.0F : static_cast<float>(options_.std[channel]);
      TORCH_CHECK_VALUE(std > 0, "ImageLoader: std is ", std, " in channel ", channel,
                        ", expected more than 0");
      auto& values = values_.emplace_back();
      for (std::size_t byte = 0; byte < values.size(); ++byte) {
        values[byte] = (static_cast<float>(byte) / 255.0F - mean) / std;
      }
    }
  }

  [[nodiscard]] at::Tensor prepare(const at::Tensor& images, const at::Tensor& index) const {
    const std::int64_t n = images.size(0);
    std::vector<at::Tensor> done(static_cast<std::size_t>(n));
    const auto* example = index.const_data_ptr<std::int64_t>();
    const auto transform = [&](std::int64_t i) {
      const std::int64_t use = epoch_ * dataset_size() + example[i];
      done[static_cast<std::size_t>(i)] =
          options_.transforms(images.select(0, i), static_cast<std::uint64_t>(use), options_.seed);
    };
    if (options_.transforms.empty() && !options_.to_float) {
      return images;
    }
    detail::parallel_each(n, transform);
    return stack(done);
  }

  [[nodiscard]] at::Tensor stack(const std::vector<at::Tensor>& images) const {
    const at::Tensor& first = images.front();
    std::vector<std::int64_t> shape = first.sizes().vec();
    for (const at::Tensor& image : images) {
      TORCH_CHECK(image.sizes() == first.sizes() && image.scalar_type() == at::kByte &&
                      image.dim() == 3 && image.size(0) == std::ssize(values_),
                  "ImageLoader: after its transforms an image is ", image.scalar_type(),
                  image.sizes(), " and the batch's first ", first.scalar_type(), first.sizes(),
                  "; expected uint8 with ", values_.size(), " channels and one size for all");
    }
    shape.insert(shape.begin(), std::ssize(images));
    at::Tensor out(at::detail::empty_cpu(shape, options_.to_float ? at::kFloat : at::kByte,
                                         /*pin_memory=*/false, std::nullopt));
    detail::parallel_each(std::ssize(images), [&](std::int64_t i) {
      const at::Tensor image = images[static_cast<std::size_t>(i)].contiguous();
      if (options_.to_float) {
        look_up(image, out.select(0, i));
      } else {
        out.select(0, i).copy_(image);
      }
    });
    return out;
  }

  void look_up(const at::Tensor& image, const at::Tensor& out) const {
    const auto* from = image.const_data_ptr<std::uint8_t>();
    auto* to = out.mutable_data_ptr<float>();
    const std::int64_t pixels = image.size(1) * image.size(2);
    for (const auto& values : values_) {
      for (std::int64_t i = 0; i < pixels; ++i) {
        *to++ = values[*from++];
      }
    }
  }

  ImageLoaderOptions options_;
  TensorLoader loader_;
  std::vector<std::array<float, 256>> values_;  // by channel and byte
  std::int64_t epoch_ = 0;
};

}  // namespace tutti
