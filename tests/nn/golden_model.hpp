// SPDX-License-Identifier: Apache-2.0
#pragma once

// Builds the models of the reference vectors: `params.model` is a list of [type, args, kwargs] of
// layers in a Sequential. Plain layers or ours, as the test asks; containers are ours: they nest.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/normalization.hpp>
#include <tutti/nn/pooling.hpp>
#include <tutti/nn/sequential.hpp>

#include "support/golden.hpp"

namespace golden {

enum class Layers { plain, replaceable };

namespace detail {

/// One layer of the list. Python lets most arguments stand by place or by name, so each is asked
/// for by both; done() refuses what nobody asked for.
class LayerArguments {
 public:
  LayerArguments(const Json& entry, std::string type)
      : args_(entry.size() > 1 ? &entry[1] : nullptr),
        kwargs_(entry.size() > 2 ? &entry[2] : nullptr),
        type_(std::move(type)) {}

  /// The argument at `place`, or called `name`, if there is one that is not None.
  const Json* find(std::size_t place, const char* name) const {
    asked_.insert(name);
    places_ = std::max(places_, place + 1);
    const Json* found = args_ != nullptr && place < args_->size() ? &args_->at(place)
                        : kwargs_ != nullptr                      ? kwargs_->find(name)
                                                                  : nullptr;
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  const Json& at(std::size_t place, const char* name) const {
    const Json* found = find(place, name);
    if (found == nullptr) {
      throw std::invalid_argument("golden model: " + type_ + " lacks " + name);
    }
    return *found;
  }
  std::int64_t integer(std::size_t place, const char* name, std::int64_t otherwise) const {
    const Json* found = find(place, name);
    return found == nullptr ? otherwise : found->integer();
  }
  double number(std::size_t place, const char* name, double otherwise) const {
    const Json* found = find(place, name);
    return found == nullptr ? otherwise : found->number();
  }
  bool flag(std::size_t place, const char* name, bool otherwise) const {
    const Json* found = find(place, name);
    return found == nullptr ? otherwise : found->boolean();
  }
  /// `n` sizes, or all that a list names when n is 0; one number stands for each of them.
  std::vector<std::int64_t> sizes(std::size_t place, const char* name, std::size_t n) const {
    return sizes(at(place, name), n);
  }
  std::vector<std::int64_t> sizes(std::size_t place, const char* name, std::size_t n,
                                  std::int64_t otherwise) const {
    const Json* found = find(place, name);
    return found == nullptr ? std::vector<std::int64_t>(n, otherwise) : sizes(*found, n);
  }
  bool is_none(const char* name) const {
    const Json* found = kwargs_ == nullptr ? nullptr : kwargs_->find(name);
    return found != nullptr && found->is_null();
  }

  void done() const {
    const std::size_t given = args_ == nullptr ? 0 : args_->size();
    if (given > places_) {
      throw std::invalid_argument("golden model: " + type_ + " with more than " +
                                  std::to_string(places_) + " arguments by place");
    }
    if (kwargs_ != nullptr) {
      for (const auto& [name, value] : kwargs_->object()) {
        if (!asked_.contains(name)) {
          throw std::invalid_argument("golden model: " + type_ + " with " + name);
        }
      }
    }
  }

 private:
  static std::vector<std::int64_t> sizes(const Json& value, std::size_t n) {
    if (!value.is_array()) {
      return std::vector<std::int64_t>(std::max<std::size_t>(n, 1), value.integer());
    }
    std::vector<std::int64_t> result;
    for (const Json& size : value.array()) {
      result.push_back(size.integer());
    }
    return result;
  }

  const Json* args_;
  const Json* kwargs_;
  std::string type_;
  mutable std::set<std::string> asked_;
  mutable std::size_t places_ = 0;
};

/// Adds a layer of ours, or its torch::nn form.
template <class Holder>
void push(tutti::nn::Sequential& model, Layers layers, const Holder& layer) {
  using Plain = typename Holder::Impl::Plain;
  if (layers == Layers::replaceable) {
    model->push_back(layer);
  } else {
    model->push_back(std::make_shared<Plain>(static_cast<const Plain&>(*layer)));
  }
}

template <class Holder, std::size_t D>
void push_conv(tutti::nn::Sequential& model, Layers layers, const LayerArguments& a) {
  using Sizes = torch::ExpandingArray<D>;
  torch::nn::ConvOptions<D> options(a.at(0, "in_channels").integer(),
                                    a.at(1, "out_channels").integer(),
                                    Sizes(a.sizes(2, "kernel_size", D)));
  options.stride(Sizes(a.sizes(3, "stride", D, 1)));
  if (const Json* padding = a.find(4, "padding"); padding != nullptr && padding->is_string()) {
    if (padding->string() == "same") {
      options.padding(torch::kSame);
    } else {
      options.padding(torch::kValid);
    }
  } else {
    options.padding(Sizes(a.sizes(4, "padding", D, 0)));
  }
  options.dilation(Sizes(a.sizes(5, "dilation", D, 1)))
      .groups(a.integer(6, "groups", 1))
      .bias(a.flag(7, "bias", true));
  if (const Json* mode = a.find(8, "padding_mode"); mode != nullptr && mode->string() != "zeros") {
    if (mode->string() == "reflect") {
      options.padding_mode(torch::kReflect);
    } else if (mode->string() == "replicate") {
      options.padding_mode(torch::kReplicate);
    } else {
      options.padding_mode(torch::kCircular);
    }
  }
  push(model, layers, Holder(options));
}

template <class Holder>
void push_batchnorm(tutti::nn::Sequential& model, Layers layers, const LayerArguments& a) {
  torch::nn::BatchNormOptions options(a.at(0, "num_features").integer());
  options.eps(a.number(1, "eps", 1e-5))
      .momentum(a.number(2, "momentum", 0.1))
      .affine(a.flag(3, "affine", true))
      .track_running_stats(a.flag(4, "track_running_stats", true));
  if (a.is_none("momentum")) {
    options.momentum(std::nullopt);
  }
  push(model, layers, Holder(options));
}

inline void push_maxpool(tutti::nn::Sequential& model, Layers layers, const LayerArguments& a) {
  using Sizes = torch::ExpandingArray<2>;
  const auto kernel = a.sizes(0, "kernel_size", 2);
  torch::nn::MaxPool2dOptions options{Sizes(kernel)};
  options.padding(Sizes(a.sizes(2, "padding", 2, 0)))
      .dilation(Sizes(a.sizes(3, "dilation", 2, 1)))
      .ceil_mode(a.flag(5, "ceil_mode", false));
  if (a.find(1, "stride") != nullptr) {
    options.stride(Sizes(a.sizes(1, "stride", 2)));
  }
  push(model, layers, tutti::nn::MaxPool2d(options));
}

inline void push_adaptive_pool(tutti::nn::Sequential& model, Layers layers,
                               const LayerArguments& a) {
  const auto size = a.sizes(0, "output_size", 2);
  push(model, layers, tutti::nn::AdaptiveAvgPool2d(torch::ExpandingArrayWithOptionalElem<2>(size)));
}

inline void push_groupnorm(tutti::nn::Sequential& model, Layers layers, const LayerArguments& a) {
  torch::nn::GroupNormOptions options(a.at(0, "num_groups").integer(),
                                      a.at(1, "num_channels").integer());
  options.eps(a.number(2, "eps", 1e-5)).affine(a.flag(3, "affine", true));
  push(model, layers, tutti::nn::GroupNorm(options));
}

inline void push_layernorm(tutti::nn::Sequential& model, Layers layers, const LayerArguments& a) {
  torch::nn::LayerNormOptions options(a.sizes(0, "normalized_shape", 0));
  options.eps(a.number(1, "eps", 1e-5)).elementwise_affine(a.flag(2, "elementwise_affine", true));
  push(model, layers, tutti::nn::LayerNorm(options));
}

/// The layers without weights. Returns whether `type` is one of them.
inline bool push_function(tutti::nn::Sequential& model, const std::string& type,
                          const LayerArguments& a) {
  if (type == "ReLU") {
    model->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(a.flag(0, "inplace", false))));
  } else if (type == "GELU") {
    const Json* approximate = a.find(0, "approximate");
    model->push_back(torch::nn::GELU(torch::nn::GELUOptions().approximate(
        approximate == nullptr ? "none" : approximate->string())));
  } else if (type == "SiLU") {
    a.flag(0, "inplace", false);
    model->push_back(torch::nn::SiLU());
  } else if (type == "Tanh") {
    model->push_back(torch::nn::Tanh());
  } else if (type == "Sigmoid") {
    model->push_back(torch::nn::Sigmoid());
  } else if (type == "Identity") {
    model->push_back(torch::nn::Identity());
  } else if (type == "Flatten") {
    model->push_back(torch::nn::Flatten(torch::nn::FlattenOptions()
                                            .start_dim(a.integer(0, "start_dim", 1))
                                            .end_dim(a.integer(1, "end_dim", -1))));
  } else {
    return false;
  }
  return true;
}

}  // namespace detail

