// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/checkpoint/folder.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/init_tape.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/models/spread_of.hpp>
#include <tutti/optim/closure.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/agreement.hpp>
#include <tutti/train/anomaly.hpp>
#include <tutti/train/any_engine.hpp>
#include <tutti/train/best_weights.hpp>
#include <tutti/train/cpu_memory.hpp>
#include <tutti/train/detail/step_threads.hpp>
#include <tutti/train/dry_run.hpp>
#include <tutti/train/evaluation.hpp>
#include <tutti/train/find_lr.hpp>
#include <tutti/train/fit_plan.hpp>
#include <tutti/train/graphed.hpp>
#include <tutti/train/load_report.hpp>
#include <tutti/train/loop.hpp>
#include <tutti/train/options.hpp>
#include <tutti/train/report.hpp>
#include <tutti/train/reproducibility.hpp>
#include <tutti/train/requeue.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/run_checkpoints.hpp>
#include <tutti/train/setup.hpp>
#include <tutti/train/sharding.hpp>
#include <tutti/train/signals.hpp>
#include <tutti/train/together.hpp>

namespace tutti::train {

/// A Trainer's run, without its policies: options, state, and what is done with them. One for all
/// recipes, which it sees as an AnyEngine. Trainer documents the members of the same names.
class Session {
 public:
  /// By reference, as below: moving options is work that no program need compile.
  explicit Session(TrainerOptions&& options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  /// Sets everything up, from Init to AfterLoad. engine: has to live as long as anything is called
  /// but the destructor. make_model: gives the AnyModel; what it throws closes the policies.
  template <class F>
  void begin(AnyEngine& engine, F&& make_model) {
    engine_ = &engine;
    guard([&] { construct(make_model()); });
  }

  void fit(FitOptions&& options);
  /// Runs what find_lr() does, once it may.
  template <class F>
  void apart(const FindLrOptions& options, F&& work) {
    check_apart(options);
    guard([&] { work(state_, run_); });
  }
  /// Runs what begins training on batches from outside, one of their steps, and what ends it.
  template <class F>
  void begin_steps(F&& work) {
    prepare_steps();
    guard([&] { work(state_, run_); });
  }
  template <class F>
  void step(F&& work) {
    check_open();
    const AnomalyScope anomalies(run_.detect_anomaly);
    guard(work);
  }
  template <class F>
  void end_steps(F&& work) {
    guard([&] {
      work();
      finish_fit();
    });
    fits_ = false;
  }
  void eval();
  void eval(std::vector<Evaluator>&& evaluators);
  /// evaluators: empty: the options' sets.
  void eval(std::vector<Evaluator>&& evaluators, const std::string& weights);
  std::string load_best();
  std::vector<Outputs> predict(DataSpec& data, std::int64_t subset_num_batches,
                               bool return_outputs);
  void save_checkpoint(const std::string& path, bool weights_only);

  /// Closes every policy and leaves the save folders to others.
  void close();

  [[nodiscard]] const TrainerOptions& options() const { return options_; }
  [[nodiscard]] const RunLoadReport& load_report() const { return load_report_; }
  [[nodiscard]] std::string last_checkpoint() const;
  [[nodiscard]] std::string best_checkpoint() const;
  [[nodiscard]] std::optional<BestValue> best() const;
  [[nodiscard]] int stop_signal() const { return run_.stop_signal; }
  [[nodiscard]] State& state() { return state_; }
  [[nodiscard]] const State& state() const { return state_; }
  [[nodiscard]] const std::vector<std::pair<std::string, HyperparameterValue>>& hyperparameters()
      const {
    return constants_.values;
  }

 private:
  // For work that has begun: an exception closes every policy before it goes on.
  template <class F>
  void guard(F&& f) {
    const cpu::Cache memory(cpu_memory_.used);
    try {
      f();
    } catch (...) {
      fail(std::current_exception());
    }
  }
  [[noreturn]] void fail(std::exception_ptr error);

  void check_open() const;
  void check_apart(const FindLrOptions& options) const;
  void construct(AnyModel model);
  void join_world();
  void make_optimizer();
  void prepare_run();
  void open_checkpoints();
  void load();
  DataSpec shard(DataSpec data) const;
  void set_schedule(Schedule schedule, double ratio);
  void apply_schedule();
  std::vector<EvalSet> make_sets(std::vector<Evaluator> evaluators);
  std::string give_best();
  bool prepare_fit(FitOptions& options);
  void finish_fit();
  void prepare_steps();
  void sanity_eval();
  void train();
  void eval_sets(std::vector<EvalSet>& sets);
  void evaluate(std::vector<EvalSet>& sets);
  void evaluate_last();

  cpu::EmptiesCache cpu_memory_;  // first: gives back what the others have freed
  std::unique_ptr<checkpoint::TemporaryCheckpoint> scratch_;  // of a dry run
  TrainerOptions options_;
  State state_;
  Constants constants_;
  Run run_;
  RunLoadReport load_report_;
  bool schedule_applied_ = false;
  bool fits_ = false;                  // fit() is running
  bool optimizer_is_default_ = false;  // and nobody has been told yet
  AnyEngine* engine_ = nullptr;
};

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/session.inl.hpp>
#endif
