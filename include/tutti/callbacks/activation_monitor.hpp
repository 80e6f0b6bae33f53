// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/slot.hpp>
#include <tutti/nn/walk.hpp>

namespace tutti {

namespace detail {

// Statistics of activations on their device, and what they are called.
struct ActivationSink {
  std::vector<std::string> names;   // "layer1.0.conv1_input.0"
  std::vector<at::Tensor> numbers;  // [4] each: l2_norm, average, max, kurtosis

  void add(const std::string& name, const at::Tensor& activation);
};

// Stands in for a layer for the length of a forward pass: computes the same and takes notes.
struct ActivationProbe final : torch::nn::Module {
  nn::Slot below;
  nn::Slotted* layer = nullptr;
  std::string path;
  ActivationSink* sink = nullptr;

  at::Tensor forward(const at::Tensor& x);
};

// The layers that are being watched; they are themselves again when this goes.
class ActivationWatch {
 public:
  ActivationWatch() = default;
  ActivationWatch(const ActivationWatch&) {}  // a copied policy watches nothing
  ActivationWatch& operator=(const ActivationWatch&) { return *this; }
  ~ActivationWatch() { stop(); }

  void start(torch::nn::Module& model, const Keys& ignored);

  void stop();

  [[nodiscard]] bool empty() const { return watched_.empty(); }

  ActivationSink sink;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, std::shared_ptr<ActivationProbe>>>
      watched_;
};

}  // namespace detail

/// Logs statistics of what goes into the layers and what comes out.
///
/// In batches whose number is a multiple of the interval, for each layer of tutti::nn, with `<t>`
/// being `<layer>_input.0` or `<layer>_output.0`: `activations/l2_norm/<t>`, the mean of the norms
/// along the last dimension; `activations/average/<t>`; `activations/max/<t>`, the mean of the
/// largest values along the last dimension; `activations/kurtosis/<t>`, the mean of m4 / m2^2 along
/// it. Integer tensors are left out. Of several microbatches the last is watched. Waits for the
/// device once in such a batch; in others nothing is done.
///
/// Layers of plain torch::nn cannot be watched, since they have no slot, nor can what surgery put
/// in be watched as a whole: the tutti::nn layers inside are. Source: MosaicML Composer,
/// `composer.callbacks.ActivationMonitor`.
struct ActivationMonitor final {
  Time interval = "25ba";      ///< in ba or ep; below 10ba it is warned of
  Keys ignore_module_types{};  ///< layers with one of these in their name are left out

  /// What it holds while it runs; not an option.
  struct Run {
    Lazy<detail::ActivationWatch> watch{};  ///< what has been seen of the layers
    std::int64_t last = -1;                 ///< when it last logged
  } run{};

  static constexpr std::string_view name = "ActivationMonitor";
  static constexpr About about{.reads_batch = false};
  static constexpr Role role = Role::callback;
  using events = types<FitStart, BeforeTrainBatch, BeforeForward, AfterForward>;
  static constexpr Rules rules{
      .graph = {.instead = {id<AfterForward>}},  // where it watches
  };

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    const TimeUnit unit = interval.unit();
    expect((unit == TimeUnit::batch || unit == TimeUnit::epoch) && interval.value() >= 1,
           "ActivationMonitor: interval", interval, "at least 1ba or 1ep");
  }

  /// Throws c10::Error when the model has no layer that can be watched.
  void apply(FitStart, State& state);

  bool match(BeforeTrainBatch, const State&) const { return run.watch && !run.watch->empty(); }
  bool match(BeforeForward, const State& state) const;
  bool match(AfterForward, const State&) const { return run.watch && !run.watch->empty(); }

  // Still watching here: the batch did not fit into memory and is tried again.
  void apply(BeforeTrainBatch, State&);
  void apply(BeforeForward, State& state);
  void apply(AfterForward, State& state);

  /// The layers are themselves again, whatever happened.
  void close(State&) { run.watch.reset(); }
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/callbacks/activation_monitor.inl.hpp>
#endif
