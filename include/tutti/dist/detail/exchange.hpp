// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <tutti/dist/communicator.hpp>

#include <ATen/core/Tensor.h>

namespace tutti::dist::detail {

/// What this rank sends to each rank and gets from it, without a copy of either.
class Exchange {
 public:
  explicit Exchange(Communicator& group) : group_(group) {}

  /// Sends `from` to a rank and fills `to` from there; either may have no elements. Of this rank
  /// itself `from` is copied, unless it lies there already.
  void add(std::int64_t rank, const at::Tensor& from, const at::Tensor& to) {
    if (rank == group_.rank()) {
      if (from.const_data_ptr() != to.const_data_ptr()) {
        to.copy_(from);
      }
      return;
    }
    if (from.numel() > 0) {
      sent_.push_back({from, static_cast<int>(rank)});
    }
    if (to.numel() > 0) {
      received_.push_back({to, static_cast<int>(rank)});
    }
  }

  /// As Communicator::start_exchange().
  [[nodiscard]] std::function<void()> start(const char* call) {
    return group_.start_exchange(call, std::move(sent_), std::move(received_));
  }

 private:
  Communicator& group_;
  std::vector<Communicator::Piece> sent_;
  std::vector<Communicator::Piece> received_;
};

}  // namespace tutti::dist::detail
