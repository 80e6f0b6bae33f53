// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <tutti/algorithms/detail/averages.hpp>
#include <tutti/algorithms/detail/exchange.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/time.hpp>
#include <tutti/optim/fused_step.hpp>

/// The functional forms of EMA; include <tutti/algorithms/ema.hpp>.
namespace tutti {

namespace functional {

/// A second set of a model's weights, to be averaged over training and exchanged with the model's.
///
/// It holds the parameters that require a gradient and all buffers, under their names; tied tensors
/// once. It keeps handles on the model's tensors; after layers were replaced call link().
class EMAParameters {
 public:
  /// Nothing yet.
  EMAParameters() = default;

  /// Copies of the model's present weights. exclude_buffers: buffers are copied in every update,
  /// not averaged. sharding: of the model; set, its shards stand for the parameters.
  explicit EMAParameters(const torch::nn::Module& model, bool exclude_buffers = false,
                         const dist::Sharding* sharding = nullptr);

  /// Copies of saved tensors, on the device of the model's of the same names.
  /// Throws c10::Error when the model lacks one or has it in another shape.
  EMAParameters(const torch::nn::Module& model,
                const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                bool exclude_buffers = false);

  /// Looks the model's tensors up anew. sharding: as above.
  /// Throws c10::Error when one that is stored here is gone or has another shape.
  void link(const torch::nn::Module& model, const dist::Sharding* sharding = nullptr);

  /// Keeps this rank's parts of what is stored: the model has been sharded. Linked to the shards.
  void cut(const torch::nn::Module& model, const dist::Sharding& sharding);

  /// stored = smoothing * stored + (1 - smoothing) * model for floating tensors; others are copied.
  ///
  /// smoothing: in [0, 1]. average_integers: average the others too, truncated.
  /// Throws c10::Error (ValueError) when smoothing is out of range.
  void update(double smoothing, bool average_integers = false) const {
    TUTTI_CHECK_VALUE(smoothing >= 0 && smoothing <= 1, "EMA: smoothing is ", smoothing,
                      ", expected a number from 0 to 1");
    lists_.update(smoothing, average_integers);
  }

  /// Lets an optimizer's step update what it can on its way; finish_update(), with the same
  /// smoothing, has to follow.
  void join(optim::FusedStep& fused, double smoothing);

  /// What of update() the step after join() has left; all of it where there was no join().
  void finish_update(double smoothing, bool average_integers = false);

  /// Exchanges what is stored with what the model has. Costs no copying as a rule: memory changes
  /// hands.
  void swap() const {
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      ::tutti::detail::exchange(stored_[i], weights_[i]);
    }
  }

  /// Copies what is stored into the tensors of these names in another model of the kind.
  /// Throws c10::Error when it lacks one or has it in another shape.
  void copy_to(torch::nn::Module& model) const;

  [[nodiscard]] std::size_t size() const { return names_.size(); }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] const std::vector<at::Tensor>& stored() const { return stored_; }
  [[nodiscard]] const std::vector<at::Tensor>& weights() const { return weights_; }

 private:
  std::vector<std::string> names_;
  std::vector<at::Tensor> stored_;
  std::vector<at::Tensor> weights_;  // the model's own tensors
  ::tutti::detail::AverageLists lists_;

  static std::uint64_t next_version() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
  // Which tensors are only copied, as the model is now.
  void note_copied(const torch::nn::Module& model);
  // What the optimizer has not done.
  const ::tutti::detail::AverageLists& rest();

  bool exclude_buffers_ = false;
  std::vector<char> copied_;   // as many as names_
  std::uint64_t version_ = 0;  // of the tensors in the lists
  bool joined_ = false;        // done_ says what the optimizer has updated
  std::vector<char> done_;
  ::tutti::detail::AverageLists rest_;
  std::vector<char> rest_known_;  // done_ when rest_ was made
};

