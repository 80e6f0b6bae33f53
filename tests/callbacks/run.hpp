// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/trainer.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/loggers/in_memory.hpp>

#include "support/catch.hpp"
#include "support/tiny.hpp"

// What the callbacks' tests share: a short run, and a metric whose values are written down.
namespace callback_run {

inline tutti::TrainerOptions options(int batches = 3, tutti::Time length = "2ep") {
  return {.train = tiny::batches(batches),
          .max_duration = length,
          .optimizer = tutti::SGD{.lr = 0.1},
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

/// Writes down which files are uploaded.
struct Uploaded final {
  std::vector<std::string> names{};
  void upload_file(std::string_view remote_file_name, std::string_view path) {
    names.push_back(std::string(path.substr(path.rfind('/') + 1)) + " as " +
                    std::string(remote_file_name));
  }
};

/// Gives the next value of its list each time it is computed; the last one for ever.
class Scripted final : public tutti::Metric {
 public:
  Scripted(std::string name, std::vector<double> values)
      : name_(std::move(name)), values_(std::move(values)) {}

  void update(const at::Tensor&, const at::Tensor&) override {}
  [[nodiscard]] double compute(const std::vector<at::Tensor>&) const override {
    const std::size_t i = std::min((*next_)++, values_.size() - 1);
    return values_[i];
  }
  [[nodiscard]] std::vector<at::Tensor> states() const override { return {at::zeros({})}; }
  void set_states(std::vector<at::Tensor>) override {}
  void reset() override {}
  [[nodiscard]] std::unique_ptr<tutti::Metric> clone() const override {
    return std::make_unique<Scripted>(*this);
  }
  [[nodiscard]] std::string name() const override { return name_; }

 private:
  std::string name_;
  std::vector<double> values_;
  std::shared_ptr<std::size_t> next_ = std::make_shared<std::size_t>(0);
};

/// A tiny::Net with a scripted metric for evaluation and another one for training.
struct MetricNet : tiny::Net {
  std::vector<double> eval_values, train_values;
  std::string metric = "Accuracy";

  [[nodiscard]] tutti::Metrics metrics(bool train) const {
    const auto& values = train ? train_values : eval_values;
    if (values.empty()) {
      return {};
    }
    return {std::make_shared<Scripted>(metric, values)};
  }
};

inline std::shared_ptr<MetricNet> metric_net(std::vector<double> eval_values,
                                             std::vector<double> train_values = {}) {
  at::manual_seed(1);
  auto net = std::make_shared<MetricNet>();
  net->eval_values = std::move(eval_values);
  net->train_values = std::move(train_values);
  return net;
}

/// A state with an InMemoryLogger, for feeding a callback by hand.
struct ByHand {
  tutti::InMemoryLogger memory;
  tutti::State state;

  ByHand() {
    state.logger.add(memory);
    state.communicator = std::make_shared<tutti::dist::SingleProcess>();
  }
  ByHand(const ByHand&) = delete;
  ByHand& operator=(const ByHand&) = delete;

  /// One batch later.
  void advance(std::int64_t samples, std::int64_t tokens, std::chrono::nanoseconds time) {
    state.previous_timestamp = state.timestamp;
    state.timestamp = state.timestamp.to_next_batch(samples, tokens, time);
  }
};

}  // namespace callback_run
