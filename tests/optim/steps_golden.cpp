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
