#include <tutti/nn/surgery.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <vector>

#include <torch/optim/sgd.h>

#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
namespace surgery = tutti::surgery;
using Catch::Matchers::ContainsSubstring;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

nn::Sequential two_layers() {
  return nn::Sequential(nn::Linear(3, 4), nn::Linear(4, 2));
}

// Weights decay, biases do not; momentum buffers exist.
std::shared_ptr<SGD> stepped_in_two_groups(torch::nn::Module& model) {
  std::vector<at::Tensor> decay;
  std::vector<at::Tensor> no_decay;
  for (at::Tensor& parameter : model.parameters()) {
    (parameter.dim() > 1 ? decay : no_decay).push_back(parameter);
    parameter.mutable_grad() = torch::ones_like(parameter);
  }
  auto optimizer = std::make_shared<SGD>(
      std::vector<OptimizerParamGroup>{
          {decay, std::make_unique<SGDOptions>(SGDOptions(0.1).momentum(0.9).weight_decay(0.1))},
          {no_decay, std::make_unique<SGDOptions>(SGDOptions(0.1).momentum(0.9))}},
      SGDOptions(0.1));
  optimizer->step();
  return optimizer;
}

std::size_t parameter_count(const torch::optim::Optimizer& optimizer) {
  std::size_t count = 0;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    count += group.params().size();
  }
  return count;
}

bool holds(const torch::optim::Optimizer& optimizer, std::size_t group, const at::Tensor& wanted) {
  const auto& parameters = optimizer.param_groups()[group].params();
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const at::Tensor& parameter) { return parameter.is_same(wanted); });
}

const auto fresh = [](torch::nn::LinearImpl& layer, const surgery::Visit& where) {
  return where.index == 0 ? std::make_shared<nn::LinearImpl>(layer.options) : nullptr;
};

// The layer and a gate of its own: adds parameters and removes none.
struct GatedImpl : nn::Substitute {
  explicit GatedImpl(const torch::nn::LinearImpl& layer) {
    linear = register_module("linear", nn::Linear(nn::twin(layer)));
    gate = register_module("gate", nn::Linear(layer.options.out_features(), 1));
    norm = register_module("norm", nn::BatchNorm1d(layer.options.out_features()));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = norm(linear(x));
    return y * gate(y).sigmoid();
  }
  nn::Linear linear{nullptr};
  nn::Linear gate{nullptr};
  nn::BatchNorm1d norm{nullptr};
};
const auto gated = [](torch::nn::LinearImpl& layer) { return std::make_shared<GatedImpl>(layer); };

// Two layers whose parameters differ by the name of the layer alone.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    a = register_module("a", nn::Linear(3, 3));
    b = register_module("b", nn::Linear(3, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return b(a(x)); }
  nn::Linear a{nullptr}, b{nullptr};
};
using TwoImpl = nn::Replaceable<PairImpl>;
TORCH_MODULE(Two);

// Parameters in the place of a layer that had none.
struct LearnedImpl : nn::Substitute {
  LearnedImpl() {
    register_parameter("weight", torch::ones({4, 4}));
    register_parameter("bias", torch::ones({4}));
    register_parameter("kernel", torch::ones({4, 4}));
    register_parameter("scale", torch::ones({4}));
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
};

}  // namespace

TEST_CASE("kept parameters keep their group and their optimizer state", "[surgery][optim][law]") {
  auto model = two_layers();
  auto optimizer = stepped_in_two_groups(*model);
  const auto before = optimizer->param_groups()[0].params();
  const void* state = optimizer->state().at(before[0].unsafeGetTensorImpl()).get();
  const auto twins = [](torch::nn::LinearImpl& layer) { return nn::twin(layer); };
  CHECK(surgery::replace<nn::Linear>(*model, twins, {.optimizers = *optimizer}).count() == 2);
  const auto& after = optimizer->param_groups()[0].params();
  REQUIRE(after.size() == 2);
  CHECK(after[0].is_same(before[0]));
  CHECK(after[1].is_same(before[1]));
  CHECK(optimizer->state().size() == 4);
  CHECK(optimizer->state().at(before[0].unsafeGetTensorImpl()).get() == state);
}

