// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/dist/communicator.hpp>

/// One rank of several that are not there: nothing changes what it hands over, and all say what it
/// says. A test overrides what it looks at.
class FakeCommunicator : public tutti::dist::Communicator {
 public:
  explicit FakeCommunicator(tutti::dist::Environment place) : Communicator(std::move(place)) {}
  /// On one machine.
  explicit FakeCommunicator(int rank = 0, int world_size = 2)
      : Communicator([&] {
          tutti::dist::Environment place;
          place.rank = place.local_rank = rank;
          place.world_size = place.local_world_size = world_size;
          return place;
        }()) {}

  std::string backend() const override { return "fake"; }
  void all_reduce(const at::Tensor&, tutti::dist::ReduceOp) override {}
  void all_reduce(std::span<double>, tutti::dist::ReduceOp) override {}
  void all_reduce(std::span<std::int64_t>, tutti::dist::ReduceOp) override {}
  void broadcast(const at::Tensor&, int) override {}
  void broadcast(const std::vector<at::Tensor>&, int) override {}
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) override {
    return std::vector<at::Tensor>(static_cast<std::size_t>(size()), tensor);
  }
  std::string broadcast_bytes(const std::string& bytes, int) override { return bytes; }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return std::vector<std::string>(static_cast<std::size_t>(size()), bytes);
  }
  void barrier() override {}
};
