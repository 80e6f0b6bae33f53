// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <unistd.h>

#include <ATen/core/Tensor.h>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/digest.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/codecs.hpp>
#include <tutti/data/detail/mds_encoding.hpp>
#include <tutti/data/detail/new_file.hpp>
#include <tutti/data/detail/python_json.hpp>

namespace tutti::data {

/// Options of MDSWriter, by the names of MosaicML Streaming's.
struct MDSWriterOptions {
  std::map<std::string, std::string> columns{};  ///< name and encoding, as {"tokens", "ndarray"}
  std::string compression{};          ///< "zstd", "gz:9", "br", "bz2" or "snappy"; empty: none
  std::vector<std::string> hashes{};  ///< "sha1", "xxh64", ...: what the index says of each file
  std::optional<std::int64_t> size_limit = std::int64_t{1} << 26;  ///< bytes of a shard before
                                                                   ///< compression; none: one shard
  bool exist_ok = false;  ///< write into a folder that has an index already, which goes first
};

/// Bytes that are stored as they are, whatever the encoding: a value that is encoded already, as
/// Python's MDSWriter takes `bytes`. Nothing but the size of a column that has a fixed one is
/// checked.
struct StoredBytes {
  explicit StoredBytes(std::string value) : bytes(std::move(value)) {}

  std::string bytes;
};

/// A value for a column.
///
/// An integer or a real number for columns of numbers and `str_int`, `str_float`; a tensor for
/// those (of one value), `ndarray`, `bytes` and `pil` (uint8 [1 | 3 | 4, H, W]); a text for `str`,
/// `str_*` and `json`, the bytes of a file for `jpeg`, `png` and `bytes`; a list of such for
/// `jpeg_array` and `list[...]`; or, for any, its bytes as they stand in a shard.
using MDSValue = std::variant<std::int64_t, double, std::string, at::Tensor,
                              std::vector<std::string>, StoredBytes>;

/// Writes samples into shards and their index, as MosaicML Streaming reads them.
///
///     tutti::data::MDSWriter out{"tokens", {.columns = {{"tokens", "ndarray:int32"}},
///                                           .compression = "zstd", .hashes = {"xxh64"}}};
///     out.write({{"tokens", at::arange(2048, at::kInt)}});
///     out.finish();
///
/// Uncompressed files are those of Python's MDSWriter byte for byte. The index is written last, by
/// finish(): a folder without one is no data set. Files appear whole or not at all.
/// Source: mosaicml-streaming 0.13, `streaming.MDSWriter`.
class MDSWriter {
 public:
  /// folder: made, with those above it, when it is not there.
  /// Throws c10::ValueError for columns, an encoding, a compression, a hash or a limit that cannot
  /// be, c10::Error when the folder has an index already or cannot be made.
  MDSWriter(std::string folder, MDSWriterOptions options);

  MDSWriter(MDSWriter&&) = default;
  MDSWriter& operator=(MDSWriter&&) = default;

  /// Adds a sample: a value for each column. Throws c10::ValueError naming a column that is
  /// missing, unknown or has a value that its encoding does not take.
  void write(const std::map<std::string, MDSValue>& sample);

  /// Adds a sample of tensors alone. (A template, so that values in braces are those of a map.)
  template <std::same_as<Batch> B>
  void write(const B& sample) {
    std::map<std::string, MDSValue> values;
    for (const auto& [name, tensor] : sample) {
      values.emplace(name, tensor);
    }
    write(values);
  }

  /// Writes the last shard and the index; nothing can be added after it. Again: does nothing.
  void finish();

  /// Samples so far.
  [[nodiscard]] std::int64_t size() const { return written_ + std::ssize(samples_); }

 private:
  struct Column {
    std::string name;
    std::string encoding;
    std::optional<std::int64_t> size;
  };
  using Json = ::tutti::detail::Json;

  [[nodiscard]] std::string encode(const Column& column, const MDSValue& value) const;
  // Nothing: the encoding does not take it.
  static std::optional<std::string> encode_text(const std::string& encoding,
                                                const std::string& text, const std::string& where);
  static std::optional<std::string> encode_number(const std::string& encoding,
                                                  const MDSValue& value, const std::string& where);
  static std::string encode_tensor(const std::string& encoding, at::Tensor value,
                                   const std::string& where);
  static std::string encode_pil(const at::Tensor& value, const std::string& where);
  [[nodiscard]] Json::Object config() const;
  [[nodiscard]] Json file(const std::string& name, std::string_view bytes) const;
  [[nodiscard]] std::string raw_shard() const;
  void flush();

