// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>

#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "device/stand_in.hpp"
#include "support/catch.hpp"
#include "support/tiny.hpp"

// Runs on the device.
namespace device_tests {

/// A network whose activations of 64 examples, 16 MiB a layer, are larger than all else.
struct Wide : torch::nn::Module {
  Wide() {
    in = register_module("in", torch::nn::Linear(4, 65536));
    out = register_module("out", torch::nn::Linear(65536, 2));
  }
  tutti::Outputs forward(const tutti::Batch& batch) {
    return out->forward(in->forward(batch.inputs()).tanh());
  }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
};

inline std::shared_ptr<Wide> wide() {
  at::manual_seed(1);
  return std::make_shared<Wide>();
}

inline tutti::TrainerOptions options(std::vector<tutti::Batch> train) {
  return {.train = std::move(train),
          .max_duration = "2ep",
          .optimizer = tutti::SGD{.lr = 0.01, .momentum = 0.9},
          .device = "cuda",
          .seed = 3,
          .run_name = "device",
          .progress_bar = false};
}

/// So many bytes are left of the device's memory, besides what tensors have.
struct SpareMemory {
  explicit SpareMemory(std::size_t bytes)
      : limit((c10::cuda::CUDACachingAllocator::emptyCache(), stand_in::memory_in_use()) + bytes) {}
  stand_in::MemoryLimit limit;
};

}  // namespace device_tests
