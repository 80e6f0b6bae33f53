// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/detail/staging.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/manifest.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/checkpoint/shard_layout.hpp>
#include <tutti/checkpoint/sharded_checkpoint.hpp>
#include <tutti/checkpoint/sharded_snapshot.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/checkpoint/weight_files.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>

/// Whole checkpoints out of sharded ones, and the other way round.
namespace tutti::checkpoint {

/// Writes a sharded checkpoint as a whole one, its random streams and all; one tensor at a time is
/// in memory.
///
/// from: also a pointer to one. target: a new folder, made whole or not at all. Throws c10::Error
/// when it exists, or `from` is damaged or no sharded checkpoint.
void consolidate_checkpoint(const std::filesystem::path& from, const std::filesystem::path& target);

/// Writes a whole checkpoint as one that `ranks` ranks have written, each its rows of the weights
/// and of what optimizers keep of them. The random streams are those of so many first ranks.
///
/// Arguments and errors as in consolidate_checkpoint(). ranks: at least 1.
void shard_checkpoint(const std::filesystem::path& from, const std::filesystem::path& target,
                      int ranks);

/// Cuts whole weights into the files of so many ranks, in dimension 0; scalars go to the first.
///
/// whole: what WeightFiles::open() reads: a file, or a folder of Hugging Face's. target: a new
/// folder, made whole or not at all. Throws c10::Error when it exists, or the weights are damaged.
void shard_weights(const std::filesystem::path& whole, const std::filesystem::path& target,
                   int ranks);

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/convert.inl.hpp>
#endif