TEST_CASE("new parameters join the group of those whose role they take", "[surgery][optim][law]") {
  auto model = two_layers();
  auto optimizer = stepped_in_two_groups(*model);
  const auto old = model->named_parameters();
  surgery::replace<nn::Linear>(*model, fresh, {.optimizers = *optimizer});

  const auto now = model->named_parameters();
  CHECK(parameter_count(*optimizer) == 4);
  CHECK(holds(*optimizer, 0, now["0.weight"]));
  CHECK(holds(*optimizer, 1, now["0.bias"]));
  CHECK(holds(*optimizer, 0, now["1.weight"]));
  CHECK(holds(*optimizer, 1, now["1.bias"]));
  CHECK_FALSE(holds(*optimizer, 0, old["0.weight"]));
  CHECK(optimizer->state().size() == 2);
  CHECK(optimizer->state().count(now["1.weight"].unsafeGetTensorImpl()) == 1);
  CHECK(optimizer->state().count(old["0.weight"].unsafeGetTensorImpl()) == 0);
}

TEST_CASE("parameters that only come in addition go by their kind", "[surgery][optim]") {
  auto model = two_layers();
  auto optimizer = stepped_in_two_groups(*model);
  surgery::replace<nn::Linear>(*model, gated, {.optimizers = *optimizer});
  const auto now = model->named_parameters();
  CHECK(parameter_count(*optimizer) == 12);
  CHECK(optimizer->param_groups()[0].params().size() == 4);
  CHECK(holds(*optimizer, 0, now["0.gate.weight"]));
  CHECK(holds(*optimizer, 1, now["0.gate.bias"]));
  CHECK(holds(*optimizer, 1, now["0.norm.weight"]));
  CHECK(holds(*optimizer, 1, now["1.norm.bias"]));
  CHECK(optimizer->state().size() == 4);
}

TEST_CASE("what stands for no parameter joins most of those of its name and kind, then of its kind",
          "[surgery][optim]") {
  nn::Sequential model(nn::Linear(4, 4), nn::Dropout(0.5), nn::Linear(4, 4), nn::Linear(4, 4));
  const auto old = model->named_parameters();
  SGD optimizer(std::vector<OptimizerParamGroup>{{{old["0.bias"], old["2.bias"], old["3.bias"]}},
                                                 {{old["0.weight"]}},
                                                 {{old["2.weight"], old["3.weight"]}}},
                SGDOptions(0.1));
  const auto learned = [](torch::nn::DropoutImpl&) { return std::make_shared<LearnedImpl>(); };
  surgery::replace<nn::Dropout>(*model, learned, {.optimizers = optimizer});
  const auto now = model->named_parameters();
  CHECK(parameter_count(optimizer) == 10);
  CHECK(holds(optimizer, 2, now["1.weight"]));
  CHECK(holds(optimizer, 0, now["1.bias"]));
  CHECK(holds(optimizer, 2, now["1.kernel"]));
  CHECK(holds(optimizer, 0, now["1.scale"]));
}

TEST_CASE("new parameters follow those of their whole name first", "[surgery][optim]") {
  nn::Sequential model{Two()};
  const auto old = model->named_parameters();
  SGD optimizer(std::vector<OptimizerParamGroup>{{{old["0.a.weight"], old["0.a.bias"]}},
                                                 {{old["0.b.weight"], old["0.b.bias"]}}},
                SGDOptions(0.1));
  const auto another = [](PairImpl&) { return std::make_shared<PairImpl>(); };
  surgery::replace<Two>(*model, another, {.optimizers = optimizer});
  const auto now = model->named_parameters();
  CHECK(parameter_count(optimizer) == 4);
  for (const char* name : {"weight", "bias"}) {
    CHECK(holds(optimizer, 0, now[std::string("0.a.") + name]));
    CHECK(holds(optimizer, 1, now[std::string("0.b.") + name]));
  }
}

TEST_CASE("new parameters of one kind follow those of their own name", "[surgery][optim]") {
  struct InnerImpl : nn::Substitute {
    InnerImpl() { norm = register_module("norm", nn::BatchNorm1d(3)); }
    at::Tensor forward(const at::Tensor& x) { return norm(x); }
    nn::BatchNorm1d norm{nullptr};
  };
  nn::Sequential model{nn::BatchNorm1d(3)};
  const auto old = model->named_parameters();
  SGD optimizer(std::vector<OptimizerParamGroup>{{{old["0.weight"]}}, {{old["0.bias"]}}},
                SGDOptions(0.1));
  const auto inner = [](torch::nn::BatchNorm1dImpl&) { return std::make_shared<InnerImpl>(); };
  surgery::replace<nn::BatchNorm1d>(*model, inner, {.optimizers = optimizer});
  const auto now = model->named_parameters();
  CHECK(parameter_count(optimizer) == 2);
  CHECK(holds(optimizer, 0, now["0.norm.weight"]));
  CHECK(holds(optimizer, 1, now["0.norm.bias"]));
}

