// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/xxh64.hpp>

namespace tutti::checkpoint {

/// What a checkpoint's manifest.json says.
struct Manifest {
  static constexpr std::string_view format = "tutti-checkpoint";
  static constexpr std::int64_t current_version = 2;

  std::int64_t version = 1;                  ///< 2 where `sharded` is set.
  std::string created;                       ///< UTC, "2025-01-31T12:00:00Z".
  std::string tutti;                         ///< Version that wrote it.
  std::string libtorch;                      ///< Version that wrote it.
  Archive meta;                              ///< What the writer tells about the run; no tensors.
  std::map<std::string, WrittenFile> files;  ///< The other files of the folder.
  tutti::detail::Json state;    ///< The state's tree; its tensors are in state.safetensors, or
                                ///< where it says.
  tutti::detail::Json sharded;  ///< Of a ShardedCheckpoint: ranks and tensors; null: of others.
};

namespace detail {

using tutti::detail::Json;

/// Where the tensors of a tree are that are not found by their path: by path, "folder/name".
using TensorPlaces = std::map<std::string, std::string>;

/// An archive as JSON: a child is an object; a tensor `["tensor"]`, or `["tensor", place]` where it
/// has one; what JSON lacks, an array of its kind and text: `["double", "nan"]`,
/// `["integer", "18446744073709551615"]`.
Json to_json(const Archive& archive, const TensorPlaces& places = {});

struct LeafToJson {
  Json operator()(bool value) const { return value; }
  Json operator()(std::int64_t value) const { return value; }
  Json operator()(std::uint64_t value) const {
    return Json::Array{Json("integer"), Json(std::to_string(value))};
  }
  Json operator()(double value) const;
  Json operator()(const std::string& value) const { return value; }
  Json operator()(const at::Tensor&) const { return Json::Array{Json("tensor")}; }
};

/// Gives a tensor of a tree by its place; undefined: there is none.
using TensorSource = std::function<at::Tensor(const std::string& place)>;

/// Rebuilds an archive from its tree. A tensor without a place is at its path.
class ArchiveReader {
 public:
  explicit ArchiveReader(const TensorSource& tensors) : tensors_(tensors) {}

  void read(const Json& json, Archive& archive);

 private:
  void special(const std::string& name, const Json& value, Archive& archive);

  const TensorSource& tensors_;
};

/// The archive of a tree whose tensors come from `tensors`. Throws std::invalid_argument when one
/// is missing.
Archive from_json(const Json& json, const TensorSource& tensors);

/// The archive of a tree that has no tensors but these; all of them must be used.
Archive from_json(const Json& json, std::map<std::string, at::Tensor> tensors = {});

inline constexpr std::uint64_t max_manifest = std::uint64_t{1} << 25;  // bytes

/// The JSON of a manifest: an archive's tree is inside one object, and its lists inside the tree.
/// to_text() writes more than eight bytes for a value.
Json parse_manifest_json(std::string_view text);

inline constexpr std::string_view seal = ",\n \"xxh64\": \"";
inline constexpr std::string_view seal_end = "\"\n}\n";

}  // namespace detail

/// The text of manifest.json; its last member is the checksum of all before it. Throws
/// std::invalid_argument when parse_manifest() would refuse it.
std::string to_text(const Manifest& manifest);

/// The manifest whose text this is. Throws std::invalid_argument saying what is wrong with it: cut
/// short, changed since it was written, larger than any manifest, of another program, or of a newer
/// version.
Manifest parse_manifest(std::string_view text);

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/manifest.inl.hpp>
#endif
