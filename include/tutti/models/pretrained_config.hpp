// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include <tutti/checkpoint/json_file.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::models {

/// The `config.json` of a Hugging Face folder: which model it is, and its sizes.
///
///     const auto config = PretrainedConfig::read(folder);
///     const std::int64_t width = config.integer("n_embd", 768);
///     config.only("add_cross_attention", {false});
///
/// Every key is kept, known or not, in the order of the file, so that config.json comes out of a
/// round trip as it went in. A key whose value is null counts as absent when it is read. All errors
/// are c10::Error (ValueError) that names the file, the key and the value.
class PretrainedConfig {
 public:
  using Json = tutti::detail::Json;

  /// A config without keys, for set().
  PretrainedConfig() = default;

  /// values: the keys. origin: what errors name, such as the path of the file.
  explicit PretrainedConfig(Json::Object values, std::string origin = "the config")
      : values_(std::move(values)), origin_(std::move(origin)) {}

  /// Reads `config.json` of a folder. Throws c10::Error when there is none or it is no JSON object.
  static PretrainedConfig read(const std::string& folder);

  /// `model_type`, such as "gpt2"; "" when absent.
  [[nodiscard]] std::string model_type() const { return text("model_type", ""); }

  /// The first of `architectures`, such as "GPT2LMHeadModel"; "" when there is none.
  [[nodiscard]] std::string architecture() const;

  /// The key is there, and its value is not null.
  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }

  /// The key is there, and its value is null, which means something else than its absence where the
  /// default is a number.
  [[nodiscard]] bool is_null(std::string_view name) const;

  /// The value of a key; null when it is absent or its value is null.
  [[nodiscard]] const Json* find(std::string_view name) const;

  /// The value of a key as that kind, or `otherwise` when it is absent or null. integer() takes a
  /// number without a fraction, too. Throw when the value is of another kind.
  [[nodiscard]] double number(std::string_view name, double otherwise) const;
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t otherwise) const;
  [[nodiscard]] bool flag(std::string_view name, bool otherwise) const;
  [[nodiscard]] std::string text(std::string_view name, std::string_view otherwise) const;

  /// integer() and number() of a key whose value has to be from `least` to `most`. Throw when it is
  /// not: a size below 1, or one that no model has.
  [[nodiscard]] std::int64_t integer_in(std::string_view name, std::int64_t otherwise,
                                        std::int64_t least, std::int64_t most) const;
  [[nodiscard]] double number_in(std::string_view name, double otherwise, double least,
                                 double most) const;

  /// The value of a key that has to be there. Throws when it is absent, null or no integer.
  [[nodiscard]] std::int64_t integer(std::string_view name) const;

  /// The elements of a key that is a list of integers, or a single one; empty when absent or null.
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view name) const;

  /// The elements of a key that is a list of texts; empty when absent or null.
  [[nodiscard]] std::vector<std::string> texts(std::string_view name) const;

  /// The object under a key as a config of its own, whose errors name both; empty when absent.
  [[nodiscard]] PretrainedConfig section(std::string_view name) const;

  /// The type of the weights: `dtype`, or `torch_dtype` of older files; nothing when absent.
  [[nodiscard]] std::optional<c10::ScalarType> dtype() const;

  /// Labels of a classifier: the size of `id2label`, else `num_labels`, else `otherwise`. Throws
  /// for none, and for more than any model has.
  [[nodiscard]] std::int64_t num_labels(std::int64_t otherwise = 2) const;

  /// Refuses a key that changes the computation: throws unless it is absent, null or one of the
  /// `supported` values. why: follows in the message, such as "use the decoder-only classes".
  void only(std::string_view name, std::initializer_list<Json> supported,
            std::string_view why = "") const;

  /// Refuses, in the words of only(), a key whose value is read elsewhere.
  [[noreturn]] void refuse(std::string_view name, std::string_view expected) const;

  /// Gives a key a value, in its old place when it is there.
  void set(std::string_view name, Json value);

  /// set(), unless the key is there: for what config() of a model adds to the file it came from.
  void set_default(std::string_view name, Json value);

  /// Takes a key away; nothing happens when it is absent.
  void erase(std::string_view name);

  /// Writes `config.json` into a folder that has none.
  void write(const std::string& folder) const;

  /// All keys in order.
  [[nodiscard]] const Json::Object& values() const& { return values_; }
  const Json::Object& values() && = delete;  // a loop over them would outlive them

  /// What errors name: the path of the file it was read from.
  [[nodiscard]] const std::string& origin() const { return origin_; }

  /// Equal keys, values and order; where they came from does not matter.
  friend bool operator==(const PretrainedConfig& a, const PretrainedConfig& b) {
    return a.values_ == b.values_;
  }

 private:
  [[noreturn]] void wrong_kind(std::string_view name, const Json& value,
                               const char* expected) const;
  std::int64_t integer_of(std::string_view name, const Json& value) const;

  Json::Object values_;
  std::string origin_ = "the config";
};

