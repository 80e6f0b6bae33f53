// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include <tutti/config.hpp>
#include <tutti/nn/attention.hpp>
#include <tutti/nn/walk.hpp>

#include <torch/nn/module.h>

/// How long the sequences are that a model is made for.
namespace tutti::nn {

/// A module that is made for sequences of a length, where no table of positions says it.
class ContextLimited {
 public:
  virtual ~ContextLimited() = default;

  /// Positions, 1 or more.
  [[nodiscard]] virtual std::int64_t context_length() const = 0;
};

/// The longest sequences that a model is made for: the rows of its tables of positions
/// (PositionEmbedded), which ALiBi sets, and what its modules say (ContextLimited); the least of
/// them. Nothing where no module says.
std::optional<std::int64_t> context_length(torch::nn::Module& model);

}  // namespace tutti::nn

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE std::optional<std::int64_t> context_length(torch::nn::Module& model) {
  std::optional<std::int64_t> out;
  const auto look = [&](torch::nn::Module& module) {
    std::optional<std::int64_t> own;
    if (auto* embedded = dynamic_cast<PositionEmbedded*>(&module)) {
      own = embedded->position_embedding().weight.size(0);
    } else if (const auto* limited = dynamic_cast<const ContextLimited*>(&module)) {
      own = limited->context_length();
    }
    if (own) {
      out = std::min(*own, out.value_or(*own));
    }
  };
  look(model);
  for (const surgery::Visit& where : surgery::walk(model)) {
    look(*where.module);
  }
  return out;
}

}  // namespace tutti::nn

#endif
