// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/glob.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/unit_slot.hpp>

#include <torch/nn/module.h>

// Which parameter belongs to which unit of a model.

namespace tutti::dist::detail {

/// A module whose parameters travel together.
struct UnitModule {
  std::string name;  ///< in the model, the first one
  torch::nn::Module* module;
  ::tutti::detail::UnitSlot* slot;  ///< null: it is a unit because options name it
};

/// All units of a model, each once: what is an nn::Unit, and for each glob of `named` the outermost
/// modules with parameters that it matches; in the model's order, without the model itself.
///
/// Throws c10::Error for a glob that matches none.
std::vector<UnitModule> unit_modules(const torch::nn::Module& module,
                                     const std::vector<std::string>& named);

/// A parameter of a model, and the unit that it belongs to.
struct UnitParameter {
  std::string name;  ///< the first one where it has several
  at::Tensor parameter;
  const torch::nn::Module* unit;  ///< null: in no unit, so it belongs to the root
};

/// All parameters of a model, each once, in the model's order. A parameter belongs to the innermost
/// of the units that has all of its uses.
std::vector<UnitParameter> unit_parameters(const torch::nn::Module& module,
                                           const std::vector<UnitModule>& units);

/// Takes those out of `all` that a glob of `ignored` names, by their own name or by that of a
/// module around them. Returns them.
///
/// Throws c10::Error for a glob that matches none, and for a parameter that trains.
std::vector<UnitParameter> take_ignored(std::vector<UnitParameter>& all,
                                        const std::vector<std::string>& ignored);

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

// Some names of the model's modules, for a message.
TUTTI_INLINE std::string some_names(const torch::nn::Module& module) {
  std::string out;
  std::size_t count = 0;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (++count == 20) {
      return out + ", ...";
    }
    out += (out.empty() ? "'" : ", '") + item.key() + "'";
  }
  return out.empty() ? "none" : out;
}

TUTTI_INLINE std::vector<UnitModule> unit_modules(const torch::nn::Module& module,
                                                  const std::vector<std::string>& named) {
  std::vector<UnitModule> out;
  std::vector<std::vector<std::string>> matched(named.size());  // by each, the outermost ones
  const auto matches = [&](std::size_t i, const std::string& name) {
    return ::tutti::detail::glob_matches(named[i], name) &&
           std::none_of(matched[i].begin(), matched[i].end(),
                        [&](const std::string& outer) { return name.starts_with(outer + "."); });
  };
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    torch::nn::Module* const part = item.value().get();
    auto* const slot = dynamic_cast<::tutti::detail::UnitSlot*>(part);
    bool is_named = false;
    for (std::size_t i = 0; i < named.size(); ++i) {
      if (matches(i, item.key()) && !part->parameters().empty()) {
        matched[i].push_back(item.key());
        is_named = true;
      }
    }
    const bool known = std::any_of(out.begin(), out.end(),
                                   [&](const UnitModule& one) { return one.module == part; });
    if (!known && (slot != nullptr || is_named)) {
      out.push_back({item.key(), part, slot});
    }
  }
  for (std::size_t i = 0; i < named.size(); ++i) {
    TUTTI_CHECK(!matched[i].empty(), "sharding: units has '", named[i],
                "', which matches no module with parameters; the model's modules are ",
                some_names(module));
  }
  return out;
}

TUTTI_INLINE std::vector<UnitParameter> unit_parameters(const torch::nn::Module& module,
                                                        const std::vector<UnitModule>& units) {
  struct Use {
    std::string name;
    at::Tensor parameter;
    std::vector<const torch::nn::Module*> chain;  // units around it, outermost first
  };
  std::vector<Use> uses;
  std::unordered_map<const void*, std::size_t> found;
  const auto visit = [&](const auto& self, const torch::nn::Module& part, const std::string& prefix,
                         std::vector<const torch::nn::Module*> chain) -> void {
    if (std::any_of(units.begin(), units.end(),
                    [&](const UnitModule& one) { return one.module == &part; })) {
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

TUTTI_INLINE std::vector<UnitParameter> take_ignored(std::vector<UnitParameter>& all,
                                                     const std::vector<std::string>& ignored) {
  std::vector<bool> used(ignored.size());
  const auto is_ignored = [&](const UnitParameter& one) {
    bool matches = false;
    for (std::size_t end = one.name.find('.');; end = one.name.find('.', end + 1)) {
      for (std::size_t i = 0; i < ignored.size(); ++i) {
        if (::tutti::detail::glob_matches(ignored[i], one.name.substr(0, end))) {
          used[i] = matches = true;
        }
      }
      if (end == std::string::npos) {
        break;
      }
    }
    TUTTI_CHECK(!matches || !one.parameter.requires_grad(), "sharding: ignored names '", one.name,
                "', which trains, so that each rank would train its own; freeze it with "
                "requires_grad_(false), or let sharding have it");
    return matches;
  };
  std::vector<UnitParameter> out;
  const auto rest = std::stable_partition(all.begin(), all.end(),
                                          [&](const auto& one) { return !is_ignored(one); });
  out.assign(rest, all.end());
  all.erase(rest, all.end());
  for (std::size_t i = 0; i < ignored.size(); ++i) {
    TUTTI_CHECK(used[i], "sharding: ignored has '", ignored[i],
                "', which matches no parameter of the model and no module with any");
  }
  return out;
}

}  // namespace tutti::dist::detail

#endif
