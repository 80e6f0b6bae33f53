// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "support/fake_communicator.hpp"

/// Speaks for two ranks in one process: the other one adds the same number to every sum, has that
/// number itself otherwise, and says the same words to everything.
struct OtherRank : FakeCommunicator {
  explicit OtherRank(double number = 0, std::string words = {}, int own_rank = 0)
      : FakeCommunicator(own_rank), its(number), said(std::move(words)) {}

  void all_reduce(const at::Tensor& tensor, tutti::dist::ReduceOp) override {
    tensor.is_floating_point() ? tensor.add_(its) : tensor.add_(static_cast<std::int64_t>(its));
  }
  void all_reduce(std::span<double> values, tutti::dist::ReduceOp op) override {
    for (double& value : values) {
      value = reduced(value, its, op);
    }
  }
  void all_reduce(std::span<std::int64_t> values, tutti::dist::ReduceOp op) override {
    for (std::int64_t& value : values) {
      value = reduced(value, static_cast<std::int64_t>(its), op);
    }
  }
  std::string broadcast_bytes(const std::string& bytes, int source) override {
    return source == rank() ? bytes : said;
  }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return rank() == 0 ? std::vector{bytes, said} : std::vector{said, bytes};
  }

  double its;
  std::string said;

 private:
  template <class T>
  static T reduced(T own, T other, tutti::dist::ReduceOp op) {
    switch (op) {
      case tutti::dist::ReduceOp::minimum:
        return std::min(own, other);
      case tutti::dist::ReduceOp::maximum:
        return std::max(own, other);
      default:
        return own + other;
    }
  }
};
