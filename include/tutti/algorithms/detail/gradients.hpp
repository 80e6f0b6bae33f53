// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_norm_ops.h>
#include <ATen/ops/stack_ops.h>
#include <torch/optim/optimizer.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::detail {

// Parameters that have a gradient, and those gradients.
struct Gradients {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;

  // Takes `parameter` in when it has a gradient.
  void add(const at::Tensor& parameter);
};

// Calls f with every parameter that some optimizer updates.
template <class F>
void each_parameter(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers,
                    F&& f) {
  for (const auto& optimizer : optimizers) {
    for (const auto& group : optimizer->param_groups()) {
      for (const auto& parameter : group.params()) {
        f(parameter);
      }
    }
  }
}

// Floats side by side in memory, in any order.
bool is_strip(const at::Tensor& tensor);

// Tensors so small that calling an operator costs more than the arithmetic.
bool is_small(const at::Tensor& tensor);

// The sum of squares of n numbers: floats side by side, a few at a time, added up in double.
double squares(const float* x, std::int64_t n);

// The type in which norms of a type are summed.
inline at::ScalarType norm_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

bool all_on_cpu(const std::vector<at::Tensor>& tensors);
bool all_on_one_device(const std::vector<at::Tensor>& tensors);

// The same on all threads for a large n: of pieces, added up in their order, so that the result
// does not depend on the number of threads.
double squares_in_pieces(const float* x, std::int64_t n);

// The 2-norm over all elements of tensors on the CPU.
double host_norm(const std::vector<at::Tensor>& tensors);

// The 2-norm over all elements of at least one tensor on a device: a scalar there, not waited for.
at::Tensor device_norm(const std::vector<at::Tensor>& tensors);

// A number as a tensor [] on the CPU.
at::Tensor host_scalar(double value);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE bool is_strip(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat &&
         tensor.is_non_overlapping_and_dense();
}

TUTTI_INLINE bool is_small(const at::Tensor& tensor) {
  constexpr std::int64_t limit = 1 << 14;
  return tensor.numel() <= limit && is_strip(tensor);
}

TUTTI_INLINE void Gradients::add(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.defined()) {
    TUTTI_CHECK(gradient.layout() == at::kStrided, "the gradient of a parameter ",
                parameter.sizes(), " is ", gradient.layout(),
                ", expected a dense one; make the layer with sparse = false");
    parameters.push_back(parameter);
    gradients.push_back(gradient);
  }
}

TUTTI_INLINE double squares(const float* x, std::int64_t n) {
  constexpr std::int64_t width = 8;
  double sum = 0;
  while (n >= width) {
    float lanes[width] = {};
    const std::int64_t block = std::min<std::int64_t>(n / width * width, 64 * width);
    for (std::int64_t i = 0; i < block; i += width) {
      for (std::int64_t j = 0; j < width; ++j) {
        lanes[j] += x[i + j] * x[i + j];
      }
    }
    for (const float lane : lanes) {
      sum += static_cast<double>(lane);
    }
    x += block;
    n -= block;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  return sum;
}

TUTTI_INLINE bool all_on_cpu(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_cpu()) {
      return false;
    }
  }
  return true;
}

TUTTI_INLINE bool all_on_one_device(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.device() != tensors.front().device()) {
      return false;
    }
  }
  return true;
}

TUTTI_INLINE double squares_in_pieces(const float* x, std::int64_t n) {
  constexpr std::int64_t piece = 1 << 17;
  if (n <= piece) {
    return squares(x, n);
  }
  std::vector<double> sums(static_cast<std::size_t>((n + piece - 1) / piece));
  parallel_each(static_cast<std::int64_t>(sums.size()), [&](std::int64_t i) {
    sums[static_cast<std::size_t>(i)] = squares(x + i * piece, std::min(piece, n - i * piece));
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

TUTTI_INLINE double host_norm(const std::vector<at::Tensor>& tensors) {
  double sum = 0;
  for (const at::Tensor& tensor : tensors) {
    if (is_strip(tensor)) {
      sum += squares_in_pieces(tensor.const_data_ptr<float>(), tensor.numel());
    } else {
      const double norm = tensor.norm(2, norm_type(tensor.scalar_type())).item<double>();
      sum += norm * norm;
    }
  }
  return std::sqrt(sum);
}

TUTTI_INLINE at::Tensor device_norm(const std::vector<at::Tensor>& tensors) {
  at::ScalarType type = at::kFloat;
  for (const at::Tensor& tensor : tensors) {
    type = type == at::kDouble ? type : norm_type(tensor.scalar_type());
  }
  std::vector<at::Tensor> norms = at::_ops::_foreach_norm_Scalar::call(tensors, 2, type);
  for (at::Tensor& norm : norms) {
    norm = norm.to(norms.front().device());
  }
  return at::_ops::stack::call(norms, 0).norm();
}

TUTTI_INLINE at::Tensor host_scalar(double value) {
  at::Tensor out(at::detail::empty_cpu({}, at::kDouble, /*pin_memory=*/false, std::nullopt));
  *out.mutable_data_ptr<double>() = value;
  return out;
}

}  // namespace tutti::detail

#endif
