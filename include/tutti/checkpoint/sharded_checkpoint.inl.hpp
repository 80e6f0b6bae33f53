// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/sharded_checkpoint.hpp>

namespace tutti::checkpoint {

namespace detail {

constexpr const char* own_folder = "ranks";

TUTTI_INLINE std::string own_file_name(int rank) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%05d.safetensors", rank + 1);
  return text.data();
}

TUTTI_INLINE TensorBox box_of(const TensorShard& shard) {
  TUTTI_CHECK(shard.part.defined(), "checkpoint: the shard of '", shard.name,
              "' is undefined, expected a tensor, without rows where this rank has none");
  TensorBox box = whole_box(shard.part.sizes().vec());
  if (!shard.offsets.empty()) {
    TUTTI_CHECK(shard.offsets.size() == box.sizes.size(), "checkpoint: the shard of '", shard.name,
                "' has ", shard.offsets.size(), " offsets, expected ", box.sizes.size());
    box.offsets = shard.offsets;
  }
  return box;
}

// The shards that a rank writes: those with elements, and its share of what all have. A tensor that
// has no element at all is in rank 0's file.
TUTTI_INLINE std::vector<const TensorShard*> written_by(const std::vector<TensorShard>& shards,
                                                        int rank, int ranks) {
  std::vector<const TensorShard*> out;
  int replicated = 0;
  for (const TensorShard& shard : shards) {
    if (shard.replicated ? replicated++ % ranks == rank : shard.part.numel() > 0 || rank == 0) {
      out.push_back(&shard);
    }
  }
  return out;
}

// The files of a rank: each has a name once.
TUTTI_INLINE std::vector<std::vector<const TensorShard*>> in_files(
    const std::vector<const TensorShard*>& shards) {
  std::vector<std::vector<const TensorShard*>> out;
  std::map<std::string_view, std::size_t> seen;
  for (const TensorShard* shard : shards) {
    const std::size_t file = seen[shard->name]++;
    out.resize(std::max(out.size(), file + 1));
    out[file].push_back(shard);
  }
  return out;
}

// Writes a file of a rank into a folder of shards.
TUTTI_INLINE WrittenFile write_shard_file(const std::filesystem::path& path,
                                          const std::vector<const TensorShard*>& shards) {
  std::vector<NamedTensor> tensors;
  std::vector<std::pair<std::string, TensorBox>> boxes;
  for (const TensorShard* shard : shards) {
    tensors.emplace_back(shard->name, shard->part);
    boxes.emplace_back(shard->name, box_of(*shard));
  }
  return write_safetensors(
      path, tensors,
      {{"DCP_SHARDING_INFO", to_sharding_info(boxes)}, {"DCP_VERSION", "1.0"}, {"format", "pt"}});
}

TUTTI_INLINE tutti::detail::Json to_json(const std::vector<std::int64_t>& numbers) {
  return tutti::detail::Json::Array(numbers.begin(), numbers.end());
}

TUTTI_INLINE std::vector<std::int64_t> to_numbers(const tutti::detail::Json& json) {
  std::vector<std::int64_t> out;
  for (const auto& number : json.array()) {
    out.push_back(number.integer());
  }
  return out;
}

TUTTI_INLINE std::string ShardedSave::open() {
  if (rank_ != 0) {
    return {};
  }
  namespace fs = std::filesystem;
  const fs::path absolute = target_.empty() ? target_ : fs::absolute(target_).lexically_normal();
  TUTTI_CHECK(!absolute.filename().empty(), "checkpoint: '", target_.string(),
              "' ends in a slash or is empty");
  TUTTI_CHECK(overwrite_ || !path_exists(absolute), "checkpoint: '", target_.string(),
              "' exists; set overwrite to replace it, or choose another name");
  for (const auto& [name, shards] : snapshot_.folders) {
    TUTTI_CHECK(is_plain_name(name) && name != own_folder, "checkpoint: '", name,
                "' is no name of a folder of shards");
  }
  make_folder(absolute.parent_path());
  clean_staging(absolute.parent_path());
  staging_.emplace(absolute);
  for (const auto& [name, shards] : snapshot_.folders) {
    make_folder(staging_->path() / name);
  }
  make_folder(staging_->path() / own_folder);
  return staging_->path().string();
}

TUTTI_INLINE std::string ShardedSave::write(const std::string& folder) {
  using tutti::detail::Json;
  const std::filesystem::path place = folder;
  TUTTI_CHECK(is_folder(place), "this rank does not see the folder '", folder,
              "', which rank 0 made; save where all ranks see the same files");
  Json::Object files;
  Json::Array tensors;
  const auto note = [&](const std::string& name, const WrittenFile& file) {
    files.emplace_back(name, Json::Object{{"size", static_cast<std::int64_t>(file.size)},
                                          {"xxh64", file.checksum}});
  };
  for (const auto& [name, shards] : snapshot_.folders) {
    std::vector<const TensorShard*> told;  // those without elements tell how far the tensor goes
    for (const TensorShard& shard : shards) {
      static_cast<void>(box_of(shard));
      if (!shard.replicated && shard.part.numel() == 0 && rank_ != 0) {
        told.push_back(&shard);
      }
    }
    const auto mine = written_by(shards, rank_, ranks_);
    told.insert(told.end(), mine.begin(), mine.end());
    for (const TensorShard* shard : told) {
      const TensorBox box = box_of(*shard);
      tensors.push_back(
          Json::Array{Json(name), Json(shard->name), Json(dtype_name(shard->part.scalar_type())),
                      to_json(box.offsets), to_json(box.sizes), to_json(shard->shape)});
    }
    TUTTI_CHECK(shards.empty() || is_folder(place / name), "this rank has shards of '", name,
                "', rank 0 has none");
    const auto own_files = in_files(mine);
    for (std::size_t i = 0; i < own_files.size(); ++i) {
      const std::string file = shard_file_name(rank_, i, own_files.size());
      note(name + '/' + file, write_shard_file(place / name / file, own_files[i]));
    }
    if (!own_files.empty()) {
      sync_folder(place / name);
    }
  }
  if (!snapshot_.own.empty()) {
    const std::string file = own_file_name(snapshot_.stream.value_or(rank_));
    note(std::string(own_folder) + '/' + file,
         write_safetensors(place / own_folder / file, snapshot_.own));
    sync_folder(place / own_folder);
  }
  return tutti::detail::to_text(
      Json::Object{{"files", std::move(files)}, {"tensors", std::move(tensors)}});
}

TUTTI_INLINE Manifest ShardedSave::check(const std::vector<std::string>& reports) const {
  using tutti::detail::Json;
  struct Entry {
    std::string dtype;
    std::vector<TensorBox> boxes;
    std::vector<std::size_t> ranks;
  };
  Manifest manifest;
  std::map<std::string, std::map<std::string, Entry>> entries;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    TUTTI_CHECK(!reports[rank].starts_with('!'), "rank ", rank, ": ", reports[rank].substr(1));
    const Json report = tutti::detail::parse_json(reports[rank]);
    for (const auto& [name, file] : report["files"].object()) {
      manifest.files[name] = {static_cast<std::uint64_t>(file["size"].integer()),
                              file["xxh64"].string()};
    }
    for (const Json& tensor : report["tensors"].array()) {
      Entry& entry = entries[tensor[0].string()][tensor[1].string()];
      TUTTI_CHECK(entry.dtype.empty() || entry.dtype == tensor[2].string(), "checkpoint: '",
                  tensor[1].string(), "' is ", entry.dtype, " on rank ", entry.ranks.front(),
                  " and ", tensor[2].string(), " on rank ", rank);
      entry.dtype = tensor[2].string();
      entry.boxes.push_back({to_numbers(tensor[3]), to_numbers(tensor[4])});
      entry.ranks.push_back(rank);
      if (auto shape = to_numbers(tensor[5]); !shape.empty()) {  // a box of nothing at its end
        const std::size_t dims = shape.size();
        entry.boxes.push_back({std::move(shape), std::vector<std::int64_t>(dims, 0)});
        entry.ranks.push_back(rank);
      }
    }
  }
  Json::Object folders;
  for (const auto& [folder, tensors] : entries) {
    Json::Object shapes;
    for (const auto& named : tensors) {
      const auto& name = named.first;  // Clang 14 takes no binding into a lambda
      const Entry& entry = named.second;
      const TensorPieces pieces(entry.boxes);
      pieces.each_fault([&](const TensorPieces::Fault& fault) {
        TUTTI_CHECK(!fault.pieces.empty(), "checkpoint: no rank gave ", fault.where.text(),
                    " of the tensor '", name, "' of shape ", whole_box(pieces.shape()).text());
        TUTTI_CHECK(false, "checkpoint: rank ", entry.ranks[fault.pieces[0]], " and rank ",
                    entry.ranks[fault.pieces[1]], " both gave ", fault.where.text(),
                    " of the tensor '", name, "'; mark it replicated if all have it whole");
      });
      shapes.emplace_back(name,
                          Json::Object{{"dtype", entry.dtype}, {"shape", to_json(pieces.shape())}});
    }
    folders.emplace_back(folder, std::move(shapes));
  }
  manifest.sharded = Json::Object{{"ranks", ranks_}, {"tensors", std::move(folders)}};
  return manifest;
}

