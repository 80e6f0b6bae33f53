#include <tutti/optim/adadelta.hpp>
#include <tutti/optim/adafactor.hpp>
#include <tutti/optim/adagrad.hpp>
#include <tutti/optim/adamax.hpp>
#include <tutti/optim/asgd.hpp>
#include <tutti/optim/lamb.hpp>
#include <tutti/optim/lars.hpp>
#include <tutti/optim/lion.hpp>
#include <tutti/optim/muon.hpp>
#include <tutti/optim/nadam.hpp>
#include <tutti/optim/radam.hpp>
#include <tutti/optim/rmsprop.hpp>
#include <tutti/optim/rprop.hpp>
#include <tutti/optim/schedule_free.hpp>

#include "optim/golden_steps.hpp"

#include <string>
#include <type_traits>
#include <vector>

#include <ATen/ATen.h>
#include <torch/types.h>

#include <tutti/optim/fused_step.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

// What holds for every optimizer that LibTorch has no fused kernel for.

using namespace tutti;
using namespace golden_steps;

namespace {

template <class F>
void with_elementwise(F f) {
  f(Adagrad{.lr = 0.1});
  f(RMSprop{.momentum = 0.9, .centered = true});
  f(Adadelta{});
  f(Adamax{.weight_decay = 0.1});
  f(NAdam{.weight_decay = 0.1, .decoupled_weight_decay = true});
  f(RAdam{.lr = 0.1, .betas = {0.9, 0.9}});
  f(ASGD{.lr = 0.1, .t0 = 2});
  f(Rprop{});
  f(Lion{.lr = 0.1});
  f(ScheduleFreeSGD{.lr = 0.1});
  f(ScheduleFreeAdamW{.lr = 0.1});
}

template <class F>
void with_all(F f) {
  with_elementwise(f);
  f(LAMB{.lr = 0.1});
  f(LARS{.momentum = 0.9, .weight_decay = 0.1});
  f(Adafactor{.lr = 0.1});
  f(Muon{.lr = 0.1});
}

}  // namespace

TEST_CASE("clipping and averages in the pass are the same apart", "[optim][fused_step]") {
  with_elementwise([]<class Hyper>(const Hyper& hyper) {
    INFO(optim::Rule<Hyper>::name);
    const Tensors folded = first_weights(at::kFloat, false);
    const Tensors apart = first_weights(at::kFloat, false);
    Tensors averages;
    Tensors expected;
    for (const at::Tensor& weight : folded) {
      averages.push_back(weight.detach().clone());
      expected.push_back(weight.detach().clone());
    }
    const auto one = hyper.build(folded);
    const auto other = hyper.build(apart);
    std::vector<char> done(folded.size(), 0);
    for (std::int64_t step = 0; step < 4; ++step) {
      for (std::size_t i = 0; i < folded.size(); ++i) {
        const at::Tensor gradient = tensors().at("g" + std::to_string(i))[step];
        folded[i].mutable_grad() = gradient.clone();
        apart[i].mutable_grad() = gradient.mul(0.5).clamp(-0.25, 0.25);
      }
      done.assign(done.size(), 0);
      one->step({.scale = 0.5,
                 .limit = 0.25,
                 .averaging = {.averages = &averages,
                               .weights = &folded,
                               .version = 1,
                               .smoothing = 0.75,
                               .done = &done}});
      other->step();
      for (std::size_t i = 0; i < folded.size(); ++i) {
        CHECK(at::equal(folded[i], apart[i]));
        CHECK(at::equal(folded[i].grad(), apart[i].grad()));
        expected[i].lerp_(apart[i].detach(), 0.25);
#if defined(__x86_64__)
        CHECK(done[i] == 1);
        CHECK(at::allclose(averages[i], expected[i], 1e-6, 1e-7));
#endif
      }
    }
  });
}

