// SPDX-License-Identifier: Apache-2.0
#pragma once

// What vision_golden.py made with torchvision's v2 transforms, and the draws that it gave them.

#include <map>
#include <memory>
#include <string>

#include <ATen/ATen.h>
#include <torch/version.h>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/core/rng.hpp>

#include "support/catch.hpp"

namespace vision_golden {

inline const std::map<std::string, at::Tensor>& tensors() {
  static const auto read = [] {
    auto all = tutti::checkpoint::read_safetensors(std::string(TUTTI_SOURCE_DIR) +
                                                   "/tests/data/vision_golden.safetensors");
    return std::map<std::string, at::Tensor>(all.begin(), all.end());
  }();
  return read;
}

inline at::Tensor golden(const std::string& key) {
  INFO(key);
  REQUIRE(tensors().contains(key));
  return tensors().at(key);
}

/// In every bit. torchvision ran with torch 2.11: older LibTorchs interpolate floats in another
/// order.
inline bool equals(const at::Tensor& got, const std::string& key) {
  const at::Tensor want = golden(key);
  const bool same_kernels = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 11;
  return got.equal(want) || (!same_kernels && want.is_floating_point() &&
                             got.sizes() == want.sizes() && got.allclose(want, 1e-6, 1e-6));
}

/// Gives out the draws that torchvision was given for that entry.
inline tutti::Rng given(const std::string& key) {
  auto tape = std::make_shared<tutti::Tape>();
  const auto draws = [&](const std::string& kind) {
    const auto found = tensors().find(key + "." + kind);
    return found == tensors().end() ? at::empty({0}) : found->second;
  };
  const at::Tensor uniforms = draws("uniform");
  for (std::int64_t i = 0; i < uniforms.size(0); ++i) {
    tape->uniforms.push_back(uniforms[i].item<double>());
  }
  const at::Tensor integers = draws("integer");
  for (std::int64_t i = 0; i < integers.size(0); ++i) {
    tape->integers.push_back(integers[i].item<std::int64_t>());
  }
  const at::Tensor permutations = draws("permutation");
  for (std::int64_t i = 0; i < permutations.size(0); ++i) {
    tape->permutations.push_back(permutations[i]);
  }
  tutti::Rng rng;
  rng.replay(tape);
  return rng;
}

/// Everything that the entry's draws had has been asked for.
inline bool used_up(const tutti::Rng& rng) {
  const tutti::Tape& tape = **rng.tape_;
  return tape.uniforms.empty() && tape.integers.empty() && tape.permutations.empty();
}

/// The largest difference, 255 where shapes or types differ.
inline double furthest(const at::Tensor& found, const std::string& key) {
  const at::Tensor expected = golden(key);
  INFO(key << ": " << found.scalar_type() << found.sizes() << ", golden " << expected.scalar_type()
           << expected.sizes());
  REQUIRE(found.sizes() == expected.sizes());
  REQUIRE(found.scalar_type() == expected.scalar_type());
  return found.to(at::kDouble).sub(expected.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace vision_golden
