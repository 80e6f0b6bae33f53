// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/stateful.hpp>
#include <tutti/optim/averages.hpp>
#include <tutti/optim/detail/fused_step_plan.hpp>
#include <tutti/optim/detail/parameter_groups.hpp>
#include <tutti/optim/fused_step.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

namespace tutti::optim {
namespace detail {

/// The averages that `Rule<Hyper>` trains for: it puts one into a tensor that holds the weight.
template <class Hyper>
concept HasAverages =
    requires(const Hyper& h, const ParameterState& state) { Rule<Hyper>::average_into(h, state); };

/// A bucket of a step in which ranks have rows of its parameters, and the numbers of its group.
template <class Hyper>
struct ShardedBucket {
  const Hyper& hyper;
  double initial_lr;
  const Bucket& bucket;
};

/// `Rule<Hyper>` looks at whole tensors, and can where ranks have rows of them: it updates all
/// buckets of a step together, the same ones on every rank, without those that have loops.
template <class Hyper>
concept StepsOnShards =
    requires(const std::vector<ShardedBucket<Hyper>>& buckets, const Shards& shards) {
      Rule<Hyper>::update_shards(buckets, shards);
    };

/// KeepsAverages, where the rule has them.
template <class Fused, class Hyper, bool = HasAverages<Hyper>>
class Averages {
 protected:
  void need_training_weights() const {}
};

template <class Fused, class Hyper>
class Averages<Fused, Hyper, true> : public KeepsAverages {
 public:
  void use_averages(bool yes) override {
    if (yes && !in_use_) {
      each_trained([&](const at::Tensor& parameter, const ParameterState& state, const Hyper& h) {
        training_.emplace(parameter.unsafeGetTensorImpl(), parameter.detach().clone());
        Rule<Hyper>::average_into(h, state);
      });
    } else if (!yes) {
      each_trained([&](const at::Tensor& parameter, const ParameterState&, const Hyper&) {
        if (const at::Tensor* const kept = training_weight(parameter)) {
          parameter.copy_(*kept);
        }
      });
      training_.clear();
    }
    in_use_ = yes;
  }
  [[nodiscard]] bool averages_in_use() const override { return in_use_; }

  void adopt_weights() override {
    if (!in_use_) {
      each_trained([](const at::Tensor&, const ParameterState& state, const Hyper&) {
        Rule<Hyper>::average_from(state);
      });
    }
  }

 protected:
  void need_training_weights() const {
    TUTTI_CHECK(!in_use_, Rule<Hyper>::name,
                ": the model holds the averages; call use_averages(false) before a step.");
  }
  // What the parameter is in training, while the model holds averages; else null.
  const at::Tensor* training_weight(const at::Tensor& parameter) const {
    const auto found = training_.find(parameter.unsafeGetTensorImpl());
    return found == training_.end() ? nullptr : &found->second;
  }
  void forget_training_weights() {
    training_.clear();
    in_use_ = false;
  }

 private:
  template <class F>
  void each_trained(const F& f) {
    const c10::AutoGradMode no_gradients(false);
    for (const auto& group : static_cast<Fused&>(*this).param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (const ParameterState* state = static_cast<Fused&>(*this).state_of(parameter)) {
          f(parameter, *state, options_of<Hyper>(group).hyper);
        }
      }
    }
  }

  std::unordered_map<const void*, at::Tensor> training_;
  bool in_use_ = false;
};

}  // namespace detail

