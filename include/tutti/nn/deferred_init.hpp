// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include <torch/nn/module.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/recorded_init.hpp>

/// Models that get their memory when it is known where each part of them belongs.
namespace tutti::nn {

/// Builds a model whose parameters and buffers have no memory yet, and returns what `build`
/// returns.
///
///     auto model = tutti::nn::deferred_init([] { return MyModel(options); });
///
/// Sizes, types and names are there; how the values are made is remembered. A Trainer makes them:
/// with `sharding.stage` `parameters` each rank one tensor after the other, of which it keeps its
/// rows, so that none ever has the whole model; else all. They are those that the model would have
/// without deferred_init(), bit by bit, and the same on all ranks as on rank 0. Weights that are
/// loaded inside of `build`, or from a checkpoint, are not drawn before.
///
/// The CPU's generator of random numbers stands afterwards where it stood before. What is made on a
/// device that is named, and torch::tensor(...), has memory at once. Throws c10::Error, naming the
/// operator, when `build` needs a value, as `item()` does, or writes into a tensor's memory by
/// itself.
/// Source: PyTorch's torchdistX, `deferred_init`; PyTorch's meta device.
template <class Build>
auto deferred_init(Build&& build) {
  std::shared_ptr<::tutti::detail::InitTape> tape = ::tutti::detail::RecordedInit::current();
  if (tape == nullptr) {
    tape = std::make_shared<::tutti::detail::RecordedInit>();
  }
  const ::tutti::detail::InitTape::Recording recording(std::move(tape));
  return std::forward<Build>(build)();
}

/// Whether a parameter or buffer of the model has no memory yet.
bool is_deferred(const torch::nn::Module& model);

/// Gives all parameters and buffers their memory and values, where deferred_init() has made them.
/// Optimizers that have the parameters go on with them.
void materialize(torch::nn::Module& model);

}  // namespace tutti::nn

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE bool is_deferred(const torch::nn::Module& model) {
  return !::tutti::detail::tensors_without_memory(model).empty();
}

TUTTI_INLINE void materialize(torch::nn::Module& model) {
  ::tutti::detail::materialize(model);
}

}  // namespace tutti::nn

#endif
