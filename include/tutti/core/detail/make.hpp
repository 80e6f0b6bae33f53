// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

namespace tutti::detail {

/// std::make_shared for what is made once: two allocations instead of one, and half of the
/// functions to compile for each type.
template <class T, class... Args>
std::shared_ptr<T> make(Args&&... args) {
  return std::shared_ptr<T>(new T(std::forward<Args>(args)...));
}

}  // namespace tutti::detail
