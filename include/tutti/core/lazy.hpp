// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace tutti {

/// A policy's run-time part: a `T` made on first use.
///
/// A policy whose hyperparameters should be able to stand in a type, as in
/// `With<MixUp{.alpha = 0.2}>`, has only members of structural types; whatever else it holds while
/// it runs (tensors, strings, containers) goes into a Lazy. Copies are deep; T is default
/// constructible and copyable.
template <class T>
struct Lazy {
  /// Owned; null until first use. Public because structural types have no private members: leave
  /// it alone.
  T* held_ = nullptr;

  constexpr Lazy() noexcept = default;
  constexpr Lazy(const Lazy& other) : held_(other.held_ ? new T(*other.held_) : nullptr) {}
  constexpr Lazy(Lazy&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  constexpr Lazy& operator=(const Lazy& other) { return *this = Lazy(other); }
  constexpr Lazy& operator=(Lazy&& other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  Lazy& operator=(T value) {
    **this = std::move(value);
    return *this;
  }
  constexpr ~Lazy() { reset(); }

  /// The value, made now if there is none.
  T& operator*() {
    if (held_ == nullptr) {
      held_ = new T();
    }
    return *held_;
  }
  T* operator->() { return &**this; }

  /// The value, or that of a T just made while there is none.
  const T& operator*() const {
    static const T none{};
    return held_ == nullptr ? none : *held_;
  }
  const T* operator->() const { return &**this; }

  /// There is a value.
  constexpr explicit operator bool() const noexcept { return held_ != nullptr; }

  /// Back to none.
  constexpr void reset() noexcept {
    if (held_ != nullptr) {  // constant evaluation never gets to the deletion
      delete std::exchange(held_, nullptr);
    }
  }
};

}  // namespace tutti
