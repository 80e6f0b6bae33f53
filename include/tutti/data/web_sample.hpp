// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/json_tensor.hpp>
#include <tutti/data/detail/web_shard.hpp>
#include <tutti/data/image_decoder.hpp>
#include <tutti/data/lines.hpp>
#include <tutti/data/npy.hpp>

namespace tutti::data {

/// One sample of a WebDataset: the members of a tar file that share a key, each with a field, the
/// part of its name behind the first dot, A to Z in lower case (webdataset changes other letters,
/// too).
///
/// Where a field is asked for, "jpg;jpeg;png" is the first of them that the sample has.
class WebSample {
 public:
  /// The sample that the entries in `bytes`, a part of the tar file `shard`, make.
  WebSample(std::string shard, std::string bytes)
      : shard_(std::move(shard)), bytes_(std::move(bytes)) {
    detail::read_web_members(detail::TarPart(shard_, bytes_),
                             [&](detail::WebName name, const detail::TarEntry& entry) {
                               key_ = std::move(name.key);
                               fields_.push_back({std::move(name.field), entry.offset, entry.size});
                             });
  }

  [[nodiscard]] const std::string& key() const { return key_; }

  /// The path of the tar file.
  [[nodiscard]] const std::string& shard() const { return shard_; }

  /// The fields, in the order of the file.
  [[nodiscard]] std::vector<std::string> fields() const {
    std::vector<std::string> out;
    for (const Field& field : fields_) {
      out.push_back(field.name);
    }
    return out;
  }

  /// The sample has one of the fields.
  [[nodiscard]] bool contains(std::string_view names) const { return find(names) != nullptr; }

  /// The bytes of a field, as long as the sample lives. All of these throw c10::Error, naming the
  /// shard, the key and the field, when there is no such field or it is not what is asked for.
  [[nodiscard]] std::string_view bytes(std::string_view names) const { return bytes_of(at(names)); }

  /// A text in UTF-8.
  [[nodiscard]] std::string_view text(std::string_view names) const { return text_of(at(names)); }

  /// A whole number in decimal digits.
  [[nodiscard]] std::int64_t integer(std::string_view names) const { return number_of(at(names)); }

  /// A value of JSON as Python's json writes and reads it: NaN and Infinity are numbers, and of a
  /// key that occurs twice the last value counts. Half a surrogate pair, which UTF-8 has not, is
  /// U+FFFD.
  [[nodiscard]] Json json(std::string_view names) const { return json_of(at(names)); }

  /// A tensor, by the last extension of the field: `cls`, `cls2`, `class`, `count`, `index`, `inx`
  /// and `id` are a number, int64 []; `json` and `jsn` bools, numbers or lists of numbers; `npy`
  /// the array; `jpg`, `jpeg` and `png` uint8 [3, H, W], where the program is linked to a library
  /// for them; all others, `txt` among them, their bytes, uint8 [n]. Pickles (`pkl`, `pickle`,
  /// `pyd`, `pth`, `pt`) are refused.
  [[nodiscard]] at::Tensor tensor(std::string_view names) const;

  /// Where a field is from, for messages: "'a.tar', sample 'x', field 'cls'".
  [[nodiscard]] std::string place(std::string_view field) const {
    return "'" + shard_ + "', sample '" + key_ + "', field '" + std::string(field) + "'";
  }

 private:
  struct Field {
    std::string name;
    std::uint64_t offset;
    std::uint64_t size;
  };

  [[nodiscard]] const Field* find(std::string_view names) const {
    while (true) {
      const std::string_view one = names.substr(0, names.find(';'));
      const auto found = std::find_if(fields_.begin(), fields_.end(),
                                      [&](const Field& field) { return field.name == one; });
      if (found != fields_.end()) {
        return &*found;
      }
      if (one.size() == names.size()) {
        return nullptr;
      }
      names.remove_prefix(one.size() + 1);
    }
  }

  [[nodiscard]] const Field& at(std::string_view names) const {
    const Field* found = find(names);
    if (found == nullptr) {
      std::string there;
      for (const Field& field : fields_) {
        there += (there.empty() ? "" : ", ") + field.name;
      }
      TUTTI_CHECK(false, "'", shard_, "': the sample '", key_, "' has no field '", names,
                  "'; there are: ", there);
    }
    return *found;
  }

