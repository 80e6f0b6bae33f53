#include <torch/nn/functional/loss.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>

#include "golden/algorithms.hpp"
#include "golden/runner.hpp"
#include "nn/golden_model.hpp"

namespace golden {
namespace {

std::vector<at::Tensor> numbered(const Case& c, const std::string& prefix) {
  std::vector<at::Tensor> out;
  while (c.has_in(prefix + std::to_string(out.size()))) {
    out.push_back(c.in(prefix + std::to_string(out.size())));
  }
  return out;
}

// The optimizer's buffers by the names of the reference's state.
template <class Hyper, class Optimizer>
void check_state(const Case& c, Verdict& verdict, const Optimizer& optimizer,
                 const std::vector<at::Tensor>& parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string prefix = "state" + std::to_string(i) + ".";
    const auto* state = optimizer.state_of(parameters[i]);
    if (state == nullptr) {
      verdict.check(c.outs(prefix).empty(), prefix + ": there is no state");
      continue;
    }
    for (std::size_t b = 0; b < tutti::optim::Rule<Hyper>::buffers.size(); ++b) {
      const std::string key = prefix + std::string(tutti::optim::Rule<Hyper>::buffers[b]);
      if (state->buffers[b].defined() || c.has_out(key)) {
        verdict.tensor(key, state->buffers[b]);
      }
    }
    if (c.has_out(prefix + "step")) {
      verdict.number(prefix + "step", static_cast<double>(state->step));
    }
  }
}

template <class Hyper>
void check_steps(const Case& c, Verdict& verdict, const Hyper& hyper) {
  std::vector<at::Tensor> parameters = numbered(c, "p");
  for (auto& parameter : parameters) {
    parameter.requires_grad_();
  }
  const auto optimizer = hyper.build(parameters);
  const Json& factors = c.params["lr_factor"];
  for (std::size_t step = 0; step < factors.size(); ++step) {
    optimizer->param_groups()[0].options().set_lr(hyper.lr * factors[step].number());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (const std::string key = "g" + std::to_string(i); c.has_in(key)) {  // [steps, ...]
        parameters[i].mutable_grad() = c.in(key)[static_cast<std::int64_t>(step)];
      }
    }
    optimizer->step();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      verdict.tensor("p" + std::to_string(i) + ".step" + std::to_string(step), parameters[i]);
    }
  }
  check_state<Hyper>(c, verdict, *optimizer, parameters);
}

void run_sgdw(const Case& c, Verdict& verdict) {
  check_steps(c, verdict, decoupled_sgdw(c.params["args"]));
}
void run_adamw(const Case& c, Verdict& verdict) {
  check_steps(c, verdict, decoupled_adamw(c.params["args"]));
}

void gradient_clipping(const Case& c, Verdict& verdict) {
  const Arguments params(c.params, "apply_gradient_clipping");
  const auto type = clipping_type(params.text("clipping_type", ""));
  const double threshold = params.number("clipping_threshold", params.number("threshold", 0));
  params.integer("n", 0);
  params.only("fsdp_enabled", false);
  params.done();
  std::vector<at::Tensor> parameters = numbered(c, "p");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].requires_grad_();
    if (const std::string key = "g" + std::to_string(i); c.has_in(key)) {
      parameters[i].mutable_grad() = c.in(key);
    }
  }
  tutti::functional::apply_gradient_clipping(parameters, type, threshold, no_adaptive_floor);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (const std::string key = "g" + std::to_string(i); c.has_out(key)) {
      verdict.tensor(key, parameters[i].grad());
    }
  }
}

// The averages after each step, kept in a module of their own or in EMAParameters.
void compute_ema(const Case& c, Verdict& verdict) {
  const Arguments params(c.params, "compute_ema");
  const bool in_module = params.text("kind", "module") == "module";
  const double smoothing = params.number("smoothing", 0.99);
  const std::int64_t steps = params.integer("steps", 0);
  auto model = build_model(params.json("model"), Layers::plain);
  auto averages = build_model(params.json("model"), Layers::plain);
  params.done();
  load_state(*model, c.ins("init."));
  load_state(*averages, c.ins("init."));
  tutti::functional::EMAParameters store(*model);
  for (std::int64_t step = 0; step < steps; ++step) {
    load_state(*model, c.ins("m" + std::to_string(step) + "."));
    if (in_module) {
      tutti::functional::compute_ema(*model, *averages, smoothing, /*average_integers=*/true);
    } else {
      tutti::functional::compute_ema(*model, store, smoothing, /*average_integers=*/true);
      store.copy_to(*averages);
    }
    for (const auto& [name, tensor] : state_of(*averages)) {
      verdict.tensor("step" + std::to_string(step) + "." + name, tensor.clone());
    }
  }
}

