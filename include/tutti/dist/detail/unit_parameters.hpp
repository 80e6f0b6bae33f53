// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/unit_slot.hpp>

#include <torch/nn/module.h>

// Which parameter belongs to which unit of a model.

namespace tutti::dist::detail {

/// A parameter of a model, and the unit that it belongs to.
struct UnitParameter {
  std::string name;  ///< the first one where it has several
  at::Tensor parameter;
  const torch::nn::Module* unit;  ///< null: in no unit, so it belongs to the root
};

/// All parameters of a model, each once, in the model's order. A parameter belongs to the innermost
/// unit that has all of its uses.
std::vector<UnitParameter> unit_parameters(const torch::nn::Module& module);

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE std::vector<UnitParameter> unit_parameters(const torch::nn::Module& module) {
  struct Use {
    std::string name;
    at::Tensor parameter;
    std::vector<const torch::nn::Module*> chain;  // units around it, outermost first
  };
  std::vector<Use> uses;
  std::unordered_map<const void*, std::size_t> found;
  const auto visit = [&](const auto& self, const torch::nn::Module& part, const std::string& prefix,
                         std::vector<const torch::nn::Module*> chain) -> void {
    if (&part != &module &&
        dynamic_cast<const ::tutti::detail::UnitSlot*>(&part) != nullptr) {  // the whole is no unit
      chain.push_back(&part);
    }
    for (const auto& item : part.named_parameters(/*recurse=*/false)) {
      if (!item.value().defined()) {
        continue;
      }
      const auto [place, is_new] =
          found.try_emplace(item.value().unsafeGetTensorImpl(), uses.size());
      if (is_new) {
        uses.push_back({prefix + item.key(), item.value(), chain});
        continue;
      }
      std::vector<const torch::nn::Module*>& common = uses[place->second].chain;
      std::size_t same = 0;
      while (same < common.size() && same < chain.size() && common[same] == chain[same]) {
        ++same;
      }
      common.resize(same);
    }
    for (const auto& child : part.named_children()) {
      self(self, *child.value(), prefix + child.key() + ".", chain);
    }
  };
  visit(visit, module, "", {});
  std::vector<UnitParameter> out;
  out.reserve(uses.size());
  for (Use& use : uses) {
    out.push_back({std::move(use.name), std::move(use.parameter),
                   use.chain.empty() ? nullptr : use.chain.back()});
  }
  return out;
}

}  // namespace tutti::dist::detail

#endif
