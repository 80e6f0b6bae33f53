#include <tutti/optim/fused_step.hpp>

#include "support/catch.hpp"

#include <limits>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

// What a step does beside the step, against the same done by hand.

using namespace tutti;

namespace {

using Tensors = std::vector<at::Tensor>;

// Parameters of one kind, their gradients, and averages of all but the last.
struct Model {
  Tensors parameters;
  Tensors averages;
  Tensors weights;
  std::vector<char> done;
};

Model make(const std::vector<std::int64_t>& sizes, at::ScalarType type = at::kFloat) {
  torch::manual_seed(1);
  Model out;
  for (const std::int64_t n : sizes) {
    out.parameters.push_back(torch::randn({n}).to(type).requires_grad_());
    out.averages.push_back(torch::randn({n}).to(type));
  }
  out.averages.pop_back();
  out.weights = out.parameters;
  out.weights.pop_back();
  out.done.assign(out.weights.size(), 0);
  return out;
}

void draw_gradients(const Tensors& parameters, int step) {
  torch::manual_seed(10 + static_cast<std::uint64_t>(step));
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = torch::randn(parameter.sizes()).to(parameter.scalar_type());
  }
}

optim::FusedStep everything(Model& model) {
  return {.scale = 0.3,
          .limit = 0.2,
          .averaging = {.averages = &model.averages,
                        .weights = &model.weights,
                        .version = 1,
                        .smoothing = 0.9,
                        .done = &model.done}};
}

// The same by hand; averages in LibTorch's arithmetic for floats.
template <class O>
void by_hand(Model& model, O& optimizer, bool averages) {
  for (const at::Tensor& parameter : model.parameters) {
    parameter.grad().mul_(0.3).clamp_(-0.2, 0.2);
  }
  optimizer->step();
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; averages && i < model.averages.size(); ++i) {
    model.averages[i].lerp_(model.parameters[i], 1.0 - 0.9);
  }
}

void check_equal(const Tensors& a, const Tensors& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].detach().equal(b[i].detach()));
  }
}

}  // namespace

TEST_CASE("a step that clips and averages is the three one after the other",
          "[optim][fused_step][law]") {
  const std::vector<std::int64_t> sizes{3, 8, 0, 1000, 17};
  const auto check = [&](const auto& hyper) {
    Model ours = make(sizes);
    Model theirs = make(sizes);
    const auto folded = hyper.build(ours.parameters);
    const auto apart = hyper.build(theirs.parameters);
    for (int step = 0; step < 4; ++step) {
      draw_gradients(ours.parameters, step);
      draw_gradients(theirs.parameters, step);
      ours.done.assign(ours.done.size(), 0);
      folded->step(everything(ours));
      by_hand(theirs, apart, tutti::detail::has_avx2());
      CHECK(ours.done == std::vector<char>(4, tutti::detail::has_avx2() ? 1 : 0));
      check_equal(ours.parameters, theirs.parameters);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        CHECK(ours.parameters[i].grad().equal(theirs.parameters[i].grad()));
      }
    }
    check_equal(ours.averages, theirs.averages);
  };
  check(DecoupledAdamW{.lr = 0.01, .weight_decay = 1e-4});
  check(DecoupledSGDW{.lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4});
  check(Adam{.lr = 0.01, .weight_decay = 0.1, .amsgrad = true});
}

TEST_CASE("gradients that nobody asks for afterwards are left as they were",
          "[optim][fused_step]") {
  if (!tutti::detail::has_avx2()) {
    return tutti_test::skip("this processor has no AVX2");
  }
  Model model = make({40, 3});
  const auto optimizer = AdamW{}.build(model.parameters);
  draw_gradients(model.parameters, 0);
  const at::Tensor before = model.parameters[0].grad().clone();
  optimizer->step(optim::FusedStep{.scale = 0.5, .keep_gradients = false});
  CHECK(model.parameters[0].grad().equal(before));
}

