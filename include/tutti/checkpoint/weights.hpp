// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include <ATen/core/Tensor.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/sharded_snapshot.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/checkpoint/weight_files.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint {

/// Weights under their PyTorch names, for load_module().
///
/// path: a checkpoint folder of this library or a pointer to it; a file or folder as WeightFiles
/// reads it, of PyTorch, torchvision, timm or Hugging Face: safetensors, an index of several files,
/// or torch.save()'s. Throws c10::Error when it is none of these or damaged.
inline Archive read_weights(const std::filesystem::path& path) {
  const auto found = resolve(path);
  TUTTI_CHECK(detail::path_exists(found), "checkpoint: there is no '", path.string(), "'");
  const bool folder = detail::is_folder(found);
  if (folder && (detail::path_exists(found / "manifest.json") ||
                 !detail::path_exists(found / "config.json"))) {
    return read_checkpoint(found, {.state = false}).model;
  }
  Archive archive;
  const WeightFiles files = WeightFiles::open(found);
  for (const StoredTensor& tensor : files.tensors()) {
    archive.put(tensor.name, tensor.view().clone());
  }
  return archive;
}

}  // namespace tutti::checkpoint
