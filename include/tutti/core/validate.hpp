// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <tutti/core/detail/throw.hpp>

/// What a policy's hyperparameters are made of and checked with: structural types and constexpr
/// checks, so that With<MixUp{.alpha = -1.0}> does not compile.
namespace tutti {

namespace detail {

template <class T>
c10::ValueError out_of_range(std::string_view what, const T& got, std::string_view expected) {
  std::ostringstream text;
  text << what << " is ";
  if constexpr (!std::is_arithmetic_v<T> && requires { to_string(got); }) {
    text << to_string(got);
  } else {
    text << got;
  }
  text << ", expected " << expected << ".";
  return make_error<c10::ValueError>({__func__, __FILE__, __LINE__}, text.str());
}
inline c10::ValueError contradiction(std::string_view sentence) {
  return make_error<c10::ValueError>({__func__, __FILE__, __LINE__}, std::string(sentence));
}

}  // namespace detail

/// For validate(): a hyperparameter is in its range.
///
///     constexpr void validate() const { expect(alpha >= 0, "MixUp: alpha", alpha, "0 or more"); }
///
/// holds: what must be true. what: policy and hyperparameter. got: its value, printable.
/// expected: the range in words.
/// Throws c10::ValueError "MixUp: alpha is -1, expected 0 or more."; in a constant expression a
/// value out of range does not compile.
template <class T>
constexpr void expect(bool holds, std::string_view what, const T& got, std::string_view expected) {
  if (!holds) {
    throw detail::out_of_range(what, got, expected);
  }
}

/// For validate(): hyperparameters go together; the sentence says which do not and what to do.
constexpr void expect(bool holds, std::string_view sentence) {
  if (!holds) {
    throw detail::contradiction(sentence);
  }
}

/// A hyperparameter that need not be set: std::optional as a structural type.
template <class T>
struct Maybe {
  T value_{};         ///< public because structural types have no private members
  bool set_ = false;  ///< likewise

  constexpr Maybe() = default;
  constexpr Maybe(T value) : value_(value), set_(true) {}

  constexpr explicit operator bool() const { return set_; }
  constexpr const T& operator*() const { return value_; }
};

/// A short text among hyperparameters, such as the name of a batch's tensor; at most 95 characters.
struct Key {
  std::array<char, 96> text_{};  ///< public because structural types have no private members

  constexpr Key() = default;
  constexpr Key(const char* text) : Key(std::string_view(text)) {}
  constexpr Key(std::string_view text) {
    expect(text.size() < text_.size(), "the length of a name among hyperparameters", text.size(),
           "95 characters at most");
    for (std::size_t i = 0; i < text.size(); ++i) {
      text_[i] = text[i];
    }
  }
  Key(const std::string& text) : Key(std::string_view(text)) {}

  constexpr operator std::string_view() const { return text_.data(); }
  [[nodiscard]] constexpr bool empty() const { return text_[0] == '\0'; }
  friend constexpr bool operator==(const Key&, const Key&) = default;
};

/// A few short texts among hyperparameters, such as globs of parameter names; at most 16.
struct Keys {
  std::array<Key, 16> keys_{};  ///< public because structural types have no private members
  std::size_t size_ = 0;

  constexpr Keys() = default;
  constexpr Keys(std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      add(key);
    }
  }
  Keys(const std::vector<std::string>& keys) {
    for (const std::string& key : keys) {
      add(key);
    }
  }

  [[nodiscard]] constexpr const Key* begin() const { return keys_.data(); }
  [[nodiscard]] constexpr const Key* end() const { return keys_.data() + size_; }
  [[nodiscard]] constexpr bool empty() const { return size_ == 0; }
  friend constexpr bool operator==(const Keys&, const Keys&) = default;

 private:
  constexpr void add(std::string_view key) {
    expect(size_ < keys_.size(), "the number of names in one hyperparameter", size_ + 1,
           "16 at most");
    keys_[size_++] = key;
  }
};

}  // namespace tutti