/// The name of a type in `dtype`: "float32", "bfloat16", "float16", "float64". Throws c10::Error
/// (ValueError) for any other.
std::string dtype_text(c10::ScalarType dtype);

}  // namespace tutti::models

#if TUTTI_BODIES

namespace tutti::models {

TUTTI_INLINE PretrainedConfig PretrainedConfig::read(const std::string& folder) {
  const std::string path = folder + "/config.json";
  Json json = checkpoint::read_json(path);
  TUTTI_CHECK_VALUE(json.is_object(), "'", path, "' is ", json.kind(), ", expected an object");
  return PretrainedConfig(json.object(), "'" + path + "'");
}

TUTTI_INLINE std::string PretrainedConfig::architecture() const {
  const std::vector<std::string> names = texts("architectures");
  return names.empty() ? "" : names.front();
}

TUTTI_INLINE const tutti::detail::Json* PretrainedConfig::find(std::string_view name) const {
  for (const auto& [key, value] : values_) {
    if (key == name) {
      return value.is_null() ? nullptr : &value;
    }
  }
  return nullptr;
}

TUTTI_INLINE bool PretrainedConfig::is_null(std::string_view name) const {
  for (const auto& [key, value] : values_) {
    if (key == name) {
      return value.is_null();
    }
  }
  return false;
}

TUTTI_INLINE double PretrainedConfig::number(std::string_view name, double otherwise) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_number()) {
    wrong_kind(name, *value, "a number");
  }
  return value != nullptr ? value->number() : otherwise;
}

TUTTI_INLINE std::int64_t PretrainedConfig::integer_of(std::string_view name,
                                                       const Json& value) const {
  if (value.is_int()) {
    return value.integer();
  }
  constexpr double exact = 9007199254740992.0;  // every integer up to here is a double
  if (!value.is_number() || std::trunc(value.number()) != value.number() ||
      std::abs(value.number()) > exact) {
    wrong_kind(name, value, "an integer");
  }
  return static_cast<std::int64_t>(value.number());
}

TUTTI_INLINE std::int64_t PretrainedConfig::integer(std::string_view name,
                                                    std::int64_t otherwise) const {
  const Json* value = find(name);
  return value != nullptr ? integer_of(name, *value) : otherwise;
}

TUTTI_INLINE std::int64_t PretrainedConfig::integer(std::string_view name) const {
  const Json* value = find(name);
  TUTTI_CHECK_VALUE(value != nullptr, origin_, ": ", name, " is absent, expected an integer");
  return integer_of(name, *value);
}

TUTTI_INLINE std::int64_t PretrainedConfig::integer_in(std::string_view name,
                                                       std::int64_t otherwise, std::int64_t least,
                                                       std::int64_t most) const {
  const std::int64_t value = integer(name, otherwise);
  TUTTI_CHECK_VALUE(value >= least && value <= most, origin_, ": ", name, " is ", value,
                    ", expected an integer from ", least, " to ", most);
  return value;
}

TUTTI_INLINE double PretrainedConfig::number_in(std::string_view name, double otherwise,
                                                double least, double most) const {
  const double value = number(name, otherwise);
  TUTTI_CHECK_VALUE(value >= least && value <= most, origin_, ": ", name, " is ", value,
                    ", expected a number from ", least, " to ", most);
  return value;
}

TUTTI_INLINE bool PretrainedConfig::flag(std::string_view name, bool otherwise) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_bool()) {
    wrong_kind(name, *value, "true or false");
  }
  return value != nullptr ? value->boolean() : otherwise;
}

TUTTI_INLINE std::string PretrainedConfig::text(std::string_view name,
                                                std::string_view otherwise) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_string()) {
    wrong_kind(name, *value, "a text");
  }
  return value != nullptr ? value->string() : std::string(otherwise);
}

TUTTI_INLINE std::vector<std::int64_t> PretrainedConfig::integers(std::string_view name) const {
  const Json* value = find(name);
  std::vector<std::int64_t> out;
  if (value != nullptr && value->is_array()) {
    for (const Json& element : value->array()) {
      out.push_back(integer_of(name, element));
    }
  } else if (value != nullptr) {
    out.push_back(integer_of(name, *value));
  }
  return out;
}

