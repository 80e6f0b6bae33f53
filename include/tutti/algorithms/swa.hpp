// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/optimizer.h>

#include <tutti/algorithms/detail/averages.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/time.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/optim/averages.hpp>
#include <tutti/optim/cyclic.hpp>

namespace tutti::functional {

/// The mean of a model's weights over several moments of its training, each counting the same.
///
///     functional::WeightMean mean;
///     for (...) { train_an_epoch(); mean.update(*model); }
///     mean.copy_to(*model);
///
/// Parameters are averaged where they are, on their device and in their type; buffers are copied
/// from the latest model. Tied tensors are averaged once.
/// Source: Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization",
/// UAI 2018, algorithm 1; PyTorch, `torch.optim.swa_utils.AveragedModel`.
class WeightMean {
 public:
  /// Takes the present weights in: the first are copied, then `a += (w - a) / (n + 1)`.
  ///
  /// average_buffers: floating buffers, such as running statistics, are averaged too. sharding: of
  /// the model; set, its shards stand for the parameters.
  /// Throws c10::Error when the model has other tensors than in the calls before.
  void update(const torch::nn::Module& model, bool average_buffers = false,
              const dist::Sharding* sharding = nullptr);

  /// Copies the mean into the model's tensors; parameters that require no gradient keep what they
  /// have. sharding: as above; after_step() has to follow on it. Throws c10::Error when the model
  /// has other tensors.
  void copy_to(const torch::nn::Module& model, const dist::Sharding* sharding = nullptr) const;

  /// Keeps this rank's parts of the mean: the model has been sharded.
  void cut(const torch::nn::Module& model, const dist::Sharding& sharding);

  /// How many moments are in the mean.
  [[nodiscard]] std::int64_t count() const { return count_; }

  /// The mean by name; empty before the first update.
  [[nodiscard]] const std::vector<std::pair<std::string, at::Tensor>>& means() const {
    return means_;
  }

  void save(Archive& archive) const;
  void load(const Archive& archive);

 private:
  static std::unordered_set<const void*> buffers_of(const torch::nn::Module& model) {
    std::unordered_set<const void*> out;
    for (const at::Tensor& buffer : model.buffers()) {
      out.insert(buffer.unsafeGetTensorImpl());
    }
    return out;
  }

  void check(const ::tutti::detail::NamedTensorList& weights) const;

  std::vector<std::pair<std::string, at::Tensor>> means_;
  std::int64_t count_ = 0;
};

}  // namespace tutti::functional

namespace tutti::detail {

// Everything but the batch normalisation of a model in eval mode, and that with statistics that are
// plain means over the batches seen; all is as before on destruction, except the statistics.
class StatisticsOnly {
 public:
  explicit StatisticsOnly(torch::nn::Module& model) {
    for (const auto& module : model.modules()) {
      modes_.emplace_back(module, module->is_training());
    }
    model.eval();
    for (const auto& [module, mode] : modes_) {
      found_ = begin<torch::nn::BatchNorm1dImpl>(*module) ||
               begin<torch::nn::BatchNorm2dImpl>(*module) ||
               begin<torch::nn::BatchNorm3dImpl>(*module) || found_;
    }
  }
  StatisticsOnly(const StatisticsOnly&) = delete;
  StatisticsOnly& operator=(const StatisticsOnly&) = delete;
  ~StatisticsOnly() {
    for (const auto& [module, mode] : modes_) {
      end<torch::nn::BatchNorm1dImpl>(*module);
      end<torch::nn::BatchNorm2dImpl>(*module);
      end<torch::nn::BatchNorm3dImpl>(*module);
    }
    for (const auto& [module, mode] : modes_) {
      module->train(mode);  // also sets the module's children, which come later here
    }
  }

  // The model has batch normalisation.
  explicit operator bool() const { return found_; }

 private:
  template <class Norm>
  bool begin(torch::nn::Module& module) {
    auto* norm = dynamic_cast<Norm*>(&module);
    if (norm == nullptr || !norm->options.track_running_stats()) {
      return false;
    }
    momenta_.push_back(norm->options.momentum());
    norm->options.momentum(std::nullopt);
    norm->reset_running_stats();
    norm->train();
    return true;
  }
  template <class Norm>
  void end(torch::nn::Module& module) {
    auto* norm = dynamic_cast<Norm*>(&module);
    if (norm != nullptr && norm->options.track_running_stats()) {
      norm->options.momentum(momenta_[next_++]);
    }
  }

  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
  std::vector<std::optional<double>> momenta_;
  std::size_t next_ = 0;
  bool found_ = false;
};

bool has_batch_statistics(const torch::nn::Module& model);

}  // namespace tutti::detail