// "folder/name" of all tensors that the ranks have written.
TUTTI_INLINE std::set<std::string> written_places(const Manifest& manifest) {
  std::set<std::string> out;
  for (const auto& [folder, tensors] : manifest.sharded["tensors"].object()) {
    for (const auto& member : tensors.object()) {
      out.insert(folder + '/' + member.first);
    }
  }
  return out;
}

TUTTI_INLINE std::string ShardedSave::commit(const std::vector<std::string>& reports) {
  if (rank_ != 0) {
    return {};
  }
  Manifest manifest = check(reports);
  manifest.version = Manifest::current_version;
  manifest.created = utc_now();
  manifest.tutti = tutti_version();
  manifest.libtorch = TORCH_VERSION;
  TUTTI_CHECK(tensors_of(snapshot_.meta, false).empty(),
              "checkpoint: meta of a sharded checkpoint holds a tensor; put it into a folder, or "
              "into own");
  const std::set<std::string> written = written_places(manifest);
  for (const auto& [path, tensor] : tensors_of(snapshot_.state, false)) {
    const auto place = snapshot_.places.find(path);
    TUTTI_CHECK(place != snapshot_.places.end() && written.contains(place->second),
                "checkpoint: the tensor '", path,
                "' of the state of a sharded checkpoint is in none of its folders; put it into "
                "one and say so in places");
  }
  manifest.meta = snapshot_.meta;
  manifest.state = to_json(snapshot_.state, snapshot_.places);
  write_text(staging_->path() / "manifest.json", to_text(manifest));
  staging_->publish(overwrite_);
  return {};
}

}  // namespace detail