TEST_CASE("what is added beside an untrained parameter is trained", "[surgery][optim]") {
  auto model = two_layers();
  const auto old = model->named_parameters();
  SGD optimizer(std::vector<at::Tensor>{old["1.weight"], old["1.bias"]}, SGDOptions(0.1));
  const auto first = [](torch::nn::LinearImpl& layer, const surgery::Visit& where) {
    return where.index == 0 ? std::make_shared<GatedImpl>(layer) : nullptr;
  };
  surgery::replace<nn::Linear>(*model, first, {.optimizers = optimizer});
  const auto now = model->named_parameters();
  CHECK(parameter_count(optimizer) == 6);
  CHECK(holds(optimizer, 0, now["0.gate.weight"]));
  CHECK_FALSE(holds(optimizer, 0, now["0.linear.weight"]));
}

TEST_CASE("a parameter that another module still uses stays in the optimizer", "[surgery][optim]") {
  auto model = nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4));
  auto& first = *model->ptr<nn::LinearImpl>(0);
  auto second = std::make_shared<nn::LinearImpl>(static_cast<torch::nn::LinearImpl&>(first));
  model = nn::Sequential(model->ptr<nn::LinearImpl>(0), second);
  SGD optimizer(std::vector<at::Tensor>{first.weight, first.bias}, SGDOptions(0.1));

  surgery::replace<nn::Linear>(*model, fresh, {.optimizers = optimizer});
  const auto now = model->named_parameters();
  CHECK_FALSE(now["0.weight"].is_same(now["1.weight"]));
  CHECK(parameter_count(optimizer) == 4);
  CHECK(holds(optimizer, 0, now["1.weight"]));
  CHECK(holds(optimizer, 0, now["0.weight"]));
}

TEST_CASE("tied parameters stay tied", "[surgery][law]") {
  nn::Linear first(4, 4);
  nn::Linear second(std::make_shared<nn::LinearImpl>(static_cast<torch::nn::LinearImpl&>(*first)));
  nn::Sequential model(first, second);
  SGD optimizer(std::vector<at::Tensor>{first->weight, first->bias}, SGDOptions(0.1));
  surgery::replace<nn::Linear>(*model, gated, {.optimizers = optimizer});
  const auto now = model->named_parameters();
  CHECK(now["0.linear.weight"].is_same(now["1.linear.weight"]));
  CHECK(now["0.linear.weight"].is_same(first->weight));
  CHECK(parameter_count(optimizer) == 2 + 8);
}

TEST_CASE("each of several optimizers keeps its own parameters", "[surgery][optim]") {
  auto model = two_layers();
  const auto old = model->named_parameters();
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers;
  for (const char* layer : {"0", "1"}) {
    optimizers.push_back(
        std::make_shared<SGD>(std::vector<at::Tensor>{old[std::string(layer) + ".weight"],
                                                      old[std::string(layer) + ".bias"]},
                              SGDOptions(0.1)));
  }
  surgery::replace<nn::Linear>(*model, gated, {.optimizers = optimizers});
  const auto now = model->named_parameters();
  CHECK(parameter_count(*optimizers[0]) == 6);
  CHECK(parameter_count(*optimizers[1]) == 6);
  CHECK(holds(*optimizers[0], 0, now["0.gate.weight"]));
  CHECK(holds(*optimizers[1], 0, now["1.gate.weight"]));
}

TEST_CASE("what stands for an untrained parameter is not trained", "[surgery][optim]") {
  auto model = two_layers();
  const auto old = model->named_parameters();
  SGD optimizer(std::vector<at::Tensor>{old["1.weight"], old["1.bias"]}, SGDOptions(0.1));
  surgery::replace<nn::Linear>(*model, fresh, {.optimizers = optimizer});
  CHECK(parameter_count(optimizer) == 2);
}

TEST_CASE("a parameter that fits no group is refused before anything has changed",
          "[surgery][optim]") {
  nn::Sequential model(nn::BatchNorm1d(3), nn::BatchNorm1d(3));
  const auto old = model->named_parameters();
  SGD optimizer(std::vector<OptimizerParamGroup>{{{old["0.weight"]}}, {{old["1.weight"]}}},
                SGDOptions(0.1));
  const auto matrix = [](torch::nn::BatchNorm1dImpl&) {
    return std::make_shared<nn::LinearImpl>(3, 3);
  };
  CHECK_THROWS_WITH(
      surgery::replace<nn::BatchNorm1d>(*model, matrix, {.optimizers = optimizer}),
      ContainsSubstring("surgery adds the parameter 0.weight, and none of the 2 optimizer groups"));
  CHECK(model->named_parameters().keys() == old.keys());
  CHECK(parameter_count(optimizer) == 2);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