/// The model of a list of layers, with fresh weights. Throws for a type it does not know.
inline tutti::nn::Sequential build_model(const Json& list, Layers layers) {
  namespace nn = tutti::nn;
  nn::Sequential model;
  for (const Json& entry : list.array()) {
    const std::string& type = entry[0].string();
    if (type == "Sequential") {
      model->push_back(build_model(entry[1], layers));
      continue;
    }
    const detail::LayerArguments a(entry, type);
    if (type == "Conv1d") {
      detail::push_conv<nn::Conv1d, 1>(model, layers, a);
    } else if (type == "Conv2d") {
      detail::push_conv<nn::Conv2d, 2>(model, layers, a);
    } else if (type == "Conv3d") {
      detail::push_conv<nn::Conv3d, 3>(model, layers, a);
    } else if (type == "Linear") {
      detail::push(model, layers,
                   nn::Linear(torch::nn::LinearOptions(a.at(0, "in_features").integer(),
                                                       a.at(1, "out_features").integer())
                                  .bias(a.flag(2, "bias", true))));
    } else if (type == "BatchNorm1d") {
      detail::push_batchnorm<nn::BatchNorm1d>(model, layers, a);
    } else if (type == "BatchNorm2d") {
      detail::push_batchnorm<nn::BatchNorm2d>(model, layers, a);
    } else if (type == "BatchNorm3d") {
      detail::push_batchnorm<nn::BatchNorm3d>(model, layers, a);
    } else if (type == "GroupNorm") {
      detail::push_groupnorm(model, layers, a);
    } else if (type == "LayerNorm") {
      detail::push_layernorm(model, layers, a);
    } else if (type == "MaxPool2d") {
      detail::push_maxpool(model, layers, a);
    } else if (type == "AdaptiveAvgPool2d") {
      detail::push_adaptive_pool(model, layers, a);
    } else if (type == "Dropout") {
      detail::push(model, layers, nn::Dropout(a.number(0, "p", 0.5)));
    } else if (!detail::push_function(model, type, a)) {
      throw std::invalid_argument("golden model: unknown layer '" + type + "'");
    }
    a.done();
  }
  return model;
}

