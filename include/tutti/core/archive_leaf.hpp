// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

namespace tutti {

/// One value of an Archive: a bool, an std::int64_t, an std::uint64_t, which holds only what is too
/// large for that, a double, an std::string or an at::Tensor.
///
/// Plain members, of which one is in use: an std::variant takes a good deal longer to compile.
class ArchiveLeaf {
 public:
  ArchiveLeaf() = default;  ///< false
  explicit ArchiveLeaf(bool value) : number_(value) {}
  explicit ArchiveLeaf(std::int64_t value)
      : kind_(Kind::integer), number_(static_cast<std::uint64_t>(value)) {}
  explicit ArchiveLeaf(std::uint64_t value) : kind_(Kind::large), number_(value) {}
  explicit ArchiveLeaf(double value) : kind_(Kind::real), real_(value) {}
  explicit ArchiveLeaf(std::string value) : kind_(Kind::text), text_(std::move(value)) {}
  explicit ArchiveLeaf(at::Tensor value) : kind_(Kind::tensor), tensor_(std::move(value)) {}

  /// The tensor; null when it is none.
  const at::Tensor* tensor() const { return kind_ == Kind::tensor ? &tensor_ : nullptr; }

  /// Calls `f` with the value as the type that it has, and returns what that returns.
  template <class F>
  decltype(auto) visit(F&& f) const {
    switch (kind_) {
      case Kind::boolean:
        return f(number_ != 0);
      case Kind::integer:
        return f(static_cast<std::int64_t>(number_));
      case Kind::large:
        return f(number_);
      case Kind::real:
        return f(real_);
      case Kind::text:
        return f(text_);
      case Kind::tensor:
        break;
    }
    return f(tensor_);
  }

  /// "a bool", "an integer", "a double", "text" or "a tensor".
  std::string_view kind() const {
    constexpr std::string_view names[] = {"a bool",   "an integer", "an integer",
                                          "a double", "text",       "a tensor"};
    return names[static_cast<std::size_t>(kind_)];
  }

 private:
  enum class Kind { boolean, integer, large, real, text, tensor };

  Kind kind_ = Kind::boolean;
  std::uint64_t number_ = 0;
  double real_ = 0;
  std::string text_;
  at::Tensor tensor_;
};

namespace detail {

// What kind() says of a `T`.
template <class T>
constexpr std::string_view leaf_kind() {
  if constexpr (std::same_as<T, bool>) {
    return "a bool";
  } else if constexpr (std::integral<T>) {
    return "an integer";
  } else if constexpr (std::floating_point<T>) {
    return "a double";
  } else if constexpr (std::same_as<T, at::Tensor>) {
    return "a tensor";
  } else {
    return "text";
  }
}

}  // namespace detail

}  // namespace tutti
