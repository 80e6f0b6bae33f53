// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/make.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/metric.hpp>
#include <tutti/fwd.hpp>

namespace tutti {

/// `M` can be trained: `m.forward(batch)` gives Outputs, `m.loss(outputs, batch)` gives a Loss.
///
/// Optional: `module()` (the torch::nn::Module that holds the parameters; default: M itself),
/// `eval_forward(batch)`, `metrics(bool train)` (tutti::Metrics),
/// `update_metric(batch, outputs, metric)`, `flops_per_batch(batch)`, `sample_losses(outputs,
/// batch)` (a loss for each example, [N, ...]; with `bool has_sample_losses()` where that depends),
/// `bool has_cross_entropy()` (loss is functional::soft_cross_entropy of outputs and targets),
/// `forward_and_loss(batch)` (an optional pair of Outputs, which need no gradients, and Loss: both
/// at once in training, where that is cheaper; empty: not for this batch). The loop calls it where
/// no policy acts between forward and backward.
///
/// Where several optimizers take turns (TrainerOptions::optimizers), a last parameter
/// `std::string_view due` of forward and loss, each as the model likes, has the name of the one
/// that is due; it is empty in an evaluation.
template <class M>
concept Model = (
                    requires(M & model, const Batch& batch) {
                      { model.forward(batch) } -> std::convertible_to<Outputs>;
                    } ||
                    requires(M & model, const Batch& batch, std::string_view due) {
                      { model.forward(batch, due) } -> std::convertible_to<Outputs>;
                    }) &&
                (
                    requires(M & model, const Batch& batch, const Outputs& outputs) {
                      { model.loss(outputs, batch) } -> std::convertible_to<Loss>;
                    } ||
                    requires(M & model, const Batch& batch, const Outputs& outputs,
                             std::string_view due) {
                      { model.loss(outputs, batch, due) } -> std::convertible_to<Loss>;
                    });

/// `M` names the module that holds its parameters: `model.module()`.
template <class M>
concept GivesModule = requires(M& model) {
  { model.module() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
};

namespace detail {
template <class M>
inline constexpr bool has_module = GivesModule<M> || std::is_convertible_v<M*, torch::nn::Module*>;

// `M` has a function of that name which the loop cannot call, and so would pass over.
template <class M>
concept MisfitMetrics = requires {
  requires std::is_member_function_pointer_v<decltype(&M::metrics)>;
} && !requires(M& model, bool train) {
  { model.metrics(train) } -> std::convertible_to<Metrics>;
};
template <class M>
concept MisfitUpdateMetric = requires {
  requires std::is_member_function_pointer_v<decltype(&M::update_metric)>;
} && !requires(M& model, const Batch& batch, const Outputs& outputs, Metric& metric) {
  model.update_metric(batch, outputs, metric);
};
template <class M>
concept MisfitEvalForward = requires {
  requires std::is_member_function_pointer_v<decltype(&M::eval_forward)>;
} && !requires(M& model, const Batch& batch) { Outputs(model.eval_forward(batch)); };
template <class M>
concept MisfitSampleLosses = requires {
  requires std::is_member_function_pointer_v<decltype(&M::sample_losses)>;
} && !requires(M& model, const Outputs& outputs, const Batch& batch) {
  at::Tensor(model.sample_losses(outputs, batch));
};
}  // namespace detail

/// Any Model behind one type; copies share the model. What the loop and the policies call.
class AnyModel {
 public:
  AnyModel() = default;

  /// Wraps a model; a shared_ptr to one is shared, and a null one is no model.
  template <Model M>
  AnyModel(M model)  // NOLINT: converts by design
      : AnyModel(detail::make<M>(std::move(model))) {}
  template <Model M>
  AnyModel(std::shared_ptr<M> model)  // NOLINT: converts by design
      : self_(model ? detail::make<Holder<M>>(std::move(model)) : nullptr) {
    static_assert(detail::has_module<M>,
                  "tutti: this model holds no parameters that the trainer can find; derive it "
                  "from torch::nn::Module or give it std::shared_ptr<torch::nn::Module> "
                  "module().");
    static_assert(!detail::MisfitMetrics<M>,
                  "tutti: the model's metrics() cannot be called with a bool, or returns no "
                  "tutti::Metrics, so it would never be asked; write tutti::Metrics metrics(bool "
                  "train) const, or give it another name.");
    static_assert(!detail::MisfitUpdateMetric<M>,
                  "tutti: the model's update_metric() cannot be called as the loop does, so it "
                  "would never be; write void update_metric(const tutti::Batch&, const "
                  "tutti::Outputs&, tutti::Metric&), or give it another name.");
    static_assert(
        !detail::MisfitEvalForward<M>,
        "tutti: the model's eval_forward() cannot be called as the loop does, so it would "
        "never be; write tutti::Outputs eval_forward(const tutti::Batch&), or give it "
        "another name.");
    static_assert(!detail::MisfitSampleLosses<M>,
                  "tutti: the model's sample_losses() cannot be called as the loop does, so it "
                  "would never be; write at::Tensor sample_losses(const tutti::Outputs&, const "
                  "tutti::Batch&), or give it another name.");
  }

  /// There is a model.
  explicit operator bool() const { return self_ != nullptr; }

  /// The outputs for a batch, with gradients in training.
  [[nodiscard]] Outputs forward(const Batch& batch) const { return self_->forward(batch); }

  /// The outputs for a batch in evaluation; forward() unless the model says otherwise.
  [[nodiscard]] Outputs eval_forward(const Batch& batch) const {
    return self_->eval_forward(batch);
  }

  /// The loss of these outputs.
  [[nodiscard]] Loss loss(const Outputs& outputs, const Batch& batch) const {
    return self_->loss(outputs, batch);
  }

  /// Outputs without gradients and the loss in one; empty: this model or batch takes two calls.
  [[nodiscard]] std::optional<std::pair<Outputs, Loss>> forward_and_loss(const Batch& batch) const {
    return self_->forward_and_loss(batch);
  }

  /// Tells the model whose turn it is: see Model. due: has to live until the next call.
  void set_due(std::string_view due) const { self_->due = due; }

  /// The module that holds the parameters.
  [[nodiscard]] std::shared_ptr<torch::nn::Module> module() const { return self_->module(); }

  /// The metrics that the model brings for training or evaluation.
  [[nodiscard]] Metrics metrics(bool train) const { return self_->metrics(train); }

  /// Lets a metric see one batch: its outputs against the batch's targets unless the model says
  /// otherwise.
  void update_metric(const Batch& batch, const Outputs& outputs, Metric& metric) const {
    self_->update_metric(batch, outputs, metric);
  }

  /// The model has an update_metric() of its own.
  [[nodiscard]] bool has_update_metric() const { return self_->has_update_metric(); }

  /// The model says that its loss is functional::soft_cross_entropy(outputs.tensor(),
  /// batch.targets()).
  [[nodiscard]] bool has_cross_entropy() const { return self_->has_cross_entropy(); }

  /// The model says how much it computes: it has flops_per_batch(batch).
  [[nodiscard]] bool has_flops_per_batch() const { return self_ && self_->has_flops_per_batch(); }

  /// Floating-point operations of one forward and backward pass; 0 when the model does not say.
  [[nodiscard]] double flops_per_batch(const Batch& batch) const {
    return self_->flops_per_batch(batch);
  }

  /// The model gives a loss for each example.
  [[nodiscard]] bool has_sample_losses() const { return self_->has_sample_losses(); }

  /// The losses of each example, [N, ...]. Throws c10::Error when the model does not give them.
  [[nodiscard]] at::Tensor sample_losses(const Outputs& outputs, const Batch& batch) const {
    return self_->sample_losses(outputs, batch);
  }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual Outputs forward(const Batch&) = 0;
    virtual Outputs eval_forward(const Batch&) = 0;
    virtual Loss loss(const Outputs&, const Batch&) = 0;
    virtual std::optional<std::pair<Outputs, Loss>> forward_and_loss(const Batch&) = 0;
    virtual std::shared_ptr<torch::nn::Module> module() = 0;
    virtual Metrics metrics(bool) = 0;
    virtual void update_metric(const Batch&, const Outputs&, Metric&) = 0;
    virtual bool has_update_metric() = 0;
    virtual bool has_cross_entropy() = 0;
    virtual bool has_flops_per_batch() = 0;
    virtual double flops_per_batch(const Batch&) = 0;
    virtual bool has_sample_losses() = 0;
    virtual at::Tensor sample_losses(const Outputs&, const Batch&) = 0;

    std::string_view due{};  // the optimizer; empty: there is one, or it is an evaluation
  };

  template <class M>
  struct Holder final : Interface {
    explicit Holder(std::shared_ptr<M> m) : model(std::move(m)) {}

    Outputs forward(const Batch& batch) override {
      if constexpr (requires { model->forward(batch, this->due); }) {
        return model->forward(batch, this->due);
      } else {
        return model->forward(batch);
      }
    }
    Outputs eval_forward(const Batch& batch) override {
      if constexpr (requires { model->eval_forward(batch); }) {
        return model->eval_forward(batch);
      } else {
        return forward(batch);
      }
    }
    Loss loss(const Outputs& outputs, const Batch& batch) override {
      if constexpr (requires { model->loss(outputs, batch, this->due); }) {
        return model->loss(outputs, batch, this->due);
      } else {
        return model->loss(outputs, batch);
      }
    }
    std::optional<std::pair<Outputs, Loss>> forward_and_loss(const Batch& batch) override {
      if constexpr (requires { model->forward_and_loss(batch); }) {
        return model->forward_and_loss(batch);
      } else {
        return std::nullopt;
      }
    }
    std::shared_ptr<torch::nn::Module> module() override {
      if constexpr (GivesModule<M>) {
        return model->module();
      } else if constexpr (std::is_convertible_v<M*, torch::nn::Module*>) {
        return model;
      } else {
        return nullptr;  // the constructor has refused it
      }
    }
    Metrics metrics(bool train) override {
      if constexpr (requires { model->metrics(train); }) {
        return model->metrics(train);
      } else {
        return {};
      }
    }
    void update_metric(const Batch& batch, const Outputs& outputs, Metric& metric) override {
      if constexpr (requires { model->update_metric(batch, outputs, metric); }) {
        model->update_metric(batch, outputs, metric);
      } else {
        metric.update(outputs.tensor(), batch.targets());
      }
    }
    bool has_update_metric() override {
      return requires(M& m, const Batch& batch, const Outputs& outputs, Metric& metric) {
        m.update_metric(batch, outputs, metric);
      };
    }
    bool has_cross_entropy() override {
      if constexpr (requires { model->has_cross_entropy(); }) {
        return model->has_cross_entropy();
      } else {
        return false;
      }
    }
    bool has_flops_per_batch() override {
      return requires(M& m, const Batch& batch) { m.flops_per_batch(batch); };
    }
    double flops_per_batch(const Batch& batch) override {
      if constexpr (requires { model->flops_per_batch(batch); }) {
        return static_cast<double>(model->flops_per_batch(batch));
      } else {
        return 0;
      }
    }

    bool has_sample_losses() override {
      if constexpr (requires { model->has_sample_losses(); }) {
        return model->has_sample_losses();
      } else {
        return requires(M& m, const Outputs& outputs, const Batch& batch) {
          m.sample_losses(outputs, batch);
        };
      }
    }
    at::Tensor sample_losses(const Outputs& outputs, const Batch& batch) override {
      if constexpr (requires { model->sample_losses(outputs, batch); }) {
        return model->sample_losses(outputs, batch);
      } else {
        TUTTI_CHECK(false,
                    "the model has no sample_losses(outputs, batch), a loss for each example");
      }
    }

    std::shared_ptr<M> model;
  };

  std::shared_ptr<Interface> self_;
};

}  // namespace tutti