/// Names of a model's parameters and buffers in the order of Python's state_dict().
inline std::vector<std::string> state_keys(const torch::nn::Module& module,
                                           const std::string& prefix = "") {
  std::vector<std::string> keys;
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    keys.push_back(prefix + parameter.key());
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
    keys.push_back(prefix + buffer.key());
  }
  for (const auto& child : module.named_children()) {
    const auto below = state_keys(*child.value(), prefix + child.key() + ".");
    keys.insert(keys.end(), below.begin(), below.end());
  }
  return keys;
}

/// Copies `state` into the model's parameters and buffers, on the state's device. Throws for a name
/// that it lacks.
inline void load_state(torch::nn::Module& model, const Tensors& state) {
  if (!state.empty()) {
    model.to(state.begin()->second.device());
  }
  const torch::NoGradGuard no_grad;
  auto parameters = model.named_parameters();
  auto buffers = model.named_buffers();
  for (const auto& [name, tensor] : state) {
    (parameters.contains(name) ? parameters[name] : buffers[name]).copy_(tensor);
  }
}

/// Names and values of a model's parameters and buffers, detached.
inline Tensors state_of(const torch::nn::Module& model) {
  Tensors state;
  for (const auto& parameter : model.named_parameters()) {
    state[parameter.key()] = parameter.value().detach();
  }
  for (const auto& buffer : model.named_buffers()) {
    state[buffer.key()] = buffer.value();
  }
  return state;
}

}  // namespace golden
