// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::data::detail {

// 8-bit images [C, H, W] of different sizes, as files give them.
inline bool are_images(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kByte && b.scalar_type() == at::kByte && a.dim() == 3 &&
         b.dim() == 3 && a.size(0) == b.size(0);
}

// Puts examples together: every tensor gets a dimension 0 that counts them. index: the example's
// numbers in the data set, for messages of `who`. At least one.
inline Batch collate(const std::vector<Batch>& examples, const std::vector<std::int64_t>& index,
                     const char* who = "DataLoader") {
  const Batch& first = examples.front();
  Batch out;
  std::vector<at::Tensor> parts(examples.size());
  for (const auto& [name, model] : first) {
    for (std::size_t i = 0; i < examples.size(); ++i) {
      const Batch& example = examples[i];
      TUTTI_CHECK(example.size() == first.size() && example.contains(name), who, ": example ",
                  index[i], " has ", example.names(), " and example ", index.front(), " ",
                  first.names(), "; expected the same in all of a batch");
      parts[i] = example.at(name);
      TUTTI_CHECK(parts[i].defined(), who, ": \"", name, "\" of example ", index[i],
                  " is an undefined tensor, expected values");
      TUTTI_CHECK(
          parts[i].sizes() == model.sizes() && parts[i].scalar_type() == model.scalar_type(), who,
          ": \"", name, "\" of example ", index[i], " is ", parts[i].scalar_type(),
          parts[i].sizes(), " and of example ", index.front(), " ", model.scalar_type(),
          model.sizes(), "; expected one type and size in all of a batch",
          are_images(model, parts[i]) ? ": give ImageFolderDataset's options.framing, or a "
                                        "transform such as ResizeAndCrop, "
                                        "or options.collate"
                                      : " (or give options.collate)");
    }
    out[name] = at::stack(parts);
  }
  return out;
}

}  // namespace tutti::data::detail
