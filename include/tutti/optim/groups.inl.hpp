// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/optim/groups.hpp>

#include <tutti/core/detail/glob.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <unordered_set>

#include <torch/nn/module.h>

namespace tutti::optim::detail {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

TUTTI_INLINE std::vector<NamedParameter> distinct_parameters(const torch::nn::Module& model) {
  std::vector<NamedParameter> out;
  std::unordered_set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      out.push_back({item.key(), item.value()});
    }
  }
  return out;
}

TUTTI_INLINE void join(ParameterGroup& group, const NamedParameter& parameter) {
  group.names.push_back(parameter.name);
  group.parameters.push_back(parameter.tensor);
}

TUTTI_INLINE std::vector<ParameterGroup> without_empty(std::vector<ParameterGroup> groups) {
  std::erase_if(groups, [](const ParameterGroup& group) { return group.parameters.empty(); });
  return groups;
}

TUTTI_INLINE bool decays(const NamedParameter& parameter, const std::vector<std::string>& also) {
  const std::string& name = parameter.name;
  return parameter.tensor.dim() > 1 && name != "bias" && !name.ends_with(".bias") &&
         std::none_of(also.begin(), also.end(), [&](const std::string& glob) {
           return ::tutti::detail::glob_matches(glob, name);
         });
}

// The name up to its last part that begins a block: "layer2.1" of "layer2.1.conv1.weight"; empty
// where there is no number.
TUTTI_INLINE std::string block_of(const std::string& name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    if (end > begin && end < name.size() &&
        std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin),
                    name.begin() + static_cast<std::ptrdiff_t>(end), is_digit)) {
      return name.substr(0, end);
    }
    begin = end + 1;
  }
  return {};
}

}  // namespace tutti::optim::detail

namespace tutti::optim {

TUTTI_INLINE std::vector<ParameterGroup> groups(const torch::nn::Module& model,
                                                const std::vector<GroupRule>& rules) {
  std::vector<ParameterGroup> out{
      {.name = "others", .names = {}, .parameters = {}, .settings = {}}};
  for (const GroupRule& rule : rules) {
    out.push_back({.name = rule.glob, .names = {}, .parameters = {}, .settings = rule.settings});
  }
  for (const auto& parameter : detail::distinct_parameters(model)) {
    const auto rule = std::find_if(rules.begin(), rules.end(), [&](const GroupRule& candidate) {
      return ::tutti::detail::glob_matches(candidate.glob, parameter.name);
    });
    detail::join(out[rule == rules.end() ? 0 : static_cast<std::size_t>(rule - rules.begin()) + 1],
                 parameter);
  }
  for (std::size_t i = 1; i < out.size(); ++i) {
    TUTTI_CHECK(!out[i].parameters.empty(), "groups: no parameter is left for \"", out[i].name,
                "\"; is it misspelt, or did a rule before it take them all?");
  }
  return detail::without_empty(std::move(out));
}

TUTTI_INLINE std::vector<ParameterGroup> no_decay(const torch::nn::Module& model,
                                                  const std::vector<std::string>& also) {
  std::vector<ParameterGroup> out(2);
  out[0].name = "decay";
  out[1].name = "no_decay";
  out[1].settings.weight_decay = 0.0;
  for (const auto& parameter : detail::distinct_parameters(model)) {
    detail::join(out[detail::decays(parameter, also) ? 0 : 1], parameter);
  }
  return detail::without_empty(std::move(out));
}

TUTTI_INLINE std::vector<ParameterGroup> layer_decay(
    const torch::nn::Module& model, double decay, const std::vector<std::string>& also_no_decay) {
  TUTTI_CHECK(decay > 0.0 && decay <= 1.0, "layer_decay: decay is ", decay,
              ", expected more than 0 and at most 1.");
  const auto parameters = detail::distinct_parameters(model);
  std::map<std::string, std::size_t> blocks;  // which layer each is
  bool stem = false;
  bool head = false;
  for (const auto& parameter : parameters) {
    const std::string block = detail::block_of(parameter.name);
    if (!block.empty()) {
      blocks.try_emplace(block, blocks.size());
    } else {
      (blocks.empty() ? stem : head) = true;
    }
  }
  const std::size_t before = stem ? 1 : 0;
  const std::size_t count = before + blocks.size() + (head ? 1 : 0);
  std::vector<ParameterGroup> out(2 * count);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].name = "layer_" + std::to_string(i / 2) + (i % 2 == 0 ? "_decay" : "_no_decay");
    out[i].settings.lr_scale = std::pow(decay, static_cast<double>(count - 1 - i / 2));
    if (i % 2 != 0) {
      out[i].settings.weight_decay = 0.0;
    }
  }
  bool seen_block = false;
  for (const auto& parameter : parameters) {
    const std::string block = detail::block_of(parameter.name);
    seen_block = seen_block || !block.empty();
    const std::size_t layer = !block.empty() ? before + blocks[block] : seen_block ? count - 1 : 0;
    detail::join(out[2 * layer + (detail::decays(parameter, also_no_decay) ? 0 : 1)], parameter);
  }
  return detail::without_empty(std::move(out));
}

}  // namespace tutti::optim
