// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <tutti/models/pretrained_config.hpp>

namespace tutti::models {

TUTTI_INLINE PretrainedConfig PretrainedConfig::read(const std::string& folder) {
  const std::string path = folder + "/config.json";
  const auto is_there = [](const std::string& file) { return ::access(file.c_str(), F_OK) == 0; };
  TUTTI_CHECK_VALUE(
      is_there(path) || !is_there(folder + "/manifest.json"), "'", folder,
      "' is a checkpoint of a trainer (it has a manifest.json), which has no config.json; make the "
      "model and read it by load_path, or by checkpoint::load_module(*net, "
      "checkpoint::read_weights(\"",
      folder, "\"))");
  Json json = checkpoint::read_json(path);
  TUTTI_CHECK_VALUE(json.is_object(), "'", path, "' is ", json.kind(), ", expected an object");
  return PretrainedConfig(json.object(), "'" + path + "'");
}

TUTTI_INLINE std::string PretrainedConfig::architecture() const {
  const std::vector<std::string> names = texts("architectures");
  return names.empty() ? "" : names.front();
}

TUTTI_INLINE void PretrainedConfig::note_read(std::string_view name) const {
  if (unread_ != nullptr) {
    if (const auto found = unread_->find(name); found != unread_->end()) {
      unread_->erase(found);
    }
  }
}

TUTTI_INLINE std::vector<std::string> PretrainedConfig::stop_watching() const {
  std::vector<std::string> out;
  if (unread_ != nullptr) {
    out.assign(unread_->begin(), unread_->end());
    unread_->clear();
  }
  return out;
}

TUTTI_INLINE const tutti::detail::Json* PretrainedConfig::find(std::string_view name) const {
  note_read(name);
  for (const auto& [key, value] : values_) {
    if (key == name) {
      return value.is_null() ? nullptr : &value;
    }
  }
  return nullptr;
}

TUTTI_INLINE bool PretrainedConfig::is_null(std::string_view name) const {
  note_read(name);
  for (const auto& [key, value] : values_) {
    if (key == name) {
      return value.is_null();
    }
  }
  return false;
}

TUTTI_INLINE double PretrainedConfig::number(std::string_view name, double otherwise) const {
  const Json* value = find(name);
  if (value != nullptr && !(value->is_number() && std::isfinite(value->number()))) {
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

TUTTI_INLINE std::optional<std::int64_t> PretrainedConfig::token(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::vector<std::int64_t> ids = integers(name);
  if (ids.size() != 1) {
    wrong_kind(name, *value, "one token");
  }
  return ids.front();
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
  note_read("num_labels");
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
  if (name == "num_labels") {
    const Json* labels = find("id2label");
    const bool fits = labels != nullptr && labels->is_object() && value.is_int() &&
                      std::cmp_equal(labels->size(), value.integer());
    if (!fits) {
      erase("id2label");
      erase("label2id");
    }
  }
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
