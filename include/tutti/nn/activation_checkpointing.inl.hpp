// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/nn/activation_checkpointing.hpp>

#include <tutti/core/autocast.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/unit_slot.hpp>
#include <tutti/nn/detail/gradient.hpp>
#include <tutti/nn/gyro_dropout.hpp>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace tutti::nn {

TUTTI_INLINE Recomputable::~Recomputable() = default;
TUTTI_INLINE CheckpointsBlocks::~CheckpointsBlocks() = default;

TUTTI_INLINE at::Tensor Recomputable::checkpointed(std::function<at::Tensor(const at::Tensor&)> run,
                                                   const at::Tensor& x) {
  auto* const self = dynamic_cast<torch::nn::Module*>(this);
  TUTTI_CHECK(self != nullptr,
              "activation checkpointing: a Recomputable is no torch::nn::Module; derive it from "
              "both");
  return functional::checkpoint_activations(
      *self,
      [self = self->shared_from_this(), run = std::move(run)](const at::Tensor& y) {
        return run(y);
      },
      x);
}

TUTTI_INLINE void CheckpointsBlocks::set_activation_checkpointing(bool on) {
  for (const auto& module : dynamic_cast<torch::nn::Module&>(*this).modules()) {
    if (auto* const block = dynamic_cast<Block*>(module.get())) {
      block->set_activation_checkpointing(on);
    }
  }
}

TUTTI_INLINE bool CheckpointsBlocks::activation_checkpointing() const {
  for (const auto& module : dynamic_cast<const torch::nn::Module&>(*this).modules()) {
    const auto* const block = dynamic_cast<const Block*>(module.get());
    if (block != nullptr && block->activation_checkpointing()) {
      return true;
    }
  }
  return false;
}

}  // namespace tutti::nn

namespace tutti::nn::detail {

// The default generators of the CPU and of another device where one is used.
class GeneratorStates {
 public:
  explicit GeneratorStates(at::Device device) {
    add(at::detail::getDefaultCPUGenerator());
    if (!device.is_cpu()) {
      add(at::globalContext().defaultGenerator(device));
    }
  }

  void restore() {
    for (auto& [generator, state] : states_) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    }
  }

 private:
  void add(at::Generator generator) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }

  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// While it lives, the generators are where `then` was; afterwards where they were before.
class GeneratorsOf {
 public:
  GeneratorsOf(GeneratorStates& then, at::Device device) : now_(device) { then.restore(); }
  ~GeneratorsOf() { now_.restore(); }
  GeneratorsOf(const GeneratorsOf&) = delete;
  GeneratorsOf& operator=(const GeneratorsOf&) = delete;

 private:
  GeneratorStates now_;
};

// How autocast is set for a device.
struct AutocastOf {
  explicit AutocastOf(at::DeviceType on)
      : device(on),
        enabled(at::autocast::is_autocast_enabled(on)),
        dtype(at::autocast::get_autocast_dtype(on)) {}

  at::DeviceType device;
  bool enabled;
  at::ScalarType dtype;
};

// Weights that are cast in here are cast for here alone: a copy made without gradients must not
// serve where they are wanted.
class NoAutocastCache {
 public:
  NoAutocastCache() : was_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(was_); }
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool was_;
};

// Buffers that a pass moves, as they were at some time. They are written without a new version,
// since graphs may have saved them.
class BufferStates {
 public:
  // Those of modules of `computed` that are in training.
  explicit BufferStates(const torch::nn::Module& computed) {
    for (const auto& module : computed.modules()) {
      for (const at::Tensor& buffer : module->buffers(/*recurse=*/false)) {
        if (module->is_training() && buffer.defined()) {
          states_.emplace_back(buffer.variable_data(), buffer.detach().clone());
        }
      }
    }
  }

