// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/sharded_files.hpp>

namespace tutti::checkpoint {

namespace detail {

TUTTI_INLINE std::string shard_file_name(int rank, std::size_t file, std::size_t files) {
  std::array<char, 120> text{};
  std::snprintf(text.data(), text.size(), "shard-%05d-model-%05zu-of-%05zu.safetensors", rank + 1,
                file + 1, files);
  return text.data();
}

TUTTI_INLINE int rank_of_shard_file(std::string_view name) {
  constexpr std::string_view start = "shard-";
  constexpr std::size_t most = 9;  // digits
  if (!name.starts_with(start)) {
    return 0;
  }
  name.remove_prefix(start.size());
  const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  return digits == 0 || digits > most || !name.substr(digits).starts_with("-model-")
             ? 0
             : std::stoi(std::string(name.substr(0, digits)));
}

TUTTI_INLINE std::string to_sharding_info(
    const std::vector<std::pair<std::string, TensorBox>>& boxes) {
  using tutti::detail::Json;
  Json::Object out;
  for (const auto& [name, box] : boxes) {
    out.emplace_back(
        name, Json::Object{{"saved_offsets", Json::Array(box.offsets.begin(), box.offsets.end())}});
  }
  return tutti::detail::to_text(out);
}

TUTTI_INLINE std::map<std::string, std::vector<std::int64_t>> parse_sharding_info(
    std::string_view text) {
  std::map<std::string, std::vector<std::int64_t>> out;
  const auto see = [&](const std::string& name, const tutti::detail::Json& entry) {
    std::vector<std::int64_t> offsets;
    for (const auto& offset : entry["saved_offsets"].array()) {
      offsets.push_back(offset.integer());
    }
    if (!out.emplace(name, std::move(offsets)).second) {
      throw std::invalid_argument("DCP_SHARDING_INFO has the tensor '" + name + "' twice");
    }
  };
  tutti::detail::each_json_member(text, entry_limits, see);
  return out;
}

// The place of an element in a box that is stored row by row.
TUTTI_INLINE std::uint64_t place_in(const TensorBox& box, const std::vector<std::int64_t>& index) {
  std::uint64_t out = 0;
  for (std::size_t i = 0; i < index.size(); ++i) {
    out = out * static_cast<std::uint64_t>(box.sizes[i]) +
          static_cast<std::uint64_t>(index[i] - box.offsets[i]);
  }
  return out;
}

// The first dimension from which on a part lies in one run of the box that it is of: in all later
// dimensions it goes as far as the box.
TUTTI_INLINE std::size_t first_of_run(const TensorBox& part, const TensorBox& box) {
  std::size_t first = part.sizes.empty() ? 0 : part.sizes.size() - 1;
  while (first > 0 && part.sizes[first] == box.sizes[first]) {
    --first;
  }
  return first;
}

// Calls see(index) with the first element of each run of a part, in order; a run goes over the
// dimensions from `first` on.
template <class See>
void each_run(const TensorBox& part, std::size_t first, See&& see) {
  std::vector<std::int64_t> index = part.offsets;
  while (true) {
    see(index);
    std::size_t i = first;
    while (i > 0 && ++index[i - 1] == part.offsets[i - 1] + part.sizes[i - 1]) {
      index[i - 1] = part.offsets[i - 1];
      --i;
    }
    if (i == 0) {
      return;
    }
  }
}

// Elements from dimension `first` on.
TUTTI_INLINE std::size_t run_length(const TensorBox& part, std::size_t first) {
  return std::accumulate(part.sizes.begin() + static_cast<std::ptrdiff_t>(first), part.sizes.end(),
                         std::size_t{1}, [](std::size_t product, std::int64_t size) {
                           return product * static_cast<std::size_t>(size);
                         });
}

}  // namespace detail

TUTTI_INLINE void ShardedFiles::refuse(std::string_view tensor, const std::string& why) const {
  TUTTI_CHECK(false, "checkpoint: the folder '", folder_.string(), "' is refused: the tensor '",
              std::string(tensor), "' ", why);
}

TUTTI_INLINE ShardedFiles::ShardedFiles(const std::filesystem::path& folder)
    : folder_(resolve(folder)) {
  TUTTI_CHECK(detail::path_exists(folder_), "checkpoint: there is no folder '", folder.string(),
              "'");
  TUTTI_CHECK(detail::is_folder(folder_), "checkpoint: '", folder.string(),
              "' is a file, expected a folder of .safetensors files");
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors")) {
      files_.push_back(name);
    }
  }
  const std::string pickled = files_.empty() ? detail::pickled_shards(folder_) : std::string();
  TUTTI_CHECK(pickled.empty(), "checkpoint: the folder '", folder.string(), "' ", pickled);
  TUTTI_CHECK(
      !files_.empty(), "checkpoint: the folder '", folder.string(), "' has ",
      detail::listing(folder_), ", expected .safetensors files",
      detail::path_exists(folder_ / "sharded") ? "; its folder 'sharded' may have them" : "");
  std::sort(files_.begin(), files_.end());
  for (const std::string& file : files_) {
    open(file);
  }
  for (auto& [name, pieces] : pieces_) {
    ShardedTensor tensor{.dtype = pieces.front().dtype, .pieces = {}, .sources = {}};
    std::vector<TensorBox> boxes;
    for (Piece& piece : pieces) {
      if (piece.dtype != tensor.dtype) {
        refuse(name, "is " + std::string(detail::dtype_name(tensor.dtype)) + " in '" +
                         files_[tensor.sources.front().file] + "' and " +
                         std::string(detail::dtype_name(piece.dtype)) + " in '" +
                         files_[piece.source.file] + "'");
      }
      boxes.push_back(std::move(piece.box));
      tensor.sources.push_back(piece.source);
    }
    try {
      tensor.pieces = TensorPieces(std::move(boxes));
      std::uint64_t bytes = 0;
      if (!detail::byte_count({.name = {}, .dtype = tensor.dtype, .shape = tensor.shape()},
                              bytes)) {
        refuse(name, "has pieces that reach to " + whole_box(tensor.shape()).text() +
                         ", more than any tensor has");
      }
      check_coverage(name, tensor);
    } catch (const c10::Error& error) {
      const std::string why = error.what_without_backtrace();
      if (why.starts_with("checkpoint: ")) {
        throw;
      }
      refuse(name, "has pieces that do not fit together: " + why);
    }
    tensors_.emplace(name, std::move(tensor));
  }
  pieces_.clear();
  const auto index = folder_ / "model.safetensors.index.json";
  if (detail::path_exists(index)) {
    for (const auto& [name, file] : detail::weight_map(index)) {
      TUTTI_CHECK(contains(name), "checkpoint: '", index.string(), "' lists the tensor '", name,
                  "' in '", file, "', which is missing or lacks it");
    }
  }
}

