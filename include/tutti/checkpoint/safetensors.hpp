// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/detail/tensor_layout.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/xxh64.hpp>

namespace tutti::checkpoint {

/// A tensor and its name.
using NamedTensor = std::pair<std::string, at::Tensor>;

/// Free text of a safetensors header: `__metadata__`.
using Metadata = std::map<std::string, std::string>;

/// A safetensors file open for reading, as PyTorch, Hugging Face and this library write them.
///
/// The whole header is checked when it is opened, so a file that opens has every tensor inside its
/// bounds; a file from strangers can be wrong but can run no code and touch no memory of ours, and
/// what it takes is in proportion to its size: a header has at most 100,000,000 bytes, a name
/// 4,096, a shape 64 dimensions, and names that are paths few levels for the header's size. Throws
/// c10::Error with path, tensor and reason for anything that the format does not allow. Source:
/// github.com/huggingface/safetensors, README, section Format.
class SafetensorsFile {
 public:
  /// Opens a file and checks its header; reads no tensor.
  explicit SafetensorsFile(std::filesystem::path path);

  /// Names, types and shapes in the order in which the data lie in the file.
  const std::vector<TensorLayout>& tensors() const { return tensors_; }

  /// The free text that the writer attached.
  const Metadata& metadata() const { return metadata_; }

  bool contains(std::string_view name) const { return find(name) != nullptr; }

  /// Where the data begin in the file; offsets of tensors() count from there.
  std::uint64_t data_begin() const { return prefix_.size(); }

  /// The open file.
  const detail::File& file() const { return file_; }

  /// One tensor, on the CPU, owning its memory. Throws c10::Error when there is none of that name.
  at::Tensor read(std::string_view name) const;

  /// All tensors, on the CPU, in the order of the file.
  std::vector<NamedTensor> read_all() const;

  /// read_all() that also adds every byte of the file, header included, to `hash`.
  std::vector<NamedTensor> read_all(tutti::detail::Xxh64& hash) const;

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    TUTTI_CHECK(false, "safetensors: '", file_.path().string(), "' is refused: ", why);
  }

  void read_header();

  // The tensors and the metadata of the header's text.
  void parse_header(std::string_view text);

  // The data must tile the rest of the file: no hole, no overlap, nothing behind.
  void check_layout(std::uint64_t data_size);

  at::Tensor read(const TensorLayout& layout, tutti::detail::Xxh64* hash) const;

  detail::File file_;
  std::string prefix_;  // the length and the header, as they stand in the file
  // The place in order_ of the first tensor whose name is not less.
  std::vector<std::size_t>::const_iterator rank_of(std::string_view name) const;
  const TensorLayout* find(std::string_view name) const;

  std::vector<TensorLayout> tensors_;
  std::vector<std::size_t> order_;  // of the tensors by their names
  Metadata metadata_;
};

/// All tensors of a safetensors file, on the CPU. Throws as SafetensorsFile does.
inline std::vector<NamedTensor> read_safetensors(const std::filesystem::path& path) {
  return SafetensorsFile(path).read_all();
}

/// What write_safetensors() wrote.
struct WrittenFile {
  std::uint64_t size = 0;  ///< bytes
  std::string checksum;    ///< XXH64 of all bytes, sixteen hexadecimal digits
};

/// Writes tensors as one new safetensors file and fsyncs it.
///
/// tensors: dense, of any shape, stride and device; each is written under each of its names, also
/// where memory is shared. Names are unique, of 4,096 bytes and 32 levels at most, and not
/// `__metadata__`. Wider
/// element types come first, so that all data are aligned. One tensor at a time is copied when it
/// is not contiguous in host memory or has another type than it is written as. float_type: what
/// float, double, half and bfloat16 tensors are written as; Undefined: their own. Returns size and
/// checksum. Throws c10::Error when the file exists, cannot be written (the disk is full, say), or
/// a tensor has a type or layout that the format lacks; what was begun is then removed.
WrittenFile write_safetensors(const std::filesystem::path& path,
                              const std::vector<NamedTensor>& tensors,
                              const Metadata& metadata = {},
                              c10::ScalarType float_type = c10::ScalarType::Undefined);

/// The type that write_safetensors() gives a tensor in the file.
c10::ScalarType written_type(const at::Tensor& tensor, c10::ScalarType float_type);

namespace detail {

inline constexpr std::uint64_t max_header = 100'000'000;  // the limit of the reference reader

// Of one entry of the header. A tensor has three members, its shape 64 numbers at most; metadata
// are an object of texts.
inline constexpr tutti::detail::JsonLimits entry_limits{.depth = 4, .values = 65'536};

/// The header with its length, padded to a multiple of 8 bytes; `tensors` in the order of their
/// data.
std::string make_header(const std::vector<NamedTensor>& tensors, const Metadata& metadata,
                        c10::ScalarType float_type = c10::ScalarType::Undefined);

/// Writes a new file: a header and, for each of its tensors, what `data` gives, which is contiguous
/// in host memory and of the type and shape that the header has. What was begun is removed when it
/// fails.
WrittenFile write_file(
    const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
    const std::string& header,
    const std::function<at::Tensor(const std::string&, const at::Tensor&)>& data);

}  // namespace detail

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/safetensors.inl.hpp>
#endif
