#include <tutti/nn/cloneable.hpp>

#include "support/catch.hpp"

#include <memory>

#include <ATen/ops/ones.h>

#include <tutti/nn/linear.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

struct ScaleImpl final : tutti::nn::Cloneable<ScaleImpl> {
  ScaleImpl() { reset(); }
  void reset() override {
    scale = register_parameter("scale", at::ones({3}));
    shift = register_parameter("shift", at::ones({3}));
    mean = register_buffer("mean", at::ones({3}));
    inner = register_module("inner", tutti::nn::Linear(3, 2));
  }
  at::Tensor scale, shift, mean;
  tutti::nn::Linear inner{nullptr};
};

struct OuterImpl final : torch::nn::Cloneable<OuterImpl> {
  OuterImpl() { reset(); }
  void reset() override { part = register_module("part", std::make_shared<ScaleImpl>()); }
  std::shared_ptr<ScaleImpl> part;
};

}  // namespace

TEST_CASE("a copy keeps values, mode and which parameters are frozen", "[nn]") {
  OuterImpl outer;
  outer.eval();
  ScaleImpl& original = *outer.part;
  original.scale.set_requires_grad(false).mul_(2);
  original.mean.mul_(3);
  original.inner->bias.set_requires_grad(false);
  const auto whole = std::dynamic_pointer_cast<OuterImpl>(outer.clone());
  const auto alone = std::dynamic_pointer_cast<ScaleImpl>(original.clone());
  for (const auto& copy : {whole->part, alone}) {
    CHECK_FALSE(copy->is_training());
    CHECK(copy->scale.equal(original.scale));
    CHECK(copy->scale.data_ptr() != original.scale.data_ptr());
    CHECK(copy->mean.equal(original.mean));
    CHECK_FALSE(copy->scale.requires_grad());
    CHECK(copy->shift.requires_grad());
    CHECK_FALSE(copy->mean.requires_grad());
    CHECK(copy->inner->weight.requires_grad());
    CHECK_FALSE(copy->inner->bias.requires_grad());
    CHECK_FALSE(copy->parameters()[0].requires_grad());  // what is registered is the member
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