TUTTI_INLINE void ShardedFiles::open(const std::string& name) {
  const SafetensorsFile file(folder_ / name);
  std::map<std::string, std::vector<std::int64_t>> offsets;
  const auto info = file.metadata().find("DCP_SHARDING_INFO");
  const bool sharded = info != file.metadata().end() && !info->second.empty();
  try {
    if (sharded) {
      offsets = detail::parse_sharding_info(info->second);
    }
  } catch (const std::invalid_argument& error) {
    TUTTI_CHECK(false, "checkpoint: '", file.file().path().string(),
                "' is refused: its DCP_SHARDING_INFO is damaged: ", error.what());
  }
  for (const TensorLayout& tensor : file.tensors()) {
    TensorBox box = whole_box(tensor.shape);
    if (sharded) {
      const auto found = offsets.find(tensor.name);
      TUTTI_CHECK(found != offsets.end() && found->second.size() == tensor.shape.size(),
                  "checkpoint: '", file.file().path().string(),
                  "' is refused: its DCP_SHARDING_INFO has ",
                  found == offsets.end() ? std::string("no offsets")
                                         : std::to_string(found->second.size()) + " offsets",
                  " for the tensor '", tensor.name, "' of ", tensor.shape.size(), " dimensions");
      box.offsets = found->second;
    }
    pieces_[tensor.name].push_back(
        {.box = std::move(box),
         .dtype = tensor.dtype,
         .source = {.file = sizes_.size(), .begin = file.data_begin() + tensor.begin}});
  }
  sizes_.push_back(file.file().size());
}

