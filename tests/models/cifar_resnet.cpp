#include <tutti/models/cifar_resnet.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <torch/nn/functional/loss.h>

#include <tutti/algorithms/blurpool.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace models = tutti::models;

std::int64_t parameter_count(const torch::nn::Module& model) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    count += parameter.numel();
  }
  return count;
}

}  // namespace

TEST_CASE("the CIFAR networks have their known sizes", "[models][cifar_resnet]") {
  CHECK(parameter_count(*models::cifar_resnet20()) == 272'474);
  CHECK(parameter_count(*models::cifar_resnet56()) == 855'770);
  const auto net = models::cifar_resnet20({.num_classes = 100});
  CHECK(net->named_parameters()["fc.weight"].sizes() == at::IntArrayRef{100, 64});
  CHECK(net->named_parameters()["layer3.2.conv2.weight"].sizes() == at::IntArrayRef{64, 64, 3, 3});
  const torch::NoGradGuard no_grad;
  CHECK(models::cifar_resnet20()->features(torch::randn({2, 3, 32, 32})).sizes() ==
        at::IntArrayRef{2, 64, 8, 8});
}

TEST_CASE("a network for digits is small, and BlurPool acts on it", "[models][cifar_resnet]") {
  auto net = models::cifar_resnet({.in_channels = 1, .blocks = {1, 1, 1}});
  const auto report = tutti::functional::apply_blurpool(*net);
  CHECK(report.convs.replaced == std::vector<std::string>{"layer2.0.conv1", "layer2.0.downsample.0",
                                                          "layer3.0.conv1",
                                                          "layer3.0.downsample.0"});
  CHECK(net(torch::randn({2, 1, 8, 8})).sizes() == at::IntArrayRef{2, 10});
  CHECK(net->features(torch::randn({2, 1, 8, 8})).sizes() == at::IntArrayRef{2, 64, 2, 2});
}

TEST_CASE("a network learns a batch by heart", "[models][cifar_resnet]") {
  torch::manual_seed(1);
  auto net = models::cifar_resnet({.in_channels = 1, .blocks = {1, 1}, .widths = {8, 16}});
  tutti::functional::apply_blurpool(*net, {.min_channels = 8});
  const at::Tensor x = torch::randn({10, 1, 8, 8});
  const at::Tensor target = torch::arange(10);
  for (int step = 0; step < 40; ++step) {
    net->zero_grad();
    const at::Tensor loss = torch::nn::functional::cross_entropy(net(x), target);
    loss.backward();
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) {
      parameter.sub_(parameter.grad(), 0.3);
    }
  }
  CHECK(net(x).argmax(1).equal(target));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
