#include <tutti/nn/unit.hpp>

#include <memory>
#include <string>

#include <ATen/ops/ones.h>
#include <torch/nn/cloneable.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

struct DoubleImpl : torch::nn::Cloneable<DoubleImpl>, tutti::nn::Unit {
  void reset() override {}
  at::Tensor forward(const at::Tensor& x, std::string& trace) {
    return in_unit(x, [&](const at::Tensor& y) {
      trace += "run ";
      return y * 2;
    });
  }
};

struct Holder final : tutti::detail::UnitHolder {
  explicit Holder(std::string& to) : trace(to) {}
  at::Tensor enter(const at::Tensor& x) override {
    trace += "enter ";
    return x + 1;
  }
  at::Tensor leave(const at::Tensor& y) override {
    trace += "leave";
    return y + 1;
  }
  std::string& trace;
};

}  // namespace

TEST_CASE("a unit that nobody holds is a call", "[nn][unit]") {
  DoubleImpl unit;
  std::string trace;
  const at::Tensor x = at::ones({2}).requires_grad_();
  const at::Tensor y = unit.forward(x, trace);
  CHECK(trace == "run ");
  CHECK(y.grad_fn()->name().rfind("MulBackward", 0) == 0);
  CHECK(y.grad_fn()->next_edge(0).function->name() == "torch::autograd::AccumulateGrad");
}

TEST_CASE("a holder is asked ahead of a unit and behind it", "[nn][unit]") {
  DoubleImpl unit;
  std::string trace;
  Holder holder(trace);
  unit.hold(&holder);
  CHECK(unit.forward(at::ones({2}), trace).eq(5).all().item<bool>());
  CHECK(trace == "enter run leave");
  unit.hold(nullptr);
  CHECK(unit.forward(at::ones({2}), trace).eq(2).all().item<bool>());
}

TEST_CASE("a copy of a unit has no holder", "[nn][unit]") {
  DoubleImpl unit;
  std::string trace;
  Holder holder(trace);
  unit.hold(&holder);
  const auto copy = std::dynamic_pointer_cast<DoubleImpl>(unit.clone());
  CHECK(copy->holder() == nullptr);
  *copy = unit;
  CHECK(copy->holder() == nullptr);
  CHECK(unit.holder() == &holder);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