TUTTI_INLINE ShardedCheckpoint::ShardedCheckpoint(const std::filesystem::path& path)
    : path_(resolve(path)), manifest_(detail::read_manifest(path_)) {
  TUTTI_CHECK(!manifest_.sharded.is_null(), "checkpoint: '", path_.string(),
              "' is a whole checkpoint, expected a sharded one; read it by "
              "checkpoint::read_snapshot");
  try {
    ranks_ = static_cast<int>(manifest_.sharded["ranks"].integer());
    check_files();
    check_tensors();
  } catch (const std::invalid_argument& error) {
    TUTTI_CHECK(false, "checkpoint: '", path_.string(), "' is refused: ", error.what());
  }
}

TUTTI_INLINE void ShardedCheckpoint::check_files() const {
  std::set<std::string> folders{detail::own_folder};
  for (const auto& [name, facts] : manifest_.files) {
    const std::string folder = name.substr(0, name.find('/'));
    TUTTI_CHECK(folder.size() < name.size() && is_plain_name(folder) &&
                    is_plain_name(name.substr(folder.size() + 1)),
                "checkpoint: '", path_.string(), "' lists the file ",
                tutti::detail::json_quoted(name), ", expected one of a folder in it");
    folders.insert(folder);
    const auto file = path_ / name;
    TUTTI_CHECK(detail::path_exists(file), "checkpoint: '", file.string(),
                "' is missing, which the manifest lists");
    const std::uint64_t size = detail::File::open_for_reading(file).size();
    TUTTI_CHECK(size == facts.size, "checkpoint: '", file.string(), "' has ", size,
                " bytes, the manifest says ", facts.size,
                size < facts.size ? "; it is truncated" : "; it belongs to another checkpoint");
  }
  for (const std::string& folder : folders) {
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(path_ / folder, none)) {
      const std::string name = folder + '/' + entry.path().filename().string();
      TUTTI_CHECK(!name.ends_with(".safetensors") || manifest_.files.contains(name),
                  "checkpoint: '", entry.path().string(),
                  "' is not of this checkpoint, whose manifest does not list it; move it away");
    }
  }
}

