// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <limits>

/// What the loops over parameters read: numbers and addresses, no tensors.
namespace tutti::optim::detail {

/// The memory of one parameter and of all that belongs to it, element beside element.
struct ParameterView {
  float* parameter;
  float* gradient;
  std::array<float*, 3> buffers;  ///< null where the rule has none
  float* average;                 ///< null: none follows
  std::int64_t size;
};

/// What a FusedStep asks for, the same for all parameters.
struct StepExtras {
  float scale = 1;
  float limit = std::numeric_limits<float>::infinity();
  bool keep = false;                    ///< write the changed gradient
  float follow = 0;                     ///< -(1 - smoothing)
  const float* device_scale = nullptr;  ///< where the scale lies on the device; null: `scale` is it
};

/// One step of Adam; roundings as in LibTorch's kernel, which computes these in double.
struct AdamNumbers {
  float sign = 1;     ///< -1: up the gradient
  float shrink = 0;   ///< minus the part that decays where the learning rate is 0
  float coupled = 0;  ///< weight decay that joins the gradient
  float keep = 1;     ///< what decoupled weight decay leaves of a weight
  float lerp;         ///< 1 - beta1 where that is below a half, else -beta1
  float beta2;
  float rest2;  ///< 1 - beta2
  float root;   ///< sqrt(1 - beta2^t)
  float eps;
  float step;  ///< -lr / (1 - beta1^t)
};

/// One step of SGD.
struct SgdNumbers {
  float sign = 1;
  float shrink = 0;   ///< minus the part that decoupled weight decay takes, ahead of the rest
  float coupled = 0;  ///< weight decay that joins the gradient
  float momentum;
  float undamped;  ///< 1 - dampening
  float step;      ///< -lr
  bool nesterov;
  bool first;  ///< the momentum is the gradient itself
};

}  // namespace tutti::optim::detail
