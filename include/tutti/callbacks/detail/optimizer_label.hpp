// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <torch/optim/optimizer.h>

#include <tutti/core/state.hpp>
#include <tutti/optim/class_name.hpp>

namespace tutti::detail {

/// How logs call an optimizer of the run: by its class; where there are several by its name.
inline std::string optimizer_label(const State& state, std::size_t index) {
  return index < state.optimizer_names.size() ? state.optimizer_names[index]
                                              : optim::class_name(*state.optimizers[index]);
}

}  // namespace tutti::detail
