// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <typeinfo>

#include <tutti/core/state.hpp>
#include <tutti/nn/surgery.hpp>

/// What the two low-precision normalisations have in common.
namespace tutti {

/// When a policy changes the model.
enum class ApplyAt : std::uint8_t {
  init,         ///< before anything else
  before_load,  ///< after all surgery of Init, before a checkpoint is read
  after_load,   ///< when weights and optimizer state are there
};

namespace detail {

// The precision autocasts; otherwise there is nothing to do, and a warning says so.
inline bool autocasts(Precision precision, std::string_view who) {
  if (precision == Precision::bf16_true) {
    TORCH_WARN(who, ": the precision is bf16_true, in which all layers run, so it has no effect.");
    return false;
  }
  if (precision == Precision::fp32) {
    TORCH_WARN(who, ": the precision is fp32, so there is no low one to run in and it has ",
               "no effect; train with amp_bf16 or amp_fp16.");
  }
  return precision != Precision::fp32;
}

// Replaces the `Layer`s of exactly that class by `Low`s over the same tensors.
template <class Layer, class Low>
surgery::Report lower_precision(torch::nn::Module& model, const surgery::Options& options) {
  using Plain = typename Layer::Impl::Plain;
  auto low = [](Plain& layer) -> surgery::Replacement {
    const std::type_info& type = typeid(layer);
    if (type == typeid(typename Low::Impl)) {
      return surgery::Replacement::keep("in low precision already");
    }
    if (type != typeid(Plain) && type != typeid(typename Layer::Impl)) {
      return surgery::Replacement::keep("classes of their own, which may compute something else");
    }
    return std::make_shared<typename Low::Impl>(layer);
  };
  return surgery::replace<Layer>(model, low, options);
}

}  // namespace detail

}  // namespace tutti
