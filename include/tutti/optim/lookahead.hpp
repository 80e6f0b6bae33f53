// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/archive.hpp>
#include <tutti/core/detail/make.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/stateful.hpp>
#include <tutti/optim/averages.hpp>
#include <tutti/optim/detail/lists.hpp>
#include <tutti/optim/detail/parameter_groups.hpp>
#include <tutti/optim/fused_step.hpp>
#include <tutti/optim/reports_metrics.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

namespace tutti {
namespace optim {

/// An optimizer around another one of this library: after every k steps the slow weights go a part
/// of the way that the weights have gone, and the weights begin anew from there. Made by
/// `Lookahead<AdamW>{...}.build(groups)`.
///
/// It holds the parameter groups; the other one has them for as long as a step takes.
template <class Inner>
class Lookahead final : public torch::optim::Optimizer,
                        public Stateful,
                        public ReportsMetrics,
                        public FusedStepOptimizer {
  static_assert(!std::derived_from<Inner, KeepsAverages>,
                "tutti: a schedule-free optimizer averages its weights itself; use it without "
                "Lookahead.");

 public:
  /// inner: new, with the groups. k: >= 1. alpha: in (0, 1].
  Lookahead(std::shared_ptr<Inner> inner, std::int64_t k, double alpha)
      : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{}, std::make_unique<NoOptions>()),
        inner_(std::move(inner)),
        k_(k),
        alpha_(alpha) {
    std::swap(param_groups_, inner_->param_groups());
  }

  /// Adds a group, as the other optimizer does.
  void add_param_group(const torch::optim::OptimizerParamGroup& group) {
    const Lent groups(*this);
    inner_->add_param_group(group);
  }

  at::Tensor step(LossClosure closure = nullptr) override {
    remember();
    at::Tensor loss;
    {
      const Lent groups(*this);
      loss = inner_->step(std::move(closure));
    }
    follow();
    return loss;
  }

  /// Averages are left where the weights begin anew after the other one's step.
  void step(const FusedStep& fused) override {
    remember();
    {
      FusedStep own = fused;
      if ((count_ + 1) % k_ == 0) {
        own.averaging = {};
      }
      const Lent groups(*this);
      inner_->step(own);
    }
    follow();
  }

  [[nodiscard]] bool elementwise() const override { return inner_->elementwise(); }
  [[nodiscard]] bool steps_on_shards() const override { return inner_->steps_on_shards(); }
  void take_shards(std::shared_ptr<const Shards> shards) override {
    inner_->take_shards(std::move(shards));
  }
  [[nodiscard]] std::vector<std::int64_t> state_sizes(std::string_view name,
                                                      at::IntArrayRef parameter) const override {
    return inner_->state_sizes(name, parameter);
  }

  /// The slow weights of a parameter; undefined before the first step.
  [[nodiscard]] at::Tensor slow_weights(const at::Tensor& parameter) const {
    const auto found = slow_.find(parameter.unsafeGetTensorImpl());
    return found == slow_.end() ? at::Tensor() : found->second.slow;
  }
  /// The other optimizer's state of a parameter; null before its first step with a gradient.
  const ParameterState* state_of(const at::Tensor& parameter) const {
    return inner_->state_of(parameter);
  }

  std::vector<std::pair<std::string, at::Tensor>> report_per_parameter_metrics(
      const at::Tensor& parameter, const std::string& name) const override {
    const Copied groups(*this);
    return inner_->report_per_parameter_metrics(parameter, name);
  }

  /// Saves what the other one does, `lookahead_step` and for parameter i `param<i>/slow`.
  void save(Archive& archive) const override {
    const Copied groups(*this);
    inner_->save(archive);
    archive.put("lookahead_step", count_);
    each_parameter([&](const at::Tensor& parameter, const std::string& name) {
      if (const at::Tensor slow = slow_weights(parameter); slow.defined()) {
        archive.child(name).put("slow", slow);
      }
    });
  }

  /// torch::save and torch::load know nothing of this state; they throw c10::Error.
  void save(torch::serialize::OutputArchive& archive) const override { inner_->save(archive); }
  void load(torch::serialize::InputArchive& archive) override { inner_->load(archive); }

  void load(const Archive& archive) override {
    TUTTI_CHECK(archive.contains("lookahead_step"),
                "Lookahead: the archive was saved by an optimizer without Lookahead; load it into "
                "that one, or start without its state.");
    {
      const Lent groups(*this);
      inner_->load(archive);
    }
    count_ = archive.get<std::int64_t>("lookahead_step");
    slow_.clear();
    each_parameter([&](const at::Tensor& parameter, const std::string& name) {
      if (archive.contains(name + "/slow")) {
        at::Tensor slow = detail::like(parameter);
        slow.copy_(archive.tensor(name + "/slow"));
        slow_[parameter.unsafeGetTensorImpl()] = {parameter, std::move(slow)};
      }
    });
  }

