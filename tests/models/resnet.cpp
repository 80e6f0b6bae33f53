#include <tutti/models/resnet.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/nn/blur.hpp>
#include <tutti/nn/surgery.hpp>

#include "nn/golden_model.hpp"

namespace {

namespace nn = tutti::nn;
namespace models = tutti::models;
namespace surgery = tutti::surgery;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;

std::int64_t parameter_count(const torch::nn::Module& model) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    count += parameter.numel();
  }
  return count;
}

// A small network of the same make, so that tests are quick.
models::ResNetOptions tiny(models::Block block) {
  return {.block = block, .layers = {1, 1}, .widths = {8, 16}, .num_classes = 5};
}

}  // namespace

TEST_CASE("sizes, names and their order are torchvision's", "[models][resnet]") {
  const auto resnet18 = models::resnet18();
  CHECK(parameter_count(*resnet18) == 11'689'512);
  const auto keys = golden::state_keys(*resnet18);
  REQUIRE(keys.size() == 122);
  CHECK(std::vector<std::string>(keys.begin(), keys.begin() + 8) ==
        std::vector<std::string>{"conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean",
                                 "bn1.running_var", "bn1.num_batches_tracked",
                                 "layer1.0.conv1.weight", "layer1.0.bn1.weight"});
  CHECK(keys[keys.size() - 2] == "fc.weight");
  const auto parameters = resnet18->named_parameters();
  CHECK(parameters["layer2.0.downsample.0.weight"].sizes() == at::IntArrayRef{128, 64, 1, 1});
  CHECK(parameters["layer4.1.conv2.weight"].sizes() == at::IntArrayRef{512, 512, 3, 3});
  CHECK_FALSE(parameters.contains("layer1.0.downsample.0.weight"));
  CHECK_FALSE(parameters.contains("conv1.bias"));
}

TEST_CASE("deeper networks have torchvision's sizes", "[models][resnet]") {
  CHECK(parameter_count(*models::resnet34()) == 21'797'672);
  const auto resnet50 = models::resnet50();
  CHECK(parameter_count(*resnet50) == 25'557'032);
  CHECK(golden::state_keys(*resnet50).size() == 320);
  const auto parameters = resnet50->named_parameters();
  CHECK(parameters["layer1.0.downsample.1.bias"].sizes() == at::IntArrayRef{256});
  CHECK(parameters["layer3.5.conv3.weight"].sizes() == at::IntArrayRef{1024, 256, 1, 1});
  CHECK(parameter_count(*models::resnet50({.groups = 32, .width_per_group = 4})) == 25'028'904);
}

TEST_CASE("images of any size give logits, and features come before the mean", "[models][resnet]") {
  const torch::NoGradGuard no_grad;
  for (const auto block : {models::Block::basic, models::Block::bottleneck}) {
    models::ResNet net(tiny(block));
    const std::int64_t channels = block == models::Block::basic ? 16 : 64;
    CHECK(net(torch::randn({2, 3, 64, 48})).sizes() == at::IntArrayRef{2, 5});
    CHECK(net->features(torch::randn({2, 3, 64, 48})).sizes() ==
          at::IntArrayRef{2, channels, 8, 6});
  }
}

TEST_CASE("weights are drawn as torchvision draws them", "[models][resnet]") {
  torch::manual_seed(3);
  const auto net = models::resnet18();
  const auto parameters = net->named_parameters();
  const auto deviation = [&](const char* name) { return parameters[name].std().item<double>(); };
  CHECK_THAT(deviation("conv1.weight"), WithinRel(std::sqrt(2. / (64 * 49)), 0.05));
  CHECK_THAT(deviation("layer2.0.conv2.weight"), WithinRel(std::sqrt(2. / (128 * 9)), 0.05));
  CHECK_THAT(deviation("fc.weight"), WithinRel(1 / std::sqrt(3. * 512), 0.05));
  CHECK(parameters["layer1.0.bn2.weight"].min().item<double>() == 1);
  CHECK(parameters["layer1.0.bn2.bias"].abs().max().item<double>() == 0);
}

TEST_CASE("zero_init_residual starts every block as its shortcut", "[models][resnet]") {
  for (const auto block : {models::Block::basic, models::Block::bottleneck}) {
    auto options = tiny(block);
    options.zero_init_residual = true;
    models::ResNet net(options);
    std::int64_t channels = 8;
    const std::int64_t blocks = surgery::for_each<models::ResidualBlock>(
        *net, [&](models::ResidualBlock& residual, const surgery::Visit&) {
          const at::Tensor y = residual.residual(torch::randn({2, channels, 4, 4}));
          CHECK(y.abs().max().item<double>() == 0);
          channels = y.size(1);
        });
    CHECK(blocks == 2);
  }
}

TEST_CASE("an algorithm can join the two branches of a block otherwise", "[models][resnet]") {
  models::BasicBlock block(models::BlockOptions{.in_channels = 4, .width = 4});
  const at::Tensor x = torch::randn({2, 4, 6, 6});
  CHECK_FALSE(block->projects());
  block->eval();
  CHECK(block(x).allclose(torch::relu(block->residual(x) + x)));
  block->set_join([](models::ResidualBlock&, const at::Tensor& input) { return input; });
  CHECK(block(x).is_same(x));
  block->set_join({});
  CHECK_FALSE(block(x).is_same(x));
  models::BasicBlock strided(models::BlockOptions{.in_channels = 4, .width = 8, .stride = 2});
  CHECK(strided->projects());
  CHECK(strided(x).sizes() == at::IntArrayRef{2, 8, 3, 3});
}

TEST_CASE("every convolution of a network is replaceable, and names follow", "[models][resnet]") {
  models::ResNet net(tiny(models::Block::bottleneck));
  const auto report = surgery::replace<nn::Conv2d>(
      *net, [](torch::nn::Conv2dImpl& conv) { return std::make_shared<nn::BlurConv2dImpl>(conv); });
  CHECK(report.skipped.empty());
  CHECK(report.count() == 9);
  CHECK(net->named_parameters().contains("layer2.0.downsample.0.conv.weight"));
  CHECK(net->named_buffers().contains("layer1.0.conv3.blur_filter"));
  const torch::NoGradGuard no_grad;
  CHECK(net(torch::randn({1, 3, 32, 32})).sizes() == at::IntArrayRef{1, 5});
}

TEST_CASE("a network clones deeply", "[models][resnet]") {
  models::ResNet net(tiny(models::Block::basic));
  net->eval();
  const auto copy = std::dynamic_pointer_cast<models::ResNetImpl>(net->clone());
  REQUIRE(copy != nullptr);
  const at::Tensor x = torch::randn({2, 3, 32, 32});
  CHECK(golden::state_keys(*copy) == golden::state_keys(*net));
  CHECK(copy->forward(x).equal(net(x)));
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : copy->parameters()) {
    parameter.add_(1);
  }
  CHECK_FALSE(copy->forward(x).equal(net(x)));
}

TEST_CASE("shapes that make no network are refused", "[models][resnet]") {
  CHECK_THROWS_WITH(models::ResNet(models::ResNetOptions{.layers = {1, 1}}),
                    ContainsSubstring("layers has 2 stages and widths 4"));
  CHECK_THROWS_WITH(models::ResNet(models::ResNetOptions{.layers = {2, 0, 2, 2}}),
                    ContainsSubstring("a stage has 0 blocks"));
  CHECK_THROWS_WITH(models::resnet18({.groups = 2}),
                    ContainsSubstring("basic blocks have no groups"));
}