  [[nodiscard]] std::string_view bytes_of(const Field& field) const {
    return std::string_view(bytes_).substr(field.offset, field.size);
  }

  [[nodiscard]] std::string_view text_of(const Field& field) const {
    const std::string_view out = bytes_of(field);
    const std::size_t bad = detail::first_not_utf8(out);
    TUTTI_CHECK(bad == std::string_view::npos, place(field.name), " is not UTF-8 at its byte ",
                bad);
    return out;
  }

  [[nodiscard]] std::int64_t number_of(const Field& field) const {
    const auto number = detail::whole_number(bytes_of(field));
    TUTTI_CHECK(number, place(field.name), " is \"", bytes_of(field).substr(0, 40),
                "\", expected a whole number of 64 bits");
    return *number;
  }

  [[nodiscard]] Json json_of(const Field& field) const {
    try {
      return tutti::detail::parse_json(bytes_of(field), {.python = true});
    } catch (const std::invalid_argument& error) {
      TUTTI_CHECK(false, place(field.name), ": ", error.what());
    }
  }

  [[nodiscard]] at::Tensor image_of(const Field& field) const {
#if defined(TUTTI_WITH_PNG) || defined(TUTTI_WITH_JPEG)
    return ImageDecoder{}(bytes_of(field), place(field.name));
#else
    TUTTI_CHECK(false, place(field.name),
                " is an image, and this program has no library for it; link it to tutti::jpeg or "
                "tutti::png");
#endif
  }

  std::string shard_;
  std::string bytes_;
  std::string key_;
  std::vector<Field> fields_;
};

inline at::Tensor WebSample::tensor(std::string_view names) const {
  const Field& field = at(names);
  const std::string_view all = field.name;
  const std::string_view extension = all.substr(all.rfind('.') + 1);
  const auto is = [&](std::initializer_list<std::string_view> some) {
    return std::find(some.begin(), some.end(), extension) != some.end();
  };
  if (is({"cls", "cls2", "class", "count", "index", "inx", "id"})) {
    const std::int64_t value = number_of(field);
    at::Tensor out(at::detail::empty_cpu({}, at::kLong, /*pin_memory=*/false, std::nullopt));
    *out.mutable_data_ptr<std::int64_t>() = value;
    return out;
  }
  if (is({"json", "jsn"})) {
    return detail::json_tensor(json_of(field), place(field.name));
  }
  if (is({"npy"})) {
    return detail::npy_tensor(bytes_of(field), place(field.name));
  }
  if (is({"jpg", "jpeg", "png"})) {
    return image_of(field);
  }
  TUTTI_CHECK(!is({"pkl", "pickle", "pyd", "pth", "pt"}), place(field.name),
              " is a pickle, which is not read, since it can run code; save the values as npy or "
              "json");
  return detail::byte_tensor(is({"txt", "text", "transcript"}) ? text_of(field) : bytes_of(field));
}

/// What makes an example of a sample.
struct WebDecoding {
  /// Tensors of the batch and the fields that they come from: {{"inputs", "jpg;png"}, {"targets",
  /// "cls"}}. Empty: every field, by its own name.
  std::vector<std::pair<std::string, std::string>> fields{};
  std::function<Batch(const WebSample& sample)> decode{};  ///< in place of `fields`

  /// Throws c10::ValueError when both are set.
  void check(const char* who) const {
    TUTTI_CHECK_VALUE(fields.empty() || !decode, who,
                      ": both .fields and .decode are set, expected one of them");
  }

  [[nodiscard]] Batch operator()(const WebSample& sample) const {
    if (decode) {
      return decode(sample);
    }
    Batch out;
    for (const auto& [name, from] : fields) {
      out[name] = sample.tensor(from);
    }
    if (fields.empty()) {
      for (const std::string& field : sample.fields()) {
        out[field] = sample.tensor(field);
      }
    }
    return out;
  }
};

}  // namespace tutti::data
