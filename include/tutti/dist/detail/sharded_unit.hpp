// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/detail/flat_unit.hpp>
#include <tutti/dist/flight_recorder.hpp>

#include <ATen/core/Tensor.h>

// The parameters of a unit, whatever their types.

namespace tutti::dist::detail {

/// A FlatUnit for each type of a unit's parameters, as of a frozen bfloat16 layer with float32
/// adapters: what is done to the unit is done to each, in the order of their first parameters.
class ShardedUnit {
 public:
  ShardedUnit(std::string name, FlatUnit::How how) : how_(std::move(how)), name_(std::move(name)) {}

  /// Throws c10::Error for a parameter that cannot travel with those before it.
  void add(const std::string& name, const at::Tensor& parameter);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<std::unique_ptr<FlatUnit>>& parts() const { return parts_; }
  [[nodiscard]] bool empty() const { return parts_.empty(); }
  [[nodiscard]] bool here() const {
    return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->here(); });
  }
  [[nodiscard]] bool stays() const { return how_.stays; }
  [[nodiscard]] std::optional<at::ScalarType> param_dtype() const { return how_.param_dtype; }
  [[nodiscard]] bool summoned() const {
    return std::any_of(parts_.begin(), parts_.end(),
                       [](const auto& part) { return part->summoned(); });
  }

  template <class F>
  void each_parameter(F&& f) const {
    for (const auto& part : parts_) {
      for (const FlatParameter& one : part->parameters()) {
        f(one);
      }
    }
  }

  // As FlatUnit's.
  void start_gather() { each(&FlatUnit::start_gather); }
  void gather() { each(&FlatUnit::gather); }
  void refresh() { each(&FlatUnit::refresh); }
  void drop() { each(&FlatUnit::drop); }
  void keep() { each(&FlatUnit::keep); }
  void forget_pager() { each(&FlatUnit::forget_pager); }
  void cancel() { each(&FlatUnit::cancel); }
  void settle() { each(&FlatUnit::settle); }
  void keep_gradients() { each(&FlatUnit::keep_gradients); }
  void forget_gradients() { each(&FlatUnit::forget_gradients); }

  // Likewise; of those parts alone that train.
  void start_reduce() { each_that_trains(&FlatUnit::start_reduce); }
  void reduce() { each_that_trains(&FlatUnit::reduce); }

 private:
  [[nodiscard]] std::string_view purpose() const {
    return name_.empty() ? std::string_view("what is in no unit") : name_;
  }

  void each(void (FlatUnit::*act)()) {
    const CallPurpose of_unit(purpose());
    for (const auto& part : parts_) {
      (*part.*act)();
    }
  }

  void each_that_trains(void (FlatUnit::*act)()) {
    const CallPurpose of_unit(purpose());
    for (const auto& part : parts_) {
      if (part->trains()) {
        (*part.*act)();
      }
    }
  }

  FlatUnit::How how_;
  std::string name_;
  std::vector<std::unique_ptr<FlatUnit>> parts_;
};

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE void ShardedUnit::add(const std::string& name, const at::Tensor& parameter) {
  TUTTI_CHECK(parameter.is_floating_point(), "sharding: '", name, "' is ", parameter.scalar_type(),
              ", expected a floating type; make it a buffer, which every rank has whole");
  if (!parts_.empty()) {
    const FlatParameter& first = parts_.front()->parameters().front();
    TUTTI_CHECK(parameter.device() == first.whole.device(), "sharding: '", name, "' is on ",
                parameter.device(), " and '", first.name, "' of the same unit on ",
                first.whole.device(), "; expected one device in a unit, move the model to one");
  }
  auto part = std::find_if(parts_.begin(), parts_.end(), [&](const auto& one) {
    return one->parameters().front().whole.scalar_type() == parameter.scalar_type();
  });
  if (part == parts_.end()) {
    part = parts_.insert(parts_.end(), std::make_unique<FlatUnit>(how_));
  }
  (*part)->add(name, parameter);
}

}  // namespace tutti::dist::detail

#endif