  // Exchanges what the buffers are and what is kept of them.
  void exchange() {
    const c10::NoGradGuard no_grad;
    for (auto& [buffer, state] : states_) {
      at::Tensor now = buffer.clone();
      buffer.copy_(state);
      state = std::move(now);
    }
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> states_;
};

// While it lives, buffers are what they were then; afterwards what they were before.
class BuffersOf {
 public:
  explicit BuffersOf(BufferStates then) : states_(std::move(then)) { states_.exchange(); }
  ~BuffersOf() { states_.exchange(); }
  BuffersOf(const BuffersOf&) = delete;
  BuffersOf& operator=(const BuffersOf&) = delete;

 private:
  BufferStates states_;
};

using UnitHolders = std::vector<::tutti::detail::UnitHolder*>;

// Of the units in `part`, which may be one itself.
TUTTI_INLINE UnitHolders holders_in(const torch::nn::Module& part) {
  UnitHolders out;
  for (const auto& module : part.modules()) {
    const auto* const slot = dynamic_cast<const ::tutti::detail::UnitSlot*>(module.get());
    if (slot != nullptr && slot->holder() != nullptr) {
      out.push_back(slot->holder());
    }
  }
  return out;
}

// Behind the input of what is computed again: the gradients of its parameters have been added up
// when this one's gradient is there, since their nodes go before all others.
class AfterCheckpoint final : public torch::autograd::Node {
 public:
  AfterCheckpoint(UnitHolders holders, const at::Tensor& x) : holders_(std::move(holders)) {
    add_next_edge(torch::autograd::impl::gradient_edge(x));
  }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    for (auto* const holder : holders_) {
      holder->gradients_came();
    }
    return std::move(gradients);
  }

  UnitHolders holders_;
};

// x, behind whose gradient the holders of `part` are told.
TUTTI_INLINE at::Tensor told_after(const at::Tensor& x, const torch::nn::Module& part) {
  UnitHolders holders = holders_in(part);
  for (auto* const holder : holders) {
    holder->expect_gradients();
  }
  if (holders.empty() || !x.requires_grad()) {
    return x;
  }
  at::Tensor same = x.detach();
  ::tutti::detail::set_gradient(same, new AfterCheckpoint(std::move(holders), x));
  return same;
}

class CheckpointBackward final : public torch::autograd::Node {
 public:
  using Run = std::function<at::Tensor(const at::Tensor&)>;

  CheckpointBackward(Run run, const at::Tensor& x, std::vector<at::Tensor> parameters,
                     BufferStates buffers, GeneratorStates generators)
      : run_(std::move(run)),
        x_(x, /*is_output=*/false),
        device_(x.device()),
        learns_(x.requires_grad()),
        parameters_(std::move(parameters)),
        buffers_(std::move(buffers)),
        generators_(std::move(generators)),
        autocast_{AutocastOf(at::kCPU), AutocastOf(x.device().type())} {
    add_next_edge(torch::autograd::impl::gradient_edge(x));
    for (const at::Tensor& parameter : parameters_) {
      add_next_edge(torch::autograd::impl::gradient_edge(parameter));
    }
  }

  void release_variables() override {
    x_.reset_data();
    run_ = nullptr;
  }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  at::Tensor again(const at::Tensor& x);
  void check(const at::Tensor& x, const at::Tensor& y) const;

  Run run_;
  torch::autograd::SavedVariable x_;
  at::Device device_;
  bool learns_;
  std::vector<at::Tensor> parameters_;
  BufferStates buffers_;
  GeneratorStates generators_;
  std::array<AutocastOf, 2> autocast_;
};

TUTTI_INLINE at::Tensor CheckpointBackward::again(const at::Tensor& x) {
  const GeneratorsOf generators(generators_, device_);
  const Autocast cpu(autocast_[0].device, autocast_[0].dtype, autocast_[0].enabled);
  const Autocast own(autocast_[1].device, autocast_[1].dtype, autocast_[1].enabled);
  const NoAutocastCache no_cache;
  const BuffersOf buffers(buffers_);
  const c10::AutoGradMode grad(true);
  return run_(x);
}

