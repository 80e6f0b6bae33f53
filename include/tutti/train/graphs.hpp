// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/train/detail/graph_backend.hpp>
#include <tutti/train/detail/graph_support.hpp>
#include <tutti/train/microbatching.hpp>

/// When a microbatch is trained as usual, when its work is recorded, and when it is replayed.
namespace tutti::train {

/// The graphs of a run, by the shapes of a microbatch. A shape runs `warm_up` times without a
/// graph, is recorded once, then replayed. At most `most_graphs` are kept; the least recently used
/// one is dropped first. All are dropped when parameters are replaced or move in memory.
class Graphs final : public StepGraphs {
 public:
  static constexpr int warm_up = 3;                ///< times without a graph, as in PyTorch
  static constexpr std::size_t most_graphs = 8;    ///< kept at a time
  static constexpr std::size_t most_entries = 64;  ///< shapes remembered
  static constexpr int window = 200;               ///< microbatches after which to look back

  explicit Graphs(std::unique_ptr<GraphBackend> backend) : backend_(std::move(backend)) {}

  /// How many graphs there are.
  [[nodiscard]] std::size_t size() const {
    return static_cast<std::size_t>(std::count_if(
        entries_.begin(), entries_.end(), [](const auto& e) { return e->graph != nullptr; }));
  }
  [[nodiscard]] std::int64_t recorded() const { return recorded_; }  ///< graphs ever made
  [[nodiscard]] std::int64_t replayed() const { return replayed_; }  ///< microbatches, by a graph
  [[nodiscard]] std::int64_t passed() const { return passed_; }      ///< microbatches altogether

  void train(State& state, GraphWork& work, double share) override {
    release_graph(state);
    const auto eager = [&work, share] { work.eager(share); };
    if (work.left_out()) {
      run(nullptr, eager);
      return;
    }
    GraphEntry& entry = find(state, share);
    if (!ready(entry)) {
      run(&entry, eager);
      return;
    }
    state.outputs = entry.outputs;
    work.ahead();
    const auto recorded = [&work, share] { work.recorded(share); };
    if (entry.graph == nullptr) {
      record(entry, state, recorded);
    } else if (entry.takes(state.batch)) {
      replay(entry, state);
    } else {
      release_graph(state);
      run(nullptr, recorded);
    }
    work.behind();
  }

  void forget() override {
    entries_.clear();
    signature_.clear();
    parameters_.clear();
  }

  // ---- The parts of train() --------------------------------------------------------------------
  /// The entry of the microbatch in state.batch. factor: of its loss.
  GraphEntry& find(const State& state, double factor) {
    look_back();
    ++passed_;
    follow_model(*state.model);
    std::vector<std::int64_t> key = key_of(state, factor);
    auto found = std::find_if(entries_.begin(), entries_.end(),
                              [&](const auto& entry) { return entry->key == key; });
    if (found == entries_.end()) {
      make_room(most_entries, [](const GraphEntry&) { return true; });
      entries_.push_back(std::make_unique<GraphEntry>());
      found = std::prev(entries_.end());
      (*found)->key = std::move(key);
      (*found)->id = ++last_id_;
    }
    (*found)->used = passed_;
    return **found;
  }

  /// The entry has been trained often enough to be recorded, and what it would add to are the
  /// gradients that another graph leaves, or none.
  [[nodiscard]] bool ready(const GraphEntry& entry) const {
    return entry.graph != nullptr || (entry.seen >= patience_ && entry.key.front() >= 0);
  }

  /// Trains without a graph. Remembers the outputs that see() was shown.
  void run(GraphEntry* entry, const std::function<void()>& work) {
    backend_->run(work);
    Outputs outputs = std::exchange(seen_, {});
    if (entry != nullptr) {
      ++entry->seen;
      entry->outputs = std::move(outputs);
    }
  }

  void see(const Outputs& outputs) override { seen_ = detached(outputs); }

