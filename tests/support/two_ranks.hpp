// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <barrier>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "support/fake_communicator.hpp"

/// Two ranks in two threads of one process, for collectives that gather, and sums of tensors.
class TwoRanks {
 public:
  /// Calls body(communicator) as rank 0 and as rank 1, and throws what one of them threw.
  template <class Body>
  static void run(Body body) {
    TwoRanks shared;
    std::exception_ptr faults[2];
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(std::make_shared<Rank>(rank, shared));
        } catch (...) {
          faults[rank] = std::current_exception();
          shared.barrier_.arrive_and_drop();
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (const auto& fault : faults) {
      if (fault) {
        std::rethrow_exception(fault);
      }
    }
  }

 private:
  class Rank final : public FakeCommunicator {
   public:
    Rank(int rank, TwoRanks& shared) : FakeCommunicator(rank), shared_(shared) {}

    void all_reduce(const at::Tensor& tensor, tutti::dist::ReduceOp) override {
      const auto both = all_gather(tensor.clone());
      tensor.copy_(both[0].add(both[1]));
    }
    std::vector<at::Tensor> all_gather(const at::Tensor& tensor) override {
      return exchange(tensor, shared_.tensors_);
    }
    std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
      return exchange(bytes, shared_.bytes_);
    }

   private:
    template <class T>
    std::vector<T> exchange(const T& own, std::vector<T>& slots) {
      slots[static_cast<std::size_t>(rank())] = own;
      shared_.barrier_.arrive_and_wait();
      std::vector<T> all = slots;
      shared_.barrier_.arrive_and_wait();
      return all;
    }

    TwoRanks& shared_;
  };

  std::barrier<> barrier_{2};
  std::vector<at::Tensor> tensors_ = std::vector<at::Tensor>(2);
  std::vector<std::string> bytes_ = std::vector<std::string>(2);
};