/// One update of averages: `e = smoothing * e + (1 - smoothing) * w` for every tensor of ema_model.
///
/// smoothing: in [0, 1]. average_integers: tensors that are not floating are averaged as well and
/// truncated; else they are copied.
/// Throws c10::Error (ValueError) when smoothing is out of range, c10::Error when the model lacks a
/// tensor that is averaged.
/// Source: MosaicML Composer, `composer.algorithms.ema.compute_ema`.
void compute_ema(const torch::nn::Module& model, EMAParameters& ema_model, double smoothing = 0.99,
                 bool average_integers = false);

/// The same with the averages in a module of their own, for the parameters and buffers that have a
/// name in both.
void compute_ema(const torch::nn::Module& model, torch::nn::Module& ema_model,
                 double smoothing = 0.99, bool average_integers = false);

/// The smoothing by which what is half_life old counts half, 2^(-update_interval / half_life).
/// Throws c10::Error (ValueError) unless both have one unit and half_life is above 0.
double ema_smoothing(Time half_life, Time update_interval);

/// The smoothing `step` steps after averaging began, which rises from 0 to `decay`:
/// `1 - (1 + step / gamma)^(-power)`, not below min_decay nor above decay; 0 at step 0.
///
/// Throws c10::Error (ValueError) unless gamma and power are above 0.
/// Source: timm, `ModelEmaV3.get_decay`.
double ema_warmup(std::int64_t step, double decay, double min_decay = 0, double gamma = 1,
                  double power = 2.0 / 3.0);

}  // namespace functional
}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::functional {

TUTTI_INLINE EMAParameters::EMAParameters(const torch::nn::Module& model, bool exclude_buffers,
                                          const dist::Sharding* sharding)
    : exclude_buffers_(exclude_buffers) {
  for (auto& [name, weight] : ::tutti::detail::weights_of(model, /*trainable=*/true, sharding)) {
    names_.push_back(name);
    stored_.push_back(weight.detach().clone());
    weights_.push_back(weight);
  }
  note_copied(model);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    lists_.add(stored_[i], weights_[i], copied_[i] != 0);
  }
  version_ = next_version();
}

TUTTI_INLINE void EMAParameters::note_copied(const torch::nn::Module& model) {
  copied_.assign(names_.size(), 0);
  if (!exclude_buffers_) {
    return;
  }
  const auto buffers = model.named_buffers();
  for (std::size_t i = 0; i < names_.size(); ++i) {
    copied_[i] = buffers.contains(names_[i]) ? 1 : 0;
  }
}

TUTTI_INLINE EMAParameters::EMAParameters(
    const torch::nn::Module& model, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
    bool exclude_buffers)
    : exclude_buffers_(exclude_buffers) {
  for (const auto& [name, tensor] : tensors) {
    names_.push_back(name);
    stored_.push_back(tensor);
  }
  weights_.resize(names_.size());
  link(model);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    at::Tensor stored = weights_[i].detach().clone();
    stored_[i] = stored.copy_(stored_[i]);
  }
  link(model);
}

TUTTI_INLINE void EMAParameters::cut(const torch::nn::Module& model,
                                     const dist::Sharding& sharding) {
  const auto now = ::tutti::detail::tensors_by_name(model);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (const auto found = now.find(names_[i]); found != now.end()) {
      stored_[i] = ::tutti::detail::part_of(sharding, found->second, stored_[i]);
    }
  }
  link(model, &sharding);
}

TUTTI_INLINE void EMAParameters::link(const torch::nn::Module& model,
                                      const dist::Sharding* sharding) {
  const auto now = ::tutti::detail::tensors_by_name(model, sharding);
  lists_ = {};
  note_copied(model);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const auto found = now.find(names_[i]);
    TUTTI_CHECK(found != now.end(), "EMA: the model has no tensor \"", names_[i], "\", ",
                "of which there is an average; replace layers before averaging starts, and "
                "resume with the same model");
    TUTTI_CHECK(found->second.sizes() == stored_[i].sizes(), "EMA: \"", names_[i], "\" is ",
                found->second.sizes(), " in the model, expected ", stored_[i].sizes(),
                " as its average is; replace layers before averaging starts");
    weights_[i] = found->second;
    lists_.add(stored_[i], weights_[i], copied_[i] != 0);
  }
  version_ = next_version();
  done_.clear();
  rest_known_.clear();
}

