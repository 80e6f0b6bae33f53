#include <tutti/core/model.hpp>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <torch/nn/modules/linear.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::AnyModel;
using tutti::Batch;
using tutti::Loss;
using tutti::Metrics;
using tutti::Outputs;

// The least that a model needs.
struct Minimal : torch::nn::Module {
  at::Tensor forward(const Batch& batch) { return batch.inputs().mul(2); }
  at::Tensor loss(const Outputs& outputs, const Batch& batch) {
    return outputs.tensor().sub(batch.targets()).sum();
  }
};

class Seen final : public tutti::Metric {
 public:
  void update(const at::Tensor& outputs, const at::Tensor& targets) override {
    seen = {outputs, targets};
  }
  double compute(const std::vector<at::Tensor>&) const override { return 0; }
  std::vector<at::Tensor> states() const override { return seen; }
  void set_states(std::vector<at::Tensor>) override {}
  void reset() override { seen.clear(); }
  std::unique_ptr<tutti::Metric> clone() const override { return std::make_unique<Seen>(); }
  std::string name() const override { return "Seen"; }
  std::vector<at::Tensor> seen;
};

// Everything that a model may say beyond that; no module itself.
struct Complete {
  torch::nn::Linear layer{2, 2};
  Outputs forward(const Batch&) { return at::ones({1}); }
  Outputs eval_forward(const Batch&) { return at::zeros({1}); }
  Loss loss(const Outputs& outputs, const Batch&) {
    return {{"a", outputs.tensor()}, {"b", outputs.tensor()}};
  }
  std::shared_ptr<torch::nn::Module> module() { return layer.ptr(); }
  Metrics metrics(bool train) { return Metrics(train ? 1 : 2, std::make_shared<Seen>()); }
  void update_metric(const Batch& batch, const Outputs&, tutti::Metric& metric) {
    metric.update(batch.inputs(), batch.inputs());
  }
  double flops_per_batch(const Batch& batch) {
    return 10.0 * static_cast<double>(batch.num_samples());
  }
};

struct NoLoss : torch::nn::Module {
  at::Tensor forward(const Batch&) { return {}; }
};

}  // namespace

TEST_CASE("a model is what has forward and loss on batches", "[core][model]") {
  STATIC_REQUIRE(tutti::Model<Minimal>);
  STATIC_REQUIRE(tutti::Model<Complete>);
  STATIC_REQUIRE(!tutti::Model<NoLoss>);
  STATIC_REQUIRE(!tutti::Model<torch::nn::LinearImpl>);
  STATIC_REQUIRE(std::is_convertible_v<std::shared_ptr<Minimal>, AnyModel>);
  STATIC_REQUIRE(!std::is_convertible_v<std::shared_ptr<NoLoss>, AnyModel>);
}

TEST_CASE("a model that says nothing more evaluates by forward and is its own module",
          "[core][model]") {
  const auto minimal = std::make_shared<Minimal>();
  const AnyModel model = minimal;
  const Batch batch(at::ones({3}), at::zeros({3}));
  CHECK(model.module() == minimal);
  CHECK(model.forward(batch).tensor().sum().item<double>() == 6);
  CHECK(model.eval_forward(batch).tensor().sum().item<double>() == 6);
  CHECK(model.loss(model.forward(batch), batch).total().item<double>() == 6);
  CHECK(model.metrics(true).empty());
  CHECK(model.flops_per_batch(batch) == 0);
  CHECK_FALSE(model.has_flops_per_batch());

  Seen metric;
  model.update_metric(batch, model.forward(batch), metric);
  CHECK(metric.seen.at(0).sum().item<double>() == 6);
  CHECK(metric.seen.at(1).is_same(batch.targets()));
}

TEST_CASE("what a model says of itself is used", "[core][model]") {
  const AnyModel model = Complete{};
  const Batch batch(at::ones({3}));
  CHECK(model.forward(batch).tensor().item<double>() == 1);
  CHECK(model.eval_forward(batch).tensor().item<double>() == 0);
  CHECK(model.loss(model.forward(batch), batch).total().item<double>() == 2);
  CHECK(model.module()->parameters().size() == 2);
  CHECK(model.metrics(true).size() == 1);
  CHECK(model.metrics(false).size() == 2);
  CHECK(model.has_flops_per_batch());
  CHECK(model.flops_per_batch(batch) == 30);

  Seen metric;
  model.update_metric(batch, model.forward(batch), metric);
  CHECK(metric.seen.at(0).is_same(batch.inputs()));
}

TEST_CASE("copies of an erased model share it, and an empty one is false", "[core][model]") {
  const AnyModel model = Complete{};
  const AnyModel copy = model;
  CHECK(copy.module() == model.module());
  CHECK(static_cast<bool>(model));
  CHECK(!AnyModel{});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
