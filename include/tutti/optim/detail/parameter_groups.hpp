// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/optim/detail/parameter_view.hpp>
#include <tutti/optim/initial_lr.hpp>
#include <tutti/optim/reports_metrics.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

/// What a fused optimizer keeps for each group and each parameter, and how it is saved.

namespace tutti::optim {

/// How an optimizer described by `Hyper` updates parameters; specialised beside each `Hyper`.
template <class Hyper>
struct Rule;

/// A group's options: the optimizer's description with numbers of the group's own.
///
///     group.set_options(std::make_unique<optim::GroupOptions<SGD>>(SGD{.lr = 0.01}));
template <class Hyper>
class GroupOptions final : public torch::optim::OptimizerOptions, public InitialLearningRate {
 public:
  explicit GroupOptions(const Hyper& numbers) : hyper(numbers) { initial_lr = numbers.lr; }

  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<GroupOptions>(*this);
  }
  double get_lr() const override { return hyper.lr; }
  void set_lr(const double lr) override { hyper.lr = lr; }

  Hyper hyper;
};

/// A group of parameters with options of its own: `optim::group(biases, SGD{.lr = 0.1})`.
template <class Hyper>
torch::optim::OptimizerParamGroup group(std::vector<at::Tensor> parameters, const Hyper& hyper) {
  return {std::move(parameters), std::make_unique<GroupOptions<Hyper>>(hyper)};
}

/// The state of one parameter. It holds the parameter, so that no later one can take its address
/// and with it its state.
struct ParameterState final : torch::optim::OptimizerCloneableParamState<ParameterState> {
  at::Tensor parameter;
  std::int64_t step = 0;
  std::array<double, 2> scalars{};  ///< Rule::scalars, where it has any
  std::array<at::Tensor, 3> buffers;
};

namespace detail {

/// An optimizer's options for groups without their own, where LibTorch looks for them. LibTorch
/// 2.15 gives every new group a copy of these and then merges the group's own options in, which it
/// can for its own optimizers alone; those of any other are lost. So a copy is only made while
/// Fused adds a group, which then gives the group its options; else clone throws c10::Error.
template <class Hyper>
class DefaultOptions final : public torch::optim::OptimizerOptions {
 public:
  explicit DefaultOptions(const Hyper& numbers) : hyper(numbers) {}

  double get_lr() const override { return hyper.lr; }
  void set_lr(const double lr) override { hyper.lr = lr; }
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    TUTTI_CHECK(adding, Rule<Hyper>::name,
                ": torch::optim::Optimizer::add_param_group may lose a group's options; call "
                "add_param_group of what build() returned, or append the group, with options, to "
                "param_groups().");
    return std::make_unique<GroupOptions<Hyper>>(hyper);
  }

  Hyper hyper;
  bool adding = false;
};

/// The options of a group, const as it is. Throws c10::Error when they are another optimizer's.
template <class Hyper, class Group>
auto& options_of(Group& group) {
  using Own =
      std::conditional_t<std::is_const_v<Group>, const GroupOptions<Hyper>, GroupOptions<Hyper>>;
  auto* options = dynamic_cast<Own*>(&group.options());
  TUTTI_CHECK(options != nullptr, Rule<Hyper>::name,
              ": a parameter group has options of another optimizer; make them with "
              "tutti::optim::group(parameters, ",
              Rule<Hyper>::name, "{...}).");
  return *options;
}

struct Bucket;

/// The buffers that the rule has for this parameter with these options, a bit each.
template <class Hyper>
unsigned buffer_mask(const Hyper& h, const at::Tensor& parameter) {
  if constexpr (requires { Rule<Hyper>::buffer_mask(h, parameter); }) {
    return Rule<Hyper>::buffer_mask(h, parameter);
  } else {
    return (1U << Rule<Hyper>::buffer_count(h)) - 1U;
  }
}

/// Calls f with the index of every buffer in the mask.
template <class F>
void each_buffer(unsigned mask, F f) {
  for (std::size_t b = 0; b < 3; ++b) {
    if ((mask >> b & 1U) != 0) {
      f(b);
    }
  }
}

/// `Rule<Hyper>` updates a parameter's elements one by one, and has loops over memory for it.
template <class Hyper>
concept HasLoops =
    requires(const Hyper& h, const Bucket& bucket) { Rule<Hyper>::numbers(h, 0.0, bucket); };

/// `Rule<Hyper>` keeps numbers of each parameter beside its step count.
template <class Hyper>
concept HasScalars = requires { Rule<Hyper>::scalars; };

/// Parameters of one group that one call of a kernel updates.
struct Bucket {
  at::Device device = at::kCPU;
  at::ScalarType type = at::kFloat;
  std::int64_t step = 0;            // updates done; counted only where the rule needs it
  bool first = false;               // the buffers hold nothing yet
  unsigned mask = 0;                // the buffers that there are, a bit each
  std::array<double, 2> scalars{};  // ParameterState's, the same for all
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;  // held only during a step
  std::array<std::vector<at::Tensor>, 3> buffers;
  std::vector<at::Tensor> steps;  // where the Adam kernels read the step: handles of one scalar
  bool plain = false;    // floats on the CPU: views, where the processor has loops for them
  bool on_cuda = false;  // floats on a GPU: views, where the program has a kernel for them
  std::vector<ParameterView> views;     // room for those of a step
  std::vector<std::ptrdiff_t> average;  // of each parameter in FusedStep::averaging; -1: none
};

