// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the benchmarks share: the network, the data, and the clock.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/torch.h>

#include <tutti/core/batch.hpp>

namespace bench {

inline constexpr std::int64_t batch_size = 8;
inline constexpr std::int64_t inputs = 32;
inline constexpr std::int64_t hidden = 64;
inline constexpr std::int64_t classes = 10;
inline constexpr double lr = 0.01;
inline constexpr double momentum = 0.9;

/// The network of every peer: 32-64-64-10 with ReLU.
struct MlpImpl : torch::nn::Module {
  torch::nn::Linear first{inputs, hidden};
  torch::nn::Linear second{hidden, hidden};
  torch::nn::Linear last{hidden, classes};

  MlpImpl() {
    register_module("first", first);
    register_module("second", second);
    register_module("last", last);
  }
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(second->forward(first->forward(x).relu()).relu());
  }
};
TORCH_MODULE(Mlp);

inline Mlp mlp() {
  torch::manual_seed(0);
  return Mlp();
}

/// 64 batches that every peer goes round in.
inline std::vector<tutti::Batch> batches() {
  torch::manual_seed(1);
  std::vector<tutti::Batch> out;
  for (int i = 0; i < 64; ++i) {
    out.emplace_back(torch::randn({batch_size, inputs}),
                     torch::randint(classes, {batch_size}, torch::kLong));
  }
  return out;
}

/// Gives out `steps` batches and takes the time when it is asked for every `block`-th one after the
/// warm-up, so that whoever trains is timed from outside. tutti's loader contract; a hand-written
/// loop calls start() and next() as well.
class Stopwatch {
 public:
  using Clock = std::chrono::steady_clock;

  Stopwatch(std::int64_t warm_up, std::int64_t block, std::int64_t blocks)
      : warm_up_(warm_up), block_(block), steps_(warm_up + block * blocks), data_(batches()) {
    stamps_.reserve(static_cast<std::size_t>(blocks) + 1);
  }

  void start(std::int64_t, std::int64_t first_batch = 0) { step_ = first_batch; }
  std::optional<tutti::Batch> next() {
    if (step_ >= warm_up_ && (step_ - warm_up_) % block_ == 0) {
      stamps_.push_back(Clock::now());
    }
    if (step_ >= steps_) {
      return std::nullopt;
    }
    return data_[static_cast<std::size_t>(step_++ % 64)];
  }
  std::int64_t size() const { return steps_; }
  std::int64_t batch_size() const { return bench::batch_size; }

  /// Microseconds per step, block by block.
  std::vector<double> microseconds() const {
    std::vector<double> out;
    for (std::size_t i = 1; i < stamps_.size(); ++i) {
      const std::chrono::duration<double, std::micro> passed = stamps_[i] - stamps_[i - 1];
      out.push_back(passed.count() / static_cast<double>(block_));
    }
    return out;
  }

 private:
  std::int64_t warm_up_;
  std::int64_t block_;
  std::int64_t steps_;
  std::vector<tutti::Batch> data_;
  std::int64_t step_ = 0;
  std::vector<Clock::time_point> stamps_;
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? std::nan("") : values[values.size() / 2];
}

/// One line of JSON, as peers.py prints it.
inline void report(const std::string& name, const Stopwatch& watch) {
  const std::vector<double> blocks = watch.microseconds();
  std::printf("{\"name\": \"%s\", \"us\": %.3f, \"blocks\": [", name.c_str(), median(blocks));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    std::printf("%s%.3f", i == 0 ? "" : ", ", blocks[i]);
  }
  std::printf("], \"versions\": {\"torch\": \"%s\"}}\n", TORCH_VERSION);
}

/// KiB of this process: VmRSS now, VmHWM at most since clear_peak().
inline double kib(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) {
      return std::atof(line.c_str() + key.size() + 1);
    }
  }
  return 0;
}
inline void clear_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

/// The first 300 kB of a text as rows of bytes: nine tenths to train on, the rest to test with.
struct Bytes {
  at::Tensor train, test;  // int64 [N, length], below `vocabulary`
};
inline Bytes bytes_of(const std::string& path, std::int64_t length, std::int64_t vocabulary = 128) {
  std::ifstream file(path);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  const std::string_view used = std::string_view(all).substr(0, 300'000);
  TORCH_CHECK(std::ssize(used) >= 10 * length, path, " has ", used.size(), " bytes, expected ",
              10 * length, " or more");
  const auto rows = [&](std::string_view from) {
    const auto count = static_cast<std::int64_t>(from.size()) / length;
    at::Tensor ids = at::empty({count, length}, at::kLong);
    std::transform(from.begin(), from.begin() + count * length, ids.data_ptr<std::int64_t>(),
                   [&](char c) { return static_cast<unsigned char>(c) % vocabulary; });
    return ids;
  };
  const std::size_t tests = used.size() / 10;
  return {rows(used.substr(0, used.size() - tests)), rows(used.substr(used.size() - tests))};
}

/// One thread, as the peers.
inline void one_thread() {
  at::set_num_threads(1);
  at::set_num_interop_threads(1);
}

}  // namespace bench
