// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/checkpoint/weights.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint {

/// The checkpoints of a folder that are furthest in their run, `count` of them at most, oldest
/// first; those of weights alone count as well. Of two at one batch the name decides.
/// Throws c10::Error when the folder is not there or has none, c10::ValueError for a count below 1.
std::vector<std::string> last_checkpoints(const std::filesystem::path& folder, std::int64_t count);

/// The mean of the weights of several checkpoints, for load_module():
///
///     checkpoint::load_module(*model, checkpoint::average_weights(
///         checkpoint::last_checkpoints("runs/a/checkpoints", 5)));
///
/// paths: whatever read_weights() reads; at least one. Each counts the same. Floating tensors are
/// added up in 64 bits and keep their own type; integers and booleans, such as the counters of
/// batch normalization, are those of the last path. Running statistics are averaged with the rest:
/// they are no exact statistics of the mean, which SWA{.refresh_batches} computes in a run. Throws
/// c10::Error when a checkpoint has other names, shapes or types than the first, naming the tensor
/// and both files. Source: fairseq, `scripts/average_checkpoints.py`.
Archive average_weights(const std::vector<std::string>& paths);

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/average.inl.hpp>
#endif