inline std::string parameter_name(std::size_t index) {
  return "param" + std::to_string(index);
}

/// A tensor of the parameter's shape, type and device, laid out as it where that is dense.
inline at::Tensor like(const at::Tensor& parameter) {
  const at::Tensor data = parameter.detach();
  return data.is_non_overlapping_and_dense() ? data.new_empty_strided(data.sizes(), data.strides())
                                             : data.new_empty(data.sizes());
}

/// What the rule's buffer b of a parameter is like: the parameter, unless the rule says otherwise.
template <class Hyper>
at::Tensor like_buffer(const at::Tensor& parameter, std::size_t b) {
  if constexpr (requires { Rule<Hyper>::like_buffer(parameter, b); }) {
    return Rule<Hyper>::like_buffer(parameter, b);
  } else {
    return like(parameter);
  }
}

/// Gives the state the buffers that the options need, of the parameter's device, type and layout.
/// New ones are zero, or what the rule starts with, if it counts steps. Else returns whether some
/// buffer is new and the rule fills it in the first update.
template <class Hyper>
bool prepare_buffers(const Hyper& hyper, ParameterState& state) {
  constexpr bool zero = Rule<Hyper>::counts_steps;
  bool first = false;
  each_buffer(buffer_mask(hyper, state.parameter), [&](std::size_t b) {
    at::Tensor fresh = like_buffer<Hyper>(state.parameter, b);
    at::Tensor& buffer = state.buffers[b];
    if (!buffer.defined()) {
      first = !zero;
      buffer = first ? fresh : fresh.zero_();
      if constexpr (requires { Rule<Hyper>::start(hyper, b, state); }) {
        Rule<Hyper>::start(hyper, b, state);
      }
    } else if (buffer.device() != fresh.device() || buffer.strides() != fresh.strides() ||
               buffer.scalar_type() != fresh.scalar_type()) {
      buffer = fresh.copy_(buffer);
    }
  });
  return first;
}

/// Drops the state of parameters that are in no group any more.
template <class States>
void forget_removed(const std::vector<torch::optim::OptimizerParamGroup>& groups, States& states) {
  std::unordered_set<const void*> kept;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      kept.insert(parameter.unsafeGetTensorImpl());
    }
  }
  for (auto entry = states.begin(); entry != states.end();) {
    entry = kept.count(entry->first) == 0 ? states.erase(entry) : std::next(entry);
  }
}

/// Throws c10::Error unless `archive` was saved by an optimizer with the same groups.
template <class Hyper>
void check_archive(const Archive& archive,
                   const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  const auto name = archive.get<std::string>("optimizer");
  TUTTI_CHECK(name == Rule<Hyper>::name, Rule<Hyper>::name, ": the archive holds a ", name,
              "; load it into that optimizer, or start without its state.");
  const auto count = archive.get<std::size_t>("group_count");
  TUTTI_CHECK(count == groups.size(), Rule<Hyper>::name, ": the archive holds ", count,
              " parameter groups, this optimizer has ", groups.size(), ".");
  std::size_t index = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const Archive& saved = archive.child("groups").child(std::to_string(g));
    const auto size = saved.get<std::size_t>("parameter_count");
    TUTTI_CHECK(size == groups[g].params().size(), Rule<Hyper>::name, ": group ", g, " holds ",
                size, " parameters in the archive, ", groups[g].params().size(),
                " in this optimizer; was the model built the same way?");
    for (const at::Tensor& parameter : groups[g].params()) {
      const std::string entry = parameter_name(index++);
      for (std::size_t b = 0; archive.contains(entry) && b < Rule<Hyper>::buffers.size(); ++b) {
        const std::string path = entry + "/" + std::string(Rule<Hyper>::buffers[b]);
        if (archive.contains(path)) {
          TUTTI_CHECK(archive.tensor(path).sizes() == like_buffer<Hyper>(parameter, b).sizes(),
                      Rule<Hyper>::name, ": ", path, " is ", archive.tensor(path).sizes(),
                      " in the archive, the parameter is ", parameter.sizes(), ".");
        }
      }
    }
  }
}

template <class Hyper>
void save_state(Archive& entry, const ParameterState& state) {
  entry.put("step", state.step);
  if constexpr (HasScalars<Hyper>) {
    for (std::size_t i = 0; i < Rule<Hyper>::scalars.size(); ++i) {
      entry.put(Rule<Hyper>::scalars[i], state.scalars[i]);
    }
  }
  for (std::size_t b = 0; b < Rule<Hyper>::buffers.size(); ++b) {
    if (state.buffers[b].defined()) {
      entry.put(Rule<Hyper>::buffers[b], state.buffers[b]);
    }
  }
}

template <class Hyper>
void load_state(const Archive& entry, const at::Tensor& parameter, ParameterState& state) {
  state.parameter = parameter;
  state.step = entry.get<std::int64_t>("step");
  if constexpr (HasScalars<Hyper>) {
    for (std::size_t i = 0; i < Rule<Hyper>::scalars.size(); ++i) {
      state.scalars[i] = entry.get<double>(std::string(Rule<Hyper>::scalars[i]));
    }
  }
  for (std::size_t b = 0; b < Rule<Hyper>::buffers.size(); ++b) {
    if (entry.contains(Rule<Hyper>::buffers[b])) {
      state.buffers[b] = like_buffer<Hyper>(parameter, b);
      state.buffers[b].copy_(entry.tensor(Rule<Hyper>::buffers[b]));
    }
  }
}

}  // namespace detail
}  // namespace tutti::optim
