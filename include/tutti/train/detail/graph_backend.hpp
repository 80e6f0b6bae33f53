// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/core/batch.hpp>

/// What a graph is to the code that decides when there is one.
namespace tutti::train {

/// What records work and replays it: CUDA's graphs (train/cuda_graphs.hpp), or a test's stand-in.
class GraphBackend {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// Work that was recorded.
  class Graph {
   public:
    Graph() = default;
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    virtual ~Graph() = default;

    /// Does the work once more, with what its inputs hold now.
    virtual void replay() = 0;
  };

  struct Recorded {
    std::unique_ptr<Graph> graph;
    Tensors tensors;  ///< what `work` returned; each replay writes into their memory
  };

  GraphBackend() = default;
  GraphBackend(const GraphBackend&) = delete;
  GraphBackend& operator=(const GraphBackend&) = delete;
  virtual ~GraphBackend() = default;

  /// Does the work now, where it will be recorded later.
  virtual void run(const std::function<void()>& work) = 0;

  /// Records the work, which counts as done only with the first replay.
  /// Throws what `work` throws, and c10::Error for work that cannot be recorded.
  virtual Recorded record(const std::function<Tensors()>& work) = 0;
};

/// One kind of microbatch: its shapes, and once it has been recorded all that belongs to its graph.
struct GraphEntry {
  std::vector<std::int64_t> key;
  std::int64_t id = 0;
  std::int64_t used = 0;  // when, in microbatches
  int seen = 0;           // times trained without a graph
  Outputs outputs;        // the model's, detached: the last ones, then the graph's

  std::unique_ptr<GraphBackend::Graph> graph;  // null: not recorded
  Batch batch;                                 // what it reads
  std::vector<at::Tensor> gradients;           // what it leaves, by parameter
  at::Tensor loss;
  Loss loss_parts;

  /// The graph can read this batch.
  [[nodiscard]] bool takes(const Batch& other) const {
    return std::equal(
        batch.begin(), batch.end(), other.begin(), other.end(), [](const auto& a, const auto& b) {
          const at::Tensor& x = a.second;
          const at::Tensor& y = b.second;
          return a.first == b.first && x.defined() == y.defined() &&
                 (!x.defined() || (x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
                                   x.device() == y.device()));
        });
  }
};

}  // namespace tutti::train
