// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/utf8.hpp>

namespace tutti::data::detail {

// A bool, a number or nested lists of numbers, equally long at each level, as a tensor: bool, int64
// when all are integers, else float64, as PyTorch makes of Python's values. place: what messages
// begin with, "'x.jsonl', line 3, "label"".
at::Tensor json_tensor(const tutti::detail::Json& value, const std::string& place);

// The place of the first byte that is not UTF-8; npos when there is none.
std::size_t first_not_utf8(std::string_view text);

// A text as int64 of all numbers there are, with white space around it; nothing for another text.
std::optional<std::int64_t> whole_number(std::string_view text);

// Bytes as uint8 [n].
at::Tensor byte_tensor(std::string_view bytes);

}  // namespace tutti::data::detail

#if TUTTI_BODIES

#include <charconv>
#include <cstring>
#include <system_error>
#include <type_traits>

namespace tutti::data::detail {

using tutti::detail::Json;

// Puts the values below one another; fills in the shape on the way to the first of them.
class JsonNumbers {
 public:
  explicit JsonNumbers(const std::string& place) : place_(place) {}

  at::Tensor tensor(const Json& value) {
    const Json* first = &value;
    while (first->is_array()) {
      shape_.push_back(static_cast<std::int64_t>(first->size()));
      if (first->size() == 0) {
        break;
      }
      first = &(*first)[0];
    }
    is_bool_ = first->is_bool();
    add(value, 0);
    return is_bool_     ? filled<bool>(at::kBool)
           : all_whole_ ? filled<std::int64_t>(at::kLong)
                        : filled<double>(at::kDouble);
  }

 private:
  void add(const Json& value, std::size_t level) {
    if (level < shape_.size()) {
      TUTTI_CHECK(value.is_array() && static_cast<std::int64_t>(value.size()) == shape_[level],
                  place_, " is no tensor: its lists are not equally long at level ", level + 1,
                  ", or hold numbers and lists");
      for (const Json& element : value.array()) {
        add(element, level + 1);
      }
      return;
    }
    TUTTI_CHECK(is_bool_ ? value.is_bool() : value.is_number(), place_, " holds ", value.kind(),
                ", expected ", is_bool_ ? "bools alone" : "numbers or lists of numbers");
    all_whole_ = all_whole_ && value.is_int();
    whole_.push_back(is_bool_         ? static_cast<std::int64_t>(value.boolean())
                     : value.is_int() ? value.integer()
                                      : 0);
    real_.push_back(is_bool_ ? 0.0 : value.number());
  }

  template <class T>
  at::Tensor filled(at::ScalarType type) const {
    at::Tensor out(at::detail::empty_cpu(shape_, type, /*pin_memory=*/false, std::nullopt));
    auto* const to = out.mutable_data_ptr<T>();
    for (std::size_t i = 0; i < whole_.size(); ++i) {
      if constexpr (std::is_same_v<T, double>) {
        to[i] = real_[i];
      } else {
        to[i] = static_cast<T>(whole_[i]);
      }
    }
    return out;
  }

  const std::string& place_;
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> whole_;
  std::vector<double> real_;
  bool is_bool_ = false;
  bool all_whole_ = true;
};

TUTTI_INLINE at::Tensor json_tensor(const Json& value, const std::string& place) {
  return JsonNumbers(place).tensor(value);
}

TUTTI_INLINE std::size_t first_not_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const tutti::detail::Utf8Character next = tutti::detail::decode_utf8(text, at);
    if (!next.ok) {
      return at;
    }
    at += next.bytes;
  }
  return std::string_view::npos;
}

TUTTI_INLINE std::optional<std::int64_t> whole_number(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
  text = text.substr(0, text.find_last_not_of(blanks) + 1);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') {
    text.remove_prefix(1);
  }
  std::int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole ? std::optional(out) : std::nullopt;
}

TUTTI_INLINE at::Tensor byte_tensor(std::string_view bytes) {
  at::Tensor out(at::detail::empty_cpu({static_cast<std::int64_t>(bytes.size())}, at::kByte,
                                       /*pin_memory=*/false, std::nullopt));
  if (!bytes.empty()) {
    std::memcpy(out.mutable_data_ptr(), bytes.data(), bytes.size());
  }
  return out;
}

}  // namespace tutti::data::detail

#endif
