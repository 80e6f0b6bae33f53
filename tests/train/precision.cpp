#include <tutti/train/precision.hpp>

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/sgd.h>

#include <tutti/optim/adam.hpp>
#include <tutti/trainer.hpp>

#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

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

namespace {

// A net with integer and floating buffers; the bf16 of everything shows in its outputs.
struct Normed : tiny::Net {
  Normed() { norm = register_module("norm", torch::nn::BatchNorm1d(4)); }
  Outputs forward(const Batch& batch) {
    types.push_back(batch.inputs().scalar_type());
    return out->forward(in->forward(norm->forward(batch.inputs())).tanh());
  }
  torch::nn::BatchNorm1d norm{nullptr};
  std::vector<at::ScalarType> types;
};

std::shared_ptr<Normed> normed() {
  at::manual_seed(4);
  return std::make_shared<Normed>();
}

TrainerOptions in_bf16() {
  return {.train = tiny::batches(3),
          .eval = {{"test", tiny::batches(1)}},
          .max_duration = "2ep",
          .optimizer = OptimizerSpec([](torch::nn::Module& model) {
            return std::make_shared<torch::optim::SGD>(model.parameters(),
                                                       torch::optim::SGDOptions(0.1).momentum(0.9));
          }),
          .device = "cpu",
          .precision = Precision::bf16_true,
          .seed = 3,
          .progress_bar = false};
}

}  // namespace

TEST_CASE("bf16_true trains in bf16 throughout, as a loop of one's own does", "[precision]") {
  const auto model = normed();
  Trainer trainer{model, in_bf16()};
  trainer.fit();
  CHECK(model->in->weight.scalar_type() == at::kBFloat16);
  CHECK(model->norm->running_mean.scalar_type() == at::kBFloat16);
  CHECK(model->norm->num_batches_tracked.scalar_type() == at::kLong);
  for (const at::ScalarType type : model->types) {  // of training and of evaluation
    CHECK(type == at::kBFloat16);
  }
  CHECK(model->types.size() == 2 * (3 + 1));
  CHECK(trainer.state().total_loss.at("total").scalar_type() == at::kFloat);
  CHECK(trainer.predict(tiny::batches(1))[0].tensor().scalar_type() == at::kBFloat16);

  const auto other = normed();
  train::cast_floats(*other, at::kBFloat16);
  torch::optim::SGD sgd(other->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  other->train();
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const Batch& batch : tiny::batches(3)) {
      const Batch low(batch.inputs().to(at::kBFloat16), batch.targets().to(at::kBFloat16));
      sgd.zero_grad();
      other->loss(other->forward(low), low).total().backward();
      sgd.step();
    }
  }
  CHECK(tiny::flat(*model).equal(tiny::flat(*other)));
}

TEST_CASE("a run in bf16 is resumed bit for bit", "[precision][resume]") {
  const TemporaryFolder folder;
  auto with = in_bf16();
  with.optimizer = DecoupledAdamW{.lr = 0.01, .weight_decay = 0.001};
  auto loading = with;
  with.save_folder = folder.path().string();
  const auto whole = normed();
  Trainer first{whole, with};
  first.fit();
  loading.load_path = folder.path().string() + "/ep1-ba3";
  const auto part = normed();
  Trainer second{part, loading};
  second.fit();
  CHECK(tiny::flat(*part).equal(tiny::flat(*whole)));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
