// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

// Declared here because <ATen/autocast_mode.h> costs as much as all of torch::nn.
namespace at::autocast {
TORCH_API bool is_autocast_enabled(at::DeviceType device_type);
TORCH_API void set_autocast_enabled(at::DeviceType device_type, bool enabled);
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);
TORCH_API void set_autocast_dtype(at::DeviceType device_type, at::ScalarType dtype);
TORCH_API bool is_autocast_cache_enabled();
TORCH_API void set_autocast_cache_enabled(bool enabled);
TORCH_API void clear_cache();
TORCH_API int increment_nesting();
TORCH_API int decrement_nesting();
}  // namespace at::autocast

namespace tutti {

/// A scope in which operators that gain from it run in a low precision, as torch.autocast.
///
/// The cache of cast weights is cleared when the outermost scope ends; it would otherwise keep
/// stale copies alive.
class Autocast {
 public:
  /// Nothing changes in this scope: fp32 runs.
  Autocast() = default;

  /// device: where the tensors are. dtype: kHalf or kBFloat16. enabled: false switches an outer
  /// scope off, so that what follows runs in fp32.
  Autocast(at::DeviceType device, at::ScalarType dtype, bool enabled = true)
      : active_(true),
        device_(device),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        was_dtype_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (active_) {
      if (at::autocast::decrement_nesting() == 0) {
        at::autocast::clear_cache();
      }
      at::autocast::set_autocast_enabled(device_, was_enabled_);
      at::autocast::set_autocast_dtype(device_, was_dtype_);
    }
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool active_ = false;
  at::DeviceType device_ = at::kCPU;
  bool was_enabled_ = false;
  at::ScalarType was_dtype_ = at::kFloat;
};

}  // namespace tutti
