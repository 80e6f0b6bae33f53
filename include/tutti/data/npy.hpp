// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>

/// Arrays of NumPy: `.npy`, one array, and `.npz`, several by name.
/// Source: NumPy, "NEP 1: A simple file format for NumPy arrays"; versions 1.0 to 3.0.
namespace tutti::data {

/// Options of load_npy().
struct NpyOptions {
  bool mmap = false;  ///< the file's bytes are the tensor's memory, read where they are looked at;
                      ///< what is written into the tensor does not reach the file
};

/// Reads a .npy file.
///
/// Types: bool, int8 to int64, uint8 to uint64, float16, float32, float64, complex64 and
/// complex128, of either byte order and either order of dimensions. With mmap a file that is not as
/// the machine needs it (another byte order, bool, out of line) is read nevertheless. Returns a CPU
/// tensor with the file's dimensions; without mmap it is contiguous. Throws c10::Error, naming the
/// file and what is wrong with it, when it cannot be opened, is no .npy file, holds another type
/// (texts, dates, records, pickled Python objects), or is shorter or longer than its header says.
at::Tensor load_npy(const std::string& path, const NpyOptions& options = {});

/// Writes a tensor as a .npy file of version 1.0, as numpy.save() does, replacing what is there.
/// Throws c10::Error for a type that NumPy has not and when the file cannot be written.
void save_npy(const std::string& path, const at::Tensor& tensor);

/// Reads all arrays of a .npz file, stored or deflated, in alphabetical order of their names.
/// Throws c10::Error, naming the file and the array, as load_npy() does; also when a checksum does
/// not fit or an entry is no .npy file.
NamedTensors load_npz(const std::string& path);

/// Writes tensors as a .npz file, as numpy.savez() does, replacing what is there.
/// Throws c10::Error as save_npy() does, and when a name is empty, occurs twice or has a slash.
void save_npz(const std::string& path, const NamedTensors& tensors);

/// Arrays in .npy files whose dimension 0 counts examples: a data set for DataLoader.
///
///     tutti::DataLoader train{
///         tutti::data::NpyDataset{{{"inputs", "x.npy"}, {"targets", "y.npy"}}},
///         {.batch_size = 32, .shuffle = true}};
///
/// The files are mapped: they may be larger than memory, and must not be made shorter meanwhile.
/// A file of another byte order, of bool or out of line is held in memory. Copies share the files.
class NpyDataset {
 public:
  /// files: by the names that their tensors get in a batch.
  /// Throws c10::Error as load_npy() does, and when files have no or different numbers of examples.
  explicit NpyDataset(const std::vector<std::pair<std::string, std::string>>& files);

  /// Examples.
  [[nodiscard]] std::int64_t size() const { return size_; }

  /// Example `index`, 0 .. size() - 1; a copy. Throws c10::IndexError out of range.
  [[nodiscard]] Batch get(std::int64_t index) const;

 private:
  NamedTensors arrays_;
  std::int64_t size_ = 0;
};

namespace detail {

// What the header of a .npy file says.
struct NpyHeader {
  at::ScalarType type = at::kFloat;
  bool swapped = false;  // the other byte order
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // of the values
  std::uint64_t bytes = 0;  // of the values
};

// bytes: the whole file. name: "'x.npy'", what messages begin with.
NpyHeader npy_header(std::string_view bytes, const std::string& name);

// The array of a .npy file in memory, in memory of its own.
at::Tensor npy_tensor(std::string_view bytes, const std::string& name);

// A tensor as the bytes of a .npy file.
std::string npy_bytes(const at::Tensor& tensor, const std::string& name);

// Writes a file, replacing what is there.
void write_file(const std::string& path, std::string_view bytes);

}  // namespace detail

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/npy.inl.hpp>
#endif
