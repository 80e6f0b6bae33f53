#include <tutti/optim/sgd.hpp>

#include "support/catch.hpp"

#include <type_traits>
#include <vector>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

using Tensors = std::vector<at::Tensor>;

// Sizes that fill no whole vector register, and one that is empty.
Tensors parameters(at::ScalarType type = at::kFloat) {
  torch::manual_seed(7);
  Tensors out;
  for (const auto& shape :
       std::vector<std::vector<std::int64_t>>{{5, 7}, {13}, {2, 3, 3, 3}, {0}}) {
    out.push_back(torch::randn(shape).to(type).requires_grad_());
  }
  return out;
}

// The gradient of step `step`, new for every step as after zero_grad().
void set_gradients(const Tensors& parameters, int step) {
  torch::manual_seed(100 + static_cast<std::uint64_t>(step));
  for (const auto& parameter : parameters) {
    parameter.mutable_grad() = torch::randn(parameter.sizes()).to(parameter.scalar_type());
  }
}

void check_close(const Tensors& got, const Tensors& want, double rtol = 1e-5) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("parameter " << i << "\n" << got[i] << "\n" << want[i]);
    CHECK(torch::allclose(got[i].to(at::kDouble), want[i].to(at::kDouble), rtol, rtol / 10));
  }
}

}  // namespace

TEST_CASE("SGD takes the steps of torch::optim::SGD", "[optim][sgd][law]") {
  const std::vector<SGD> all{
      {.lr = 0.1},
      {.lr = 0.1, .weight_decay = 0.05},
      {.lr = 0.1, .momentum = 0.9},
      {.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05},
      {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .nesterov = true},
  };
  for (const SGD& sgd : all) {
    INFO("momentum " << sgd.momentum << " dampening " << sgd.dampening << " nesterov "
                     << sgd.nesterov);
    const Tensors ours = parameters();
    const Tensors theirs = parameters();
    const auto optimizer = sgd.build(ours);
    torch::optim::SGD reference(theirs, torch::optim::SGDOptions(sgd.lr)
                                            .momentum(sgd.momentum)
                                            .dampening(sgd.dampening)
                                            .weight_decay(sgd.weight_decay)
                                            .nesterov(sgd.nesterov));
    for (int step = 0; step < 20; ++step) {
      set_gradients(ours, step);
      set_gradients(theirs, step);
      optimizer->step();
      reference.step();
    }
    check_close(ours, theirs);
  }
}

TEST_CASE("maximizing is minimizing along the negated gradient", "[optim][sgd][law]") {
  const Tensors up = parameters();
  const Tensors down = parameters();
  const auto rising = SGD{.lr = 0.1, .momentum = 0.5, .maximize = true}.build(up);
  const auto falling = SGD{.lr = 0.1, .momentum = 0.5}.build(down);
  for (int step = 0; step < 3; ++step) {
    set_gradients(up, step);
    set_gradients(down, step);
    for (const auto& parameter : down) {
      parameter.mutable_grad().neg_();
    }
    rising->step();
    falling->step();
  }
  check_close(up, down);
}

TEST_CASE("DecoupledSGDW follows its formula in every type", "[optim][sgd][law]") {
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    const DecoupledSGDW sgdw{.lr = 0.2, .momentum = 0.8, .weight_decay = 0.0009};
    const Tensors ours = parameters(type);
    Tensors expected;
    Tensors buffers;
    for (const auto& parameter : ours) {
      expected.push_back(parameter.detach().to(at::kDouble).clone());
      buffers.push_back(torch::zeros_like(expected.back()));
    }
    const auto optimizer = sgdw.build(ours);
    for (int step = 0; step < 6; ++step) {
      const double lr = 0.2 / (1 + step);
      optimizer->param_groups()[0].options().set_lr(lr);
      set_gradients(ours, step);
      optimizer->step();
      for (std::size_t i = 0; i < ours.size(); ++i) {
        buffers[i] = 0.8 * buffers[i] + ours[i].grad().to(at::kDouble);
        expected[i] = expected[i] * (1 - lr / 0.2 * 0.0009) - lr * buffers[i];
      }
    }
    INFO(c10::toString(type));
    check_close(ours, expected, type == at::kBFloat16 ? 0.1 : type == at::kHalf ? 0.01 : 1e-5);
    CHECK(ours[0].scalar_type() == type);
  }
}

