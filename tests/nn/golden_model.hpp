#pragma once

// Builds the models of the reference vectors: `params.model` is a list of [type, args, kwargs] of
// layers in a Sequential. Plain layers or ours, as the test asks; containers are ours: they nest.

#include <cstdint>
#include <string>
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

/// One layer of the list: its positional and keyword arguments.
struct Arguments {
  const Json* args = nullptr;
  const Json* kwargs = nullptr;

  const Json* named(const char* name) const {
    return kwargs == nullptr ? nullptr : kwargs->find(name);
  }
  std::int64_t integer(std::size_t i) const { return args->at(i).integer(); }
  std::int64_t integer(const char* name, std::int64_t otherwise) const {
    const Json* found = named(name);
    return found == nullptr ? otherwise : found->integer();
  }
  bool flag(const char* name, bool otherwise) const {
    const Json* found = named(name);
    return found == nullptr ? otherwise : found->boolean();
  }
  static std::vector<std::int64_t> sizes(const Json& value, std::size_t n) {
    if (!value.is_array()) {
      return std::vector<std::int64_t>(n, value.integer());
    }
    std::vector<std::int64_t> result;
    for (const Json& size : value.array()) {
      result.push_back(size.integer());
    }
    return result;
  }
  std::vector<std::int64_t> sizes(const char* name, std::int64_t otherwise, std::size_t n) const {
    const Json* found = named(name);
    return found == nullptr ? std::vector<std::int64_t>(n, otherwise) : sizes(*found, n);
  }
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
void push_conv(tutti::nn::Sequential& model, Layers layers, const Arguments& a) {
  torch::nn::ConvOptions<D> options(a.integer(0), a.integer(1),
                                    torch::ExpandingArray<D>(Arguments::sizes(a.args->at(2), D)));
  options.stride(torch::ExpandingArray<D>(a.sizes("stride", 1, D)))
      .padding(torch::ExpandingArray<D>(a.sizes("padding", 0, D)))
      .groups(a.integer("groups", 1))
      .bias(a.flag("bias", true));
  push(model, layers, Holder(options));
}

template <class Holder>
void push_batchnorm(tutti::nn::Sequential& model, Layers layers, const Arguments& a) {
  torch::nn::BatchNormOptions options(a.integer(0));
  options.affine(a.flag("affine", true));
  if (const Json* eps = a.named("eps")) {
    options.eps(eps->number());
  }
  if (const Json* momentum = a.named("momentum")) {
    options.momentum(momentum->is_null() ? std::optional<double>() : momentum->number());
  }
  push(model, layers, Holder(options));
}

inline void push_maxpool(tutti::nn::Sequential& model, Layers layers, const Arguments& a) {
  const auto kernel = Arguments::sizes(a.args->at(0), 2);
  torch::nn::MaxPool2dOptions options{torch::ExpandingArray<2>(kernel)};
  options.padding(torch::ExpandingArray<2>(a.sizes("padding", 0, 2)));
  if (const Json* stride = a.named("stride")) {
    options.stride(torch::ExpandingArray<2>(Arguments::sizes(*stride, 2)));
  }
  push(model, layers, tutti::nn::MaxPool2d(options));
}

inline void push_norm(tutti::nn::Sequential& model, Layers layers, const std::string& type,
                      const Arguments& a) {
  if (type == "GroupNorm") {
    push(model, layers,
         tutti::nn::GroupNorm(torch::nn::GroupNormOptions(a.integer(0), a.integer(1))
                                  .affine(a.flag("affine", true))));
  } else {
    push(model, layers,
         tutti::nn::LayerNorm(torch::nn::LayerNormOptions(Arguments::sizes(a.args->at(0), 1))
                                  .elementwise_affine(a.flag("elementwise_affine", true))));
  }
}

}  // namespace detail

/// The model of a list of layers, with fresh weights. Throws for a type it does not know.
inline tutti::nn::Sequential build_model(const Json& list, Layers layers) {
  namespace nn = tutti::nn;
  nn::Sequential model;
  for (const Json& entry : list.array()) {
    const std::string& type = entry[0].string();
    const detail::Arguments a{entry.size() > 1 ? &entry[1] : nullptr,
                              entry.size() > 2 ? &entry[2] : nullptr};
    if (type == "Sequential") {
      model->push_back(build_model(entry[1], layers));
    } else if (type == "Conv1d") {
      detail::push_conv<nn::Conv1d, 1>(model, layers, a);
    } else if (type == "Conv2d") {
      detail::push_conv<nn::Conv2d, 2>(model, layers, a);
    } else if (type == "Conv3d") {
      detail::push_conv<nn::Conv3d, 3>(model, layers, a);
    } else if (type == "Linear") {
      detail::push(
          model, layers,
          nn::Linear(
              torch::nn::LinearOptions(a.integer(0), a.integer(1)).bias(a.flag("bias", true))));
    } else if (type == "BatchNorm1d") {
      detail::push_batchnorm<nn::BatchNorm1d>(model, layers, a);
    } else if (type == "BatchNorm2d") {
      detail::push_batchnorm<nn::BatchNorm2d>(model, layers, a);
    } else if (type == "BatchNorm3d") {
      detail::push_batchnorm<nn::BatchNorm3d>(model, layers, a);
    } else if (type == "GroupNorm" || type == "LayerNorm") {
      detail::push_norm(model, layers, type, a);
    } else if (type == "MaxPool2d") {
      detail::push_maxpool(model, layers, a);
    } else if (type == "AdaptiveAvgPool2d") {
      detail::push(model, layers, nn::AdaptiveAvgPool2d(a.integer(0)));
    } else if (type == "Dropout") {
      detail::push(model, layers, nn::Dropout(a.args->at(0).number()));
    } else if (type == "ReLU") {
      model->push_back(torch::nn::ReLU());
    } else if (type == "Flatten") {
      model->push_back(torch::nn::Flatten());
    } else {
      throw std::invalid_argument("golden model: unknown layer '" + type + "'");
    }
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

/// Copies `state` into the model's parameters and buffers. Throws for a name that it lacks.
inline void load_state(torch::nn::Module& model, const Tensors& state) {
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