TEST_CASE("what cannot be walked through once is clipped ahead and averages are left alone",
          "[optim][fused_step][law]") {
  const auto check = [](Model ours, Model theirs) {
    const AdamW adamw{.lr = 0.01};
    const auto folded = adamw.build(ours.parameters);
    const auto apart = adamw.build(theirs.parameters);
    const Tensors before{ours.averages[0].clone(), ours.averages[1].clone()};
    for (int step = 0; step < 3; ++step) {
      draw_gradients(ours.parameters, step);
      draw_gradients(theirs.parameters, step);
      folded->step(everything(ours));
      by_hand(theirs, apart, false);
      check_equal(ours.parameters, theirs.parameters);
    }
    CHECK(ours.done == std::vector<char>(2, 0));
    check_equal(ours.averages, before);
  };
  SECTION("doubles") {
    check(make({5, 9, 3}, at::kDouble), make({5, 9, 3}, at::kDouble));
  }
  SECTION("one of another type") {
    const auto mixed = [] {
      Model model = make({5, 9, 3});
      model.parameters[2] = model.parameters[2].detach().to(at::kBFloat16).requires_grad_();
      return model;
    };
    check(mixed(), mixed());
  }
  SECTION("one that is not dense") {
    const auto strided = [] {
      Model model = make({5, 9, 3});
      model.parameters[2] = torch::arange(8.0).slice(0, 0, 8, 2).requires_grad_();
      return model;
    };
    check(strided(), strided());
  }
  SECTION("two that share memory") {
    const auto tied = [] {
      Model model = make({5, 9, 9});
      model.parameters[2] = model.parameters[1].detach().slice(0, 4).requires_grad_();
      return model;
    };
    check(tied(), tied());
  }
}

TEST_CASE("gradients laid out otherwise than their parameter are clipped as well",
          "[optim][fused_step][law]") {
  const auto parameter = [] { return torch::ones({4, 6}).requires_grad_(); };
  const Tensors ours{parameter()};
  const Tensors theirs{parameter()};
  const auto gradient = [] { return torch::arange(24.0).reshape({6, 4}).t(); };
  ours[0].mutable_grad() = gradient();
  theirs[0].mutable_grad() = gradient().mul(0.1);
  const SGD sgd{.lr = 0.1};
  sgd.build(ours)->step(optim::FusedStep{.scale = 0.1});
  sgd.build(theirs)->step();
  check_equal(ours, theirs);
  CHECK(ours[0].grad().equal(theirs[0].grad()));
}

TEST_CASE("averages are found anew when they or the parameters are others",
          "[optim][fused_step][law]") {
  if (!tutti::detail::has_avx2()) {
    return tutti_test::skip("this processor has no AVX2");
  }
  Model model = make({5, 9, 3});
  const auto optimizer = SGD{.lr = 0.0}.build(model.parameters);
  const auto step = [&](std::uint64_t version) {
    draw_gradients(model.parameters, 0);
    model.done.assign(model.done.size(), 0);
    optim::FusedStep fused = everything(model);
    fused.averaging.version = version;
    optimizer->step(fused);
  };
  step(1);
  const Tensors old = model.averages;
  const at::Tensor before = old[0].clone();
  for (at::Tensor& average : model.averages) {
    average = torch::zeros_like(average);
  }
  step(2);
  CHECK(old[0].equal(before));
  CHECK(model.averages[0].allclose(model.parameters[0].detach() * 0.1));
  const at::Tensor other = torch::randn({9}).requires_grad_();
  optimizer->param_groups()[0].params()[1] = other;
  model.parameters[1] = other;
  step(2);
  CHECK(model.done == std::vector<char>{1, 0});
  model.weights[1] = other;
  step(3);
  CHECK(model.done == std::vector<char>{1, 1});
}

TEST_CASE("a gradient that is missing leaves its average", "[optim][fused_step][law]") {
  Model model = make({5, 9, 3});
  const auto optimizer = SGD{.lr = 0.1}.build(model.parameters);
  draw_gradients(model.parameters, 0);
  model.parameters[1].mutable_grad().reset();
  const at::Tensor before = model.averages[1].clone();
  optimizer->step(everything(model));
  CHECK(model.done[1] == 0);
  CHECK(model.averages[1].equal(before));
}

TEST_CASE("averages of another type or layout than their weights are left alone",
          "[optim][fused_step][law]") {
  const at::Tensor weight = torch::ones({2, 3}).requires_grad_();
  const auto sgd = SGD{.lr = 0.1}.build({weight});
  std::uint64_t version = 0;
  for (const at::Tensor& average :
       {torch::zeros({2, 3}, at::kDouble), torch::zeros({3, 2}).t(), torch::zeros({6})}) {
    const Tensors averages{average};
    const Tensors weights{weight};
    std::vector<char> done{0};
    weight.mutable_grad() = torch::ones({2, 3});
    sgd->step({.averaging = {.averages = &averages,
                             .weights = &weights,
                             .version = ++version,
                             .smoothing = 0.9,
                             .done = &done}});
    CHECK(done[0] == 0);
    CHECK(average.eq(0).all().item<bool>());
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
