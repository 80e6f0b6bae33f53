// SPDX-License-Identifier: Apache-2.0
#pragma once

// Policies as a user writes them: an algorithm, two callbacks and a destination for what is
// logged. docs/extending.md leads through them and quotes them; tests/support/own_policies.cpp
// tests them.

#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <tutti/core/archive.hpp>
#include <tutti/core/logger.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>

/// Lookahead: slow weights go a part of the way that the optimizer's fast weights have gone in k
/// batches, and the fast ones begin anew from there. Source: Zhang et al., "Lookahead Optimizer: k
/// steps forward, 1 step back", 2019.
struct Lookahead final {
  std::int64_t k = 5;  ///< batches between two updates of the slow weights; at least 1
  double alpha = 0.5;  ///< how far the slow weights go; in (0, 1]

  /// What it holds while it runs; not an option.
  struct Run {
    std::vector<at::Tensor> slow{};  ///< one tensor for each parameter
  } run{};

  static constexpr tutti::Rules rules{
      .tags = {tutti::id<tutti::averages_weights>},
      .runs_after = {{tutti::id<tutti::changes_model>}},
      .conflicts_with = {{tutti::id<tutti::averages_weights>,
                          "two policies would average the same weights"}},
  };

  void validate() const {
    tutti::expect(k >= 1, "Lookahead: k", k, "at least 1 batch");
    tutti::expect(alpha > 0 && alpha <= 1, "Lookahead: alpha", alpha, "more than 0 and at most 1");
  }

  // A checkpoint's tensors are on the CPU; those of a new run are copies of the parameters.
  void apply(tutti::FitStart, tutti::State& state) {
    const auto parameters = state.model->parameters();
    TORCH_CHECK(run.slow.empty() || run.slow.size() == parameters.size(),
                "Lookahead: the checkpoint has slow weights of ", run.slow.size(),
                " parameters, the model has ", parameters.size(), ".");
    const bool is_new = run.slow.empty();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (is_new) {
        run.slow.push_back(parameters[i].detach().clone());
      } else {
        run.slow[i] = run.slow[i].to(parameters[i].options());
      }
    }
  }

  bool match(tutti::BatchEnd, const tutti::State& state) const {
    return state.timestamp.batch % k == 0;
  }

  void apply(tutti::BatchEnd, tutti::State& state) {
    const at::NoGradGuard no_grad;
    auto parameters = state.model->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      run.slow[i].lerp_(parameters[i], alpha);
      parameters[i].copy_(run.slow[i]);
    }
  }

  void save(tutti::Archive& archive) const { archive.put("slow", run.slow); }
  void load(const tutti::Archive& archive) {
    run.slow = archive.get<std::vector<at::Tensor>>("slow");
  }
};

/// Logs which batch of an epoch had the largest loss.
struct HardestBatch final {
  /// What it holds while it runs; not an option.
  struct Run {
    double loss = 0;          ///< the largest of the epoch so far
    std::int64_t batch = -1;  ///< which batch had it; -1 before the first
  } run{};

  void apply(tutti::BatchEnd, const tutti::State& state) {
    const double now = state.total_loss.at("total").item<double>();
    if (run.batch < 0 || now > run.loss) {
      run.loss = now;
      run.batch = state.previous_timestamp.batch_in_epoch;  // the time is already the next batch's
    }
  }
  void apply(tutti::EpochEnd, const tutti::State& state) {
    state.log_metrics({{"hardest_batch/index", run.batch}, {"hardest_batch/loss", run.loss}});
    run.batch = -1;
  }

  void save(tutti::Archive& archive) const {
    archive.put("loss", run.loss);
    archive.put("batch", run.batch);
  }
  void load(const tutti::Archive& archive) {
    run.loss = archive.get<double>("loss");
    run.batch = archive.get<std::int64_t>("batch");
  }
};

/// Stops the run when the loss of a batch is not a number.
struct StopOnNaN final {
  static constexpr tutti::Role role = tutti::Role::callback;  // though its hook takes State&

  void apply(tutti::BatchEnd, tutti::State& state) {
    if (std::isnan(state.total_loss.at("total").item<double>())) {
      state.stop_training();
    }
  }
};

/// Writes every number that is logged as a row of a CSV file: step, name, value.
struct CsvFile final {
  std::string path = "metrics.csv";

  /// What it holds while it runs; not an option.
  struct Run {
    std::ofstream file{};
  } run{};

  void apply(tutti::AfterLoad, const tutti::State& state) {
    if (state.rank != 0) {
      return;  // every process logs; one file is enough
    }
    const bool resumed = state.timestamp.batch > 0;
    run.file.open(state.output_path(path), resumed ? std::ios::app : std::ios::trunc);
    TORCH_CHECK(run.file.good(), "CsvFile: cannot write ", path, ".");
  }

  void log_metrics(std::span<const tutti::LoggedMetric> metrics, std::int64_t step) {
    for (const tutti::LoggedMetric& metric : metrics) {
      run.file << step << ',' << metric.name << ',' << metric.value << '\n';
    }
  }

  void close(tutti::State&) { run.file.close(); }
};
