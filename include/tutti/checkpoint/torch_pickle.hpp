// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <unistd.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/detail/mapping.hpp>
#include <tutti/checkpoint/detail/unpickler.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/checkpoint/stored_tensor.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/utf8.hpp>
#include <tutti/core/detail/zip_archive.hpp>
#include <tutti/core/detail/zip_writer.hpp>

namespace tutti::checkpoint {

/// The tensors of the state dict in a file of Python's torch.save(): `.pth`, `.pt`, `.bin`.
///
/// No code of the file runs: what is not an OrderedDict, a tensor, a number, a text or a container
/// of these is refused by its name (docs/pretrained.md, "Pickles"). Of a dict that holds more than
/// weights the member `state_dict_ema` is taken, else `model_ema`, `state_dict` or `model`, as timm
/// does; `_orig_mod.` and `module.` are taken off the front of names. Tensors of one storage share
/// its bytes. Only the directory and the pickle are read. Throws c10::Error that names the file and
/// the reason: no zip archive, truncated, big-endian, a tensor outside its storage, a class.
std::vector<StoredTensor> stored_in_torch_file(const std::filesystem::path& path);

/// Writes tensors as one new file of Python's torch.save(): a state dict, an OrderedDict in this
/// order, which `torch.load(path)` opens, with weights_only and mmap, too. The file is fsynced.
///
/// tensors: dense, of any shape, stride and device; where several are the same contiguous memory,
/// as tied weights, they are it in Python. Names are unique and UTF-8. One tensor at a time is
/// copied when it is not contiguous in host memory. Throws c10::Error when the file exists, cannot
/// be written, or a tensor has a type or layout that state dicts lack; what was begun is then
/// removed.
void write_torch_file(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors);

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/torch_pickle.inl.hpp>
#endif
