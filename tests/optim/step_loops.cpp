#include <tutti/optim/adam.hpp>
#include <tutti/optim/detail/step_loops.hpp>
#include <tutti/optim/sgd.hpp>

#include "support/catch.hpp"

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/ops/_fused_adam_ops.h>
#include <ATen/ops/_fused_adamw_ops.h>
#include <ATen/ops/_fused_sgd_ops.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace UNITY_BUILD_UNIQUE_ID {

// The loops over memory give the very bits of LibTorch's fused kernels on processors with AVX2.

using namespace tutti;

namespace {

using Tensors = std::vector<at::Tensor>;

// Sizes around a block of 8, several parameters at once.
std::vector<std::int64_t> sizes{0, 1, 7, 8, 9, 15, 16, 17, 64, 1003};

struct Set {
  Tensors parameters;
  Tensors gradients;
  Tensors first;
  Tensors second;
  Tensors largest;
};

Set make() {
  torch::manual_seed(3);
  Set out;
  for (const std::int64_t n : sizes) {
    out.parameters.push_back(torch::randn({n}));
    out.first.push_back(torch::zeros({n}));
    out.second.push_back(torch::zeros({n}));
    out.largest.push_back(torch::zeros({n}));
  }
  return out;
}

void draw_gradients(Set& set, int step) {
  torch::manual_seed(100 + static_cast<std::uint64_t>(step));
  set.gradients.clear();
  for (const at::Tensor& parameter : set.parameters) {
    at::Tensor gradient = torch::randn(parameter.sizes());
    if (step == 2) {
      gradient.mul_(torch::rand(parameter.sizes()) > 0.5);  // zeros of both signs
    }
    set.gradients.push_back(gradient);
  }
}

bool have_loops() {
  const bool same_kernels =
      at::get_cpu_capability() == "AVX2" || at::get_cpu_capability() == "AVX512";
  if (!tutti::detail::has_avx2() || !same_kernels) {
    tutti_test::skip("LibTorch uses the kernels for " + at::get_cpu_capability() +
                     ", the loops are for AVX2");
    return false;
  }
  return true;
}

// Five steps of ours and of `reference(set, t)`.
template <class Hyper, class F>
void compare(const Hyper& hyper, F&& reference) {
  Set theirs = make();
  Set ours = make();
  for (auto& parameter : ours.parameters) {
    parameter.requires_grad_();
  }
  const auto optimizer = hyper.build(ours.parameters);
  for (int t = 1; t <= 5; ++t) {
    draw_gradients(theirs, t);
    draw_gradients(ours, t);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      ours.parameters[i].mutable_grad() = ours.gradients[i];
    }
    optimizer->step();
    reference(theirs, t);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      INFO("size " << sizes[i] << ", step " << t);
      REQUIRE(ours.parameters[i].detach().equal(theirs.parameters[i]));
      REQUIRE(ours.gradients[i].equal(theirs.gradients[i]));
      const optim::ParameterState* state = optimizer->state_of(ours.parameters[i]);
      REQUIRE(state != nullptr);
      for (const auto& [mine, their] : {std::pair{state->buffers[0], theirs.first[i]},
                                        std::pair{state->buffers[1], theirs.second[i]},
                                        std::pair{state->buffers[2], theirs.largest[i]}}) {
        REQUIRE((!mine.defined() || mine.equal(their)));
      }
    }
  }
}

template <class Kernel, class Hyper>
auto adam_kernel(const Hyper& h, double weight_decay, bool maximize = false) {
  return [=](Set& set, int t) {
    const Tensors steps(sizes.size(), torch::full({}, t, at::kFloat));
    Kernel::call(set.parameters, set.gradients, set.first, set.second,
                 h.amsgrad ? set.largest : Tensors{}, steps, h.lr, h.betas[0], h.betas[1],
                 weight_decay, h.eps, h.amsgrad, maximize, std::nullopt, std::nullopt);
  };
}

void sgd_kernel(Set& set, double lr, double momentum, double dampening, double weight_decay,
                bool nesterov, bool maximize, bool first) {
  at::_ops::_fused_sgd_::call(set.parameters, set.gradients,
                              momentum != 0.0 ? set.first : Tensors{}, weight_decay, momentum, lr,
                              dampening, nesterov, maximize, first, std::nullopt, std::nullopt);
}

// Two threads, and parameters so large that they share the work.
struct TwoThreads {
  TwoThreads() : threads(at::get_num_threads()), small(sizes) {
    at::set_num_threads(2);
    sizes = {17, 150'001, 65'536, 3};
  }
  ~TwoThreads() {
    at::set_num_threads(threads);
    sizes = small;
  }
  int threads;
  std::vector<std::int64_t> small;
};

}  // namespace

