// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include <tutti/core/detail/digest.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/codecs.hpp>
#include <tutti/data/detail/mapped_file.hpp>
#include <tutti/data/detail/mds_encoding.hpp>
#include <tutti/data/mds.hpp>

// How the index and the shards of MDS are read, and what is refused.

namespace tutti::data {

namespace detail {

using ::tutti::detail::Json;

inline std::vector<std::pair<std::string, std::string>> mds_hashes(const Json& json) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [name, digits] : json.object()) {
    out.emplace_back(name, digits.string());
  }
  return out;
}

inline MDSFile mds_file(const Json& json, const std::string& where) {
  MDSFile out{json["basename"].string(), json["bytes"].integer(), mds_hashes(json["hashes"])};
  const std::string& name = out.basename;
  TUTTI_CHECK(!name.empty() && name.find('/') == std::string::npos &&
                  name.find('\0') == std::string::npos && !name.starts_with('.'),
              where, "it names the file '", name,
              "', expected a name in the same folder that does not begin with a dot");
  TUTTI_CHECK(out.bytes >= 8 && out.bytes < std::int64_t{1} << 32, where, "'", name, "' has ",
              out.bytes, " bytes, expected 8 to 2^32 - 1");
  return out;
}

inline std::vector<MDSColumn> mds_columns(const Json& json, const std::string& where) {
  const auto& names = json["column_names"].array();
  const auto& encodings = json["column_encodings"].array();
  const auto& sizes = json["column_sizes"].array();
  TUTTI_CHECK(names.size() == encodings.size() && names.size() == sizes.size(), where, "there are ",
              names.size(), " column_names, ", encodings.size(), " column_encodings and ",
              sizes.size(), " column_sizes, expected equally many");
  std::vector<MDSColumn> out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    MDSColumn column{names[i].string(), encodings[i].string(), std::nullopt};
    if (!sizes[i].is_null()) {
      column.size = sizes[i].integer();
    }
    TUTTI_CHECK(i == 0 || out.back().name < column.name, where, "column '", column.name,
                "' follows '", out.back().name, "', expected each once and sorted by name");
    const auto size = mds_size(column.encoding);
    TUTTI_CHECK(!is_mds_encoding(column.encoding) || column.size == size, where, "column '",
                column.name, "' is ", column.encoding, " and has the size ",
                sizes[i].is_null() ? "null" : std::to_string(sizes[i].integer()), ", expected ",
                size ? std::to_string(*size) : "null");
    TUTTI_CHECK(!column.size || (*column.size >= 1 && *column.size < std::int64_t{1} << 32), where,
                "column '", column.name, "' has the size ", *column.size,
                ", expected 1 to 2^32 - 1 or null");
    out.push_back(std::move(column));
  }
  return out;
}

inline MDSShard mds_shard(const Json& json, const std::string& where) {
  const std::string& format = json["format"].string();
  TUTTI_CHECK(format == "mds" && json["version"].integer() == 2, where, "its format is ", format,
              " version ", json["version"].integer(), ", expected mds version 2");
  MDSShard out;
  out.columns = mds_columns(json, where);
  out.raw = mds_file(json["raw_data"], where);
  if (!json["compression"].is_null()) {
    out.compression = json["compression"].string();
  }
  if (!json["zip_data"].is_null()) {
    out.zip = mds_file(json["zip_data"], where);
  }
  TUTTI_CHECK(out.compression.empty() == !out.zip, where, "it has the compression ",
              out.compression.empty() ? "null" : out.compression, " and ", out.zip ? "a" : "no",
              " compressed file (zip_data)");
  TUTTI_CHECK(!out.zip || out.zip->basename != out.raw.basename, where, "'", out.raw.basename,
              "' is both its raw and its compressed file");
  out.samples = json["samples"].integer();
  TUTTI_CHECK(out.samples >= 0 && 8 + 4 * out.samples <= out.raw.bytes, where, "it has ",
              out.samples, " samples in ", out.raw.bytes, " bytes");
  return out;
}

inline std::vector<MDSShard> mds_index(std::string_view text, const std::string& where) {
  try {
    const Json json = ::tutti::detail::parse_json(text);
    TUTTI_CHECK(json["version"].integer() == 2, where, "its version is ", json["version"].integer(),
                ", expected 2");
    std::vector<MDSShard> out;
    for (const Json& shard : json["shards"].array()) {
      out.push_back(mds_shard(shard, where + "shard " + std::to_string(out.size()) + ": "));
    }
    return out;
  } catch (const std::invalid_argument& error) {
    TUTTI_CHECK(false, where, error.what());
  }
  return {};
}

