#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tutti::detail {

/// One JSON value (RFC 8259), as checkpoint files need it: keys keep their order and occur once, an
/// integer stays a 64-bit integer, a double keeps every bit.
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

  Json() : value_(nullptr) {}
  Json(std::nullptr_t) : value_(nullptr) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(std::int64_t{value}) {}
  Json(std::int64_t value) : value_(value) {}
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(value_); }
  bool is_number() const { return is_int() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  /// "null", "a bool", "an integer", "a number", "a string", "an array" or "an object".
  std::string_view kind() const {
    constexpr std::string_view names[] = {"null",     "a bool",   "an integer", "a number",
                                          "a string", "an array", "an object"};
    return names[value_.index()];
  }

  /// The value as that kind. Throw std::invalid_argument naming the kind that is there; number()
  /// takes an integer too, integer() takes no number with a fraction or exponent.
  bool boolean() const { return as<bool>("a bool"); }
  std::int64_t integer() const { return as<std::int64_t>("an integer"); }
  const std::string& string() const& { return as<std::string>("a string"); }
  const Array& array() const& { return as<Array>("an array"); }
  const Object& object() const& { return as<Object>("an object"); }
  const Array& array() && = delete;    // a loop over a temporary's elements would outlive them
  const Object& object() && = delete;  // likewise
  double number() const {
    return is_int() ? static_cast<double>(integer()) : as<double>("a number");
  }

  /// The member of that name, or null when there is none or this is no object.
  const Json* find(std::string_view key) const {
    const auto* members = std::get_if<Object>(&value_);
    if (members == nullptr) {
      return nullptr;
    }
    for (const auto& member : *members) {
      if (member.first == key) {
        return &member.second;
      }
    }
    return nullptr;
  }

  bool contains(std::string_view key) const { return find(key) != nullptr; }

  /// The member of that name. Throws std::invalid_argument listing the members that are there.
  const Json& at(std::string_view key) const {
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
  const Json& operator[](std::string_view key) const { return at(key); }
  const Json& operator[](const char* key) const { return at(key); }

  /// The element at that place of an array. Throws std::invalid_argument past the end.
  const Json& at(std::size_t index) const {
    if (index >= array().size()) {
      throw std::invalid_argument("JSON: no element " + std::to_string(index) + " in an array of " +
                                  std::to_string(array().size()));
    }
    return array()[index];
  }
  const Json& operator[](std::size_t index) const { return at(index); }
  const Json& operator[](int index) const { return at(static_cast<std::size_t>(index)); }

  /// Number of elements or members; 0 for every other kind.
  std::size_t size() const {
    return is_array() ? array().size() : is_object() ? object().size() : 0;
  }

  friend bool operator==(const Json&, const Json&) = default;

 private:
  template <class T>
  const T& as(const char* wanted) const {
    if (const T* value = std::get_if<T>(&value_)) {
      return *value;
    }
    throw std::invalid_argument(std::string("JSON: expected ") + wanted + ", got " +
                                std::string(kind()));
  }

  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object> value_;
};

}  // namespace tutti::detail
