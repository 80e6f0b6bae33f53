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

#include "support/catch.hpp"

#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/optim/sweep.hpp>

// Steps of PyTorch, timm and schedulefree in double precision (golden.py). Each optimizer takes
// them in floats, where those that are elementwise have loops of their own, in doubles, which go
// through LibTorch's functions, and in halves, which do as well; it is saved and loaded on the way.

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

using Tensors = std::vector<at::Tensor>;

constexpr std::array<double, 8> factors{1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 1.0, 0.75};

const std::map<std::string, at::Tensor>& golden_steps() {
  static const auto read = [] {
    std::map<std::string, at::Tensor> out;
    const auto path = std::filesystem::path(TUTTI_SOURCE_DIR) / "tests/optim/golden.safetensors";
    for (const auto& [name, tensor] : checkpoint::read_safetensors(path)) {
      out[name] = tensor;
    }
    return out;
  }();
  return read;
}

Tensors first_weights(at::ScalarType type, bool channels_last) {
  Tensors out;
  for (const char* const name : {"p0", "p1", "p2"}) {
    at::Tensor one = golden_steps().at(name).to(type).clone();
    if (channels_last && one.dim() == 4) {
      one = one.contiguous(at::MemoryFormat::ChannelsLast);
    }
    out.push_back(one.requires_grad_());
  }
  return out;
}

template <class Optimizer>
void take_step(Optimizer& optimizer, const Tensors& parameters, double lr, std::size_t step) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() =
        golden_steps().at("g" + std::to_string(i))[static_cast<std::int64_t>(step)].to(
            parameters[i].scalar_type());
  }
  optimizer.param_groups()[0].options().set_lr(lr * factors[step]);
  optimizer.step();
}

void check_close(const std::string& name, const Tensors& got, std::int64_t which,
                 double tolerance) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const at::Tensor want = golden_steps().at(name + "/p" + std::to_string(i))[which];
    INFO(name << ", p" << i << " in " << got[i].scalar_type() << "\n" << got[i] << "\n" << want);
    CHECK(torch::allclose(got[i].detach().to(at::kDouble), want, tolerance, tolerance));
  }
}

template <class Hyper>
void check_in(const std::string& name, const Hyper& hyper, at::ScalarType type, double tolerance,
              bool channels_last = false) {
  const Tensors weights = first_weights(type, channels_last);
  const auto optimizer = hyper.build(weights);
  for (std::size_t step = 0; step < 3; ++step) {
    take_step(*optimizer, weights, hyper.lr, step);
  }
  check_close(name, weights, 0, tolerance);
  Archive archive;
  optimizer->save(archive);
  Tensors others;
  for (const at::Tensor& weight : weights) {
    others.push_back(weight.detach().clone().requires_grad_());
  }
  const auto resumed = Hyper{.lr = 0.5}.build(others);
  resumed->load(archive);
  for (std::size_t step = 3; step < factors.size(); ++step) {
    take_step(*optimizer, weights, hyper.lr, step);
    take_step(*resumed, others, hyper.lr, step);
  }
  check_close(name, weights, 1, tolerance);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    INFO(name << ": resumed, p" << i);
    CHECK(at::equal(weights[i], others[i]));
  }
}

template <class Hyper>
void check(const std::string& name, const Hyper& hyper) {
  check_in(name, hyper, at::kFloat, 2e-5);
  check_in(name, hyper, at::kFloat, 2e-5, /*channels_last=*/true);
  check_in(name, hyper, at::kDouble, 1e-9);
}

}  // namespace

TEST_CASE("Adagrad takes PyTorch's steps", "[optim][golden]") {
  check("Adagrad", Adagrad{});
  check("Adagrad/all", Adagrad{.lr = 0.1,
                               .lr_decay = 0.1,
                               .weight_decay = 0.1,
                               .initial_accumulator_value = 0.5,
                               .eps = 1e-3});
  check("Adagrad/maximize", Adagrad{.maximize = true});
}

TEST_CASE("RMSprop takes PyTorch's steps", "[optim][golden]") {
  check("RMSprop", RMSprop{});
  check("RMSprop/centered", RMSprop{.alpha = 0.9, .eps = 1e-3, .centered = true});
  check("RMSprop/momentum", RMSprop{.weight_decay = 0.1, .momentum = 0.9});
  check("RMSprop/all", RMSprop{.alpha = 0.8,
                               .eps = 1e-2,
                               .weight_decay = 0.1,
                               .momentum = 0.9,
                               .centered = true,
                               .maximize = true});
}

