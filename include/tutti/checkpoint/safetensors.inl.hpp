// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/safetensors.hpp>

namespace tutti::checkpoint {

TUTTI_INLINE SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : file_(detail::File::open_for_reading(std::move(path))) {
  try {
    read_header();
  } catch (const std::invalid_argument& error) {
    refuse(error.what());
  }
}

TUTTI_INLINE at::Tensor SafetensorsFile::read(std::string_view name) const {
  const TensorLayout* found = find(name);
  TUTTI_CHECK(found != nullptr, "safetensors: no tensor '", std::string(name), "' in '",
              file_.path().string(), "', which has ", tensors_.size(), " tensors");
  return read(*found, nullptr);
}

TUTTI_INLINE std::vector<NamedTensor> SafetensorsFile::read_all() const {
  std::vector<NamedTensor> out;
  out.reserve(tensors_.size());
  for (const auto& tensor : tensors_) {
    out.emplace_back(tensor.name, read(tensor, nullptr));
  }
  return out;
}

TUTTI_INLINE std::vector<NamedTensor> SafetensorsFile::read_all(tutti::detail::Xxh64& hash) const {
  hash.update(prefix_.data(), prefix_.size());
  std::vector<NamedTensor> out;
  out.reserve(tensors_.size());
  for (const auto& tensor : tensors_) {
    out.emplace_back(tensor.name, read(tensor, &hash));
  }
  return out;
}

TUTTI_INLINE void SafetensorsFile::read_header() {
  const std::uint64_t size = file_.size();
  std::uint64_t length = 0;
  if (size == 0) {
    refuse("it is empty; download or write it again");
  }
  if (size < sizeof length) {
    refuse("it has " + std::to_string(size) + " bytes, fewer than the 8 of the header's length");
  }
  std::string start(std::min<std::uint64_t>(size, 40), '\0');
  file_.read_at(0, start.data(), start.size());
  if (start.starts_with("version https://git-lfs")) {
    refuse(
        "it is a pointer of Git LFS, in whose place the file has not been downloaded; run git lfs "
        "pull in its repository, or download the file itself");
  }
  if (std::all_of(start.begin(), start.end(), [](char c) {
        return c == '\n' || c == '\r' || c == '\t' || (c >= ' ' && c <= '~');
      })) {
    start.resize(std::min(start.find_first_of("\r\n"), start.size()));
    refuse("it is a text, which begins \"" + start +
           "\", perhaps what a server answered in place of the file; download it again");
  }
  file_.read_at(0, &length, sizeof length);
  if (length > detail::max_header || length > size - sizeof length) {
    refuse("it announces a header of " + std::to_string(length) + " bytes in a file of " +
           std::to_string(size) + "; it is truncated or no safetensors file");
  }
  prefix_.resize(sizeof length + length);
  file_.read_at(0, prefix_.data(), prefix_.size());
  const std::string_view text = std::string_view(prefix_).substr(sizeof length);
  if (!text.starts_with('{')) {
    refuse("its header does not begin with '{'; it is no safetensors file");
  }
  parse_header(text);
  check_layout(size - prefix_.size());
}

TUTTI_INLINE void SafetensorsFile::parse_header(std::string_view text) {
  bool has_metadata = false;
  std::size_t levels = 0;
  const std::size_t most_levels = 100'000 + text.size() / 16;  // an Archive makes a child of each
  const auto see = [&](const std::string& name, const tutti::detail::Json& entry) {
    if (name == "__metadata__") {
      if (std::exchange(has_metadata, true)) {
        refuse("'__metadata__' occurs twice");
      }
      for (const auto& [key, value] : entry.object()) {
        metadata_.emplace(key, value.string());
      }
      return;
    }
    tensors_.push_back(detail::parse_layout(name, entry));
    levels += static_cast<std::size_t>(std::count(name.begin(), name.end(), '/'));
    if (levels > most_levels) {
      refuse("the names of its tensors have more than " + std::to_string(most_levels) +
             " levels, too many for its size");
    }
  };
  tutti::detail::each_json_member(text, detail::entry_limits, see);
}

TUTTI_INLINE std::vector<std::size_t>::const_iterator SafetensorsFile::rank_of(
    std::string_view name) const {
  return std::lower_bound(
      order_.begin(), order_.end(), name,
      [this](std::size_t i, std::string_view other) { return tensors_[i].name < other; });
}

TUTTI_INLINE const TensorLayout* SafetensorsFile::find(std::string_view name) const {
  const auto found = rank_of(name);
  return found != order_.end() && tensors_[*found].name == name ? &tensors_[*found] : nullptr;
}

TUTTI_INLINE void SafetensorsFile::check_layout(std::uint64_t data_size) {
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  order_.resize(tensors_.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  const auto name_of = [this](std::size_t i) -> const std::string& { return tensors_[i].name; };
  std::ranges::sort(order_, {}, name_of);
  const auto repeated = std::ranges::adjacent_find(order_, {}, name_of);
  if (repeated != order_.end()) {
    refuse("the tensor '" + name_of(*repeated) + "' occurs twice");
  }
  std::uint64_t covered = 0;
  for (const auto& tensor : tensors_) {
    if (tensor.begin != covered) {
      refuse("tensor '" + tensor.name + "' begins at byte " + std::to_string(tensor.begin) +
             " of the data, expected " + std::to_string(covered) + " (a hole or an overlap)");
    }
    covered = tensor.end;
  }
  if (covered != data_size) {
    refuse("its tensors need " + std::to_string(covered) + " bytes of data, it has " +
           std::to_string(data_size) + (covered > data_size ? "; it is truncated" : ""));
  }
}

TUTTI_INLINE at::Tensor SafetensorsFile::read(const TensorLayout& layout,
                                              tutti::detail::Xxh64* hash) const {
  at::Tensor out = at::empty(layout.shape, at::TensorOptions(layout.dtype).device(at::kCPU));
  const std::size_t size = layout.bytes();
  if (size > 0) {
    file_.read_at(prefix_.size() + layout.begin, out.mutable_data_ptr(), size);
  }
  if (hash != nullptr && size > 0) {
    hash->update(out.const_data_ptr(), size);
  }
  if (layout.dtype == at::kBool) {
    const auto* bytes = static_cast<const unsigned char*>(out.const_data_ptr());
    if (std::any_of(bytes, bytes + size, [](unsigned char byte) { return byte > 1; })) {
      refuse("the bool tensor '" + layout.name + "' has bytes other than 0 and 1");
    }
  }
  return out;
}

}  // namespace tutti::checkpoint

namespace tutti::checkpoint::detail {

TUTTI_INLINE void check_writable(const std::string& name, const at::Tensor& tensor) {
  TUTTI_CHECK(tensor.defined(), "safetensors: the tensor '", name, "' is undefined; leave it out");
  TUTTI_CHECK(tensor.layout() == at::kStrided && !tensor.is_meta(), "safetensors: the tensor '",
              name, "' is ", tensor.layout(), " on ", tensor.device(),
              "; only dense tensors that have data can be written");
  TUTTI_CHECK(!dtype_name(tensor.scalar_type()).empty(), "safetensors: the tensor '", name,
              "' has the type ", tensor.scalar_type(), ", which the format lacks",
              tensor.scalar_type() == at::kComplexDouble ? "; write its view_as_real()" : "");
  TUTTI_CHECK(name != "__metadata__", "safetensors: no tensor can be named __metadata__");
  const std::string problem = problem_of_name(name);
  TUTTI_CHECK(problem.empty(), "safetensors: the tensor '", name.substr(0, 64), "' ", problem);
  TUTTI_CHECK(tensor.dim() <= max_dimensions, "safetensors: the tensor '", name, "' has ",
              tensor.dim(), " dimensions, expected at most ", max_dimensions);
}

TUTTI_INLINE std::string make_header(const std::vector<NamedTensor>& tensors,
                                     const Metadata& metadata, c10::ScalarType float_type) {
  using tutti::detail::Json;
  Json::Object header;
  if (!metadata.empty()) {
    Json::Object entries(metadata.begin(), metadata.end());
    header.emplace_back("__metadata__", std::move(entries));
  }
  std::int64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    const Json::Array shape(tensor.sizes().begin(), tensor.sizes().end());
    const c10::ScalarType type = written_type(tensor, float_type);
    const auto element = static_cast<std::int64_t>(c10::elementSize(type));
    const std::int64_t begin = std::exchange(at, at + tensor.numel() * element);
    header.emplace_back(name, Json::Object{{"dtype", dtype_name(type)},
                                           {"shape", shape},
                                           {"data_offsets", Json::Array{begin, at}}});
  }
  std::string text = tutti::detail::to_text(header);
  // A name that is not UTF-8 could not be read back.
  tutti::detail::each_json_member(text, entry_limits, [](const auto&, const auto&) {});
  text.append((8 - text.size() % 8) % 8, ' ');
  TUTTI_CHECK(text.size() <= max_header, "safetensors: a header of ", text.size(), " bytes for ",
              tensors.size(), " tensors, expected at most ", max_header, "; write several files");
  const std::uint64_t length = text.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + text;
}

TUTTI_INLINE WrittenFile
write_file(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
           const std::string& header,
           const std::function<at::Tensor(const std::string&, const at::Tensor&)>& data) {
  File file = File::create(path);
  try {
    tutti::detail::Xxh64 hash;
    WrittenFile written;
    const auto put = [&](const void* bytes, std::size_t size) {
      file.write(bytes, size);
      hash.update(bytes, size);
      written.size += size;
    };
    put(header.data(), header.size());
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor plain = data(name, tensor);
      if (plain.nbytes() > 0) {
        put(plain.const_data_ptr(), plain.nbytes());
      }
    }
    file.sync();
    file.close();
    written.checksum = hash.text();
    return written;
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

}  // namespace tutti::checkpoint::detail

namespace tutti::checkpoint {

TUTTI_INLINE c10::ScalarType written_type(const at::Tensor& tensor, c10::ScalarType float_type) {
  const c10::ScalarType type = tensor.scalar_type();
  const bool converts =
      type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
  return converts && float_type != c10::ScalarType::Undefined ? float_type : type;
}

TUTTI_INLINE WrittenFile write_safetensors(const std::filesystem::path& path,
                                           const std::vector<NamedTensor>& tensors,
                                           const Metadata& metadata, c10::ScalarType float_type) {
  std::vector<NamedTensor> sorted = tensors;
  std::map<std::string_view, int> names;
  for (const auto& [name, tensor] : tensors) {
    detail::check_writable(name, tensor);
    TUTTI_CHECK(++names[name] == 1, "safetensors: two tensors are named '", name, "'");
  }
  const auto element = [&](const NamedTensor& tensor) {
    return c10::elementSize(written_type(tensor.second, float_type));
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const auto& a, const auto& b) { return element(a) > element(b); });
  const std::string header = detail::make_header(sorted, metadata, float_type);
  const auto plain = [&](const std::string&, const at::Tensor& tensor) {
    const c10::ScalarType type = written_type(tensor, float_type);
    return tensor.detach().resolve_conj().resolve_neg().to(type).cpu().contiguous();
  };
  return detail::write_file(path, sorted, header, plain);
}

}  // namespace tutti::checkpoint
