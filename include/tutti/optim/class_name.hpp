// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

namespace tutti::optim {

/// A class's name, as c10::demangle() gives it, without namespaces and template arguments.
inline std::string unqualified(std::string name) {
  if (name.ends_with('>')) {  // its own arguments, not those of a function that it is local to
    std::size_t begin = name.size();
    int depth = 0;
    do {
      --begin;
      depth += name[begin] == '>' ? 1 : name[begin] == '<' ? -1 : 0;
    } while (depth > 0 && begin > 0);
    name.resize(begin);
  }
  const auto colon = name.rfind("::");
  return colon == std::string::npos ? name : name.substr(colon + 2);
}

/// The name of an optimizer's class as Python would say it: "DecoupledSGDW" for what
/// `DecoupledSGDW{...}.build(groups)` makes, "RMSprop" for a torch::optim::RMSprop, "Lookahead" for
/// a Lookahead<torch::optim::Adam>.
inline std::string class_name(const torch::optim::Optimizer& optimizer) {
  std::string name = c10::demangle(typeid(optimizer).name());
  constexpr std::string_view fused = "tutti::optim::Fused<";
  if (name.starts_with(fused)) {  // Fused<tutti::DecoupledSGDW>
    name = name.substr(fused.size(), name.size() - fused.size() - 1);
  }
  return unqualified(std::move(name));
}

}  // namespace tutti::optim
