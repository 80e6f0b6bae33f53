#include <tutti/optim/adam.hpp>

#include "support/catch.hpp"
#include "support/warnings.hpp"

#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <tutti/optim/sgd.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

using Tensors = std::vector<at::Tensor>;

Tensors parameters(at::ScalarType type = at::kFloat) {
  torch::manual_seed(7);
  Tensors out;
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{5, 7}, {13}, {2, 3, 3, 3}}) {
    out.push_back(torch::randn(shape).to(type).requires_grad_());
  }
  return out;
}

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

template <class Ours, class Theirs>
void compare(const Ours& hyper, Theirs& reference, const Tensors& ours, const Tensors& theirs) {
  const auto optimizer = hyper.build(ours);
  for (int step = 0; step < 20; ++step) {
    set_gradients(ours, step);
    set_gradients(theirs, step);
    optimizer->step();
    reference.step();
  }
  check_close(ours, theirs);
  CHECK(optimizer->state_of(ours[0])->step == 20);
}

}  // namespace

TEST_CASE("Adam takes the steps of torch::optim::Adam", "[optim][adam][law]") {
  for (const Adam& adam :
       std::vector<Adam>{{.lr = 0.01},
                         {.lr = 0.01, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1},
                         {.lr = 0.01, .weight_decay = 0.1, .amsgrad = true}}) {
    const Tensors ours = parameters();
    const Tensors theirs = parameters();
    torch::optim::Adam reference(theirs, torch::optim::AdamOptions(adam.lr)
                                             .betas({adam.betas[0], adam.betas[1]})
                                             .eps(adam.eps)
                                             .weight_decay(adam.weight_decay)
                                             .amsgrad(adam.amsgrad));
    compare(adam, reference, ours, theirs);
  }
}

TEST_CASE("AdamW takes the steps of torch::optim::AdamW", "[optim][adam][law]") {
  for (const AdamW& adamw :
       std::vector<AdamW>{{},
                          {.lr = 0.01, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1},
                          {.lr = 0.01, .weight_decay = 0.1, .amsgrad = true}}) {
    const Tensors ours = parameters();
    const Tensors theirs = parameters();
    torch::optim::AdamW reference(theirs, torch::optim::AdamWOptions(adamw.lr)
                                              .betas({adamw.betas[0], adamw.betas[1]})
                                              .eps(adamw.eps)
                                              .weight_decay(adamw.weight_decay)
                                              .amsgrad(adamw.amsgrad));
    compare(adamw, reference, ours, theirs);
  }
}

TEST_CASE("DecoupledAdamW follows its formula in every type", "[optim][adam][law]") {
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    const DecoupledAdamW adamw{.lr = 0.01, .weight_decay = 0.0009};
    const Tensors ours = parameters(type);
    Tensors expected;
    Tensors m;
    Tensors v;
    for (const auto& parameter : ours) {
      expected.push_back(parameter.detach().to(at::kDouble).clone());
      m.push_back(torch::zeros_like(expected.back()));
      v.push_back(torch::zeros_like(expected.back()));
    }
    const auto optimizer = adamw.build(ours);
    for (int t = 1; t <= 6; ++t) {
      const double lr = 0.01 / t;
      optimizer->param_groups()[0].options().set_lr(lr);
      set_gradients(ours, t);
      optimizer->step();
      for (std::size_t i = 0; i < ours.size(); ++i) {
        const at::Tensor g = ours[i].grad().to(at::kDouble);
        expected[i] = expected[i] * (1 - lr / 0.01 * 0.0009);
        m[i] = 0.9 * m[i] + 0.1 * g;
        v[i] = 0.95 * v[i] + 0.05 * g * g;
        const double c1 = 1 - std::pow(0.9, t);
        const double c2 = 1 - std::pow(0.95, t);
        expected[i] = expected[i] - lr / c1 * m[i] / (v[i].sqrt() / std::sqrt(c2) + 1e-8);
      }
    }
    INFO(c10::toString(type));
    check_close(ours, expected, type == at::kBFloat16 ? 0.1 : type == at::kHalf ? 0.01 : 1e-5);
  }
}

TEST_CASE("decoupled decay of Adam works at learning rates of 0", "[optim][adam][law]") {
  const at::Tensor weight = torch::ones({9}).requires_grad_();
  weight.mutable_grad() = torch::ones({9});
  const auto zero = DecoupledAdamW{.lr = 0.0, .weight_decay = 0.0005}.build(Tensors{weight});
  zero->step();  // initial_lr 0: the whole decay
  CHECK(torch::allclose(weight, torch::full({9}, 0.9995)));
  const auto paused = DecoupledAdamW{.lr = 0.1, .weight_decay = 0.0005}.build(Tensors{weight});
  paused->param_groups()[0].options().set_lr(0.0);
  paused->step();  // scheduled to 0: none
  CHECK(torch::allclose(weight, torch::full({9}, 0.9995)));
  CHECK(paused->state_of(weight)->step == 1);
}

