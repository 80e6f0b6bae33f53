#pragma once

#include <string>
#include <typeinfo>

#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

namespace tutti::optim {

/// The name of an optimizer's class as Python would say it: "DecoupledSGDW" for what
/// `DecoupledSGDW{...}.build(groups)` makes, "RMSprop" for a torch::optim::RMSprop.
inline std::string class_name(const torch::optim::Optimizer& optimizer) {
  std::string name = c10::demangle(typeid(optimizer).name());
  if (const auto open = name.find('<'); open != std::string::npos) {  // Fused<DecoupledSGDW>
    name = name.substr(open + 1, name.find_first_of("<>,", open + 1) - open - 1);
  }
  const auto colon = name.rfind("::");
  return colon == std::string::npos ? name : name.substr(colon + 2);
}

}  // namespace tutti::optim
