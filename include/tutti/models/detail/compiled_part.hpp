// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <tutti/config.hpp>

/// What the modules of an exported network are made of.
namespace tutti::detail {

/// A module whose weights are found by their places: parameters may be other tensors later.
class ExportedPart : public torch::nn::Module {
 public:
  at::Tensor& parameter(std::size_t place) { return parameters_[place].value(); }
  at::Tensor& buffer(std::size_t place) { return own_buffers_[place]; }
  std::size_t add(const std::string& name, at::Tensor tensor, bool is_buffer, bool requires_grad);
  std::shared_ptr<ExportedPart> part(const std::string& name);
  ExportedPart& owner_of(const std::string& name);  // of "layer1.0.weight": the part layer1.0

 private:
  std::vector<at::Tensor> own_buffers_;  // LibTorch gives no place of a buffer
  std::map<std::string, std::shared_ptr<ExportedPart>> parts_;
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::size_t ExportedPart::add(const std::string& name, at::Tensor tensor,
                                           bool is_buffer, bool requires_grad) {
  if (is_buffer) {
    own_buffers_.push_back(register_buffer(name, std::move(tensor)));
    return own_buffers_.size() - 1;
  }
  register_parameter(name, std::move(tensor), requires_grad);
  return parameters_.size() - 1;
}

TUTTI_INLINE std::shared_ptr<ExportedPart> ExportedPart::part(const std::string& name) {
  std::shared_ptr<ExportedPart>& out = parts_[name];
  if (!out) {
    out = register_module(name, std::make_shared<ExportedPart>());
  }
  return out;
}

TUTTI_INLINE ExportedPart& ExportedPart::owner_of(const std::string& name) {
  ExportedPart* at = this;
  std::size_t from = 0;
  for (std::size_t dot = 0; (dot = name.find('.', from)) != std::string::npos; from = dot + 1) {
    at = at->part(name.substr(from, dot - from)).get();
  }
  return *at;
}

}  // namespace tutti::detail

#endif
