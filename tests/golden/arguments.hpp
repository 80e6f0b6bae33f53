// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns the names and keyword arguments of the reference's objects into tutti's.

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <string>

#include <tutti/core/batch.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/optim/sgd.hpp>

#include "golden/runner.hpp"

namespace golden {

/// The time of that name, written as a string, or as a number of epochs.
inline tutti::Time time_of(const Arguments& a, const std::string& key, tutti::Time otherwise) {
  if (!a.has(key)) {
    return otherwise;
  }
  const Json& value = a.json(key);
  return value.is_string() ? tutti::Time::parse(value.string()) : tutti::Time(value.integer());
}

inline tutti::TimeList times_of(const Arguments& a, const std::string& key) {
  tutti::TimeList out;
  for (const Json& value : a.json(key).array()) {
    out.push_back(value.is_string() ? tutti::Time::parse(value.string())
                                    : tutti::Time(value.integer()));
  }
  return out;
}

/// The value of that name among those that tutti has. Another name does not compile here; the
/// reference raises.
template <class E>
E one_of(const Arguments& a, const std::string& key, const std::string& otherwise,
         const std::map<std::string, E>& known) {
  const std::string name = a.text(key, otherwise);
  const auto found = known.find(name);
  if (found == known.end()) {
    throw std::invalid_argument(a.what() + ": " + key + " is " + name);
  }
  return found->second;
}

/// Which tensor of the batch `key` names: a name, or the place `usual` in a pair, which is what
/// tutti takes by itself.
inline tutti::Key key_of(const Arguments& a, const std::string& key, std::int64_t usual) {
  if (a.has(key) && a.json(key).is_string()) {
    return tutti::Key(a.text(key, ""));
  }
  a.only(key, usual);
  return {};
}

/// What else PyTorch's optimizers take: how the step is computed, which changes no number.
inline void read_details(const Arguments& a) {
  for (const char* how : {"foreach", "fused", "capturable", "differentiable"}) {
    a.flag(how, false);
  }
}

/// Refuses a case that has other parameters than these, which its handler reads one by one.
inline void expect_keys(const Case& c, std::initializer_list<const char*> keys) {
  const Arguments a(c.params, c.function);
  for (const char* key : keys) {
    a.has(key);
  }
  a.done();
}

namespace detail {

inline tutti::Schedule plain_schedule(const std::string& name, const Arguments& a) {
  if (name == "StepScheduler") {
    return tutti::Step{time_of(a, "step_size", {}), a.number("gamma", 0.1)};
  }
  if (name == "MultiStepScheduler") {
    return tutti::MultiStep{times_of(a, "milestones"), a.number("gamma", 0.1)};
  }
  if (name == "ConstantScheduler") {
    return tutti::Constant{a.number("alpha", 1.0), time_of(a, "t_max", "1dur")};
  }
  if (name == "LinearScheduler") {
    return tutti::Linear{a.number("alpha_i", 1.0), a.number("alpha_f", 0.0),
                         time_of(a, "t_max", "1dur")};
  }
  if (name == "ExponentialScheduler") {
    return tutti::Exponential{a.number("gamma", 0.0), time_of(a, "decay_period", "1ep")};
  }
  if (name == "CosineAnnealingScheduler") {
    return tutti::CosineAnnealing{time_of(a, "t_max", "1dur"), a.number("alpha_f", 0.0)};
  }
  if (name == "CosineAnnealingWarmRestartsScheduler") {
    return tutti::CosineAnnealingWarmRestarts{time_of(a, "t_0", {}), a.number("t_mult", 1.0),
                                              a.number("alpha_f", 0.0)};
  }
  if (name == "PolynomialScheduler") {
    return tutti::Polynomial{a.number("power", 0.0), time_of(a, "t_max", "1dur"),
                             a.number("alpha_f", 0.0)};
  }
  throw Unknown("no schedule is called " + name);
}

inline tutti::Schedule warmup_schedule(const std::string& name, const Arguments& a) {
  const tutti::Time t_warmup = time_of(a, "t_warmup", {});
  const bool scale_warmup = a.flag("scale_warmup", false);
  if (name == "MultiStepWithWarmupScheduler") {
    return tutti::MultiStepWithWarmup{t_warmup, times_of(a, "milestones"), a.number("gamma", 0.1),
                                      scale_warmup};
  }
  const tutti::Time t_max = time_of(a, "t_max", "1dur");
  if (name == "ConstantWithWarmupScheduler") {
    return tutti::ConstantWithWarmup{t_warmup, a.number("alpha", 1.0), t_max, scale_warmup};
  }
  const double alpha_f = a.number("alpha_f", 0.0);
  if (name == "LinearWithWarmupScheduler") {
    return tutti::LinearWithWarmup{t_warmup, a.number("alpha_i", 1.0), alpha_f, t_max,
                                   scale_warmup};
  }
  if (name == "CosineAnnealingWithWarmupScheduler") {
    return tutti::CosineAnnealingWithWarmup{t_warmup, t_max, alpha_f, scale_warmup};
  }
  if (name == "PolynomialWithWarmupScheduler") {
    return tutti::PolynomialWithWarmup{t_warmup, a.number("power", 2.0), t_max, alpha_f,
                                       scale_warmup};
  }
  throw Unknown("no schedule is called " + name);
}

}  // namespace detail

/// The schedule of that class of the reference.
inline tutti::Schedule make_schedule(const std::string& name, const Json& args) {
  const Arguments a(args, name);
  const auto schedule = name.find("Warmup") == std::string::npos ? detail::plain_schedule(name, a)
                                                                 : detail::warmup_schedule(name, a);
  a.done();
  return schedule;
}

/// Names are in either case where the reference says so.
inline std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// DecoupledSGDW, and PyTorch's SGD.
template <class Hyper>
Hyper sgd_of(const Json& args, const std::string& name) {
  const Arguments a(args, name);
  Hyper h;
  h.lr = a.number("lr", name == "SGD" ? 1e-3 : std::nan(""));
  h.momentum = a.number("momentum", h.momentum);
  h.dampening = a.number("dampening", h.dampening);
  h.weight_decay = a.number("weight_decay", h.weight_decay);
  h.nesterov = a.flag("nesterov", h.nesterov);
  if constexpr (requires { h.maximize; }) {
    h.maximize = a.flag("maximize", h.maximize);
  }
  read_details(a);
  a.done();
  return h;
}

inline tutti::DecoupledSGDW decoupled_sgdw(const Json& args) {
  return sgd_of<tutti::DecoupledSGDW>(args, "DecoupledSGDW");
}

/// DecoupledAdamW, and PyTorch's Adam and AdamW.
template <class Hyper>
Hyper adam_of(const Json& args, const std::string& name) {
  const Arguments a(args, name);
  Hyper h;
  h.lr = a.number("lr", h.lr);
  if (a.has("betas")) {
    h.betas = {a.json("betas")[0].number(), a.json("betas")[1].number()};
  }
  h.eps = a.number("eps", h.eps);
  h.weight_decay = a.number("weight_decay", h.weight_decay);
  h.amsgrad = a.flag("amsgrad", h.amsgrad);
  if constexpr (requires { h.maximize; }) {
    h.maximize = a.flag("maximize", h.maximize);
  }
  read_details(a);
  a.done();
  return h;
}

inline tutti::DecoupledAdamW decoupled_adamw(const Json& args) {
  return adam_of<tutti::DecoupledAdamW>(args, "DecoupledAdamW");
}

}  // namespace golden
