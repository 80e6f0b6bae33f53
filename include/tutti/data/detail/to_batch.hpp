// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include <tutti/core/batch.hpp>

namespace tutti::detail {

// torch::data::Example and what looks like it.
template <class T>
concept ExampleLike = requires(T& value) {
  { value.data } -> std::convertible_to<at::Tensor>;
  { value.target } -> std::convertible_to<at::Tensor>;
};

template <class T>
concept PairLike = requires(T& value) {
  { value.first } -> std::convertible_to<at::Tensor>;
  { value.second } -> std::convertible_to<at::Tensor>;
};

template <class T>
concept BatchLike = std::convertible_to<T, Batch> || ExampleLike<std::remove_reference_t<T>> ||
                    PairLike<std::remove_reference_t<T>>;

template <BatchLike T>
Batch to_batch(T&& value) {
  if constexpr (std::convertible_to<T, Batch>) {
    return std::forward<T>(value);
  } else if constexpr (ExampleLike<std::remove_reference_t<T>>) {
    return Batch(std::forward<T>(value).data, std::forward<T>(value).target);
  } else {
    return Batch(std::forward<T>(value).first, std::forward<T>(value).second);
  }
}

}  // namespace tutti::detail