TEST_CASE("a parameter that joins later has a step count of its own", "[optim][adam][law]") {
  const Tensors ours = parameters();
  const Tensors late = parameters();
  const auto optimizer = Adam{.lr = 0.01}.build(ours);
  const auto fresh = Adam{.lr = 0.01}.build(Tensors{late[1]});
  for (int step = 0; step < 8; ++step) {
    set_gradients(ours, step);
    set_gradients(late, step);
    if (step < 4) {
      ours[1].mutable_grad().reset();
    } else {
      fresh->step();
    }
    optimizer->step();
  }
  check_close({ours[1]}, {late[1]});
  CHECK(optimizer->state_of(ours[0])->step == 8);
  CHECK(optimizer->state_of(ours[1])->step == 4);
}

TEST_CASE("doubles take the steps of torch::optim's Adam and AdamW", "[optim][adam][law]") {
  const Tensors ours = parameters(at::kDouble);
  const Tensors theirs = parameters(at::kDouble);
  torch::optim::Adam adam(theirs, torch::optim::AdamOptions(0.01).weight_decay(0.1));
  compare(Adam{.lr = 0.01, .weight_decay = 0.1}, adam, ours, theirs);
  torch::optim::AdamW adamw(theirs, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  compare(AdamW{.lr = 0.01, .weight_decay = 0.1}, adamw, ours, theirs);
}

TEST_CASE("state follows a parameter whose memory is laid out anew", "[optim][adam][law]") {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const Tensors ours = parameters(type);
    const Tensors theirs = parameters(type);
    const auto optimizer = Adam{.lr = 0.1}.build(ours);
    torch::optim::Adam reference(theirs, torch::optim::AdamOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      if (step == 2) {
        ours[2].set_data(ours[2].detach().contiguous(at::MemoryFormat::ChannelsLast));
      }
      set_gradients(ours, step);
      set_gradients(theirs, step);
      optimizer->step();
      reference.step();
    }
    check_close(ours, theirs, 1e-4);
  }
}

TEST_CASE("all numbers of an Adam are saved", "[optim][adam][checkpoint]") {
  const Tensors weights{torch::ones({1}).requires_grad_()};
  Archive archive;
  Adam{.lr = 0.5,
       .betas = {0.5, 0.25},
       .eps = 0.125,
       .weight_decay = 2,
       .amsgrad = true,
       .maximize = true}
      .build(weights)
      ->save(archive);
  const auto loaded = Adam{}.build(weights);
  loaded->load(archive);
  const Adam& adam =
      static_cast<const optim::GroupOptions<Adam>&>(loaded->param_groups()[0].options()).hyper;
  CHECK(adam.lr == 0.5);
  CHECK((adam.betas == std::array<double, 2>{0.5, 0.25}));
  CHECK(adam.eps == 0.125);
  CHECK(adam.weight_decay == 2);
  CHECK(adam.amsgrad);
  CHECK(adam.maximize);
}

TEST_CASE("decoupled decay of 1e-3 in every step is warned about", "[optim][adam][sgd]") {
  const Tensors weights{torch::ones({1}).requires_grad_()};
  const Warnings warnings;
  static_cast<void>(DecoupledAdamW{.weight_decay = 9e-4}.build(weights));
  static_cast<void>(DecoupledSGDW{.lr = 0.1, .weight_decay = 9e-4}.build(weights));
  CHECK(warnings.texts.empty());
  static_cast<void>(DecoupledAdamW{.weight_decay = 1e-3}.build(weights));
  CHECK_THAT(warnings.texts.at(0), ContainsSubstring("DecoupledAdamW: weight_decay = 0.001"));
  static_cast<void>(DecoupledSGDW{.lr = 0.1, .weight_decay = 1e-3}.build(weights));
  CHECK_THAT(warnings.texts.at(1), ContainsSubstring("DecoupledSGDW: weight_decay = 0.001"));
}

TEST_CASE("Adam refuses numbers that make no sense", "[optim][adam][error]") {
  const Tensors none;
  CHECK_THROWS_WITH(Adam{.lr = -1}.build(none), ContainsSubstring("Adam: lr is -1"));
  CHECK_THROWS_WITH((AdamW{.betas = {0.9, 1.0}}.build(none)),
                    ContainsSubstring("betas are 0.9 and 1, expected two in [0, 1)"));
  CHECK_THROWS_WITH(Adam{.eps = -1}.build(none), ContainsSubstring("eps is -1"));
  CHECK_THROWS_WITH(DecoupledAdamW{.weight_decay = -1}.build(none),
                    ContainsSubstring("DecoupledAdamW: weight_decay is -1"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
