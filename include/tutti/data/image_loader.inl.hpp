// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/image_loader.hpp>

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
  options_.batch_size = loader_.batch_size();
}

TUTTI_INLINE void ImageLoader::follow_seed(std::uint64_t seed) {
  if (!options_.seed) {
    ahead_.clear();
    seed_ = seed;
    loader_.follow_seed(seed);
  }
}

TUTTI_INLINE void ImageLoader::set_batch_size(std::int64_t batch_size) {
  ahead_.clear();
  loader_.set_batch_size(batch_size);
  options_.batch_size = batch_size;
}

TUTTI_INLINE void ImageLoader::set_global_batch_size(std::int64_t global_batch_size) {
  ahead_.clear();
  loader_.set_global_batch_size(global_batch_size);
  options_.batch_size = loader_.batch_size();
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
