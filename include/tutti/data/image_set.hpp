// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tutti::data {

/// Labelled images in memory, as files give them:
/// `ImageLoader{set.images, set.labels, {.batch_size = 128}}` makes batches of them.
struct ImageSet {
  at::Tensor images;                 ///< uint8 [N, C, H, W]
  at::Tensor labels;                 ///< int64 [N], numbers of `classes`
  std::vector<std::string> classes;  ///< names, by label
};

}  // namespace tutti::data
