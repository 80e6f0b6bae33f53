// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tutti {

/// The value of a hyperparameter, a constant of the run: a bool, an std::int64_t, a double or text.
///
/// Plain members, of which one is in use: an std::variant takes a good deal longer to compile, in
/// every program that has a Trainer.
class HyperparameterValue {
 public:
  HyperparameterValue() = default;  ///< false
  HyperparameterValue(std::same_as<bool> auto value) : boolean_(value) {}
  /// An integer that std::int64_t holds for certain.
  template <std::integral T>
    requires(!std::same_as<T, bool> && (std::signed_integral<T> || sizeof(T) < 8))
  HyperparameterValue(T value) : kind_(Kind::integer), integer_(value) {}
  HyperparameterValue(std::floating_point auto value) : kind_(Kind::real), real_(value) {}
  HyperparameterValue(std::string value) : kind_(Kind::text), text_(std::move(value)) {}
  HyperparameterValue(const char* value) : kind_(Kind::text), text_(value) {}

  /// The value when it is a `T`, one of the four types; else null.
  template <class T>
  [[nodiscard]] const T* get_if() const {
    if constexpr (std::same_as<T, bool>) {
      return kind_ == Kind::boolean ? &boolean_ : nullptr;
    } else if constexpr (std::same_as<T, std::int64_t>) {
      return kind_ == Kind::integer ? &integer_ : nullptr;
    } else if constexpr (std::same_as<T, double>) {
      return kind_ == Kind::real ? &real_ : nullptr;
    } else {
      static_assert(std::is_same_v<T, std::string>,
                    "tutti: a hyperparameter is a bool, an std::int64_t, a double or an "
                    "std::string; ask for one of these.");
      if constexpr (std::is_same_v<T, std::string>) {
        return kind_ == Kind::text ? &text_ : nullptr;
      }
    }
  }

  /// Calls `f` with the value as the type that it has, and returns what that returns.
  template <class F>
  decltype(auto) visit(F&& f) const {
    switch (kind_) {
      case Kind::boolean:
        return f(boolean_);
      case Kind::integer:
        return f(integer_);
      case Kind::real:
        return f(real_);
      case Kind::text:
        break;
    }
    return f(text_);
  }

  friend bool operator==(const HyperparameterValue&, const HyperparameterValue&) = default;

 private:
  enum class Kind { boolean, integer, real, text };

  Kind kind_ = Kind::boolean;
  bool boolean_ = false;
  std::int64_t integer_ = 0;
  double real_ = 0;
  std::string text_;
};

}  // namespace tutti
