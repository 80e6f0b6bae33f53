// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <tutti/checkpoint/module_state.hpp>
#include <tutti/nn/lora.hpp>
#include <tutti/nn/surgery.hpp>

/// The modules that are trained and written beside the adapters of LoRA, whose options stand in
/// another header.
namespace tutti::detail {

// modules_to_save, with those of the task.
template <class Options>
std::vector<std::string> saved_modules(const Options& lora) {
  std::vector<std::string> out = lora.modules_to_save;
  if (lora.task_type == "SEQ_CLS" || lora.task_type == "TOKEN_CLS") {
    for (const char* head : {"classifier", "score"}) {
      if (std::find(out.begin(), out.end(), head) == out.end()) {
        out.emplace_back(head);
      }
    }
  }
  return out;
}

// Calls `visit(module, name, tensor)` for the parameters and buffers of the modules to save: their
// names in the module, and its path.
template <class Options, class Visit>
void each_saved_part(torch::nn::Module& model, const Options& lora, Visit&& visit) {
  const std::vector<std::string> saved = saved_modules(lora);
  for (const surgery::Visit& where : surgery::walk(model)) {
    const bool is_saved = std::any_of(saved.begin(), saved.end(), [&](const std::string& name) {
      return where.path.ends_with(name);
    });
    if (is_saved && !where.inside<nn::LoraLayer>()) {
      for (const auto& [own, tensor] : checkpoint::module_tensors(*where.module)) {
        visit(where.path, own, tensor);
      }
    }
  }
}

// Calls `visit(name, tensor)` for the same, under their names in the model.
template <class Options, class Visit>
void each_saved(torch::nn::Module& model, const Options& lora, Visit&& visit) {
  each_saved_part(model, lora,
                  [&](const std::string& module, const std::string& own, const at::Tensor& tensor) {
                    visit(module + "." + own, tensor);
                  });
}

// Where every bias is trained, PEFT writes those of saved modules twice more, as they are and as
// they were. Calls `visit(name now, name before, tensor)`.
template <class Options, class Visit>
void each_saved_bias(torch::nn::Module& model, const Options& lora, Visit&& visit) {
  if (lora.bias != decltype(lora.bias)::all) {
    return;
  }
  each_saved_part(model, lora,
                  [&](const std::string& module, const std::string& own, const at::Tensor& tensor) {
                    if (own.find("bias") != std::string::npos) {
                      visit(module + ".modules_to_save." + own, module + ".original_module." + own,
                            tensor);
                    }
                  });
}

}  // namespace tutti::detail