TUTTI_INLINE std::string ShardedFiles::lost_files() const {
  std::set<int> ranks;
  for (const std::string& file : files_) {
    ranks.insert(detail::rank_of_shard_file(file));
  }
  ranks.erase(0);
  for (int rank = 1; !ranks.empty() && rank < *ranks.rbegin(); ++rank) {
    if (!ranks.contains(rank)) {
      return ", and there is no file of rank " + std::to_string(rank - 1) + ", '" +
             detail::shard_file_name(rank - 1) + "' for example";
    }
  }
  return {};
}

TUTTI_INLINE void ShardedFiles::check_coverage(std::string_view name,
                                               const ShardedTensor& tensor) const {
  const auto see = [&](const TensorPieces::Fault& fault) {
    if (fault.pieces.empty()) {
      refuse(name, "of shape " + whole_box(tensor.shape()).text() + " has no value at " +
                       fault.where.text() + ": no file has it" + lost_files());
    }
    at::Tensor first;
    for (const std::size_t piece : fault.pieces) {
      const at::Tensor values =
          at::empty(fault.where.sizes, at::TensorOptions(tensor.dtype).device(at::kCPU));
      read_part(tensor, {piece, fault.where}, fault.where, values);
      if (first.defined() &&
          std::memcmp(first.const_data_ptr(), values.const_data_ptr(), values.nbytes()) != 0) {
        refuse(name, "has two values at " + fault.where.text() + ": '" +
                         files_[tensor.sources[fault.pieces.front()].file] + "' and '" +
                         files_[tensor.sources[piece].file] +
                         "' differ; are these files of two checkpoints?");
      }
      first = values;
    }
  };
  tensor.pieces.each_fault(see);
}

TUTTI_INLINE const ShardedTensor& ShardedFiles::at(std::string_view name) const {
  const auto found = tensors_.find(name);
  TUTTI_CHECK(found != tensors_.end(), "checkpoint: no tensor '", std::string(name), "' in '",
              folder_.string(), "', which has ", tensors_.size(), " tensors in ", files_.size(),
              " files");
  return found->second;
}

TUTTI_INLINE void ShardedFiles::expect(std::string_view name,
                                       const std::vector<std::int64_t>& shape,
                                       c10::ScalarType dtype) const {
  const ShardedTensor& tensor = at(name);
  if (tensor.shape() != shape || tensor.dtype != dtype) {
    refuse(name, "is " + std::string(detail::dtype_name(tensor.dtype)) +
                     whole_box(tensor.shape()).text() + ", expected " +
                     std::string(detail::dtype_name(dtype)) + whole_box(shape).text() +
                     "; it is another model's, or the file of its last rows is lost" +
                     lost_files());
  }
}

TUTTI_INLINE at::Tensor ShardedFiles::read(std::string_view name) const {
  return read(name, whole_box(at(name).shape()));
}

TUTTI_INLINE at::Tensor ShardedFiles::read(std::string_view name, const TensorBox& box) const {
  at::Tensor out =
      at::empty(checked(name, box).sizes, at::TensorOptions(at(name).dtype).device(at::kCPU));
  fill(name, box, out);
  return out;
}

TUTTI_INLINE void ShardedFiles::read_into(std::string_view name, const TensorBox& box,
                                          const at::Tensor& target) const {
  TUTTI_CHECK(target.sizes() == at::IntArrayRef(checked(name, box).sizes),
              "checkpoint: ", box.text(), " of the tensor '", std::string(name),
              "' was to be read into a tensor of sizes ", target.sizes());
  const c10::AutoGradMode no_grad(false);
  if (target.is_cpu() && target.scalar_type() == at(name).dtype && target.is_contiguous()) {
    fill(name, box, target);
    target.unsafeGetTensorImpl()->bump_version();
  } else {
    target.copy_(read(name, box));
  }
}

