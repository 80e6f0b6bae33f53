// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/algorithms/sam.hpp>
#include <tutti/core/trace.hpp>
#include <tutti/trainer.hpp>

#include "golden/draws.hpp"
#include "golden/runner.hpp"
#include "golden/slots.hpp"
#include "nn/golden_model.hpp"

// Runs of the whole trainer with the algorithms that a case lists.
namespace golden {

/// Hands the optimizer's step to the SAM among the algorithms, if there is one.
struct Stepper final {
  static constexpr tutti::Role role = tutti::Role::callback;
  tutti::SAM* sam = nullptr;

  void apply(tutti::FitEnd, tutti::State&) const {}
  template <class Closure, class Update>
  void step(tutti::State& state, Closure&& closure, Update&& update) {
    if (sam != nullptr) {
      sam->step(state, closure, update);
    } else if (closure(true)) {
      update();
    }
  }
};

/// What the reference's runs report, batch by batch and epoch by epoch.
struct Watch final {
  std::vector<double> losses{};
  std::vector<double> learning_rates{};
  std::vector<double> eval_values{};  // cross entropy and accuracy in turn

  void apply(tutti::BatchStart, const tutti::State& state) {
    learning_rates.push_back(state.optimizers[0]->param_groups()[0].options().get_lr());
  }
  void apply(tutti::BatchEnd, const tutti::State& state) {
    losses.push_back(state.total_loss.at("total").item<double>());
  }
  void apply(tutti::EvalEnd, const tutti::State& state) {
    const auto& values = state.eval_metric_values.at("eval");
    if (values.contains("CrossEntropy")) {
      eval_values.push_back(values.at("CrossEntropy"));
      eval_values.push_back(values.at("MulticlassAccuracy"));
    }
  }
};

namespace detail {

template <class Slots>
struct TrainerWith;
template <std::size_t... I>
struct TrainerWith<std::index_sequence<I...>> {
  using type = tutti::Trainer<tutti::reference_order, Slot<I>..., Stepper, Watch, tutti::Trace>;
};

}  // namespace detail

/// The trainer of a recipe that is listed while the program runs.
using Trainer = detail::TrainerWith<std::make_index_sequence<slot_count>>::type;

/// With the algorithms in its slots.
std::unique_ptr<Trainer> make_trainer(tutti::AnyModel model, tutti::TrainerOptions options,
                                      const Algorithms& algorithms);

// What the trainer does, compiled in one file.
void fit(Trainer& trainer);
void eval(Trainer& trainer);
void predict(Trainer& trainer, std::vector<tutti::Batch> data);

/// The net as a model without training metrics.
tutti::AnyModel classifier(const tutti::nn::Sequential& net, std::int64_t classes);

}  // namespace golden