TUTTI_INLINE void ShardedCheckpoint::check_tensors() {
  for (const auto& [folder, tensors] : manifest_.sharded["tensors"].object()) {
    TUTTI_CHECK(is_plain_name(folder), "checkpoint: '", path_.string(), "' has the folder ",
                tutti::detail::json_quoted(folder), ", which is no name");
    const auto& files = folders_.emplace(folder, ShardedFiles(path_ / folder)).first->second;
    for (const auto& [name, tensor] : tensors.object()) {
      TUTTI_CHECK(files.contains(name), "checkpoint: '", (path_ / folder).string(),
                  "' lacks the tensor '", name, "', which the manifest lists");
      const auto dtype = tensor["dtype"].string();
      const ShardedTensor& found = files.tensors().find(name)->second;
      TUTTI_CHECK(dtype == detail::dtype_name(found.dtype) &&
                      found.shape() == detail::to_numbers(tensor["shape"]),
                  "checkpoint: the tensor '", name, "' in '", (path_ / folder).string(), "' is ",
                  detail::dtype_name(found.dtype), whole_box(found.shape()).text(),
                  ", the manifest says ", dtype,
                  whole_box(detail::to_numbers(tensor["shape"])).text());
    }
    TUTTI_CHECK(files.tensors().size() == tensors.size(), "checkpoint: '",
                (path_ / folder).string(), "' has ", files.tensors().size(),
                " tensors, the manifest lists ", tensors.size());
  }
}

TUTTI_INLINE const ShardedFiles& ShardedCheckpoint::folder(const std::string& name) const {
  const auto found = folders_.find(name);
  TUTTI_CHECK(found != folders_.end(), "checkpoint: '", path_.string(), "' has no tensors of '",
              name, "'");
  return found->second;
}

TUTTI_INLINE bool ShardedCheckpoint::has_own(int rank) const {
  return manifest_.files.contains(std::string(detail::own_folder) + '/' +
                                  detail::own_file_name(rank));
}

TUTTI_INLINE std::vector<NamedTensor> ShardedCheckpoint::own_of(int rank) const {
  return has_own(rank) ? read_safetensors(path_ / detail::own_folder / detail::own_file_name(rank))
                       : std::vector<NamedTensor>{};
}

TUTTI_INLINE Archive ShardedCheckpoint::state(const ReadTensor& read) const {
  try {
    return detail::from_json(manifest_.state, [&](const std::string& place) {
      const auto slash = std::min(place.find('/'), place.size());
      const auto found = folders_.find(place.substr(0, slash));
      const std::string name = slash < place.size() ? place.substr(slash + 1) : std::string();
      return found == folders_.end() || !found->second.contains(name) ? at::Tensor()
                                                                      : read(found->second, name);
    });
  } catch (const std::invalid_argument& error) {
    TUTTI_CHECK(false, "checkpoint: '", path_.string(), "' is refused: ", error.what());
  }
}

TUTTI_INLINE void ShardedCheckpoint::verify(int rank, int ranks, std::string_view folder) const {
  int count = 0;
  for (const auto& [name, facts] : manifest_.files) {
    if (!folder.empty() && name.substr(0, name.find('/')) != folder) {
      continue;
    }
    if (count++ % ranks != rank) {
      continue;
    }
    const detail::File file = detail::File::open_for_reading(path_ / name);
    tutti::detail::Xxh64 hash;
    std::string piece(std::size_t{1} << 20, '\0');
    for (std::uint64_t at = 0; at < facts.size; at += piece.size()) {
      piece.resize(std::min<std::uint64_t>(piece.size(), facts.size - at));
      file.read_at(at, piece.data(), piece.size());
      hash.update(piece.data(), piece.size());
    }
    TUTTI_CHECK(hash.text() == facts.checksum, "checkpoint: '", (path_ / name).string(),
                "' has the checksum ", hash.text(), ", the manifest says ", facts.checksum,
                "; it was damaged or changed after it was written");
  }
}

}  // namespace tutti::checkpoint
