// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/manifest.hpp>

namespace tutti::checkpoint::detail {

TUTTI_INLINE Json LeafToJson::operator()(double value) const {
  if (std::isfinite(value)) {
    return value;
  }
  return Json::Array{Json("double"), Json(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf")};
}

TUTTI_INLINE Json to_json(const Archive& archive, const TensorPlaces& places) {
  Json::Object out;
  for (const auto& entry : archive.entries()) {
    if (entry.is_child()) {
      out.emplace_back(entry.name, to_json(entry.child(), places));
      continue;
    }
    const auto place =
        places.find(archive.path().empty() ? entry.name : archive.path() + '/' + entry.name);
    if (entry.leaf().tensor() != nullptr && place != places.end()) {
      out.emplace_back(entry.name, Json::Array{Json("tensor"), Json(place->second)});
    } else {
      out.emplace_back(entry.name, entry.leaf().visit(LeafToJson{}));
    }
  }
  return out;
}

TUTTI_INLINE Json parse_manifest_json(std::string_view text) {
  if (text.size() > max_manifest) {
    throw std::invalid_argument("it has " + std::to_string(text.size()) +
                                " bytes, expected at most " + std::to_string(max_manifest) +
                                "; long lists of numbers belong into tensors");
  }
  return tutti::detail::parse_json(
      text, {.depth = Archive::max_depth + 2, .values = 1000 + text.size() / 8});
}

TUTTI_INLINE void ArchiveReader::read(const Json& json, Archive& archive) {
  for (const auto& [name, value] : json.object()) {
    if (name.empty() || name.find('/') != std::string::npos) {
      throw std::invalid_argument("the entry '" + name + "' of '" + archive.path() +
                                  "' is no name");
    }
    if (value.is_object()) {
      read(value, archive.child(name));
    } else if (value.is_array()) {
      special(name, value, archive);
    } else if (value.is_bool()) {
      archive.put(name, value.boolean());
    } else if (value.is_int()) {
      archive.put(name, value.integer());
    } else if (value.is_string()) {
      archive.put(name, value.string());
    } else {
      archive.put(name, value.number());
    }
  }
}

TUTTI_INLINE void ArchiveReader::special(const std::string& name, const Json& value,
                                         Archive& archive) {
  const std::string& kind = value.at(std::size_t{0}).string();
  if (kind == "tensor") {
    const std::string path = archive.path().empty() ? name : archive.path() + '/' + name;
    const at::Tensor found = tensors_(value.size() > 1 ? value.at(std::size_t{1}).string() : path);
    if (!found.defined()) {
      throw std::invalid_argument("the tensor '" + path + "' is missing");
    }
    archive.put(name, found);
    return;
  }
  const std::string& text = value.at(std::size_t{1}).string();
  std::uint64_t integer = 0;
  const char* const end = text.data() + text.size();
  if (kind == "double" && text == "nan") {
    archive.put(name, std::numeric_limits<double>::quiet_NaN());
  } else if (kind == "double" && (text == "inf" || text == "-inf")) {
    const double inf = std::numeric_limits<double>::infinity();
    archive.put(name, text == "inf" ? inf : -inf);
  } else if (kind == "integer" && std::from_chars(text.data(), end, integer).ptr == end) {
    archive.put(name, integer);
  } else {
    throw std::invalid_argument("the entry '" + name + "' has the unknown kind '" + kind + "'");
  }
}

TUTTI_INLINE Archive from_json(const Json& json, const TensorSource& tensors) {
  Archive archive;
  ArchiveReader(tensors).read(json, archive);
  return archive;
}

TUTTI_INLINE Archive from_json(const Json& json, std::map<std::string, at::Tensor> tensors) {
  Archive archive = from_json(json, TensorSource([&](const std::string& place) {
                                const auto found = tensors.extract(place);
                                return found.empty() ? at::Tensor() : found.mapped();
                              }));
  if (!tensors.empty()) {
    throw std::invalid_argument("the tensor '" + tensors.begin()->first + "' belongs to nothing");
  }
  return archive;
}

}  // namespace tutti::checkpoint::detail

namespace tutti::checkpoint {

TUTTI_INLINE std::string to_text(const Manifest& manifest) {
  using tutti::detail::Json;
  Json::Object files;
  for (const auto& [name, file] : manifest.files) {
    files.emplace_back(name, Json::Object{{"size", static_cast<std::int64_t>(file.size)},
                                          {"xxh64", file.checksum}});
  }
  Json::Object members{{"format", Manifest::format},    {"version", manifest.version},
                       {"created", manifest.created},   {"tutti", manifest.tutti},
                       {"libtorch", manifest.libtorch}, {"meta", detail::to_json(manifest.meta)},
                       {"files", std::move(files)},     {"state", manifest.state}};
  if (!manifest.sharded.is_null()) {
    members.emplace_back("sharded", manifest.sharded);
  }
  std::string text = tutti::detail::to_text(std::move(members), /*indent=*/1);
  detail::parse_manifest_json(text);  // what is not UTF-8, or too large, could not be read back
  text.resize(text.size() - 2);       // "\n}"
  tutti::detail::Xxh64 hash;
  hash.update(text.data(), text.size());
  return text + std::string(detail::seal) + hash.text() + std::string(detail::seal_end);
}

TUTTI_INLINE Manifest parse_manifest(std::string_view text) {
  const auto cut = text.rfind(detail::seal);
  const std::size_t sealed = detail::seal.size() + 16 + detail::seal_end.size();
  if (cut == std::string_view::npos || text.size() - cut != sealed ||
      !text.ends_with(detail::seal_end)) {
    throw std::invalid_argument(
        "it does not end with its checksum; it is truncated or no manifest");
  }
  tutti::detail::Xxh64 hash;
  hash.update(text.data(), cut);
  if (text.substr(cut + detail::seal.size(), 16) != hash.text()) {
    throw std::invalid_argument(
        "its checksum differs; it was damaged or changed after it was written");
  }
  const auto json = detail::parse_manifest_json(text);
  if (json["format"].string() != Manifest::format) {
    throw std::invalid_argument("its format is '" + json["format"].string() + "', expected '" +
                                std::string(Manifest::format) + "'");
  }
  Manifest out;
  out.version = json["version"].integer();
  if (out.version < 1 || out.version > Manifest::current_version) {
    throw std::invalid_argument("its version is " + std::to_string(out.version) +
                                ", this library reads up to " +
                                std::to_string(Manifest::current_version));
  }
  out.created = json["created"].string();
  out.tutti = json["tutti"].string();
  out.libtorch = json["libtorch"].string();
  out.meta = detail::from_json(json["meta"]);
  for (const auto& [name, facts] : json["files"].object()) {
    out.files[name] = {static_cast<std::uint64_t>(facts["size"].integer()),
                       facts["xxh64"].string()};
  }
  out.state = json["state"];
  if (json.contains("sharded")) {
    out.sharded = json["sharded"];
  }
  return out;
}

}  // namespace tutti::checkpoint
