// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/config.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

namespace tutti::dist::detail {

/// How a parameter lies in its unit. A row is a slice of dimension 0, a chunk the rows of a rank.
struct FlatParameter {
  FlatParameter(std::string its_name, const at::Tensor& parameter, int ranks, int rank);

  [[nodiscard]] bool trains() const { return whole.requires_grad(); }
  [[nodiscard]] std::int64_t chunk_numel() const { return chunk * row; }
  [[nodiscard]] std::int64_t numel() const { return rows * row; }

  /// The elements of a rank's rows, maybe none, in those of all, flat.
  [[nodiscard]] at::Tensor part_of(std::int64_t rank, const at::Tensor& all) const {
    const std::int64_t from = std::min(rows, rank * chunk);
    return all.narrow(0, from * row, (std::min(rows, from + chunk) - from) * row);
  }

  /// Its chunks are messages of their own where ranks exchange pieces: they go from where they lie
  /// to where they belong. A message costs what it takes to copy some 100 kB.
  [[nodiscard]] bool alone() const { return chunk_numel() >= 1 << 15; }

  /// Rows as they lie in `memory`, flat, from element `at` on. some: how many; all in the
  /// parameter's own shape.
  [[nodiscard]] at::Tensor view(const at::Tensor& memory, std::int64_t at,
                                std::optional<std::int64_t> some = std::nullopt) const;

  /// The elements of `tensor`, shaped as the parameter, in the order in which they lie in memory.
  [[nodiscard]] at::Tensor flat(const at::Tensor& tensor) const;

  std::string name;
  at::Tensor whole;  ///< the module's
  at::Tensor shard;
  at::Tensor kept;  ///< flat, gradients that wait for others, in the type of the reduction
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t rows = 1;
  std::int64_t row = 1;       ///< elements of one
  std::int64_t chunk = 0;     ///< rows of a rank, of the last ones fewer
  std::int64_t first = 0;     ///< of this rank's rows
  std::int64_t mine = 0;      ///< how many these are
  std::int64_t in_whole = 0;  ///< its first element in the memory of all parameters
  std::int64_t in_shard = 0;  ///< the same in a rank's part of it
  std::int64_t in_mean = 0;   ///< the same in a rank's part of gradients
  bool alone_here = false;    ///< alone(), and ranks exchange pieces
  bool tentative = false;     ///< the shard has a gradient that may be of nobody
};

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE FlatParameter::FlatParameter(std::string its_name, const at::Tensor& parameter,
                                          int ranks, int rank)
    : name(std::move(its_name)), whole(parameter), sizes(parameter.sizes().vec()) {
  rows = sizes.empty() ? 1 : sizes.front();
  row = rows == 0 ? 0 : parameter.numel() / rows;
  chunk = (rows + ranks - 1) / ranks;
  first = std::min(rows, rank * chunk);
  mine = std::min(rows, first + chunk) - first;
  const bool keeps =
      parameter.is_non_overlapping_and_dense() && (rows <= 1 || parameter.stride(0) == row);
  if (keeps) {
    strides = parameter.strides().vec();
  } else {
    std::int64_t stride = 1;
    strides.resize(sizes.size());
    for (std::size_t d = sizes.size(); d-- > 0; stride *= std::max<std::int64_t>(sizes[d], 1)) {
      strides[d] = stride;
    }
  }
}

TUTTI_INLINE at::Tensor FlatParameter::view(const at::Tensor& memory, std::int64_t at,
                                            std::optional<std::int64_t> some) const {
  std::vector<std::int64_t> shape = sizes;
  std::vector<std::int64_t> steps = strides;
  if (some) {
    if (shape.empty()) {
      shape = {1};
      steps = {1};
    }
    shape[0] = *some;
  }
  return memory.as_strided(shape, steps, memory.storage_offset() + at).detach();
}

TUTTI_INLINE at::Tensor FlatParameter::flat(const at::Tensor& tensor) const {
  at::Tensor laid_out = tensor.detach();
  if (laid_out.strides() != at::IntArrayRef(strides)) {
    laid_out = at::empty_strided(sizes, strides, laid_out.options()).copy_(laid_out);
  }
  return laid_out.as_strided({numel()}, {1});
}

}  // namespace tutti::dist::detail

#endif
