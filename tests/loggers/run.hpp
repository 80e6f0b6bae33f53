// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include <tutti/core/state.hpp>

// What a logger has written.
class Capture {
 public:
  Capture() : file(open_memstream(&text_, &size_)) {}
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture() {
    std::fclose(file);
    std::free(text_);
  }
  [[nodiscard]] std::string text() const {
    std::fflush(file);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  std::size_t size_ = 0;

 public:
  std::FILE* file;
};

// Fires the events of a run at one logger, as the training loop does, with made-up numbers.
template <class L>
class FakeRun {
 public:
  explicit FakeRun(L& to, tutti::Time max_duration, int rank = 0) : logger(to) {
    state.rank = rank;
    state.max_duration = max_duration;
    state.dataloader_label = "train";
    state.dataloader_len = state.train_dataloader_len = 3;
    state.logger.add(logger);
    fire(tutti::Init{});
    state.logger.log_hyperparameters({{"lr", 0.1}, {"run_name", std::string("brisk-otter")}});
  }

  template <class E>
  void fire(E event) {
    if constexpr (requires { logger.apply(event, state); }) {
      logger.apply(event, state);
    }
  }

  void batch() {
    fire(tutti::BatchStart{});
    state.log_metrics({{"loss/train/total", 1.0 / static_cast<double>(state.timestamp.batch + 1)},
                       {"time/batch", static_cast<double>(state.timestamp.batch)}});
    state.previous_timestamp = state.timestamp;
    state.timestamp = state.timestamp.to_next_batch(16);
    fire(tutti::BatchEnd{});
  }

  void epoch() {
    fire(tutti::EpochStart{});
    while (state.timestamp.batch_in_epoch < 3 && state.timestamp < state.max_duration) {
      batch();
    }
    state.previous_timestamp = state.timestamp;
    state.timestamp = state.timestamp.to_next_epoch();
    fire(tutti::EpochEnd{});
  }

  void evaluate(const std::string& label = "test", std::int64_t batches = 2) {
    const auto length = state.dataloader_len;
    state.dataloader_label = label;
    state.dataloader_len = batches;
    state.eval_timestamp = {};
    fire(tutti::EvalStart{});
    for (std::int64_t i = 0; i < batches; ++i) {
      state.eval_timestamp = state.eval_timestamp.to_next_batch(16);
      fire(tutti::EvalBatchEnd{});
    }
    const std::string metric = "metrics/" + label + "/MulticlassAccuracy";
    state.log_metrics({{metric, accuracy}});
    state.eval_metric_values[label] = {{"MulticlassAccuracy", accuracy}};
    fire(tutti::EvalEnd{});
    state.dataloader_label = "train";
    state.dataloader_len = length;
  }

  tutti::State state;
  L& logger;
  double accuracy = 0.984375;  // of the next evaluation
};
