// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace tutti::detail {

// Who keeps a unit's parameters while the unit does not run.
class UnitHolder {
 public:
  UnitHolder() = default;
  UnitHolder(const UnitHolder&) = delete;
  UnitHolder& operator=(const UnitHolder&) = delete;
  virtual ~UnitHolder() = default;

  // The unit is about to run on `x`: brings its parameters. Returns what to run it on.
  virtual at::Tensor enter(const at::Tensor& x) = 0;

  // The unit has made `y`: its parameters may go. Returns what to hand on.
  virtual at::Tensor leave(const at::Tensor& y) = 0;

  // The unit is in a part of the model that the backward pass computes again, as a whole, whose
  // gradients come after that: they are to be waited for.
  virtual void expect_gradients() {}

  // They are there.
  virtual void gradients_came() {}
};

// What a unit has of its holder; see nn::Unit. Found in a model by dynamic_cast.
class UnitSlot {
 public:
  virtual ~UnitSlot() = default;

  // holder: null for none; has to outlive the unit's next run.
  void hold(UnitHolder* holder) { holder_ = holder; }
  [[nodiscard]] UnitHolder* holder() const { return holder_; }

 protected:
  UnitSlot() = default;
  // A copy has parameters of its own, which nobody keeps elsewhere.
  UnitSlot(const UnitSlot&) {}
  UnitSlot& operator=(const UnitSlot&) { return *this; }

 private:
  UnitHolder* holder_ = nullptr;
};

}  // namespace tutti::detail
