// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "support/fake_communicator.hpp"
#include "support/message.hpp"

/// Ranks in threads of one process, which exchange texts and whole numbers.
class ThreadRanks {
 public:
  /// Runs `body(communicator)` on so many ranks. Returns what it threw on each, "nothing" for none.
  static std::vector<std::string> run(int count,
                                      const std::function<void(tutti::dist::Communicator&)>& body) {
    ThreadRanks ranks(count);
    std::vector<std::string> out(static_cast<std::size_t>(count));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        Rank own(rank, count, ranks);
        out[static_cast<std::size_t>(rank)] = message([&] { body(own); });
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return out;
  }

 private:
  explicit ThreadRanks(int count) : texts_(static_cast<std::size_t>(count)), barrier_(count) {}

  class Rank final : public FakeCommunicator {
   public:
    using FakeCommunicator::all_reduce;
    Rank(int rank, int count, ThreadRanks& all) : FakeCommunicator(rank, count), all_(all) {}

    std::vector<std::string> all_gather_bytes(const std::string& text) override {
      all_.texts_[static_cast<std::size_t>(rank())] = text;
      all_.barrier_.arrive_and_wait();
      auto out = all_.texts_;
      all_.barrier_.arrive_and_wait();
      return out;
    }
    std::string broadcast_bytes(const std::string& text, int source) override {
      return all_gather_bytes(text)[static_cast<std::size_t>(source)];
    }
    /// The largest of each.
    void all_reduce(std::span<std::int64_t> values, tutti::dist::ReduceOp) override {
      for (std::int64_t& value : values) {
        for (const std::string& other : all_gather_bytes(std::to_string(value))) {
          value = std::max<std::int64_t>(value, std::stoll(other));
        }
      }
    }
    void barrier() override { all_gather_bytes({}); }

   private:
    ThreadRanks& all_;
  };

  std::vector<std::string> texts_;
  std::barrier<> barrier_;
};
