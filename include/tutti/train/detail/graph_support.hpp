// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include <tutti/core/state.hpp>

/// How the loop asks for graphs without knowing how they are made.
namespace tutti::train {

/// One microbatch from behind BeforeForward to AfterBackward, as a recipe trains it.
class GraphWork {
 public:
  GraphWork() = default;
  GraphWork(const GraphWork&) = delete;
  GraphWork& operator=(const GraphWork&) = delete;
  virtual ~GraphWork() = default;

  /// This microbatch has to be trained without a graph.
  [[nodiscard]] virtual bool left_out() const = 0;

  /// All of it, without a graph. share: of the batch's loss that is the microbatch's.
  virtual void eager(double share) = 0;

  // ---- With a graph, in this order ------------------------------------------------------------
  virtual void ahead() = 0;
  virtual void recorded(double share) = 0;
  virtual void behind() = 0;
};

/// The graphs of a run: train/graphs.hpp.
class StepGraphs {
 public:
  StepGraphs() = default;
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;
  virtual ~StepGraphs() = default;

  /// Trains on the microbatch in state.batch, by a graph where there is one. `work` has to live
  /// until forget().
  virtual void train(State& state, GraphWork& work, double share) = 0;

  /// The outputs of a forward pass, just computed.
  virtual void see(const Outputs& outputs) = 0;

  /// Gives all graphs up.
  virtual void forget() = 0;
};

/// How the program makes graphs for a type of device. They cost compile time, so
/// <tutti/trainer.hpp> does not include them: a program that includes <tutti/train/cuda_graphs.hpp>
/// (or <tutti/tutti.hpp>) anywhere brings them in.
struct GraphSupport {
  at::DeviceType device = at::kCUDA;
  std::unique_ptr<StepGraphs> (*make)(at::Device device) = nullptr;
};

/// The program's; without a function when it has none.
inline GraphSupport& graph_support() {
  static GraphSupport instance;
  return instance;
}

}  // namespace tutti::train
