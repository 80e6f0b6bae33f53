// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes the algorithms of runs.cpp from the keyword arguments of the reference's.

#include <stdexcept>
#include <string>
#include <string_view>

#include <tutti/algorithms/alibi.hpp>
#include <tutti/algorithms/gated_linear_units.hpp>
#include <tutti/algorithms/gyro_dropout.hpp>
#include <tutti/algorithms/layer_freezing.hpp>
#include <tutti/algorithms/seq_length_warmup.hpp>
#include <tutti/algorithms/swa.hpp>

#include "golden/arguments.hpp"
#include "golden/runner.hpp"
#include "models/language.hpp"

namespace golden {

/// The learning rate that the reference's SWA goes to is always that of its start.
inline tutti::SWA make_swa(const Json& args) {
  const Arguments a(args, "SWA");
  tutti::SWA options;
  options.swa_start = time_of(a, "swa_start", options.swa_start);
  options.swa_end = time_of(a, "swa_end", options.swa_end);
  options.update_interval = time_of(a, "update_interval", options.update_interval);
  options.schedule_swa_lr = a.flag("schedule_swa_lr", options.schedule_swa_lr);
  options.anneal_steps = a.integer("anneal_steps", options.anneal_steps);
  const std::string strategy = lower_case(a.text("anneal_strategy", "linear"));
  if (strategy != "cos" && strategy != "cosine" && strategy != "lin" && strategy != "linear") {
    throw std::invalid_argument("SWA: no annealing is called " + strategy);
  }
  options.anneal_strategy =
      strategy.starts_with("cos") ? tutti::Anneal::cosine : tutti::Anneal::linear;
  a.number("swa_lr", 0);
  a.done();
  return options;
}

/// A policy that counts parts of a run in whole epochs, as the reference does.
template <class P>
struct Epochwise final {
  static constexpr std::string_view name = P::name;
  P policy{};

  void validate() const { policy.validate(); }
  template <class E>
    requires tutti::Matches<P, E>
  bool match(E event, const tutti::State& state) const {
    const Hidden hidden(state);
    return policy.match(event, state);
  }
  template <class E>
    requires tutti::Handles<P, E>
  void apply(E event, tutti::State& state) {
    const Hidden hidden(state);
    policy.apply(event, state);
  }
  void close(tutti::State& state) {
    if constexpr (requires { policy.close(state); }) {
      policy.close(state);
    }
  }

 private:
  // The length of an epoch, which makes parts of a run exact, is unknown while this lives.
  struct Hidden {
    explicit Hidden(const tutti::State& of)
        : state(const_cast<tutti::State&>(of)), length(state.train_dataloader_len) {
      state.train_dataloader_len = -1;
    }
    ~Hidden() { state.train_dataloader_len = length; }
    Hidden(const Hidden&) = delete;
    Hidden& operator=(const Hidden&) = delete;
    tutti::State& state;
    std::int64_t length;
  };
};

/// Statistics of frozen layers go on moving, as in the reference.
inline tutti::LayerFreezing make_layer_freezing(const Json& args) {
  const Arguments a(args, "LayerFreezing");
  tutti::LayerFreezing options;
  options.freeze_start = a.number("freeze_start", options.freeze_start);
  options.freeze_level = a.number("freeze_level", options.freeze_level);
  options.freeze_statistics = false;
  a.done();
  return options;
}

inline tutti::GyroDropout make_gyro_dropout(const Json& args) {
  const Arguments a(args, "GyroDropout");
  tutti::GyroDropout options;
  options.p = a.number("p", options.p);
  options.sigma = a.integer("sigma", options.sigma);
  options.tau = a.integer("tau", options.tau);
  options.if_none = tutti::surgery::IfNone::ignore;
  a.done();
  return options;
}

inline tutti::SeqLengthWarmup make_seq_length_warmup(const Json& args) {
  const Arguments a(args, "SeqLengthWarmup");
  tutti::SeqLengthWarmup options;
  options.duration = a.number("duration", options.duration);
  options.min_seq_length = a.integer("min_seq_length", options.min_seq_length);
  options.max_seq_length = a.integer("max_seq_length", options.max_seq_length);
  options.step_size = a.integer("step_size", options.step_size);
  options.truncate = a.flag("truncate", options.truncate);
  options.preserve_end_of_sequence =
      a.flag("preserve_end_of_sequence", options.preserve_end_of_sequence);
  a.done();
  return options;
}

inline tutti::ALiBi make_alibi(const Json& args) {
  const Arguments a(args, "Alibi");
  tutti::ALiBi options;
  options.max_sequence_length = a.integer("max_sequence_length", options.max_sequence_length);
  options.train_sequence_length_scaling =
      a.number("train_sequence_length_scaling", options.train_sequence_length_scaling);
  a.done();
  return options;
}

inline tutti::nn::Activation activation_of(const std::string& name) {
  const auto found = tutti::nn::activation_named(name);
  if (!found) {
    throw Skipped("needs the activation " + name);
  }
  return *found;
}

inline tutti::GatedLinearUnits make_gated_linear_units(const Json& args) {
  const Arguments a(args, "GatedLinearUnits");
  tutti::GatedLinearUnits options;
  if (a.has("act_fn")) {
    options.act_fn = activation_of(a.text("act_fn", ""));
  }
  options.gated_layer_bias = a.flag("gated_layer_bias", options.gated_layer_bias);
  options.non_gated_layer_bias = a.flag("non_gated_layer_bias", options.non_gated_layer_bias);
  a.done();
  return options;
}

}  // namespace golden
