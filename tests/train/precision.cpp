#include <tutti/train/precision.hpp>

#include <limits>

#include <torch/optim/sgd.h>

#include "support/catch.hpp"

using namespace tutti;

namespace {
struct Fixture {
  at::Tensor w = at::ones({3}).requires_grad_();
  torch::optim::SGD sgd{{w}, 0.1};
  dist::SingleProcess world;
  void gradient(double value) { w.mutable_grad() = at::full({3}, value); }
};
}  // namespace

TEST_CASE_METHOD(Fixture, "unscale divides gradients by the scale", "[scaler]") {
  train::GradScaler scaler(at::kCPU, {.init_scale = 8});
  CHECK(scaler.scale(at::ones({})).item<double>() == 8);
  gradient(16);
  CHECK(scaler.unscale(sgd, world));
  CHECK(at::equal(w.grad(), at::full({3}, 2.0)));
}

TEST_CASE_METHOD(Fixture, "an overflow halves the scale and clean steps double it", "[scaler]") {
  train::GradScaler scaler(at::kCPU, {.init_scale = 8, .growth_interval = 2});
  gradient(std::numeric_limits<float>::infinity());
  CHECK(!scaler.unscale(sgd, world));
  scaler.update();
  CHECK(scaler.get_scale() == 4);
  for (int i = 0; i < 2; ++i) {
    gradient(1);
    CHECK(scaler.unscale(sgd, world));
    scaler.update();
  }
  CHECK(scaler.get_scale() == 8);
}

TEST_CASE_METHOD(Fixture, "one overflow among several backward passes counts", "[scaler]") {
  train::GradScaler scaler(at::kCPU, {.init_scale = 8});
  gradient(std::numeric_limits<float>::quiet_NaN());
  CHECK(!scaler.unscale(sgd, world));
  gradient(1);
  CHECK(scaler.unscale(sgd, world));
  scaler.update();
  CHECK(scaler.get_scale() == 4);
}

TEST_CASE_METHOD(Fixture, "a scaler saves and loads its scale and its count", "[scaler]") {
  train::GradScaler a(at::kCPU, {.init_scale = 8, .growth_interval = 2});
  gradient(1);
  a.unscale(sgd, world);
  a.update();
  Archive archive;
  a.save(archive);
  train::GradScaler b(at::kCPU, {.init_scale = 1, .growth_interval = 2});
  b.load(archive);
  CHECK(b.get_scale() == 8);
  gradient(1);
  b.unscale(sgd, world);
  b.update();
  CHECK(b.get_scale() == 16);
}