TEST_CASE("Adadelta takes PyTorch's steps", "[optim][golden]") {
  check("Adadelta", Adadelta{});
  check("Adadelta/all",
        Adadelta{.lr = 0.5, .rho = 0.8, .eps = 1e-3, .weight_decay = 0.1, .maximize = true});
}

TEST_CASE("Adamax takes PyTorch's steps", "[optim][golden]") {
  check("Adamax", Adamax{});
  check(
      "Adamax/all",
      Adamax{.lr = 0.01, .betas = {0.3, 0.95}, .eps = 1e-3, .weight_decay = 0.1, .maximize = true});
}

TEST_CASE("NAdam takes PyTorch's steps", "[optim][golden]") {
  check("NAdam", NAdam{});
  check("NAdam/coupled", NAdam{.lr = 0.01,
                               .betas = {0.8, 0.95},
                               .eps = 1e-3,
                               .weight_decay = 0.1,
                               .momentum_decay = 0.1});
  check("NAdam/decoupled",
        NAdam{.weight_decay = 0.1, .decoupled_weight_decay = true, .maximize = true});
}

TEST_CASE("RAdam takes PyTorch's steps", "[optim][golden]") {
  check("RAdam", RAdam{});
  check("RAdam/coupled", RAdam{.lr = 0.01, .betas = {0.8, 0.9}, .eps = 1e-3, .weight_decay = 0.1});
  check("RAdam/decoupled",
        RAdam{.weight_decay = 0.1, .decoupled_weight_decay = true, .maximize = true});
}

TEST_CASE("ASGD takes PyTorch's steps", "[optim][golden]") {
  check("ASGD", ASGD{});
  check(
      "ASGD/all",
      ASGD{.lr = 0.1, .lambd = 0.1, .alpha = 0.5, .t0 = 3, .weight_decay = 0.1, .maximize = true});
}

TEST_CASE("Rprop takes PyTorch's steps", "[optim][golden]") {
  check("Rprop", Rprop{});
  check("Rprop/all",
        Rprop{.lr = 0.1, .etas = {0.3, 2.0}, .step_sizes = {0.05, 0.3}, .maximize = true});
}

TEST_CASE("Lion takes timm's steps", "[optim][golden]") {
  check("Lion", Lion{});
  check("Lion/all", Lion{.lr = 0.01, .betas = {0.4, 0.8}, .weight_decay = 0.1, .maximize = true});
}

TEST_CASE("schedule-free optimizers take the steps of schedulefree", "[optim][golden]") {
  check("ScheduleFreeSGD", ScheduleFreeSGD{.lr = 0.1});
  check(
      "ScheduleFreeSGD/all",
      ScheduleFreeSGD{.lr = 0.1, .momentum = 0.8, .weight_decay = 0.1, .warmup_steps = 4, .r = 1});
  check("ScheduleFreeAdamW", ScheduleFreeAdamW{});
  check("ScheduleFreeAdamW/all", ScheduleFreeAdamW{.lr = 0.1,
                                                   .betas = {0.8, 0.9},
                                                   .eps = 1e-3,
                                                   .weight_decay = 0.1,
                                                   .warmup_steps = 4,
                                                   .r = 0.5,
                                                   .weight_lr_power = 1});
}

TEST_CASE("LAMB takes timm's steps", "[optim][golden]") {
  check("LAMB", LAMB{});
  check("LAMB/all", LAMB{.lr = 0.1,
                         .betas = {0.8, 0.9},
                         .eps = 1e-3,
                         .weight_decay = 0.1,
                         .bias_correction = false,
                         .grad_averaging = false,
                         .trust_clip = true});
  check("LAMB/decoupled", LAMB{.lr = 0.1, .weight_decay = 0.1, .decoupled_decay = true});
  check("LAMB/adapt", LAMB{.weight_decay = 0, .always_adapt = true});
}

TEST_CASE("LARS takes timm's steps", "[optim][golden]") {
  check("LARS", LARS{});
  check("LARS/momentum",
        LARS{.lr = 0.5, .momentum = 0.9, .weight_decay = 0.1, .trust_coeff = 0.02});
  check("LARS/all", LARS{.lr = 0.1,
                         .momentum = 0.9,
                         .weight_decay = 0.1,
                         .nesterov = true,
                         .trust_coeff = 0.5,
                         .eps = 1e-3,
                         .trust_clip = true});
  check("LARS/adapt", LARS{.lr = 0.5, .momentum = 0.9, .dampening = 0.2, .always_adapt = true});
}

TEST_CASE("Adafactor takes PyTorch's steps", "[optim][golden]") {
  check("Adafactor", Adafactor{});
  check("Adafactor/all", Adafactor{.lr = 0.5,
                                   .beta2_decay = -0.5,
                                   .eps = {1e-4, 1e-2},
                                   .d = 1.5,
                                   .weight_decay = 0.1,
                                   .maximize = true});
}

