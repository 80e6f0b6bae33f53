#include <tutti/algorithms/layer_freezing.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/nn/sequential.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/deep.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::LayerFreezing;
using tutti::functional::freeze_layers;

static_assert(tutti::Algorithm<LayerFreezing>);
static_assert(tutti::Recipe<LayerFreezing>::valid);
static_assert(sizeof(tutti::With<LayerFreezing{.freeze_start = 0.25}>) > 0);

tutti::nn::Sequential linears(int count) {
  tutti::nn::Sequential model;
  for (int i = 0; i < count; ++i) {
    model->push_back(torch::nn::Linear(2, 2));
  }
  return model;
}

torch::optim::SGD sgd(const tutti::nn::Sequential& model) {
  return torch::optim::SGD(model->parameters(),
                           torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
}

std::size_t left(const torch::optim::Optimizer& optimizer) {
  std::size_t count = 0;
  for (const auto& group : optimizer.param_groups()) {
    count += group.params().size();
  }
  return count;
}

tutti::TrainerOptions options(const char* length, tutti::OptimizerSpec optimizer) {
  return {.train = tiny::batches(3),
          .max_duration = tutti::Time::parse(length),
          .optimizer = std::move(optimizer),
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

}  // namespace

TEST_CASE("the frozen fraction rises linearly from its start", "[functional][layer_freezing]") {
  auto model = linears(10);
  auto optimizer = sgd(model);
  CHECK(freeze_layers(*model, optimizer, 0.3).fraction == 0);
  CHECK(freeze_layers(*model, optimizer, 0.5).fraction == 0);
  CHECK(left(optimizer) == 20);
  CHECK(std::abs(freeze_layers(*model, optimizer, 0.6).fraction - 0.2) < 1e-12);
  const auto report = freeze_layers(*model, optimizer, 0.75);
  CHECK(report.fraction == 0.5);
  CHECK(report.layers == 4);
  CHECK(left(optimizer) == 12);
  CHECK(freeze_layers(*model, optimizer, 1.0).layers == 9);
  CHECK(left(optimizer) == 2);
  tutti::functional::freeze_first_layers(*model, optimizer, 99);  // as a deeper model's checkpoint
  CHECK(left(optimizer) == 2);
  CHECK(model->parameters().back().requires_grad());
}

TEST_CASE("a model of one layer and a level of 0 never freeze", "[functional][layer_freezing]") {
  auto one = linears(1);
  auto optimizer = sgd(one);
  CHECK(freeze_layers(*one, optimizer, 1.0).layers == 0);
  CHECK(left(optimizer) == 2);
  auto three = linears(3);
  auto second = sgd(three);
  CHECK(freeze_layers(*three, second, 1.0, 0.5, 0.0).layers == 0);
  CHECK(left(second) == 6);
  tutti::nn::Sequential none;
  CHECK(freeze_layers(*none, {}, 1.0).layers == 0);
}

TEST_CASE("frozen weights stay bit for bit, and lose their optimizer state",
          "[functional][layer_freezing]") {
  auto model = linears(3);
  auto optimizer = sgd(model);
  const auto step = [&] {
    optimizer.zero_grad();
    model->forward(at::ones({4, 2})).pow(2).sum().backward();
    optimizer.step();
  };
  step();
  CHECK(optimizer.state().size() == 6);
  freeze_layers(*model, optimizer, 1.0);
  CHECK(optimizer.state().size() == 2);
  const at::Tensor before = model->parameters()[0].detach().clone();
  const at::Tensor head = model->parameters().back().detach().clone();
  step();
  step();
  CHECK(model->parameters()[0].equal(before));
  CHECK_FALSE(model->parameters()[0].grad().defined());
  CHECK_FALSE(model->parameters().back().equal(head));
}

TEST_CASE("parameters of modules with children count, and tied ones train as long as the last",
          "[functional][layer_freezing]") {
  struct Token : torch::nn::Module {
    Token() {
      token = register_parameter("token", at::zeros({3}));
      in = register_module("in", torch::nn::Linear(3, 3));
      middle = register_module("middle", torch::nn::Linear(3, 3));
      out = register_module("out", torch::nn::Linear(3, 3));
      out->weight = out->register_parameter("tied", in->weight);
    }
    at::Tensor token;
    torch::nn::Linear in{nullptr}, middle{nullptr}, out{nullptr};
  };
  const auto model = std::make_shared<Token>();
  CHECK(freeze_layers(*model, {}, 0.75).layers == 1);  // the model's own, not its children's
  CHECK_FALSE(model->token.requires_grad());
  CHECK(model->in->bias.requires_grad());
  CHECK(freeze_layers(*model, {}, 1.0).layers == 3);
  CHECK_FALSE(model->in->bias.requires_grad());
  CHECK_FALSE(model->middle->weight.requires_grad());
  CHECK(model->in->weight.requires_grad());
}

TEST_CASE("several groups keep their hyperparameters, even empty ones",
          "[functional][layer_freezing]") {
  auto model = linears(3);
  const auto parameters = model->parameters();
  const auto optimizer = tutti::DecoupledAdamW{.lr = 0.01}.build(
      {torch::optim::OptimizerParamGroup({parameters[0], parameters[1]}),
       torch::optim::OptimizerParamGroup({parameters.begin() + 2, parameters.end()})});
  const auto step = [&] {
    for (const auto& parameter : parameters) {
      parameter.mutable_grad().reset();
    }
    model->forward(at::ones({4, 2})).pow(2).sum().backward();
    optimizer->step();
  };
  step();
  freeze_layers(*model, *optimizer, 0.75);
  CHECK(optimizer->param_groups().size() == 2);
  CHECK(optimizer->param_groups()[0].params().empty());
  step();
  CHECK(optimizer->state().size() == 4);
}

TEST_CASE("layers freeze at the end of epochs, and frozen statistics stand still",
          "[layer_freezing][trainer]") {
  const auto model = deep(1);
  tutti::Trainer trainer{model, options("4ep", tutti::DecoupledSGDW{.lr = 0.1, .momentum = 0.9}),
                         LayerFreezing{.freeze_start = 0.25}, tutti::InMemoryLogger{}};
  trainer.fit();
  CHECK(trainer.get<LayerFreezing>().run.depth == 3);
  CHECK_FALSE(model->second->weight.requires_grad());
  CHECK(model->last->weight.requires_grad());
  CHECK_FALSE(model->norm->is_training());
  CHECK(model->first->is_training());  // only layers with running statistics stand still
  CHECK(model->norm->num_batches_tracked.item<std::int64_t>() == 9);  // frozen after 3 epochs

  const at::Tensor first = model->first->weight.detach().clone();
  const at::Tensor second = model->second->weight.detach().clone();
  trainer.fit({.duration = "2ep"});  // a longer run asks for fewer layers; none is given back
  CHECK(trainer.get<LayerFreezing>().run.depth == 3);
  CHECK(model->first->weight.equal(first));
  CHECK(model->second->weight.equal(second));

  const auto moving = deep(1);
  tutti::Trainer other{moving, options("4ep", tutti::DecoupledSGDW{.lr = 0.1}),
                       LayerFreezing{.freeze_start = 0.25, .freeze_statistics = false}};
  other.fit();
  CHECK(moving->norm->num_batches_tracked.item<std::int64_t>() == 12);
}

TEST_CASE("LayerFreezing: a resumed run goes on as the saved one", "[layer_freezing][resume]") {
  const TemporaryFolder folder;
  const auto optimizers = {tutti::OptimizerSpec(tutti::DecoupledAdamW{.lr = 0.01}),
                           tutti::OptimizerSpec([](torch::nn::Module& model) {
                             return std::make_shared<torch::optim::SGD>(
                                 model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
                           })};
  int number = 0;
  for (const auto& optimizer : optimizers) {
    const std::string path = folder.path().string() + "/" + std::to_string(number++);
    const LayerFreezing freezing{.freeze_start = 0.2};
    auto saving = options("5ep", optimizer);
    saving.save_folder = path;
    const auto whole = deep(2);
    tutti::Trainer first{whole, saving, freezing};
    first.fit();
    const std::vector<std::pair<std::string, std::int64_t>> saved{
        {"/ep1-ba3", 0}, {"/ep3-ba9", 1}, {"/ep4-ba12", 2}};
    for (const auto& [checkpoint, depth] : saved) {
      auto loading = options("5ep", optimizer);
      loading.load_path = path + checkpoint;
      const auto part = deep(3);
      tutti::Trainer second{part, loading, freezing};
      INFO(checkpoint);
      CHECK(second.get<LayerFreezing>().run.depth == depth);
      second.fit();
      CHECK(tiny::flat(*part).equal(tiny::flat(*whole)));
    }
  }
}

TEST_CASE("LayerFreezing refuses numbers out of range", "[layer_freezing]") {
  LayerFreezing{}.validate();
  CHECK_THROWS_WITH(LayerFreezing{.freeze_start = 1.0}.validate(),
                    ContainsSubstring("freeze_start is 1, expected a number from 0 to below 1"));
  CHECK_THROWS_WITH(LayerFreezing{.freeze_level = 1.5}.validate(),
                    ContainsSubstring("freeze_level is 1.5, expected a number from 0 to 1"));
  auto model = linears(2);
  CHECK_THROWS_AS(freeze_layers(*model, {}, 1.5), c10::ValueError);
  CHECK_THROWS_AS(freeze_layers(*model, {}, 0.5, 1.0), c10::ValueError);
  CHECK_THROWS_AS(freeze_layers(*model, {}, 0.5, 0.5, -1.0), c10::ValueError);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