inline MDSBytes::MDSBytes(std::shared_ptr<const MDSShard> shard, std::shared_ptr<const void> owner,
                          std::string_view bytes, std::string where)
    : shard_(std::move(shard)), owner_(std::move(owner)), bytes_(bytes), where_(std::move(where)) {
  const auto samples = static_cast<std::uint64_t>(shard_->samples);
  TUTTI_CHECK(bytes_.size() == static_cast<std::uint64_t>(shard_->raw.bytes), where_, "it has ",
              bytes_.size(), " bytes, and the index says ", shard_->raw.bytes,
              "; it is cut off or of another data set");
  std::uint32_t count = 0;
  std::memcpy(&count, bytes_.data(), sizeof count);
  TUTTI_CHECK(count == samples, where_, "it has ", count, " samples, and the index says ", samples);
  check_offsets();
  check_config();
}

inline void MDSBytes::check_offsets() const {
  const auto samples = shard_->samples;
  const std::uint64_t first = 8 + 4 * static_cast<std::uint64_t>(samples);
  TUTTI_CHECK(offset(0) >= first, where_, "its first sample begins at byte ", offset(0),
              ", within the offsets, which end at ", first);
  for (std::int64_t i = 0; i < samples; ++i) {
    TUTTI_CHECK(offset(i) <= offset(i + 1), where_, "sample ", i, " begins at byte ", offset(i),
                " and the next at ", offset(i + 1), ", expected offsets that rise");
  }
  TUTTI_CHECK(offset(samples) == bytes_.size(), where_, "its samples end at byte ", offset(samples),
              ", and the file at ", bytes_.size());
}

inline void MDSBytes::check_config() const {
  const std::uint64_t begin = 8 + 4 * static_cast<std::uint64_t>(shard_->samples);
  try {
    const Json json = ::tutti::detail::parse_json(bytes_.substr(begin, offset(0) - begin));
    TUTTI_CHECK(mds_columns(json, where_) == shard_->columns, where_,
                "its columns are not those of the index");
  } catch (const std::invalid_argument& error) {
    TUTTI_CHECK(false, where_, "its header at byte ", begin, ": ", error.what());
  }
}

inline void check_mds_hashes(const MDSFile& file, std::string_view bytes,
                             const std::string& where) {
  for (const auto& [name, digits] : file.hashes) {
    ::tutti::detail::check_digest(name, where);
    const std::string got = ::tutti::detail::digest(name, bytes);
    TUTTI_CHECK(got == digits, where, "its ", name, " is ", got, ", and the index says ", digits,
                "; it is damaged");
  }
}

inline std::string_view view_of(const MappedFile& file) {
  return {static_cast<const char*>(file.bytes()), static_cast<std::size_t>(file.size())};
}

inline std::string unzip_mds(const MDSShard& shard, std::string_view bytes,
                             const std::string& where) {
  TUTTI_CHECK(bytes.size() == static_cast<std::uint64_t>(shard.zip->bytes), where, "it has ",
              bytes.size(), " bytes, and the index says ", shard.zip->bytes, "; it is cut off");
  return unzip(compression_of(shard.compression, where), bytes,
               static_cast<std::uint64_t>(shard.raw.bytes), where);
}

inline std::shared_ptr<const MDSBytes> open_mds_shard(const std::string& folder,
                                                      std::shared_ptr<const MDSShard> shard,
                                                      bool validate_hash) {
  const std::string raw = folder + "/" + shard->raw.basename;
  const bool zipped = shard->zip && ::access(raw.c_str(), F_OK) != 0;
  const MDSFile& stored = zipped ? *shard->zip : shard->raw;
  const std::string where = "'" + folder + "/" + stored.basename + "': ";
  const auto file = std::make_shared<const MappedFile>(folder + "/" + stored.basename);
  TUTTI_CHECK(file->size() == static_cast<std::uint64_t>(stored.bytes), where, "it has ",
              file->size(), " bytes, and the index says ", stored.bytes,
              "; it is cut off or of another data set");
  if (validate_hash) {
    check_mds_hashes(stored, view_of(*file), where);
  }
  if (!zipped) {
    return std::make_shared<const MDSBytes>(std::move(shard), file, view_of(*file), where);
  }
  const auto bytes = std::make_shared<const std::string>(unzip_mds(*shard, view_of(*file), where));
  if (validate_hash) {
    check_mds_hashes(shard->raw, *bytes, where);
  }
  return std::make_shared<const MDSBytes>(std::move(shard), bytes, std::string_view(*bytes), where);
}

}  // namespace detail

}  // namespace tutti::data