  std::string folder_;
  MDSWriterOptions options_;
  std::vector<Column> columns_;
  std::string config_;  // as it stands in every shard
  std::vector<std::string> samples_;
  std::uint64_t bytes_ = 0;  // of the shard being filled
  std::int64_t written_ = 0;
  Json::Array shards_;
  bool finished_ = false;
};

inline MDSWriter::MDSWriter(std::string folder, MDSWriterOptions options)
    : folder_(std::move(folder)), options_(std::move(options)) {
  TUTTI_CHECK_VALUE(!options_.columns.empty(),
                    "MDSWriter: there are no columns, expected a name "
                    "and an encoding for each value of a sample");
  for (const auto& [name, encoding] : options_.columns) {
    detail::check_utf8(name, "MDSWriter: the name of a column: ");
    TUTTI_CHECK_VALUE(detail::is_mds_encoding(encoding) && encoding != "pkl", "MDSWriter: column '",
                      name, "' has the encoding \"", encoding,
                      "\", which is not written; expected one such as int, str, json, float32, "
                      "ndarray, ndarray:int64, pil, jpeg (not pkl, which may run any code)");
    columns_.push_back({name, encoding, detail::mds_size(encoding)});
  }
  (void)detail::compression_of(options_.compression, "MDSWriter: ");
  std::sort(options_.hashes.begin(), options_.hashes.end());
  for (std::size_t i = 0; i < options_.hashes.size(); ++i) {
    ::tutti::detail::check_digest(options_.hashes[i], "MDSWriter: ");
    TUTTI_CHECK_VALUE(i == 0 || options_.hashes[i] != options_.hashes[i - 1],
                      "MDSWriter: the hash \"", options_.hashes[i], "\" is given twice");
  }
  const std::int64_t limit = options_.size_limit.value_or(1);
  TUTTI_CHECK_VALUE(limit >= 1 && limit < std::int64_t{1} << 32, "MDSWriter: size_limit is ", limit,
                    ", expected 1 to 2^32 - 1, or none for one shard");
  detail::make_folders(folder_);
  const std::string index = folder_ + "/index.json";
  TUTTI_CHECK(options_.exist_ok || !detail::file_exists(index), "MDSWriter: '", folder_,
              "' has an index.json already; take an empty folder, or set exist_ok");
  TUTTI_CHECK(!detail::file_exists(index) || ::unlink(index.c_str()) == 0, "MDSWriter: '", index,
              "' cannot be removed: ", std::strerror(errno));
  detail::append_python_json(config_, config());
  bytes_ = 8 + config_.size();
}

inline MDSWriter::Json::Object MDSWriter::config() const {
  Json::Array encodings, names, sizes, hashes;
  for (const Column& column : columns_) {
    encodings.emplace_back(column.encoding);
    names.emplace_back(column.name);
    sizes.push_back(column.size ? Json(*column.size) : Json());
  }
  for (const std::string& hash : options_.hashes) {
    hashes.emplace_back(hash);
  }
  return {{"column_encodings", std::move(encodings)},
          {"column_names", std::move(names)},
          {"column_sizes", std::move(sizes)},
          {"compression", options_.compression.empty() ? Json() : Json(options_.compression)},
          {"format", "mds"},
          {"hashes", std::move(hashes)},
          {"size_limit", options_.size_limit ? Json(*options_.size_limit) : Json()},
          {"version", 2}};
}

inline void MDSWriter::write(const std::map<std::string, MDSValue>& sample) {
  TUTTI_CHECK(!finished_, "MDSWriter: '", folder_, "' is finished; nothing can be added");
  for (const auto& [name, value] : sample) {
    TUTTI_CHECK_VALUE(options_.columns.contains(name), "MDSWriter: sample ", size(),
                      " has a value for '", name, "', which is none of the columns");
  }
  std::string sizes;
  std::string values;
  for (const Column& column : columns_) {
    const auto value = sample.find(column.name);
    TUTTI_CHECK_VALUE(value != sample.end(), "MDSWriter: sample ", size(),
                      " has no value for column '", column.name, "'");
    const std::string bytes = encode(column, value->second);
    if (!column.size) {
      TUTTI_CHECK_VALUE(bytes.size() < std::uint64_t{1} << 32, "MDSWriter: sample ", size(),
                        ", column '", column.name, "' has ", bytes.size(),
                        " bytes, expected less than 2^32");
      detail::append_number(sizes, bytes.size(), 4);
    }
    values += bytes;
  }
  sizes += values;
  const std::uint64_t added = 4 + sizes.size();
  if (options_.size_limit && static_cast<std::uint64_t>(*options_.size_limit) < bytes_ + added) {
    flush();
  }
  TUTTI_CHECK_VALUE(bytes_ + added < std::uint64_t{1} << 32, "MDSWriter: a shard has ",
                    bytes_ + added, " bytes, expected less than 2^32; set size_limit");
  bytes_ += added;
  samples_.push_back(std::move(sizes));
}

inline std::optional<std::string> MDSWriter::encode_text(const std::string& encoding,
                                                         const std::string& text,
                                                         const std::string& where) {
  const bool is_text = encoding == "str" || encoding == "json" || encoding.starts_with("str_");
  if (is_text) {
    detail::check_utf8(text, where);
  }
  if (encoding == "json") {
    try {
      detail::PythonJson(text).check();
    } catch (const std::invalid_argument& error) {
      TUTTI_CHECK_VALUE(false, where, error.what());
    }
  }
  if (is_text || encoding == "bytes" || encoding == "jpeg" || encoding == "png") {
    return text;
  }
  return std::nullopt;
}

inline std::optional<std::string> MDSWriter::encode_number(const std::string& encoding,
                                                           const MDSValue& value,
                                                           const std::string& where) {
  const auto* whole = std::get_if<std::int64_t>(&value);
  if (whole != nullptr && encoding == "str_int") {
    return std::to_string(*whole);
  }
  const double real = whole != nullptr ? static_cast<double>(*whole) : std::get<double>(value);
  if (encoding == "str_float") {
    return detail::python_float(real);
  }
  if (detail::mds_scalar(encoding) != nullptr) {
    return whole != nullptr ? detail::mds_integer(encoding, *whole, where)
                            : detail::mds_real(encoding, real, where);
  }
  return std::nullopt;
}

inline std::string MDSWriter::encode(const Column& column, const MDSValue& value) const {
  const std::string& encoding = column.encoding;
  const std::string where = "MDSWriter: sample " + std::to_string(size()) + ", column '" +
                            column.name + "' (" + encoding + "): ";
  std::optional<std::string> out;
  if (const auto* text = std::get_if<std::string>(&value)) {
    out = encode_text(encoding, *text, where);
  } else if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    if (detail::is_jpeg_array(encoding) || encoding.starts_with("list[")) {
      out = detail::write_mds_list(*list, !detail::is_jpeg_array(encoding));
    }
  } else if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
    out = encode_tensor(encoding, *tensor, where);
  } else if (const auto* stored = std::get_if<StoredBytes>(&value)) {
    const std::string& bytes = stored->bytes;
    TUTTI_CHECK_VALUE(!column.size || std::ssize(bytes) == *column.size, where, "there are ",
                      bytes.size(), " bytes, expected ", column.size.value_or(0));
    out = bytes;
  } else {
    out = encode_number(encoding, value, where);
  }
  constexpr std::array<const char*, 6> kinds{"an integer", "a real number", "a text",
                                             "a tensor",   "a list",        "bytes"};
  TUTTI_CHECK_VALUE(
      out, where, "the value is ", kinds[value.index()],
      ", which this encoding does not take; bytes that it has encoded are StoredBytes");
  return *std::move(out);
}

