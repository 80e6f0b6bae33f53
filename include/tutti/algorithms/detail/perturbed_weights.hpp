// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_copy_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <c10/core/GradMode.h>

#include <tutti/algorithms/detail/exchange.hpp>
#include <tutti/algorithms/detail/gradients.hpp>
#include <tutti/config.hpp>
#include <tutti/dist/communicator.hpp>

namespace tutti::detail {

// A copy of each of some tensors, kept from use to use.
class Copies {
 public:
  // Room for copies of `tensors`; what is in them is left over.
  const std::vector<at::Tensor>& room_for(const std::vector<at::Tensor>& tensors) {
    copies_.resize(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& tensor = tensors[i];
      at::Tensor& copy = copies_[i];
      if (!copy.defined() || copy.sizes() != tensor.sizes() || copy.strides() != tensor.strides() ||
          copy.scalar_type() != tensor.scalar_type() || copy.device() != tensor.device()) {
        copy = tensor.detach().clone();
      }
    }
    return copies_;
  }

 private:
  std::vector<at::Tensor> copies_;
};

// to[i] = from[i] + length * direction[i] / (|direction| + epsilon), on the CPU. group: set, each
// of its ranks has a part of everything, and the norm is over all.
void point_uphill_on_host(const std::vector<at::Tensor>& from, const Gradients& uphill,
                          const std::vector<at::Tensor>& to, double length, double epsilon,
                          dist::Communicator* group);

// The same on a device, which is not waited for. The gradients are used up.
void point_uphill_on_device(const std::vector<at::Tensor>& from, const Gradients& uphill,
                            const std::vector<at::Tensor>& to, double length, double epsilon,
                            dist::Communicator* group);

// While it lives the parameters stand `length` up their gradients; then they are what they were,
// bit for bit, however the scope is left. Their gradients' contents are used up.
class PerturbedWeights {
 public:
  PerturbedWeights(const Gradients& uphill, Copies& memory, double length, double epsilon,
                   dist::Communicator* group = nullptr)
      : parameters_(uphill.parameters) {
    const c10::AutoGradMode no_grad(false);
    places_ = memory.room_for(parameters_);
    if (all_on_cpu(uphill.gradients)) {
      point_uphill_on_host(parameters_, uphill, places_, length, epsilon, group);
    } else {
      point_uphill_on_device(parameters_, uphill, places_, length, epsilon, group);
    }
    change_places();
  }
  ~PerturbedWeights() { change_places(); }
  PerturbedWeights(const PerturbedWeights&) = delete;
  PerturbedWeights& operator=(const PerturbedWeights&) = delete;

 private:
  void change_places() const;

  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> places_;
};

// While it lives the tensors may change; then they are what they were.
class SavedTensors {
 public:
  SavedTensors(std::vector<at::Tensor> tensors, Copies& memory) : tensors_(std::move(tensors)) {
    const c10::AutoGradMode no_grad(false);
    kept_ = memory.room_for(tensors_);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      kept_[i].copy_(tensors_[i], /*non_blocking=*/true);
    }
  }
  ~SavedTensors() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      exchange(tensors_[i], kept_[i]);
    }
  }
  SavedTensors(const SavedTensors&) = delete;
  SavedTensors& operator=(const SavedTensors&) = delete;

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> kept_;
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE void point_uphill_on_host(const std::vector<at::Tensor>& from, const Gradients& uphill,
                                       const std::vector<at::Tensor>& to, double length,
                                       double epsilon, dist::Communicator* group) {
  double norm = host_norm(uphill.gradients);
  if (group != nullptr) {
    norm = std::sqrt(group->all_reduce_value(norm * norm));
  }
  const double factor = length / (norm + epsilon);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const at::Tensor& gradient = uphill.gradients[i];
    if (is_small(from[i]) && is_small(gradient) && from[i].strides() == gradient.strides()) {
      const auto* w = from[i].const_data_ptr<float>();
      const auto* g = gradient.const_data_ptr<float>();
      auto* out = to[i].mutable_data_ptr<float>();
      const std::int64_t n = from[i].numel();
      for (std::int64_t j = 0; j < n; ++j) {
        out[j] = w[j] + static_cast<float>(factor) * g[j];
      }
    } else {
      to[i].copy_(from[i]);
      to[i].add_(gradient, factor);
    }
  }
}

TUTTI_INLINE void point_uphill_on_device(const std::vector<at::Tensor>& from,
                                         const Gradients& uphill, const std::vector<at::Tensor>& to,
                                         double length, double epsilon, dist::Communicator* group) {
  at::Tensor norm = device_norm(uphill.gradients);
  if (group != nullptr) {
    norm = norm.square();
    group->all_reduce(norm);
    norm.sqrt_();
  }
  const at::Tensor factor = norm.add_(epsilon).reciprocal_().mul_(length);
  at::_ops::_foreach_mul__Tensor::call(uphill.gradients, factor);
  at::_ops::_foreach_copy_::call(to, from, /*non_blocking=*/false);
  at::_ops::_foreach_add__List::call(to, uphill.gradients, 1);
}

TUTTI_INLINE void PerturbedWeights::change_places() const {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    exchange(parameters_[i], places_[i]);
  }
}

}  // namespace tutti::detail

#endif
