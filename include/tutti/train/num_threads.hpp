// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/FunctionRef.h>
#include <torch/nn/module.h>

#include <tutti/checkpoint/rng_state.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/detail/xxh64.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/train/detail/step_threads.hpp>
#include <tutti/train/metrics.hpp>
#include <tutti/train/policy_states.hpp>
#include <tutti/train/rewind.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/run_state.hpp>
#include <tutti/train/thread_choice.hpp>

/// The number of threads within operators is chosen: TrainerOptions::num_threads = "auto".
namespace tutti::train {

/// The numbers of threads that are tried where a program has `threads`: that one, and the powers of
/// two below it.
std::vector<int> thread_counts(int threads);

/// A hash of what a step leaves behind: losses, outputs, gradients, weights, buffers, optimizers,
/// policies that save themselves, the positions of random streams.
///
/// Two steps with the same hash have given the same bits.
std::uint64_t hash_of_step(const PolicyStates& policies, const State& state, const Run& run);

/// Trains with the number of threads that takes the least time and gives the bits that the starting
/// number gives.
///
/// The time is ThreadChoice's affair. The bits are compared: before a count is used for batches of
/// some shapes, `checks` of these are trained with it, hashed and taken back, then trained with the
/// starting count, which is what counts. A count whose hash differs is never used. What is in use
/// is compared again from time to time. Shapes that are not known, evaluations and metrics that are
/// not, and everything outside of steps, forward passes and metrics have the starting count.
///
/// Every rank of several chooses for itself. All of them compare in the same batches.
class NumThreads final : public StepThreads {
 public:
  static constexpr int checks = 3;                   ///< batches compared before a count is used
  static constexpr std::ptrdiff_t most_shapes = 64;  ///< kinds of batches remembered, for each work
  static constexpr std::int64_t first_audit = 16;    ///< uses after which to compare again,
  static constexpr std::int64_t audit_factor = 8;    ///< and how much longer until the next time

  using Clock = std::function<double()>;  ///< seconds since whenever

  /// policies: of the run.
  explicit NumThreads(PolicyStates policies, Clock clock = steady_seconds);

  void train(State& state, Run& run, c10::function_ref<void()> step) override;
  Outputs evaluate(State& state, c10::function_ref<Outputs()> forward) override;
  void update_metrics(State& state, MetricSet& metrics) override;

  /// The count in use outside of trials.
  [[nodiscard]] int chosen() const { return choice_.chosen(); }
  /// Steps, forward passes and updates of metrics that were made to compare bits.
  [[nodiscard]] std::int64_t compared() const { return compared_; }

 private:
  enum class Work : std::uint8_t { step, metrics };

  struct Shape {
    std::vector<std::int64_t> key;
    std::vector<std::pair<int, int>> passed{};  // a count, and how often it gave the same bits
    bool is_left_alone = false;                 // has the starting count for good
    std::int64_t used = 0;                      // with another than the starting count
    std::int64_t audit = first_audit;

    [[nodiscard]] int passes(int count) const;
    void pass(int count);
  };

  static double steady_seconds();

  void follow_start();
  Shape* find(const State& state, Work work, const MetricSet* metrics = nullptr);
  [[nodiscard]] std::vector<int> unknown(Shape& shape) const;
  void compare(State& state, Run& run, c10::function_ref<void()> step, Shape* shape,
               const std::vector<int>& counts, std::int64_t times);
  bool compares(Shape& shape, int count);
  void take(const State& state, Shape& shape, int count, bool same);
  void say_chosen(const State& state, int before) const;

  PolicyStates policies_;
  Clock clock_;
  int start_;
  ThreadChoice choice_;
  std::vector<std::unique_ptr<Shape>> shapes_;
  std::int64_t compared_ = 0;
};

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/num_threads.inl.hpp>
#endif

namespace tutti::train::detail {

#if TUTTI_BODIES  // else the separate source does it
inline const bool chooses_threads = [] {
  threads_support() = [](PolicyStates policies) -> std::unique_ptr<StepThreads> {
    return std::make_unique<NumThreads>(std::move(policies));
  };
  return true;
}();
#endif

}  // namespace tutti::train::detail