inline std::string MDSWriter::encode_pil(const at::Tensor& value, const std::string& where) {
  TUTTI_CHECK_VALUE(value.scalar_type() == at::kByte && value.dim() == 3 && value.numel() > 0 &&
                        (value.size(0) == 1 || value.size(0) == 3 || value.size(0) == 4),
                    where, "the tensor is ", value.scalar_type(), value.sizes(),
                    ", expected uint8 [1 | 3 | 4, H, W]");
  const std::string mode = value.size(0) == 1 ? "L" : value.size(0) == 3 ? "RGB" : "RGBA";
  std::string out;
  detail::append_number(out, static_cast<std::uint64_t>(value.size(2)), 4);
  detail::append_number(out, static_cast<std::uint64_t>(value.size(1)), 4);
  detail::append_number(out, mode.size(), 4);
  return out + mode + detail::bytes_of(value.permute({1, 2, 0}));
}

inline std::string MDSWriter::encode_tensor(const std::string& encoding, at::Tensor value,
                                            const std::string& where) {
  TUTTI_CHECK_VALUE(value.defined(), where, "the tensor is undefined");
  value = value.detach().cpu();
  if (encoding == "pil") {
    return encode_pil(value, where);
  }
  if (encoding == "bytes") {
    TUTTI_CHECK_VALUE(value.scalar_type() == at::kByte && value.dim() == 1, where, "the tensor is ",
                      value.scalar_type(), value.sizes(), ", expected uint8 [N]");
    return detail::bytes_of(value);
  }
  if (const detail::MDSNumber* number = detail::mds_scalar(encoding)) {
    TUTTI_CHECK_VALUE(value.numel() == 1 && value.scalar_type() == number->type, where,
                      "the tensor is ", value.scalar_type(), value.sizes(), ", expected one ",
                      number->name);
    return detail::bytes_of(value);
  }
  const auto array = detail::mds_array(encoding);
  TUTTI_CHECK_VALUE(array, where, "the value is a tensor, which this encoding does not take");
  const auto* own =
      std::find_if(detail::mds_numbers.begin(), detail::mds_numbers.end(),
                   [&](const detail::MDSNumber& one) { return one.type == value.scalar_type(); });
  TUTTI_CHECK_VALUE(own != detail::mds_numbers.end() &&
                        (array->number == nullptr || array->number->type == own->type),
                    where, "the tensor is ", value.scalar_type(), value.sizes(), ", expected ",
                    array->number == nullptr ? "integers or floats of 8 to 64 bits"
                                             : std::string(array->number->name));
  TUTTI_CHECK_VALUE(value.dim() >= 1 && value.dim() <= 63 && value.numel() > 0 &&
                        (array->shape.empty() || value.sizes() == at::IntArrayRef(array->shape)),
                    where, "the tensor has the shape ", value.sizes(), ", expected ",
                    at::IntArrayRef(array->shape),
                    " or, where none is given, 1 to 63 dimensions and at least one value");
  return detail::mds_array_header(*array, *own, value.sizes()) + detail::bytes_of(value);
}