TEST_CASE("decoupled decay does not depend on the learning rate's magnitude", "[optim][sgd][law]") {
  for (const double lr : {1e-6, 0.1, 10.0}) {
    const at::Tensor weight = torch::ones({9}).requires_grad_();
    const auto optimizer = DecoupledSGDW{.lr = lr, .weight_decay = 0.0005}.build(Tensors{weight});
    weight.mutable_grad() = torch::zeros({9});
    optimizer->step();
    CHECK(torch::allclose(weight, torch::full({9}, 0.9995)));
    optimizer->param_groups()[0].options().set_lr(lr / 2);
    optimizer->step();
    CHECK(torch::allclose(weight, torch::full({9}, 0.9995 * 0.99975)));
  }
}

TEST_CASE("decoupled decay with an initial learning rate of 0 is the whole decay",
          "[optim][sgd][law]") {
  const at::Tensor weight = torch::ones({3}).requires_grad_();
  const auto optimizer = DecoupledSGDW{.lr = 0.0, .weight_decay = 0.0005}.build(Tensors{weight});
  weight.mutable_grad() = torch::ones({3});
  optimizer->step();
  CHECK(torch::allclose(weight, torch::full({3}, 0.9995)));
}

TEST_CASE("SGD in bfloat16 decays and dampens", "[optim][sgd][law]") {
  const at::Tensor weight = torch::ones({1}, at::kBFloat16).requires_grad_();
  const auto sgd =
      SGD{.lr = 0.5, .momentum = 0.5, .dampening = 0.25, .weight_decay = 0.5}.build({weight});
  for (const double expected : {0.25, -0.546875}) {
    weight.mutable_grad() = torch::ones({1}, at::kBFloat16);
    sgd->step();  // g = 1.5 into the buffer, then g = 1.125 and 0.5 * 1.5 + 0.75 * 1.125
    CHECK(weight.item<double>() == Approx(expected).epsilon(1e-2));
  }
}

TEST_CASE("all numbers of an SGD are saved", "[optim][sgd][checkpoint]") {
  const at::Tensor weight = torch::ones({1}).requires_grad_();
  const auto reloaded = [&](const auto& hyper) {
    using Hyper = std::remove_cvref_t<decltype(hyper)>;
    Archive archive;
    hyper.build({weight})->save(archive);
    const auto optimizer = Hyper{.lr = 0.1}.build({weight});
    optimizer->load(archive);
    return static_cast<const optim::GroupOptions<Hyper>&>(optimizer->param_groups()[0].options())
        .hyper;
  };
  const SGD damped = reloaded(
      SGD{.lr = 0.5, .momentum = 0.25, .dampening = 0.125, .weight_decay = 2, .maximize = true});
  CHECK(damped.lr == 0.5);
  CHECK(damped.momentum == 0.25);
  CHECK(damped.dampening == 0.125);
  CHECK(damped.weight_decay == 2);
  CHECK_FALSE(damped.nesterov);
  CHECK(damped.maximize);
  CHECK(reloaded(SGD{.lr = 0.5, .momentum = 0.25, .nesterov = true}).nesterov);
  CHECK(reloaded(DecoupledSGDW{.lr = 0.5, .momentum = 0.25, .dampening = 0.125}).dampening ==
        0.125);
}

TEST_CASE("SGD refuses numbers that make no sense", "[optim][sgd][error]") {
  const Tensors none;
  CHECK_THROWS_WITH(SGD{}.build(none), ContainsSubstring("SGD: the learning rate is not set"));
  CHECK_THROWS_WITH(DecoupledSGDW{}.build(none), ContainsSubstring("DecoupledSGDW{.lr = 0.1}"));
  CHECK_THROWS_WITH(SGD{.lr = -1}.build(none), ContainsSubstring("lr is -1, expected 0 or more"));
  CHECK_THROWS_WITH(SGD{.lr = HUGE_VAL}.build(none),
                    ContainsSubstring("lr is inf, expected 0 or more, and no infinity"));
  CHECK_THROWS_WITH((SGD{.lr = 1, .momentum = -0.5}.build(none)), ContainsSubstring("momentum is"));
  CHECK_THROWS_WITH((SGD{.lr = 1, .weight_decay = -0.5}.build(none)),
                    ContainsSubstring("weight_decay is -0.5"));
  CHECK_THROWS_WITH((SGD{.lr = 1, .nesterov = true}.build(none)),
                    ContainsSubstring("nesterov needs momentum > 0 and dampening 0"));
  CHECK_THROWS_AS(SGD{}.build(none), c10::ValueError);
  CHECK_THROWS_AS((SGD{.lr = 1, .nesterov = true}.build(none)), c10::ValueError);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