TUTTI_INLINE void EMAParameters::join(optim::FusedStep& fused, double smoothing) {
  if (smoothing < 0.5) {
    return;  // rounds otherwise there
  }
  done_.assign(names_.size(), 0);
  joined_ = true;
  fused.averaging = {.averages = &stored_,
                     .weights = &weights_,
                     .version = version_,
                     .smoothing = smoothing,
                     .done = &done_};
}

TUTTI_INLINE void EMAParameters::finish_update(double smoothing, bool average_integers) {
  if (joined_) {
    rest().update(smoothing, average_integers);
    done_.assign(done_.size(), 0);
    joined_ = false;
  } else {
    update(smoothing, average_integers);
  }
}

TUTTI_INLINE void EMAParameters::copy_to(torch::nn::Module& model) const {
  EMAParameters other = *this;
  other.link(model);
  const c10::AutoGradMode no_grad(false);
  for (std::size_t i = 0; i < stored_.size(); ++i) {
    other.weights_[i].copy_(stored_[i]);
  }
}

TUTTI_INLINE const ::tutti::detail::AverageLists& EMAParameters::rest() {
  if (rest_known_ != done_) {
    rest_known_ = done_;
    rest_ = {};
    for (std::size_t i = 0; i < done_.size(); ++i) {
      if (done_[i] == 0) {
        rest_.add(stored_[i], weights_[i], copied_[i] != 0);
      }
    }
  }
  return rest_;
}

TUTTI_INLINE void compute_ema(const torch::nn::Module& model, EMAParameters& ema_model,
                              double smoothing, bool average_integers) {
  ema_model.link(model);
  ema_model.update(smoothing, average_integers);
}

TUTTI_INLINE void compute_ema(const torch::nn::Module& model, torch::nn::Module& ema_model,
                              double smoothing, bool average_integers) {
  TUTTI_CHECK_VALUE(smoothing >= 0 && smoothing <= 1, "EMA: smoothing is ", smoothing,
                    ", expected a number from 0 to 1");
  const auto weights = ::tutti::detail::tensors_by_name(model);
  ::tutti::detail::AverageLists lists;
  for (auto& [name, average] : ::tutti::detail::weights_of(ema_model, /*trainable=*/false)) {
    if (const auto found = weights.find(name); found != weights.end()) {
      lists.add(average.detach(), found->second);
    }
  }
  lists.update(smoothing, average_integers);
}

TUTTI_INLINE double ema_smoothing(Time half_life, Time update_interval) {
  TUTTI_CHECK_VALUE(half_life.unit() == update_interval.unit(), "EMA: half_life is ",
                    to_string(half_life), " and update_interval ", to_string(update_interval),
                    ", expected both in ba or both in ep");
  TUTTI_CHECK_VALUE(half_life.value() > 0, "EMA: half_life is ", to_string(half_life),
                    ", expected more than 0");
  return std::exp2(-update_interval.value() / half_life.value());
}

TUTTI_INLINE double ema_warmup(std::int64_t step, double decay, double min_decay, double gamma,
                               double power) {
  TUTTI_CHECK_VALUE(gamma > 0 && power > 0, "EMA: warmup_gamma is ", gamma, " and warmup_power ",
                    power, ", expected more than 0");
  if (step <= 0) {
    return 0;
  }
  const double risen = 1 - std::pow(1 + static_cast<double>(step) / gamma, -power);
  return std::max(std::min(risen, decay), min_decay);
}

}  // namespace tutti::functional

#endif