 private:
  // Groups come from the other optimizer, with options of their own.
  struct NoOptions final : torch::optim::OptimizerOptions {
    [[nodiscard]] std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
      TUTTI_CHECK(false,
                  "Lookahead: torch::optim::Optimizer::add_param_group may lose a group's options; "
                  "call add_param_group of what build() returned.");
    }
  };
  // The parameter is held, so that no later one can take its address and with it its weights.
  struct Slow {
    at::Tensor parameter;
    at::Tensor slow;
  };
  // While it lives, the other optimizer has the groups.
  class Lent {
   public:
    explicit Lent(Lookahead& owner) : owner_(owner) { swap(); }
    ~Lent() { swap(); }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;

   private:
    void swap() { std::swap(owner_.param_groups_, owner_.inner_->param_groups()); }
    Lookahead& owner_;
  };
  // The same with copies, for functions that change nothing.
  class Copied {
   public:
    explicit Copied(const Lookahead& owner) : inner_(*owner.inner_) {
      inner_.param_groups() = std::vector<torch::optim::OptimizerParamGroup>(owner.param_groups_);
    }
    ~Copied() { inner_.param_groups().clear(); }
    Copied(const Copied&) = delete;
    Copied& operator=(const Copied&) = delete;

   private:
    Inner& inner_;
  };

  template <class F>
  void each_parameter(F f) const {
    std::size_t index = 0;
    for (const auto& group : param_groups_) {
      for (const at::Tensor& parameter : group.params()) {
        f(parameter, detail::parameter_name(index++));
      }
    }
  }

  // Slow weights of parameters that have none yet: what they are before their first step.
  void remember() {
    const c10::AutoGradMode no_gradients(false);
    each_parameter([&](const at::Tensor& parameter, const std::string&) {
      Slow& entry = slow_[parameter.unsafeGetTensorImpl()];
      if (!entry.slow.defined() || entry.slow.device() != parameter.device() ||
          entry.slow.scalar_type() != parameter.scalar_type()) {
        at::Tensor fresh = detail::like(parameter);
        fresh.copy_(entry.slow.defined() ? entry.slow : parameter);
        entry = {parameter, std::move(fresh)};
      }
    });
  }

  void follow() {
    if (++count_ % k_ != 0) {
      return;
    }
    const c10::AutoGradMode no_gradients(false);
    detail::List weights;
    detail::List slow;
    std::unordered_map<const void*, Slow> kept;  // without parameters that have left
    each_parameter([&](const at::Tensor& parameter, const std::string&) {
      Slow& entry = slow_[parameter.unsafeGetTensorImpl()];
      weights.push_back(parameter);
      slow.push_back(entry.slow);
      kept[parameter.unsafeGetTensorImpl()] = entry;
    });
    slow_ = std::move(kept);
    if (!weights.empty()) {
      detail::lerp_(slow, weights, alpha_);
      detail::copy_(weights, slow);
    }
  }

  std::shared_ptr<Inner> inner_;
  std::int64_t k_;
  double alpha_;
  std::int64_t count_ = 0;
  std::unordered_map<const void*, Slow> slow_;
};

}  // namespace optim

/// Another optimizer, whose weights are pulled back after every k steps:
///
///     slow += alpha * (p - slow);  p = slow
///
/// `Lookahead<AdamW>{.optimizer = {.lr = 1e-3}, .k = 5}` for one of this library's, but not the
/// schedule-free ones. Its moments stay as they are (pullback_momentum "none" of
/// pytorch_optimizer). Source: Zhang et al., "Lookahead optimizer: k steps forward, 1 step back",
/// NeurIPS 2019.
template <class Hyper>
struct Lookahead {
  Hyper optimizer{};
  std::int64_t k = 5;  ///< >= 1
  double alpha = 0.5;  ///< in (0, 1]

  /// An optimizer over these groups. Throws c10::Error when a number is out of range.
  auto build(std::vector<torch::optim::OptimizerParamGroup> groups) const {
    TUTTI_CHECK(k >= 1, "Lookahead: k is ", k, ", expected 1 step or more.");
    TUTTI_CHECK(alpha > 0.0 && alpha <= 1.0, "Lookahead: alpha is ", alpha,
                ", expected more than 0 and at most 1.");
    auto inner = optimizer.build(std::move(groups));
    using Inner = typename decltype(inner)::element_type;
    return ::tutti::detail::make<optim::Lookahead<Inner>>(std::move(inner), k, alpha);
  }
  /// An optimizer over one group of these parameters.
  auto build(std::vector<at::Tensor> parameters) const {
    return build({optim::group(std::move(parameters), optimizer)});
  }
};

}  // namespace tutti
