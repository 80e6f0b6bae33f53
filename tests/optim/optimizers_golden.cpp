#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <string>
#include <vector>

namespace UNITY_BUILD_UNIQUE_ID {

// Steps of the reference's optimizers: weights after every step, and the final state.

using namespace tutti;

namespace {

double number(const golden::Json& args, const char* key, double otherwise) {
  const golden::Json* found = args.find(key);
  return found == nullptr ? otherwise : found->number();
}

bool flag(const golden::Json& args, const char* key) {
  const golden::Json* found = args.find(key);
  return found != nullptr && found->boolean();
}

DecoupledSGDW make(const golden::Json& args, DecoupledSGDW h) {
  h.lr = args["lr"].number();
  h.momentum = number(args, "momentum", h.momentum);
  h.dampening = number(args, "dampening", h.dampening);
  h.weight_decay = number(args, "weight_decay", h.weight_decay);
  h.nesterov = flag(args, "nesterov");
  return h;
}

DecoupledAdamW make(const golden::Json& args, DecoupledAdamW h) {
  h.lr = args["lr"].number();
  if (const golden::Json* betas = args.find("betas")) {
    h.betas = {(*betas)[0].number(), (*betas)[1].number()};
  }
  h.eps = number(args, "eps", h.eps);
  h.weight_decay = number(args, "weight_decay", h.weight_decay);
  h.amsgrad = flag(args, "amsgrad");
  return h;
}

template <class Hyper>
void check(const golden::Case& c) {
  const golden::Json& args = c.params["args"];
  std::vector<at::Tensor> parameters;
  for (std::int64_t i = 0; i < c.params["n"].integer(); ++i) {
    parameters.push_back(c.in("p" + std::to_string(i)).requires_grad_());
  }
  const auto optimizer = make(args, Hyper{}).build(parameters);
  for (std::int64_t step = 0; step < c.params["steps"].integer(); ++step) {
    const double factor = c.params["lr_factor"][static_cast<std::size_t>(step)].number();
    optimizer->param_groups()[0].options().set_lr(args["lr"].number() * factor);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = c.in("g" + std::to_string(i))[step];
    }
    optimizer->step();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      CHECK_GOLDEN(c, "p" + std::to_string(i) + ".step" + std::to_string(step), parameters[i]);
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string prefix = "state" + std::to_string(i) + ".";
    const auto* state = optimizer->state_of(parameters[i]);
    REQUIRE(state != nullptr);
    for (std::size_t b = 0; b < optim::Rule<Hyper>::buffers.size(); ++b) {
      const std::string key = prefix + std::string(optim::Rule<Hyper>::buffers[b]);
      CHECK(state->buffers[b].defined() == c.has_out(key));
      if (c.has_out(key)) {
        CHECK_GOLDEN(c, key, state->buffers[b]);
      }
    }
    if (c.has_out(prefix + "step")) {
      CHECK(static_cast<double>(state->step) == c.out(prefix + "step").item<double>());
    }
  }
}

}  // namespace

TEST_CASE("DecoupledSGDW takes the reference's steps", "[optim][sgd][golden]") {
  for (const golden::Case& c : golden::cases("DecoupledSGDW")) {
    check<DecoupledSGDW>(c);
  }
}

TEST_CASE("DecoupledAdamW takes the reference's steps", "[optim][adam][golden]") {
  for (const golden::Case& c : golden::cases("DecoupledAdamW")) {
    check<DecoupledAdamW>(c);
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