/// SWA: the mean of the weights of a run's last part.
namespace tutti {

namespace functional {

/// The learning rate after `updates` updates of the mean.
///
/// from: when averaging began. to: what it ends at after anneal_steps updates; anneal_steps >= 1.
/// Source: PyTorch, `torch.optim.swa_utils.SWALR`.
double swa_learning_rate(double from, double to, std::int64_t updates, std::int64_t anneal_steps,
                         Anneal strategy = Anneal::linear);

/// Recomputes the running statistics of a model's batch normalisation as the mean over `batches`.
///
/// forward: `void (const B&)`, a forward pass of the model over one of them. It runs without
/// gradients and with every other layer in eval mode, so that nothing is drawn. Afterwards each
/// layer is in the mode it was in. A model without batch normalisation is left alone.
template <class B, class F>
void refresh_batch_statistics(torch::nn::Module& model, const std::vector<B>& batches,
                              F&& forward) {
  if (batches.empty()) {
    return;
  }
  const c10::AutoGradMode no_grad(false);
  if (const ::tutti::detail::StatisticsOnly statistics(model); statistics) {
    for (const B& batch : batches) {
      forward(batch);
    }
  }
}

}  // namespace functional

/// Averages the weights from swa_start on and gives the mean to the model at swa_end.
///
/// Every update_interval the present weights enter the mean, each counting the same. Training goes
/// on from the mean for what is left of the run.
/// Source: Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization",
/// UAI 2018.
struct SWA final {
  Time swa_start = "0.7dur";     ///< when averaging begins; dur or ep
  Time swa_end = "0.97dur";      ///< when the model gets the mean; in swa_start's unit, later
  Time update_interval = "1ep";  ///< between updates, from the first on; ba or ep
  bool schedule_swa_lr = false;  ///< hold the learning rate from swa_start to swa_end
  Anneal anneal_strategy = Anneal::linear;  ///< its way to swa_lr
  std::int64_t anneal_steps = 10;           ///< updates that it takes; >= 1
  Maybe<double> swa_lr{};        ///< where it goes; >= 0; not set: it stays as it was at swa_start
  bool average_buffers = false;  ///< average running statistics too, else they are copied
  std::int64_t refresh_batches = 0;  ///< latest batches of which running statistics are recomputed
                                     ///< for the mean; 0: they stay those of the last weights

  /// What it holds while it runs; not an option.
  struct Run {
    bool started = false;                     ///< averaging has begun
    bool completed = false;                   ///< the model has been given the mean
    std::int64_t elapsed = 0;                 ///< events of the interval's unit since started
    Lazy<functional::WeightMean> mean{};      ///< of the weights so far
    Lazy<std::vector<double>> initial_lrs{};  ///< when averaging began, per group
    Lazy<std::vector<Batch>> recent{};        ///< the latest batches, on the host
  } run{};

  static constexpr std::string_view name = "SWA";
  static constexpr About about{
      .no_tensor_parallel = "it averages whole weights on every rank",
      .parts = "mean/weights",
  };
  using events = types<FitStart, BatchStart, BatchEnd, EpochEnd, IterationEnd>;
  static constexpr Rules rules{
      .tags = {id<averages_weights>, id<sets_learning_rate>},
      .runs_after = {{id<changes_model>, "the mean copies names and shapes"}},
      .conflicts_with = {{id<averages_weights>,
                          "one would average, or load, what the other has swapped in"}},
      .works_with = {{id<freezes_parameters>, "frozen weights keep their value"}},
  };

  /// Throws c10::ValueError when the options contradict each other or are out of range.
  constexpr void validate() const {
    expect(in_span(swa_start), "SWA: swa_start", swa_start, "0 or more in dur or ep, at most 1dur");
    expect(in_span(swa_end), "SWA: swa_end", swa_end, "0 or more in dur or ep, at most 1dur");
    expect(swa_end.unit() == swa_start.unit(), "SWA: swa_end", swa_end,
           "a time in the unit of swa_start");
    expect(swa_end.value() > swa_start.value(), "SWA: swa_end", swa_end, "later than swa_start");
    expect(update_interval.unit() == TimeUnit::batch || update_interval.unit() == TimeUnit::epoch,
           "SWA: update_interval", update_interval, "a time in ba or ep");
    expect(update_interval.value() > 0, "SWA: update_interval", update_interval, "more than 0");
    expect(anneal_steps >= 1, "SWA: anneal_steps", anneal_steps, "1 or more");
    expect(!swa_lr || *swa_lr >= 0, "SWA: swa_lr", *swa_lr, "0 or more");
    expect(!swa_lr || schedule_swa_lr,
           "SWA: swa_lr is set and schedule_swa_lr is not, so it would do nothing; set both.");
    expect(refresh_batches >= 0, "SWA: refresh_batches", refresh_batches, "0 or more");
  }