TEST_CASE("Adam, AdamW and DecoupledAdamW give the bits of the fused kernels",
          "[optim][adam][law]") {
  if (!have_loops()) {
    return;
  }
  for (const bool amsgrad : {false, true}) {
    for (const bool maximize : {false, true}) {
      for (const double beta : {0.0, 0.3, 0.9}) {
        for (const double decay : {0.0, 0.1}) {
          INFO("amsgrad " << amsgrad << ", maximize " << maximize << ", beta1 " << beta
                          << ", weight decay " << decay);
          const Adam adam{.lr = 0.01,
                          .betas = {beta, 0.97},
                          .weight_decay = decay,
                          .amsgrad = amsgrad,
                          .maximize = maximize};
          compare(adam, adam_kernel<at::_ops::_fused_adam_>(adam, decay, maximize));
          const AdamW adamw{.lr = 0.01,
                            .betas = {beta, 0.97},
                            .weight_decay = decay,
                            .amsgrad = amsgrad,
                            .maximize = maximize};
          compare(adamw, adam_kernel<at::_ops::_fused_adamw_>(adamw, decay, maximize));
        }
      }
    }
    const DecoupledAdamW decoupled{.lr = 0.01, .weight_decay = 1e-4, .amsgrad = amsgrad};
    compare(decoupled, adam_kernel<at::_ops::_fused_adamw_>(decoupled, 1e-4 / 0.01));
  }
}

TEST_CASE("SGD and DecoupledSGDW give the bits of the fused kernel", "[optim][sgd][law]") {
  if (!have_loops()) {
    return;
  }
  for (const double momentum : {0.0, 0.9}) {
    for (const double dampening : {0.0, 0.2}) {
      for (const bool nesterov : {false, true}) {
        if (nesterov && (momentum == 0.0 || dampening != 0.0)) {
          continue;
        }
        INFO("momentum " << momentum << ", dampening " << dampening << ", nesterov " << nesterov);
        for (const double decay : {0.0, 0.3}) {
          for (const bool maximize : {false, true}) {
            compare(SGD{.lr = 0.01,
                        .momentum = momentum,
                        .dampening = dampening,
                        .weight_decay = decay,
                        .nesterov = nesterov,
                        .maximize = maximize},
                    [&](Set& s, int t) {
                      sgd_kernel(s, 0.01, momentum, dampening, decay, nesterov, maximize, t == 1);
                    });
          }
        }
        compare(DecoupledSGDW{.lr = 0.01,
                              .momentum = momentum,
                              .dampening = dampening,
                              .weight_decay = 1e-4,
                              .nesterov = nesterov},
                [&](Set& s, int t) {
                  at::_ops::_fused_sgd_::call(s.parameters, s.parameters, {}, 0.0, 0.0, 1e-4, 0.0,
                                              false, false, false, std::nullopt, std::nullopt);
                  sgd_kernel(s, 0.01, momentum, dampening, 0.0, nesterov, false, t == 1);
                });
      }
    }
  }
}

TEST_CASE("several threads give the same bits", "[optim][law]") {
  if (!have_loops()) {
    return;
  }
  const TwoThreads scope;
  const Adam adam{.lr = 0.01, .weight_decay = 0.1};
  compare(adam, adam_kernel<at::_ops::_fused_adam_>(adam, 0.1));
  compare(SGD{.lr = 0.01, .momentum = 0.9, .nesterov = true},
          [&](Set& s, int t) { sgd_kernel(s, 0.01, 0.9, 0.0, 0.0, true, false, t == 1); });
}

TEST_CASE("a learning rate of 0 still decays what is decoupled from it", "[optim][adam][law]") {
  if (!have_loops()) {
    return;
  }
  const DecoupledAdamW adamw{.lr = 0.0, .weight_decay = 1e-4};
  const auto kernel = adam_kernel<at::_ops::_fused_adamw_>(adamw, 0.0);
  compare(adamw, [&](Set& s, int t) {
    at::_ops::_fused_sgd_::call(s.parameters, s.parameters, {}, 0.0, 0.0, 1e-4, 0.0, false, false,
                                false, std::nullopt, std::nullopt);
    kernel(s, t);
  });
}

TEST_CASE("gradients that are not finite make the same weights NaN", "[optim][adam][law]") {
  for (const bool amsgrad : {false, true}) {
    const Tensors all{torch::ones({8}).requires_grad_()};
    const auto optimizer = Adam{.lr = 0.1, .amsgrad = amsgrad}.build(all);
    at::Tensor gradient = torch::ones({8});
    gradient[2] = std::numeric_limits<float>::quiet_NaN();
    gradient[5] = std::numeric_limits<float>::infinity();
    all[0].mutable_grad() = gradient;
    optimizer->step();
    const at::Tensor expected = torch::zeros({8}, at::kBool);
    expected[2] = expected[5] = true;
    CHECK(all[0].detach().isnan().equal(expected));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