TUTTI_INLINE std::vector<std::string> PretrainedConfig::texts(std::string_view name) const {
  const Json* value = find(name);
  std::vector<std::string> out;
  if (value != nullptr && !value->is_array()) {
    wrong_kind(name, *value, "a list of texts");
  }
  for (std::size_t i = 0; value != nullptr && i < value->size(); ++i) {
    if (!value->at(i).is_string()) {
      wrong_kind(name, *value, "a list of texts");
    }
    out.push_back(value->at(i).string());
  }
  return out;
}

TUTTI_INLINE PretrainedConfig PretrainedConfig::section(std::string_view name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) {
    wrong_kind(name, *value, "an object");
  }
  return PretrainedConfig(value != nullptr ? value->object() : Json::Object(),
                          origin_ + ": " + std::string(name));
}

TUTTI_INLINE std::optional<c10::ScalarType> PretrainedConfig::dtype() const {
  const char* name = has("dtype") ? "dtype" : "torch_dtype";
  std::string value = text(name, "");
  if (value.starts_with("torch.")) {
    value.erase(0, 6);
  }
  for (const c10::ScalarType known : {c10::kFloat, c10::kBFloat16, c10::kHalf, c10::kDouble}) {
    if (value == dtype_text(known)) {
      return known;
    }
  }
  if (!value.empty()) {
    refuse(name, "\"float32\", \"bfloat16\", \"float16\" or \"float64\"");
  }
  return std::nullopt;
}

TUTTI_INLINE std::int64_t PretrainedConfig::num_labels(std::int64_t otherwise) const {
  const Json* labels = find("id2label");
  if (labels != nullptr && !labels->is_object()) {
    wrong_kind("id2label", *labels, "an object");
  }
  if (labels != nullptr) {
    TUTTI_CHECK_VALUE(labels->size() > 0, origin_, ": id2label is {}, expected a label or more");
    return static_cast<std::int64_t>(labels->size());
  }
  return integer_in("num_labels", otherwise, 1, 10'000'000);
}

TUTTI_INLINE void PretrainedConfig::only(std::string_view name,
                                         std::initializer_list<Json> supported,
                                         std::string_view why) const {
  const Json* value = find(name);
  if (value == nullptr) {
    return;
  }
  std::string expected;
  for (const Json& known : supported) {
    const bool numbers = known.is_number() && value->is_number();
    if (*value == known || (numbers && value->number() == known.number())) {
      return;
    }
    expected += (expected.empty() ? "" : " or ") + tutti::detail::to_text(known);
  }
  refuse(name, expected + (why.empty() ? "" : "; ") + std::string(why));
}

TUTTI_INLINE void PretrainedConfig::refuse(std::string_view name, std::string_view expected) const {
  const Json* value = find(name);
  ::tutti::detail::raise<c10::ValueError>(
      {__func__, __FILE__, __LINE__},
      origin_ + ": " + std::string(name) + " is " +
          (value != nullptr ? tutti::detail::to_text(*value) : "absent") +
          ", which changes the computation and is not supported; expected " +
          std::string(expected));
}

TUTTI_INLINE void PretrainedConfig::set(std::string_view name, Json value) {
  for (auto& [key, old] : values_) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  values_.emplace_back(name, std::move(value));
}

TUTTI_INLINE void PretrainedConfig::set_default(std::string_view name, Json value) {
  for (const auto& [key, old] : values_) {
    if (key == name) {
      return;
    }
  }
  values_.emplace_back(name, std::move(value));
}

TUTTI_INLINE void PretrainedConfig::erase(std::string_view name) {
  std::erase_if(values_, [&](const auto& member) { return member.first == name; });
}

TUTTI_INLINE void PretrainedConfig::write(const std::string& folder) const {
  checkpoint::write_json(folder + "/config.json", Json(values_));
}

TUTTI_INLINE void PretrainedConfig::wrong_kind(std::string_view name, const Json& value,
                                               const char* expected) const {
  ::tutti::detail::raise<c10::ValueError>(
      {__func__, __FILE__, __LINE__}, origin_ + ": " + std::string(name) + " is " +
                                          tutti::detail::to_text(value) + ", expected " + expected);
}

TUTTI_INLINE std::string dtype_text(c10::ScalarType dtype) {
  const char* text = dtype == c10::kFloat      ? "float32"
                     : dtype == c10::kBFloat16 ? "bfloat16"
                     : dtype == c10::kHalf     ? "float16"
                     : dtype == c10::kDouble   ? "float64"
                                               : nullptr;
  TUTTI_CHECK_VALUE(text != nullptr, "the weights' type is ", dtype,
                    ", expected float32, bfloat16, float16 or float64");
  return text;
}

}  // namespace tutti::models

#endif
