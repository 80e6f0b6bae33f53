// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/to_batch.hpp>

namespace tutti {

namespace detail {

// A data set of torch::data that gives the examples of a list of numbers, and always the same.
template <class D>
concept TorchMapDataset = std::copy_constructible<D> && !D::is_stateful &&
                          requires(D& data, const std::vector<std::size_t>& index) {
                            data.get_batch(index);
                            { data.size() } -> std::convertible_to<std::optional<std::size_t>>;
                          };

// torch::data::TensorExample and what looks like it.
template <class T>
concept TargetlessExample = !ExampleLike<T> && requires(T& value) {
  { value.data } -> std::convertible_to<at::Tensor>;
};

template <class D>
inline constexpr bool is_torch_map_dataset = TorchMapDataset<D>;

}  // namespace detail

/// Refuses a data set of torch::data that gives no examples by number.
template <class D>
struct TorchDatasetCheck {
  static_assert(detail::is_torch_map_dataset<D>,
                "tutti: this is no torch::data data set that gives examples by number; streams and "
                "stateful ones (such as ChunkDataset) go into torch::data::make_data_loader, whose "
                "result is a loader.");
};

/// A data set of torch::data, with its transforms, as a data set for DataLoader.
///
///     auto mnist = torch::data::datasets::MNIST("mnist").map(
///         torch::data::transforms::Normalize<>(0.1307, 0.3081));
///     tutti::DataLoader train{tutti::TorchDataset{mnist}, {.batch_size = 64, .num_workers = 4}};
///
/// It is asked for one example at a time, by several threads, each with a copy of the data set of
/// its own. Its transforms must not draw random numbers, for torch::data gives them no generator:
/// do that in DataLoaderOptions::transform. Stack<>() at the end may stay.
template <class D>
class TorchDataset {
  static_assert(sizeof(TorchDatasetCheck<D>) > 0);

 public:
  /// Throws c10::Error (ValueError) when the data set does not know its size.
  explicit TorchDataset(D dataset) : shared_(std::make_shared<Shared>(std::move(dataset))) {
    const std::optional<std::size_t> size = shared_->original.size();
    TUTTI_CHECK_VALUE(size.has_value(), "TorchDataset: the data set has no size, expected one");
    size_ = static_cast<std::int64_t>(*size);
  }

  [[nodiscard]] std::int64_t size() const { return size_; }

  /// Example `index`, 0 .. size() - 1, as the data set and its transforms give it.
  [[nodiscard]] Batch get(std::int64_t index) const {
    TUTTI_CHECK_INDEX(index >= 0 && index < size_, "TorchDataset: index is ", index,
                      ", expected 0 to ", size_ - 1);
    std::unique_ptr<D> mine = shared_->lend();
    Batch example = single(mine->get_batch(std::vector{static_cast<std::size_t>(index)}));
    shared_->take_back(std::move(mine));
    return example;
  }

 private:
  // Copies for threads that ask at the same time; a data set may change while it is asked.
  struct Shared {
    explicit Shared(D dataset) : original(std::move(dataset)) {}

    std::unique_ptr<D> lend() {
      const std::lock_guard lock(mutex);
      if (free.empty()) {
        return std::make_unique<D>(original);
      }
      std::unique_ptr<D> out = std::move(free.back());
      free.pop_back();
      return out;
    }

    void take_back(std::unique_ptr<D> copy) {
      const std::lock_guard lock(mutex);
      free.push_back(std::move(copy));
    }

    const D original;
    std::mutex mutex{};
    std::vector<std::unique_ptr<D>> free{};
  };

  // The only example of a list, or of what a collation such as Stack<>() made of the list.
  template <class T>
  static Batch single(T examples) {
    if constexpr (requires { examples.at(0), examples.size(); }) {
      TUTTI_CHECK(examples.size() == 1, "TorchDataset: the data set gives ", examples.size(),
                  " examples for one number, expected one");
      return batch_of(std::move(examples.at(0)));
    } else {
      Batch batch = batch_of(std::move(examples));
      for (auto& [name, tensor] : batch) {
        TUTTI_CHECK(tensor.dim() > 0 && tensor.size(0) == 1, "TorchDataset: \"", name, "\" is ",
                    tensor.sizes(), ", expected [1, ...], as Stack<>() makes of one example");
        tensor = tensor.select(0, 0);
      }
      return batch;
    }
  }

  template <class E>
  static Batch batch_of(E example) {
    if constexpr (detail::TargetlessExample<E>) {
      return Batch(example.data);
    } else {
      return detail::to_batch(std::move(example));
    }
  }

  std::shared_ptr<Shared> shared_;
  std::int64_t size_ = 0;
};

}  // namespace tutti
