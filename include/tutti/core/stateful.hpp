// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tutti {

class Archive;

/// What a checkpoint can save and restore when only a base class is at hand.
///
/// Optimizers of this library derive from it beside torch::optim::Optimizer, and so may a user's
/// own: the checkpoint finds it by dynamic_cast. Policies need no base class; their save() and
/// load() are found by name. `load` is called on an object that was constructed as the saved one
/// was; it throws c10::Error when the archive does not fit, and then leaves the object as it was
/// where that is possible.
struct Stateful {
  virtual ~Stateful() = default;

  /// Writes everything that a later step depends on, hyperparameters included.
  virtual void save(Archive& archive) const = 0;

  /// Restores what save() wrote.
  virtual void load(const Archive& archive) = 0;

 protected:
  Stateful() = default;
  Stateful(const Stateful&) = default;
  Stateful& operator=(const Stateful&) = default;
};

}  // namespace tutti