// Refuses a graph of y with a leaf whose gradient nobody would take.
TUTTI_INLINE void CheckpointBackward::check(const at::Tensor& x, const at::Tensor& y) const {
  std::unordered_set<const torch::autograd::Node*> seen;
  const auto edge = [](const at::Tensor& tensor) {
    return torch::autograd::impl::gradient_edge(tensor).function.get();
  };
  if (learns_) {
    seen.insert(edge(x));
  }
  for (const at::Tensor& parameter : parameters_) {
    seen.insert(edge(parameter));
  }
  std::vector<const torch::autograd::Node*> rest{edge(y)};
  while (!rest.empty()) {
    const torch::autograd::Node* const node = rest.back();
    rest.pop_back();
    if (node == nullptr || !seen.insert(node).second) {
      continue;
    }
    TUTTI_CHECK(dynamic_cast<const torch::autograd::AccumulateGrad*>(node) == nullptr,
                "activation checkpointing: the block uses a tensor that needs a gradient and is "
                "neither its input nor one of its parameters, so the gradient would be lost; "
                "register it in the block, or compute it there");
    for (const torch::autograd::Edge& next : node->next_edges()) {
      rest.push_back(next.function.get());
    }
  }
}

TUTTI_INLINE torch::autograd::variable_list CheckpointBackward::apply(
    torch::autograd::variable_list&& gradients) {
  torch::autograd::variable_list out(1 + parameters_.size());
  if (!gradients[0].defined()) {
    return out;
  }
  TUTTI_CHECK(!at::GradMode::is_enabled(),
              "activation checkpointing: gradients of gradients are asked for, which need what was "
              "not kept; switch it off with set_activation_checkpointing(false)");
  const at::Tensor saved = x_.unpack();
  TUTTI_CHECK(run_,
              "activation checkpointing: the graph was freed by its first backward pass; "
              "keep it with retain_graph");
  const at::Tensor x = saved.detach().requires_grad_(learns_);
  const at::Tensor y = again(x);
  check(x, y);
  torch::autograd::variable_list inputs;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (task_should_compute_output(i)) {
      inputs.push_back(i == 0 ? x : parameters_[i - 1]);
      places.push_back(i);
    }
  }
  if (inputs.empty()) {
    return out;
  }
  const torch::autograd::variable_list found =
      torch::autograd::grad({y}, inputs, {gradients[0]}, /*retain_graph=*/false,
                            /*create_graph=*/false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < places.size(); ++i) {
    out[places[i]] = found[i];
  }
  return out;
}

}  // namespace tutti::nn::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor checkpoint_activations(const torch::nn::Module& block,
                                               std::function<at::Tensor(const at::Tensor&)> run,
                                               const at::Tensor& x) {
  if (!at::GradMode::is_enabled()) {
    return run(x);
  }
  std::vector<at::Tensor> learning;
  for (at::Tensor& parameter : block.parameters()) {
    if (parameter.requires_grad()) {
      learning.push_back(std::move(parameter));
    }
  }
  if (learning.empty() && !x.requires_grad()) {
    return run(x);
  }
  for (const auto& layer : block.modules()) {
    TUTTI_CHECK(dynamic_cast<const nn::GyroDropoutImpl*>(layer.get()) == nullptr,
                "activation checkpointing: the block has a GyroDropout, whose masks advance with "
                "every computation; use one of the two");
  }
  nn::detail::GeneratorStates generators(x.device());
  nn::detail::BufferStates buffers(block);
  const at::Tensor input = nn::detail::told_after(x, block);
  at::Tensor y;
  {
    const c10::NoGradGuard no_grad;
    const nn::detail::NoAutocastCache no_cache;
    y = run(input).detach();
  }
  ::tutti::detail::set_gradient(
      y, new nn::detail::CheckpointBackward(std::move(run), input, std::move(learning),
                                            std::move(buffers), std::move(generators)));
  return y;
}

}  // namespace tutti::functional