// What the reference refuses and EMA takes, if it is that: `smoothing` beside the default half life
// or without an interval, which is 1ba then, and a half_life of None, which is none, without
// `smoothing`.
const Difference* ema_takes(const Json& args, const tutti::EMA& ema) {
  const Json* half_life = args.find("half_life");
  if (args.contains("smoothing") && ema.half_life == tutti::EMA{}.half_life) {
    return &stated::smoothing_alone;
  }
  return half_life != nullptr && half_life->is_null() ? &stated::ema_default : nullptr;
}

// Which smoothing, interval and event follow from the arguments.
void ema_init(const Case& c, Verdict& verdict) {
  const Json& all = c.params["args"];
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Json& want = c.expect["results"][i];
    const std::string which = "arguments " + std::to_string(i);
    try {
      const tutti::EMA ema = make_ema(all[i]);
      ema.validate();
      if (!want.is_array()) {
        const Difference* known = ema_takes(all[i], ema);
        verdict.check(known != nullptr, which + " are accepted");
        verdict.differs(known != nullptr ? *known : stated::smoothing_alone);
        continue;
      }
      const bool per_batch = ema.interval().unit() == tutti::TimeUnit::batch;
      verdict.check(
          std::abs(ema.factor() - want[0].number()) <= c.tolerance.rtol &&
              to_string(ema.interval()) == want[1].string() &&
              (per_batch ? "batch_end" : "epoch_end") == want[2].string(),
          which + " give " + std::to_string(ema.factor()) + " every " + to_string(ema.interval()));
    } catch (const std::exception& error) {
      if (want.is_array()) {
        verdict.check(false, which + " throw: " + error.what());
      } else {
        verdict.judge(error, want["raises"].string(), {"EMA: ", "Time: "}, which);
      }
    }
  }
}

void sam(const Case& c, Verdict& verdict) {
  const Arguments params(c.params, "SAM");
  auto model = build_model(params.json("model"), Layers::plain);
  load_state(*model, c.ins("state."));
  const tutti::SAM rule = make_sam(params.json("sam"));
  tutti::functional::SAMOptimizer optimizer(
      sgd_of<tutti::SGD>(params.json("sgd"), "SGD").build(model->parameters()), rule.rho,
      rule.epsilon, rule.interval);
  const std::int64_t steps = params.integer("steps", 0);
  params.done();
  const at::Tensor losses = at::empty({steps}, at::kDouble);
  for (std::int64_t step = 0; step < steps; ++step) {
    std::int64_t calls = 0;
    const at::Tensor loss = optimizer.step([&] {
      ++calls;
      model->zero_grad();
      at::Tensor out =
          torch::nn::functional::cross_entropy(model->forward(c.in("x")[step]), c.in("y")[step]);
      out.backward();
      return out;
    });
    losses[step] = loss.detach();
    verdict.check(
        calls == c.expect["closure_calls"][static_cast<std::size_t>(step)].integer(),
        "step " + std::to_string(step) + " calls the closure " + std::to_string(calls) + " times");
    for (const auto& [name, tensor] : state_of(*model)) {
      verdict.tensor("step" + std::to_string(step) + "." + name, tensor.clone());
    }
  }
  verdict.tensor("loss", losses);
}

}  // namespace

Handlers optimizer_handlers() {
  return {{"DecoupledSGDW", run_sgdw},
          {"DecoupledAdamW", run_adamw},
          {"apply_gradient_clipping", gradient_clipping},
          {"compute_ema", compute_ema},
          {"EMA_init", ema_init},
          {"SAM", sam}};
}

}  // namespace golden