/// A torch::optim::Optimizer whose step is one pass over the memory of all parameters of a group
/// that share a device, a type and a step count. Made by `SGD{...}.build(groups)` and its like.
/// Floats on an x86-64 processor with AVX2 go through loops of its own, all else through one call
/// of LibTorch's fused kernel where there is one (SGD, Adam and their kin; results are the same bit
/// by bit), else through its functions over lists of tensors (equal but for the last bits). With a
/// FusedStep, floats on a CUDA device go through a kernel of its own, which rounds as those loops
/// do, for the optimizers that have a fused kernel. Optimizers that look at a whole tensor (LAMB,
/// LARS, Adafactor, Muon's matrices) have no loops; where ranks have rows of parameters they ask
/// the others (take_shards()), in messages whose number does not depend on that of the parameters.
///
/// Parameters without a gradient are skipped altogether. param_groups() may be changed at any time
/// (parameters replaced, added, removed, of another device, type or memory format; options
/// changed): the next step notices, keeps the state of what stayed, and drops that of what went.
/// Gradients may be created anew for every step or kept.
///
/// step throws c10::Error for sparse gradients and for parameters that are not floating point.
template <class Hyper>
class Fused final : public torch::optim::Optimizer,
                    public Stateful,
                    public ReportsMetrics,
                    public FusedStepOptimizer,
                    public detail::Averages<Fused<Hyper>, Hyper> {
 public:
  using Options = GroupOptions<Hyper>;

  Fused(const std::vector<torch::optim::OptimizerParamGroup>& groups, const Hyper& hyper)
      : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{},
                  std::make_unique<detail::DefaultOptions<Hyper>>(hyper)) {
    for (const auto& group : groups) {
      add_param_group(group);
    }
  }

  /// Adds a group; without options it has the optimizer's. Throws c10::Error, and adds nothing, for
  /// options of another optimizer or out of range, and for a tensor that is computed from others.
  /// torch::optim::Optimizer's own function throws c10::Error where it would lose the options.
  void add_param_group(const torch::optim::OptimizerParamGroup& group) {
    auto& defaults = static_cast<detail::DefaultOptions<Hyper>&>(*defaults_);
    auto options = std::make_unique<Options>(group.has_options() ? detail::options_of<Hyper>(group)
                                                                 : Options(defaults.hyper));
    Rule<Hyper>::validate(options->hyper);
    struct Adding {
      bool& on;
      ~Adding() { on = false; }
    };
    const Adding scope{defaults.adding = true};
    Optimizer::add_param_group(group);
    param_groups_.back().set_options(std::move(options));
  }

  /// Updates every parameter that has a gradient. closure: evaluates the loss, with gradients on,
  /// before the update; its result is returned, else an undefined tensor.
  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const c10::AutoGradMode with_gradients(true);
      loss = closure();
    }
    const c10::AutoGradMode no_gradients(false);
    take_gradients();
    update_all(nullptr, nullptr);
    return loss;
  }

  /// The same with what `fused` asks for. Where memory cannot be walked through once, because a
  /// parameter is no float on the CPU or a CUDA device, or one shares memory with another,
  /// gradients are clipped ahead of it and averages left alone.
  void step(const FusedStep& fused) override {
    const c10::AutoGradMode no_gradients(false);
    take_gradients();
    if (!can_fuse(fused)) {
      if (fused.clips()) {
        detail::clip_separately(param_groups_, fused);
        take_gradients();
      }
      update_all(nullptr, nullptr);
      return;
    }
    const bool averages = fused.averaging.averages != nullptr;
    if (averages && followed_ != fused.averaging.version) {
      const detail::Followers followers(fused.averaging);
      for (Plan& plan : plans_) {
        for (detail::Bucket& bucket : plan.buckets) {
          followers.find(bucket);
        }
      }
      followed_ = fused.averaging.version;
    }
    const detail::StepExtras extras = detail::extras_of(fused);
    update_all(&extras, averages ? &fused.averaging : nullptr);
  }

  [[nodiscard]] bool elementwise() const override {
    return detail::HasLoops<Hyper> &&
           !requires(const detail::Bucket& b) { Rule<Hyper>::has_loops(b); };
  }

  [[nodiscard]] bool steps_on_shards() const override {
    return elementwise() || detail::StepsOnShards<Hyper>;
  }

  void take_shards(std::shared_ptr<const Shards> shards) override { shards_ = std::move(shards); }

  [[nodiscard]] std::vector<std::int64_t> state_sizes(std::string_view name,
                                                      at::IntArrayRef parameter) const override {
    if constexpr (requires { Rule<Hyper>::buffer_sizes(parameter, 0U); }) {
      for (std::size_t b = 0; b < Rule<Hyper>::buffers.size(); ++b) {
        if (Rule<Hyper>::buffers[b] == name) {
          return Rule<Hyper>::buffer_sizes(parameter, b);
        }
      }
    }
    return parameter.vec();
  }

  /// The state of a parameter; null before its first step with a gradient.
  const ParameterState* state_of(const at::Tensor& parameter) const {
    const auto found = state_.find(parameter.unsafeGetTensorImpl());
    return found == state_.end() ? nullptr
                                 : static_cast<const ParameterState*>(found->second.get());
  }

  std::vector<std::pair<std::string, at::Tensor>> report_per_parameter_metrics(
      const at::Tensor& parameter, const std::string& name) const override {
    std::vector<std::pair<std::string, at::Tensor>> out;
    const ParameterState* state = state_of(parameter);
    if constexpr (requires { &Rule<Hyper>::update_of; }) {
      for (const auto& group : param_groups_) {
        for (const at::Tensor& member : group.params()) {
          if (state != nullptr && member.is_same(parameter)) {
            const auto& options = static_cast<const Options&>(group.options());
            const at::Tensor update = Rule<Hyper>::update_of(options, *state);
            out.emplace_back("l2_norm/moment/" + name, state->buffers[0].norm());
            out.emplace_back("l2_norm/param/" + name, parameter.detach().norm());
            out.emplace_back("l2_norm/update/" + name, update.norm());
            if (parameter.grad().defined()) {
              out.emplace_back("l2_norm/grad/" + name, parameter.grad().norm());
            }
            return out;
          }
        }
      }
    }
    return out;
  }

  /// Saves `groups/<g>/lr` and the other options, and for parameter i, counted over all groups in
  /// their order, `param<i>/step` and `param<i>/<buffer>`.
  void save(Archive& archive) const override {
    archive.put("optimizer", std::string(Rule<Hyper>::name));
    archive.put("group_count", param_groups_.size());
    std::size_t index = 0;
    for (std::size_t g = 0; g < param_groups_.size(); ++g) {
      const auto& group = param_groups_[g];
      Archive& saved = archive.child("groups").child(std::to_string(g));
      const auto& options = static_cast<const Options&>(group.options());
      saved.put("parameter_count", group.params().size());
      saved.put("initial_lr", options.initial_lr);
      Rule<Hyper>::each(options.hyper,
                        [&](const char* name, const auto& value) { saved.put(name, value); });
      for (const at::Tensor& parameter : group.params()) {
        if (const ParameterState* state = state_of(parameter)) {
          Archive& entry = archive.child(detail::parameter_name(index));
          detail::save_state<Hyper>(entry, *state);
          if constexpr (detail::HasAverages<Hyper>) {
            if (const at::Tensor* const weight = this->training_weight(parameter)) {
              entry.put("training_weight", *weight);
            }
          }
        }
        ++index;
      }
    }
  }

  /// torch::save and torch::load know nothing of this state; they throw c10::Error.
  void save(torch::serialize::OutputArchive&) const override { refuse_torch_archive(); }
  void load(torch::serialize::InputArchive&) override { refuse_torch_archive(); }

  /// Restores options and state, by the order of the parameters. Throws c10::Error, before anything
  /// is changed, when the groups or the shapes differ.
  void load(const Archive& archive) override {
    detail::check_archive<Hyper>(archive, param_groups_);
    if constexpr (detail::HasAverages<Hyper>) {
      this->forget_training_weights();
    }
    state_.clear();
    plans_.clear();
    std::size_t index = 0;
    for (std::size_t g = 0; g < param_groups_.size(); ++g) {
      const Archive& saved = archive.child("groups").child(std::to_string(g));
      Options& options = detail::options_of<Hyper>(param_groups_[g]);
      options.initial_lr = saved.get<double>("initial_lr");
      Rule<Hyper>::each(options.hyper, [&](const char* name, auto& value) {
        value = saved.get<std::remove_cvref_t<decltype(value)>>(name);
      });
      for (const at::Tensor& parameter : param_groups_[g].params()) {
        const std::string name = detail::parameter_name(index++);
        // What is around this optimizer may have saved something of a parameter without a state.
        if (archive.contains(name + "/step")) {
          auto state = std::make_unique<ParameterState>();
          detail::load_state<Hyper>(archive.child(name), parameter, *state);
          if constexpr (detail::HasAverages<Hyper>) {
            if (archive.child(name).contains("training_weight")) {
              const c10::AutoGradMode no_gradients(false);
              parameter.copy_(archive.child(name).tensor("training_weight"));
            }
          }
          state_[parameter.unsafeGetTensorImpl()] = std::move(state);
        }
      }
    }
  }

 private:
  // Where a parameter of the group is in the buckets; `state` is null when it had no gradient.
  struct Place {
    c10::TensorImpl* parameter = nullptr;
    ParameterState* state = nullptr;
    std::size_t bucket = 0;
    std::size_t index = 0;
  };

  struct Plan {
    Options* options = nullptr;
    std::vector<Place> places;
    std::vector<detail::Bucket> buckets;
    std::vector<std::pair<at::Tensor, at::Tensor>> staged;  // a parameter that is not dense, copy
    bool stale = false;
    bool copied = false;  // a gradient was laid out anew for this step
  };

  static void refuse_torch_archive() {
    TUTTI_CHECK(false, Rule<Hyper>::name,
                ": torch::save and torch::load cannot carry this optimizer; use a tutti::Archive: "
                "optimizer.save(archive), optimizer.load(archive).");
  }

  static at::Tensor laid_out(const at::Tensor& gradient, const at::Tensor& like, Plan& plan) {
    return detail::laid_out(Rule<Hyper>::name, gradient, like, plan.copied);
  }

  // This step's gradients of all groups, in plans that fit them.
  void take_gradients() {
    this->need_training_weights();
    plans_.resize(param_groups_.size());
    for (std::size_t g = 0; g < param_groups_.size(); ++g) {
      if (!gather(param_groups_[g], plans_[g])) {
        rebuild(param_groups_[g], plans_[g]);
        followed_ = 0;
        apart_.reset();
      }
    }
  }

  // All memory can be walked through once, in any order.
  bool can_fuse(const FusedStep& fused) {
    for (const Plan& plan : plans_) {
      for (const detail::Bucket& bucket : plan.buckets) {
        if (!detail::has_loops(bucket, fused) || plan.copied || !plan.staged.empty()) {
          return false;
        }
      }
    }
    if (!apart_) {
      apart_ = detail::overlap_free(param_groups_);
    }
    return *apart_;
  }

  // Takes this step's gradients into the plan's buckets; false when the plan no longer fits.
  bool gather(torch::optim::OptimizerParamGroup& group, Plan& plan) {
    plan.copied = false;
    const std::vector<at::Tensor>& parameters = group.params();
    if (plan.options != &group.options() || plan.places.size() != parameters.size()) {
      parameters_changed_ = true;
      return false;
    }
    if (plan.stale) {
      return false;
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& parameter = parameters[i];
      const Place& place = plan.places[i];
      const at::Tensor& gradient = parameter.grad();
      if (place.parameter != parameter.unsafeGetTensorImpl()) {
        parameters_changed_ = true;
        return false;
      }
      if (gradient.defined() != (place.state != nullptr)) {
        return false;
      }
      if (place.state != nullptr) {
        detail::Bucket& bucket = plan.buckets[place.bucket];
        if (bucket.mask != detail::buffer_mask(plan.options->hyper, parameter) ||
            !still_fits(parameter, place, bucket)) {
          return false;
        }
        bucket.gradients[place.index] = laid_out(gradient, parameter, plan);
      }
    }
    return true;
  }

  bool still_fits(const at::Tensor& parameter, const Place& place,
                  const detail::Bucket& bucket) const {
    const auto found = state_.find(parameter.unsafeGetTensorImpl());
    if (found == state_.end() || found->second.get() != place.state ||
        bucket.device != parameter.device() || bucket.type != parameter.scalar_type() ||
        !parameter.is_non_overlapping_and_dense() || place.state->step != bucket.step ||
        place.state->scalars != bucket.scalars) {
      return false;
    }
    bool same = true;
    detail::each_buffer(bucket.mask, [&](std::size_t b) {
      const at::Tensor& buffer = place.state->buffers[b];
      same = same && buffer.is_same(bucket.buffers[b][place.index]);
      if constexpr (!requires { Rule<Hyper>::like_buffer(parameter, b); }) {
        same = same && buffer.strides() == parameter.strides();
      }
    });
    return same;
  }

  // Sorts the group's parameters that have a gradient into buckets, and takes the gradients.
  void rebuild(torch::optim::OptimizerParamGroup& group, Plan& plan) {
    if (std::exchange(parameters_changed_, false)) {
      detail::forget_removed(param_groups_, state_);
    }
    plan = Plan{};
    plan.options = &detail::options_of<Hyper>(group);
    for (const at::Tensor& parameter : group.params()) {
      Place place;
      place.parameter = parameter.unsafeGetTensorImpl();
      if (parameter.grad().defined()) {
        place = put(parameter, plan);
      }
      plan.places.push_back(place);
    }
    for (detail::Bucket& bucket : plan.buckets) {
      detail::keep_ways(plan.options->hyper, bucket);
      if (Rule<Hyper>::counts_steps) {
        const at::Tensor scalar = bucket.parameters.front().detach().new_full({}, 0, at::kFloat);
        bucket.steps.assign(bucket.parameters.size(), scalar);
      }
    }
    plan.stale = !plan.staged.empty();
  }

  ParameterState& state_for(const at::Tensor& parameter, const Hyper& hyper, bool& first) {
    auto& slot = state_[parameter.unsafeGetTensorImpl()];
    if (slot == nullptr) {
      auto fresh = std::make_unique<ParameterState>();
      if constexpr (detail::HasScalars<Hyper>) {
        fresh->scalars = Rule<Hyper>::first_scalars(hyper);
      }
      slot = std::move(fresh);
    }
    auto& state = static_cast<ParameterState&>(*slot);
    state.parameter = parameter;
    first = detail::prepare_buffers(hyper, state);
    return state;
  }

  Place put(const at::Tensor& parameter, Plan& plan) {
    TUTTI_CHECK(parameter.is_floating_point(), Rule<Hyper>::name, ": a parameter is of type ",
                parameter.scalar_type(), "; only floating point is trained.");
    bool first = false;
    Place place{.parameter = parameter.unsafeGetTensorImpl()};
    const Hyper& hyper = plan.options->hyper;
    place.state = &state_for(parameter, hyper, first);
    const unsigned mask = detail::buffer_mask(hyper, parameter);
    place.bucket = detail::bucket_for(*place.state, mask, first, plan.buckets);
    detail::Bucket& bucket = plan.buckets[place.bucket];
    place.index = bucket.parameters.size();
    at::Tensor work = parameter;
    if (!parameter.is_non_overlapping_and_dense()) {
      work = detail::like(parameter);
      work.copy_(parameter);
      plan.staged.emplace_back(parameter, work);
    }
    bucket.gradients.push_back(laid_out(parameter.grad(), work, plan));
    bucket.parameters.push_back(std::move(work));
    detail::each_buffer(
        mask, [&](std::size_t b) { bucket.buffers[b].push_back(place.state->buffers[b]); });
    return place;
  }

  // extras: null for a step by itself.
  void update_all(const detail::StepExtras* extras, const Averaging* averaging) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (Plan& plan : plans_) {
      update(plan, extras, averaging);
    }
    if (shards_ != nullptr) {
      update_shards(extras);
    }
    for (Plan& plan : plans_) {
      finish(plan);
    }
  }

  // What no loop has updated, where ranks have rows of it. (No constraint of the function: Clang 14
  // instantiates those whose constraint fails, too, where it instantiates the class by name.)
  void update_shards(const detail::StepExtras* extras) const {
    if constexpr (detail::StepsOnShards<Hyper>) {
      std::vector<detail::ShardedBucket<Hyper>> buckets;
      for (const Plan& plan : plans_) {
        for (const detail::Bucket& bucket : plan.buckets) {
          if (!has_views(bucket, extras)) {
            buckets.push_back({plan.options->hyper, plan.options->initial_lr, bucket});
          }
        }
      }
      Rule<Hyper>::update_shards(buckets, *shards_);
    }
  }

  static bool has_views(const detail::Bucket& bucket, const detail::StepExtras* extras) {
    return detail::HasLoops<Hyper> && (bucket.plain || (bucket.on_cuda && extras != nullptr));
  }

  // One pass over the bucket's memory; false where there are no loops for it.
  static bool update_views(const Plan& plan, detail::Bucket& bucket,
                           const detail::StepExtras* extras, const Averaging* averaging) {
    if constexpr (detail::HasLoops<Hyper>) {
      if (has_views(bucket, extras)) {
        detail::gather_views(bucket, averaging);
        detail::step_views(
            bucket, Rule<Hyper>::numbers(plan.options->hyper, plan.options->initial_lr, bucket),
            extras != nullptr ? *extras : detail::StepExtras{});
        return true;
      }
    }
    return false;
  }

  // One step of the plan's buckets, but for those of which ranks have rows that are no views.
  void update(Plan& plan, const detail::StepExtras* extras, const Averaging* averaging) const {
    const Hyper& hyper = plan.options->hyper;
    const bool together = detail::StepsOnShards<Hyper> && shards_ != nullptr;
    for (detail::Bucket& bucket : plan.buckets) {
      bucket.step += Rule<Hyper>::counts_steps ? 1 : 0;
      if (!update_views(plan, bucket, extras, averaging) && !together) {
        Rule<Hyper>::update(hyper, plan.options->initial_lr, bucket);
      }
      if constexpr (detail::HasScalars<Hyper>) {
        Rule<Hyper>::count(hyper, bucket);
      }
    }
  }

  // Lets go of the gradients.
  static void finish(Plan& plan) {
    for (detail::Bucket& bucket : plan.buckets) {
      plan.stale = plan.stale || bucket.first;
      for (at::Tensor& gradient : bucket.gradients) {
        gradient.reset();
      }
    }
    for (auto& [parameter, copy] : plan.staged) {
      parameter.copy_(copy);
    }
    for (const Place& place : plan.places) {
      if (place.state != nullptr) {
        place.state->step = plan.buckets[place.bucket].step;
        place.state->scalars = plan.buckets[place.bucket].scalars;
        place.parameter->bump_version();  // for autograd, since the fused kernels do not
      }
    }
  }

  std::vector<Plan> plans_;
  std::shared_ptr<const Shards> shards_;  // null: parameters are whole
  bool parameters_changed_ = false;
  std::uint64_t followed_ = 0;  // Averaging::version for which averages were found
  std::optional<bool> apart_;   // no two parameters share memory; empty: not looked at yet
};

}  // namespace tutti::optim
