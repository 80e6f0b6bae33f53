// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>

namespace tutti::detail {

/// One JSON value (RFC 8259), as checkpoint files need it: keys keep their order and occur once, an
/// integer stays a 64-bit integer, a double keeps every bit, and what is neither its own text.
///
/// Our own and not a library's because every program that includes the trainer pays for it: these
/// headers add 0.3 s to a file that includes tensors, nlohmann/json.hpp 2.3 s, and that one drops
/// repeated keys silently.
/// Read it with parse_json() of core/detail/json_parse.hpp, write it with to_text().
class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  // in the order of the file

  Json() = default;
  Json(std::nullptr_t) {}
  Json(bool value) : kind_(Kind::boolean), boolean_(value) {}
  Json(int value) : kind_(Kind::integer), integer_(value) {}
  Json(std::int64_t value) : kind_(Kind::integer), integer_(value) {}
  Json(double value) : kind_(Kind::number), number_(value) {}
  Json(const char* value) : kind_(Kind::string), string_(value) {}
  Json(std::string_view value) : kind_(Kind::string), string_(value) {}
  Json(std::string value) : kind_(Kind::string), string_(std::move(value)) {}
  Json(Array value) : kind_(Kind::array), array_(std::move(value)) {}
  Json(Object value) : kind_(Kind::object), object_(std::move(value)) {}

  /// A number that is written as `text`, of which `value` is the nearest double: an integer of more
  /// than 64 bits, or NaN, Infinity and -Infinity, which Python writes.
  static Json number_as(double value, std::string_view text) {
    Json out(value);
    out.string_ = text;
    return out;
  }

  bool is_null() const { return kind_ == Kind::null; }
  bool is_bool() const { return kind_ == Kind::boolean; }
  bool is_int() const { return kind_ == Kind::integer; }
  bool is_number() const { return is_int() || kind_ == Kind::number; }
  bool is_string() const { return kind_ == Kind::string; }
  bool is_array() const { return kind_ == Kind::array; }
  bool is_object() const { return kind_ == Kind::object; }

  /// "null", "a bool", "an integer", "a number", "a string", "an array" or "an object".
  std::string_view kind() const {
    constexpr std::string_view names[] = {"null",     "a bool",   "an integer", "a number",
                                          "a string", "an array", "an object"};
    return names[static_cast<std::size_t>(kind_)];
  }

  /// The value as that kind. Throw std::invalid_argument naming the kind that is there; number()
  /// takes an integer too, integer() takes no number with a fraction or exponent.
  bool boolean() const {
    expect(is_bool(), "a bool");
    return boolean_;
  }
  std::int64_t integer() const {
    expect(is_int(), "an integer");
    return integer_;
  }
  const std::string& string() const& {
    expect(is_string(), "a string");
    return string_;
  }
  const Array& array() const& {
    expect(is_array(), "an array");
    return array_;
  }
  const Object& object() const& {
    expect(is_object(), "an object");
    return object_;
  }
  const Array& array() && = delete;    // a loop over a temporary's elements would outlive them
  const Object& object() && = delete;  // likewise
  double number() const {
    expect(is_number(), "a number");
    return is_int() ? static_cast<double>(integer_) : number_;
  }

  /// The text that number_as() was given; else empty.
  std::string_view number_text() const {
    return kind_ == Kind::number ? std::string_view(string_) : std::string_view();
  }

  /// The member of that name, or null when there is none or this is no object.
  const Json* find(std::string_view key) const;

  bool contains(std::string_view key) const { return find(key) != nullptr; }

  /// The member of that name. Throws std::invalid_argument listing the members that are there.
  const Json& at(std::string_view key) const;
  const Json& operator[](std::string_view key) const { return at(key); }
  const Json& operator[](const char* key) const { return at(key); }

  /// The element at that place of an array. Throws std::invalid_argument past the end.
  const Json& at(std::size_t index) const;
  const Json& operator[](std::size_t index) const { return at(index); }
  const Json& operator[](int index) const { return at(static_cast<std::size_t>(index)); }

  /// Number of elements or members; 0 for every other kind.
  std::size_t size() const { return is_array() ? array_.size() : object_.size(); }

  /// Equal kinds and values; integers of more than 64 bits by their digits, and NaN equals NaN.
  friend bool operator==(const Json& a, const Json& b) {
    return a.kind_ == b.kind_ && a.boolean_ == b.boolean_ && a.integer_ == b.integer_ &&
           (a.number_ == b.number_ || !a.number_text().empty()) && a.string_ == b.string_ &&
           a.array_ == b.array_ && a.object_ == b.object_;
  }

 private:
  enum class Kind { null, boolean, integer, number, string, array, object };

  void expect(bool holds, const char* wanted) const;

  // Plain members, of which one is in use: a std::variant takes half a second more to
  // compile.
  Kind kind_ = Kind::null;
  bool boolean_ = false;
  std::int64_t integer_ = 0;
  double number_ = 0.0;
  std::string string_;  // a number's own text, too
  Array array_;
  Object object_;
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE const Json* Json::find(std::string_view key) const {
  for (const auto& member : object_) {
    if (member.first == key) {
      return &member.second;
    }
  }
  return nullptr;
}

TUTTI_INLINE const Json& Json::at(std::string_view key) const {
  if (const Json* found = find(key)) {
    return *found;
  }
  std::string present;
  for (const auto& member : object()) {
    present += (present.empty() ? "" : ", ") + member.first;
  }
  throw std::invalid_argument("JSON: no member '" + std::string(key) +
                              "'; there are: " + (present.empty() ? "none" : present));
}

TUTTI_INLINE const Json& Json::at(std::size_t index) const {
  if (index >= array().size()) {
    throw std::invalid_argument("JSON: no element " + std::to_string(index) + " in an array of " +
                                std::to_string(array().size()));
  }
  return array()[index];
}

TUTTI_INLINE void Json::expect(bool holds, const char* wanted) const {
  if (!holds) {
    throw std::invalid_argument(std::string("JSON: expected ") + wanted + ", got " +
                                std::string(kind()));
  }
}

}  // namespace tutti::detail

#endif