TUTTI_INLINE const TensorBox& ShardedFiles::checked(std::string_view name,
                                                    const TensorBox& box) const {
  const std::vector<std::int64_t>& shape = at(name).shape();
  bool inside = box.sizes.size() == shape.size() && box.offsets.size() == shape.size();
  for (std::size_t i = 0; inside && i < shape.size(); ++i) {
    inside = box.offsets[i] >= 0 && box.sizes[i] >= 0 && box.offsets[i] <= shape[i] &&
             box.sizes[i] <= shape[i] - box.offsets[i];
  }
  TUTTI_CHECK(inside, "checkpoint: ", box.text(), " of the tensor '", std::string(name), "' in '",
              folder_.string(), "' was asked for, which is ", whole_box(shape).text());
  return box;
}

TUTTI_INLINE void ShardedFiles::fill(std::string_view name, const TensorBox& box,
                                     const at::Tensor& out) const {
  const ShardedTensor& tensor = at(name);
  for (const TensorPieces::Part& part : tensor.pieces.parts_of(box)) {
    read_part(tensor, part, box, out);
  }
  if (tensor.dtype == at::kBool) {
    const auto* bytes = static_cast<const unsigned char*>(out.const_data_ptr());
    if (std::any_of(bytes, bytes + out.nbytes(), [](unsigned char byte) { return byte > 1; })) {
      refuse(name, "is bool and has bytes other than 0 and 1");
    }
  }
}

TUTTI_INLINE void ShardedFiles::read_part(const ShardedTensor& tensor,
                                          const TensorPieces::Part& part, const TensorBox& box,
                                          const at::Tensor& out) const {
  constexpr std::size_t buffer = std::size_t{1}
                                 << 20;  // bytes that are read before they are placed
  const ShardedTensor::Source& source = tensor.sources[part.piece];
  const TensorBox& piece = tensor.pieces.boxes()[part.piece];
  const detail::File file = detail::File::open_for_reading(folder_ / files_[source.file]);
  TUTTI_CHECK(file.size() == sizes_[source.file], "checkpoint: '", file.path().string(),
              "' changed while it was read");
  const std::size_t element = c10::elementSize(tensor.dtype);
  auto* const bytes = static_cast<unsigned char*>(out.mutable_data_ptr());
  const auto target = [&](const auto& index) {
    return bytes + detail::place_in(box, index) * element;
  };
  // In the file the part is in runs, of which each goes to one or several runs of the box.
  const std::size_t in_file = detail::first_of_run(part.box, piece);
  const std::size_t in_box = std::max(in_file, detail::first_of_run(part.box, box));
  const std::size_t run = detail::run_length(part.box, in_box) * element;
  const std::size_t batch = run >= buffer || in_box == in_file ? 1 : buffer / run;
  std::vector<unsigned char*> targets;  // of runs that follow one another in the file
  std::uint64_t begin = 0;
  std::vector<unsigned char> scratch;
  const auto flush = [&] {
    scratch.resize(targets.size() > 1 ? targets.size() * run : 0);
    unsigned char* const first = targets.size() > 1 ? scratch.data() : targets.front();
    file.read_at(begin, first, targets.size() * run);
    for (std::size_t i = 0; targets.size() > 1 && i < targets.size(); ++i) {
      std::memcpy(targets[i], scratch.data() + i * run, run);
    }
    targets.clear();
  };
  detail::each_run(part.box, in_box, [&](const std::vector<std::int64_t>& index) {
    const std::uint64_t place = source.begin + detail::place_in(piece, index) * element;
    if (!targets.empty() && (targets.size() == batch || place != begin + targets.size() * run)) {
      flush();
    }
    begin = targets.empty() ? place : begin;
    targets.push_back(target(index));
  });
  flush();
}

TUTTI_INLINE WrittenFile consolidate(const ShardedFiles& from,
                                     const std::filesystem::path& target) {
  std::vector<NamedTensor> order;
  for (const auto& [name, tensor] : from.tensors()) {
    order.emplace_back(
        name, at::empty(tensor.shape(), at::TensorOptions(tensor.dtype).device(at::kMeta)));
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.second.element_size() > b.second.element_size();
  });
  const std::string header = detail::make_header(order, {{"format", "pt"}});
  const auto whole = [&](const std::string& name, const at::Tensor&) { return from.read(name); };
  return detail::write_file(target, order, header, whole);
}

}  // namespace tutti::checkpoint