TEST_CASE("Muon takes PyTorch's steps, and AdamW's where there is no matrix", "[optim][golden]") {
  check("Muon", Muon{});
  check("Muon/all", Muon{.lr = 0.1,
                         .weight_decay = 0.05,
                         .momentum = 0.8,
                         .nesterov = false,
                         .ns_steps = 3,
                         .adjust_lr_fn = "match_rms_adamw"});
}

TEST_CASE("Muon orthogonalizes in bfloat16 as PyTorch does", "[optim][golden]") {
  const at::Tensor matrix = golden_steps().at("p0").clone().requires_grad_();
  const auto optimizer = Muon{.lr = 0.1, .ns_dtype = "bfloat16"}.build(Tensors{matrix});
  for (std::int64_t step = 0; step < 8; ++step) {
    matrix.mutable_grad() = golden_steps().at("g0")[step].clone();
    optimizer->step();
  }
  // Sums in bfloat16 differ with their order: two units of 2^-8 in each of 8 steps of size 0.1.
  CHECK(torch::allclose(matrix, golden_steps().at("Muon/bfloat16/p0"), 0.0, 8 * 0.1 * 2 / 256));
}

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

TEST_CASE("clipping and averages in the pass are the same apart", "[optim][sweep]") {
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
        const at::Tensor gradient = golden_steps().at("g" + std::to_string(i))[step];
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
          "[optim][sweep]") {
  const Tensors weights = first_weights(at::kFloat, false);
  const Tensors twins = first_weights(at::kFloat, false);
  const auto optimizer = Adafactor{}.build(weights);
  const auto other = Adafactor{}.build(twins);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i].mutable_grad() = golden_steps().at("g" + std::to_string(i))[0].clone();
    twins[i].mutable_grad() = golden_steps().at("g" + std::to_string(i))[0].mul(0.5);
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
            (floats[i] - golden_steps().at("p" + std::to_string(i))).abs().max().item<double>();
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

TEST_CASE("numbers out of range are refused", "[optim][error]") {
  const Tensors none;
  CHECK_THROWS_WITH(RMSprop{.alpha = 1}.build(none), ContainsSubstring("RMSprop: alpha is 1"));
  CHECK_THROWS_WITH(Adadelta{.rho = 2}.build(none), ContainsSubstring("Adadelta: rho is 2"));
  CHECK_THROWS_WITH(Adagrad{.lr_decay = -1}.build(none), ContainsSubstring("lr_decay is -1"));
  CHECK_THROWS_WITH((NAdam{.betas = {1.0, 0.9}}.build(none)),
                    ContainsSubstring("NAdam: betas are 1 and 0.9"));
  CHECK_THROWS_WITH((Rprop{.etas = {0.5, 1.0}}.build(none)),
                    ContainsSubstring("etas are 0.5 and 1"));
  CHECK_THROWS_WITH((Rprop{.step_sizes = {1.0, 0.5}}.build(none)),
                    ContainsSubstring("step_sizes are 1 and 0.5"));
  CHECK_THROWS_WITH(LARS{.nesterov = true}.build(none), ContainsSubstring("LARS: nesterov needs"));
  CHECK_THROWS_WITH(Adafactor{.d = 0.5}.build(none), ContainsSubstring("Adafactor: d is 0.5"));
  CHECK_THROWS_WITH(Muon{.adjust_lr_fn = "spectral"}.build(none),
                    ContainsSubstring("adjust_lr_fn is \"spectral\", expected \"original\""));
  CHECK_THROWS_WITH(Muon{.ns_steps = 0}.build(none), ContainsSubstring("ns_steps is 0"));
  CHECK_THROWS_WITH(ScheduleFreeSGD{.momentum = 0}.build(none), ContainsSubstring("momentum is 0"));
  CHECK_THROWS_WITH(ScheduleFreeAdamW{.warmup_steps = -1}.build(none),
                    ContainsSubstring("warmup_steps is -1"));
}

TEST_CASE("orthogonalize brings singular values near 1", "[optim][muon][functional]") {
  torch::manual_seed(2);
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{6, 10}, {10, 6}, {2, 5, 3}}) {
    const at::Tensor x = torch::randn(shape);
    const at::Tensor values = std::get<1>(torch::linalg_svd(functional::orthogonalize(x), false));
    CHECK(values.min().item<float>() > 0.4F);
    CHECK(values.max().item<float>() < 1.3F);
  }
  CHECK_THROWS_WITH(functional::orthogonalize(torch::ones({3})),
                    ContainsSubstring("orthogonalize: x is [3]"));
}
