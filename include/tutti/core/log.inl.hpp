// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/log.hpp>

#include <cstdint>

#include <c10/core/GradMode.h>

#include <tutti/core/detail/throw.hpp>

namespace tutti::detail {

TUTTI_INLINE void LoggedValues::add(std::string_view name, double value) {
  const auto found = sums_.find(name);
  Sum& sum = found != sums_.end() ? found->second : sums_[std::string(name)];
  sum.sum += weight_ * value;
  sum.weight += weight_;
}

TUTTI_INLINE void LoggedValues::add(std::string_view name, const at::Tensor& value) {
  TUTTI_CHECK(value.defined() && value.numel() == 1, "log: \"", name, "\" is a tensor ",
              value.defined() ? value.sizes() : at::IntArrayRef(),
              ", expected one number; take its mean()");
  if (value.is_cpu()) {
    add(name, value.item<double>());
    return;
  }
  const c10::NoGradGuard no_grad;
  const auto found = on_device_.find(name);
  OnDevice& sum = found != on_device_.end() ? found->second : on_device_[std::string(name)];
  const at::Tensor one = value.detach().reshape({}).to(at::kDouble).mul(weight_);
  sum.sum = sum.sum.defined() ? sum.sum.add_(one) : one;
  sum.weight += weight_;
}

TUTTI_INLINE LoggedValues::Sums LoggedValues::take() {
  if (!on_device_.empty()) {
    const at::Tensor all =
        on_device_.begin()->second.sum.new_empty({static_cast<std::int64_t>(on_device_.size())});
    std::int64_t i = 0;
    for (const auto& [name, one] : on_device_) {
      all.select(0, i++).copy_(one.sum);
    }
    const at::Tensor host = all.cpu();
    i = 0;
    for (const auto& [name, one] : on_device_) {
      Sum& sum = sums_[name];
      sum.sum += host.const_data_ptr<double>()[i++];
      sum.weight += one.weight;
    }
    on_device_.clear();
  }
  return std::exchange(sums_, {});
}

}  // namespace tutti::detail