  /// Records `work`: from state.batch to gradients. Throws what the backend throws.
  void record(GraphEntry& entry, State& state, const std::function<void()>& work) {
    make_room(most_graphs, [](const GraphEntry& other) { return other.graph != nullptr; }, &entry);
    const Batch given = state.batch;
    entry.batch = given;
    for (auto& [name, tensor] : entry.batch) {
      tensor = tensor.defined() ? tensor.detach().clone() : tensor;
    }
    release_graph(state);
    GraphBackend::Recorded made = recorded_or_explained([&] {
      return backend_->record([this, &entry, &state, work] {
        state.batch = entry.batch;
        work();
        return results(state);
      });
    });
    ++recorded_;
    take(entry, state, made.tensors);
    state.batch = given;
    entry.graph = std::move(made.graph);
    replay(entry, state);
  }

  /// Trains on state.batch, which entry.takes(), by the graph. The outputs are the graph's own and
  /// change with the next replay; losses are copies.
  void replay(GraphEntry& entry, State& state) {
    const c10::AutoGradMode no_grad(false);
    const Batch given = state.batch;
    auto from = given.begin();
    for (auto& [name, tensor] : entry.batch) {
      if (tensor.defined()) {
        tensor.copy_(from->second, /*non_blocking=*/true);
      }
      ++from;
    }
    entry.graph->replay();
    state.batch = given;
    ++replayed_;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].mutable_grad() = entry.gradients[i];
    }
    state.outputs = entry.outputs;
    state.loss = entry.loss.clone();
    state.loss_parts = entry.loss_parts;
    for (auto& [name, part] : state.loss_parts) {
      part = part.clone();
    }
  }

  /// Nobody holds autograd's last graph any more, whose leaves may belong to another stream.
  static void release_graph(State& state) {
    state.outputs = {};
    state.loss.reset();
    state.loss_parts = {};
  }

 private:
  static Outputs detached(Outputs outputs) {
    for (auto& [name, tensor] : outputs) {
      tensor = tensor.defined() ? tensor.detach() : tensor;
    }
    return outputs;
  }

  // All that the recorded work leaves behind: gradients, outputs, the loss, its parts.
  [[nodiscard]] GraphBackend::Tensors results(const State& state) {
    GraphBackend::Tensors all;
    for (const at::Tensor& parameter : parameters_) {
      all.push_back(parameter.grad());
    }
    for (const auto& [name, tensor] : detached(seen_)) {
      all.push_back(tensor);
    }
    all.push_back(state.loss.detach());
    for (const auto& [name, part] : state.loss_parts) {
      all.push_back(part.detach());
    }
    return all;
  }

  // The other way round: `state` has the names, the backend's tensors the memory.
  void take(GraphEntry& entry, State& state, const GraphBackend::Tensors& all) {
    auto next = all.begin();
    entry.gradients.assign(next, next + static_cast<std::ptrdiff_t>(parameters_.size()));
    next += static_cast<std::ptrdiff_t>(parameters_.size());
    entry.outputs = std::exchange(seen_, {});
    for (auto& [name, tensor] : entry.outputs) {
      tensor = *next++;
    }
    entry.loss = *next++;
    entry.loss_parts = std::move(state.loss_parts);
    for (auto& [name, part] : entry.loss_parts) {
      part = *next++;
    }
    release_graph(state);
  }

  template <class F>
  static GraphBackend::Recorded recorded_or_explained(F&& record) {
    try {
      return record();
    } catch (const c10::Error& error) {
      if (is_out_of_memory(error)) {
        throw;
      }
      TUTTI_CHECK(
          false, error.what_without_backtrace(),
          "\nThis happened while a training step was recorded (TrainerOptions::cuda_graphs)."
          " Forward, loss and the hooks that are recorded may not wait for the device, as "
          ".item(), .cpu(), nonzero() and sizes that depend on numbers do; change that, or "
          "set cuda_graphs to false.");
    }
  }

  // What the model computes with; graphs hold its addresses.
  void follow_model(const torch::nn::Module& model) {
    std::vector<at::Tensor> parameters = model.parameters();
    std::vector<std::int64_t> now{model.is_training()};
    for (const at::Tensor& parameter : parameters) {
      add_address(now, parameter);
      now.push_back(parameter.requires_grad());
    }
    for (const at::Tensor& buffer : model.buffers()) {
      add_address(now, buffer);
    }
    if (now != signature_) {
      forget();
      signature_ = std::move(now);
    }
    parameters_ = std::move(parameters);
  }
  static void add_address(std::vector<std::int64_t>& to, const at::Tensor& tensor) {
    to.push_back(reinterpret_cast<std::int64_t>(tensor.unsafeGetTensorImpl()));
    to.push_back(reinterpret_cast<std::int64_t>(tensor.const_data_ptr()));
  }

  // Whose gradients the parameters have: 0: none, -1: no graph's, else an entry's id.
  [[nodiscard]] std::int64_t owner() const {
    const auto has = [](const at::Tensor& p) { return p.grad().defined(); };
    if (std::none_of(parameters_.begin(), parameters_.end(), has)) {
      return 0;
    }
    for (const auto& entry : entries_) {
      if (entry->graph != nullptr &&
          std::equal(
              parameters_.begin(), parameters_.end(), entry->gradients.begin(),
              [](const at::Tensor& p, const at::Tensor& g) { return p.grad().is_same(g); })) {
        return entry->id;
      }
    }
    return -1;
  }

  [[nodiscard]] std::vector<std::int64_t> key_of(const State& state, double factor) const {
    std::vector<std::int64_t> key{owner(), static_cast<std::int64_t>(std::hash<double>()(factor))};
    for (const auto& [name, tensor] : state.batch) {
      key.push_back(static_cast<std::int64_t>(std::hash<std::string_view>()(name)));
      if (!tensor.defined()) {
        key.push_back(-1);
        continue;
      }
      key.push_back(tensor.dim());
      key.push_back(static_cast<std::int64_t>(tensor.scalar_type()));
      key.push_back(static_cast<std::int64_t>(std::hash<at::Device>()(tensor.device())));
      key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
      key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
    }
    return key;
  }

  // Drops the least recently used of those that count until there is room for one more.
  template <class F>
  void make_room(std::size_t most, F&& counts, const GraphEntry* but = nullptr) {
    for (;;) {
      std::size_t count = 0;
      auto oldest = entries_.end();
      for (auto i = entries_.begin(); i != entries_.end(); ++i) {
        if (counts(**i)) {
          ++count;
          const bool older = oldest == entries_.end() || (*i)->used < (*oldest)->used;
          oldest = i->get() != but && older ? i : oldest;
        }
      }
      if (count < most || oldest == entries_.end()) {
        return;
      }
      entries_.erase(oldest);
    }
  }

  // Shapes that do not settle are not worth recording: asks for more before it is tried again.
  void look_back() {
    if (passed_ == 0 || passed_ % window != 0) {
      return;
    }
    const std::int64_t replayed = replayed_ - std::exchange(replayed_before_, replayed_);
    if (replayed * 2 < window) {
      patience_ = std::min(patience_ * 4, window / 2);
      if (!std::exchange(warned_, true)) {
        TORCH_WARN("cuda_graphs: of the last ", window, " forward passes ", replayed,
                   " were replayed, since the shapes of the batches do not settle; the others cost "
                   "what they cost without graphs. Give batches one shape (drop_last, padding to "
                   "few lengths), or set cuda_graphs to false");
      }
    }
  }

  std::unique_ptr<GraphBackend> backend_;
  std::vector<std::unique_ptr<GraphEntry>> entries_;
  std::vector<std::int64_t> signature_;  // of the model that the graphs are about
  std::vector<at::Tensor> parameters_;   // the model's
  Outputs seen_;
  std::int64_t last_id_ = 0;
  std::int64_t recorded_ = 0;
  std::int64_t replayed_ = 0;
  std::int64_t replayed_before_ = 0;  // a window ago
  std::int64_t passed_ = 0;
  int patience_ = warm_up;
  bool warned_ = false;
};

}  // namespace tutti::train