inline MDSWriter::Json MDSWriter::file(const std::string& name, std::string_view bytes) const {
  Json::Object hashes;
  for (const std::string& hash : options_.hashes) {
    hashes.emplace_back(hash, ::tutti::detail::digest(hash, bytes));
  }
  detail::write_new_file(folder_ + "/" + name, bytes);
  return Json::Object{
      {"basename", name}, {"bytes", std::ssize(bytes)}, {"hashes", std::move(hashes)}};
}

inline std::string MDSWriter::raw_shard() const {
  std::string raw;
  raw.reserve(static_cast<std::size_t>(bytes_));
  detail::append_number(raw, samples_.size(), 4);
  std::uint64_t offset = 8 + 4 * samples_.size() + config_.size();
  detail::append_number(raw, offset, 4);
  for (const std::string& sample : samples_) {
    offset += sample.size();
    detail::append_number(raw, offset, 4);
  }
  raw += config_;
  for (const std::string& sample : samples_) {
    raw += sample;
  }
  return raw;
}

inline void MDSWriter::flush() {
  const std::string raw = raw_shard();
  std::string number = std::to_string(shards_.size());
  number.insert(0, 5 - std::min<std::size_t>(number.size(), 5), '0');
  const std::string name = "shard." + number + ".mds";
  const detail::Compression by = detail::compression_of(options_.compression, "MDSWriter: ");
  Json raw_data;
  Json zip_data;
  if (by.name.empty()) {
    raw_data = file(name, raw);
  } else {
    Json::Object hashes;
    for (const std::string& hash : options_.hashes) {
      hashes.emplace_back(hash, ::tutti::detail::digest(hash, raw));
    }
    raw_data =
        Json::Object{{"basename", name}, {"bytes", std::ssize(raw)}, {"hashes", std::move(hashes)}};
    zip_data = file(name + "." + std::string(by.name), detail::zip(by, raw));
  }
  Json::Object shard = config();
  shard.emplace_back("raw_data", std::move(raw_data));
  shard.emplace_back("samples", std::ssize(samples_));
  shard.emplace_back("zip_data", std::move(zip_data));
  std::sort(shard.begin(), shard.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  shards_.push_back(std::move(shard));
  written_ += std::ssize(samples_);
  samples_.clear();
  bytes_ = 8 + config_.size();
}

inline void MDSWriter::finish() {
  if (finished_) {
    return;
  }
  if (!samples_.empty()) {
    flush();
  }
  std::string text;
  detail::append_python_json(text, Json::Object{{"shards", std::move(shards_)}, {"version", 2}});
  detail::write_new_file(folder_ + "/index.json", text);
  finished_ = true;
}

}  // namespace tutti::data