  /// Batches are kept, to be run through the averages.
  [[nodiscard]] bool reads_batch(const State&) const { return refresh_batches > 0; }

  bool match(FitStart, const State&) const { return holds(); }
  bool match(BatchStart, const State& state) const {
    return refresh_batches > 0 && !run.completed && reached(swa_start, state);
  }
  bool match(BatchEnd, const State& state) const {
    return holds() || (counts(TimeUnit::batch) && averages(state));
  }
  bool match(EpochEnd, const State& state) const {
    return holds() || (counts(TimeUnit::epoch) && averages(state));
  }
  bool match(IterationEnd, const State&) const { return holds(); }

  void apply(FitStart, State& state) { hold_learning_rate(state); }
  void apply(BatchStart, State& state);
  void apply(BatchEnd, State& state) { act(state, TimeUnit::batch); }
  void apply(EpochEnd, State& state) { act(state, TimeUnit::epoch); }
  void apply(IterationEnd, State& state) { hold_learning_rate(state); }

  /// From now on this rank averages its shards.
  void take_shards(State& state) { run.mean->cut(*state.model, *state.sharding); }

  void save(Archive& archive) const;
  void load(const Archive& archive);

 private:
  static constexpr bool in_span(Time time) {
    return time.value() >= 0 &&
           (time.is_fraction() ? time.value() <= 1 : time.unit() == TimeUnit::epoch);
  }
  [[nodiscard]] bool counts(TimeUnit unit) const { return update_interval.unit() == unit; }
  [[nodiscard]] bool holds() const { return schedule_swa_lr && run.started && !run.completed; }
  [[nodiscard]] bool averages(const State& state) const {
    return !run.completed && (run.started || reached(swa_start, state));
  }
  static bool reached(Time time, const State& state);
  void act(State& state, TimeUnit unit);
  void hold_learning_rate(State& state) const;
  void complete(State& state);
};

inline void SWA::act(State& state, TimeUnit unit) {
  optim::refuse_averages(state.optimizers, name);
  const bool takes_part = counts(unit);
  if (takes_part && !run.started) {
    run.started = true;
    *run.mean = {};
    run.initial_lrs->clear();
    for (const auto& optimizer : state.optimizers) {
      for (const auto& group : optimizer->param_groups()) {
        run.initial_lrs->push_back(group.options().get_lr());
      }
    }
  }
  if (takes_part && run.elapsed++ % update_interval.count() == 0) {
    run.mean->update(*state.model, average_buffers, detail::parts_of(state));
  }
  hold_learning_rate(state);
  if (takes_part && reached(swa_end, state)) {
    complete(state);
  }
}

// Also after the run's schedule has written, so that it is SWA's as long as SWA averages.
inline void SWA::hold_learning_rate(State& state) const {
  if (!holds()) {
    return;
  }
  std::size_t i = 0;
  for (auto& optimizer : state.optimizers) {
    for (auto& group : optimizer->param_groups()) {
      TUTTI_CHECK(i < run.initial_lrs->size(), "SWA: a parameter group was added to the optimizer ",
                  "after averaging began; add groups before fit()");
      const double from = (*run.initial_lrs)[i++];
      group.options().set_lr(functional::swa_learning_rate(
          from, swa_lr ? *swa_lr : from, run.mean->count(), anneal_steps, anneal_strategy));
    }
  }
}

inline void SWA::complete(State& state) {
  run.completed = true;
  run.mean->copy_to(*state.model, detail::parts_of(state));
  if (detail::parts_of(state) != nullptr) {
    state.sharding->after_step();  // what is whole all the time has other shards now
  }
  if (refresh_batches > 0) {
    functional::refresh_batch_statistics(*state.model, *run.recent, [&](const Batch& batch) {
      const Autocast low = state.autocast();
      const std::int64_t part = state.device_train_microbatch_size;
      for (const Batch& some : batch.split(part > 0 ? part : batch.num_samples())) {
        static_cast<void>(state.task.forward(some.to(state.device)));
      }
    });
    run.recent.reset();
  } else if (!average_buffers && state.timestamp >= state.max_duration &&
             detail::has_batch_statistics(*state.model)) {
    TORCH_WARN(
        "SWA: the run ends with the mean of the weights and the running statistics of the "
        "last ones; set refresh_batches, or swa_end so that an epoch is left.");
  }
}

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/swa.inl.hpp>
#endif
