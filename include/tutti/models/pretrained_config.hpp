// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
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
  /// number without a fraction, too. Throw when the value is of another kind, NaN or infinite.
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

  /// The one token of a key, an integer or a list with one; nothing when absent or null. Throws for
  /// a list of none or of several.
  [[nodiscard]] std::optional<std::int64_t> token(std::string_view name) const;

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

  /// Gives a key a value, in its old place when it is there. `num_labels` other than id2label has
  /// takes id2label and label2id away, which would count in its place.
  void set(std::string_view name, Json value);

  /// set(), unless the key is there: for what config() of a model adds to the file it came from.
  void set_default(std::string_view name, Json value);

  /// Takes a key away; nothing happens when it is absent.
  void erase(std::string_view name);

  /// Writes `config.json` into a folder that has none.
  void write(const std::string& folder) const;

  /// Notes from now on which of these keys are read, here and in copies.
  void watch(std::set<std::string, std::less<>> keys) {
    unread_ = std::make_shared<std::set<std::string, std::less<>>>(std::move(keys));
  }

  /// Those of watch() that nobody has read; ends it, in copies too.
  [[nodiscard]] std::vector<std::string> stop_watching() const;

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
  void note_read(std::string_view name) const;
  std::int64_t integer_of(std::string_view name, const Json& value) const;

  Json::Object values_;
  std::string origin_ = "the config";
  std::shared_ptr<std::set<std::string, std::less<>>> unread_;  // of watch()
};

/// The name of a type in `dtype`: "float32", "bfloat16", "float16", "float64". Throws c10::Error
/// (ValueError) for any other.
std::string dtype_text(c10::ScalarType dtype);

}  // namespace tutti::models

#if TUTTI_BODIES
#include <tutti/models/pretrained_config.inl.hpp>
#endif