TEST_CASE("optimizers of whole tensors clip ahead of the step and leave averages",
          "[optim][fused_step]") {
  const Tensors weights = first_weights(at::kFloat, false);
  const Tensors twins = first_weights(at::kFloat, false);
  const auto optimizer = Adafactor{}.build(weights);
  const auto other = Adafactor{}.build(twins);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i].mutable_grad() = tensors().at("g" + std::to_string(i))[0].clone();
    twins[i].mutable_grad() = tensors().at("g" + std::to_string(i))[0].mul(0.5);
  }
  Tensors averages;
  for (const at::Tensor& weight : weights) {
    averages.push_back(weight.detach().clone());
  }
  std::vector<char> done(weights.size(), 0);
  optimizer->step({.scale = 0.5,
                   .averaging = {.averages = &averages,
                                 .weights = &weights,
                                 .version = 1,
                                 .smoothing = 0.75,
                                 .done = &done}});
  other->step();
  CHECK(at::equal(weights[0], twins[0]));
  CHECK(done == std::vector<char>(weights.size(), 0));
  CHECK_FALSE(optimizer->elementwise());
  CHECK_FALSE(Muon{}.build(weights)->elementwise());
  CHECK(Lion{}.build(weights)->elementwise());
}

TEST_CASE("halves train, and keep their type", "[optim]") {
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    with_all([type]<class Hyper>(const Hyper& hyper) {
      INFO(optim::Rule<Hyper>::name << " in " << type);
      const Tensors halves = first_weights(type, false);
      const Tensors floats = first_weights(at::kFloat, false);
      const auto optimizer = hyper.build(halves);
      const auto reference = hyper.build(floats);
      for (std::size_t step = 0; step < 3; ++step) {
        take_step(*optimizer, halves, hyper.lr, step);
        take_step(*reference, floats, hyper.lr, step);
      }
      for (std::size_t i = 0; i < halves.size(); ++i) {
        CHECK(halves[i].scalar_type() == type);
        const double moved =
            (floats[i] - tensors().at("p" + std::to_string(i))).abs().max().item<double>();
        // The gradients are rounded too; where a sign turns with that, a step goes the other way.
        const at::Tensor apart = (halves[i].to(at::kFloat) - floats[i]).abs();
        CHECK(apart.mean().item<double>() < 0.01 + 0.1 * moved);
      }
    });
  }
}

TEST_CASE("parameters without gradients or elements are skipped", "[optim]") {
  with_all([]<class Hyper>(const Hyper& hyper) {
    INFO(optim::Rule<Hyper>::name);
    const at::Tensor trained = torch::ones({3, 3}).requires_grad_();
    const at::Tensor frozen = torch::ones({3, 3}).requires_grad_();
    const at::Tensor empty = torch::ones({0, 3}).requires_grad_();
    const at::Tensor number = torch::ones({}).requires_grad_();
    const auto optimizer = hyper.build(Tensors{trained, frozen, empty, number});
    for (int step = 0; step < 3; ++step) {
      for (const at::Tensor& one : {trained, empty, number}) {
        one.mutable_grad() = torch::ones_like(one);
      }
      optimizer->step();
    }
    CHECK(at::equal(frozen, torch::ones({3, 3})));
    CHECK(optimizer->state_of(frozen) == nullptr);
    CHECK(trained.isfinite().all().item<bool>());
    CHECK((trained < 1).all().item<bool>());
    CHECK(number.item<float>() < 1);
  });
}

TEST_CASE("all numbers are saved", "[optim][checkpoint]") {
  with_all([]<class Hyper>(const Hyper& hyper) {
    INFO(optim::Rule<Hyper>::name);
    const Tensors weights = first_weights(at::kFloat, false);
    Archive archive;
    hyper.build(weights)->save(archive);
    Hyper blank{};
    blank.lr = 0.75;
    const auto loaded = blank.build(weights);
    loaded->load(archive);
    Archive again;
    loaded->save(again);
    const auto& options = loaded->param_groups()[0].options();
    CHECK(options.get_lr() == hyper.lr);
    std::size_t saved = 0;
    optim::Rule<Hyper>::each(hyper, [&](const char* name, const auto& value) {
      using T = std::remove_cvref_t<decltype(value)>;
      CHECK(again.child("groups").child("0").template get<T>(name) == value);
      ++saved;
    });
    CHECK(saved >= 3);
  });
}

}  // namespace UNITY_BUILD_UNIQUE_ID
