#include <tutti/models/resnet.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/algorithms/stochastic_depth.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/models/from_pretrained.hpp>
#include <tutti/models/save_pretrained.hpp>
#include <tutti/nn/blur.hpp>
#include <tutti/nn/surgery.hpp>

#include "nn/golden_model.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
namespace models = tutti::models;
namespace surgery = tutti::surgery;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;
using models::PretrainedConfig;
using models::ResNet;
using models::ResNetImpl;
using models::VisionLayout;

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

PretrainedConfig config(const std::string& text) {
  const auto json = tutti::detail::parse_json(text);
  return PretrainedConfig(json.object());
}

std::vector<std::string> names_on_disk(ResNet& net, VisionLayout layout) {
  std::vector<std::string> names;
  for (const auto& entry : net->weight_layout(layout).tensors) {
    names.push_back(entry.name);
  }
  return names;
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

TEST_CASE("the stem's width and where sizes are halved are options", "[models][resnet]") {
  auto options = tiny(models::Block::bottleneck);
  options.stem_width = 12;
  options.downsample_in_first_stage = true;
  options.downsample_in_bottleneck = true;
  ResNet net(options);
  const auto parameters = net->named_parameters();
  CHECK(parameters["conv1.weight"].size(0) == 12);
  CHECK(parameters["layer1.0.downsample.0.weight"].sizes() == at::IntArrayRef{32, 12, 1, 1});
  const auto& block = net->stages[0]->at<models::BottleneckImpl>(0);
  CHECK(block.conv1->options.stride()->at(0) == 2);
  CHECK(block.conv2->options.stride()->at(0) == 1);
  const torch::NoGradGuard no_grad;
  CHECK(net->features(torch::randn({1, 3, 64, 64})).sizes() == at::IntArrayRef{1, 64, 4, 4});
  options = tiny(models::Block::basic);
  options.downsample_in_bottleneck = true;
  CHECK_THROWS_WITH(ResNet(options), ContainsSubstring("basic blocks have no groups"));
  options = tiny(models::Block::basic);
  options.stem_width = -1;
  CHECK_THROWS_WITH(ResNet(options), ContainsSubstring("stem_width is -1"));
}

TEST_CASE("names on disk of a ResNet are those of each library, in its order",
          "[models][resnet][layouts]") {
  ResNet net(tiny(models::Block::bottleneck));
  CHECK(names_on_disk(net, VisionLayout::timm) == golden::state_keys(*net));
  CHECK(names_on_disk(net, VisionLayout::timm_wrapper)[0] == "timm_model.conv1.weight");
  const auto names = names_on_disk(net, VisionLayout::huggingface);
  CHECK(names.size() == golden::state_keys(*net).size());
  CHECK(names[0] == "resnet.embedder.embedder.convolution.weight");
  CHECK(names[5] == "resnet.embedder.embedder.normalization.num_batches_tracked");
  CHECK(names[6] == "resnet.encoder.stages.0.layers.0.shortcut.convolution.weight");
  CHECK(names[12] == "resnet.encoder.stages.0.layers.0.layer.0.convolution.weight");
  CHECK(names.back() == "classifier.1.bias");
  const auto layout = net->weight_layout(VisionLayout::huggingface);
  CHECK(layout.tensors[5].tensor.scalar_type() == at::kLong);
  CHECK(layout.tensors[5].tensor.dim() == 0);

  ResNet other(tiny(models::Block::bottleneck));
  const auto to = other->weight_layout(VisionLayout::huggingface);
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    to.tensors[i].tensor.copy_(layout.tensors[i].tensor);
  }
  net->eval();
  other->eval();
  const at::Tensor x = torch::randn({2, 3, 32, 32});
  CHECK(other(x).equal(net(x)));
}

TEST_CASE("a config says the options of a ResNet again, in every layout that can",
          "[models][resnet][config]") {
  for (const auto block : {models::Block::basic, models::Block::bottleneck}) {
    for (const VisionLayout layout : {VisionLayout::torchvision, VisionLayout::timm,
                                      VisionLayout::timm_wrapper, VisionLayout::huggingface}) {
      auto options = tiny(block);
      options.layout = layout;
      options.stem_width = 64;
      if (layout != VisionLayout::huggingface) {
        CHECK_THROWS_WITH(ResNet(options)->config(),
                          ContainsSubstring("it has 2 stages (there 4)"));
        options.layers = {1, 1, 2, 1};
        options.widths = {8, 16, 24, 32};
      }
      if (layout == VisionLayout::torchvision) {
        options.widths = {64, 128, 256, 512};
      } else if (layout == VisionLayout::huggingface) {
        options.in_channels = 1;
        options.stem_width = 12;
        options.downsample_in_first_stage = true;
        options.downsample_in_bottleneck = block == models::Block::bottleneck;
      } else {
        options.in_channels = 4;
      }
      const PretrainedConfig config = ResNet(options)->config();
      INFO(to_string(layout));
      CHECK(models::vision_layout_of(config) == layout);
      const auto again = ResNetImpl::options_from(config);
      CHECK(models::detail::named_options(again) == models::detail::named_options(options));
      CHECK(again.layout == layout);
    }
  }
  models::ResNetOptions options;
  options.layout = VisionLayout::timm;
  options.num_classes = 7;
  const auto wide = models::wide_resnet50_2(options)->config();
  CHECK(wide.text("architecture", "") == "wide_resnet50_2");
  CHECK_FALSE(wide.has("model_args"));
  CHECK(models::resnet18()->config().text("function", "") == "torchvision.models.resnet18");
  options.stem = models::Stem::small;
  CHECK_THROWS_WITH(ResNet(options)->config(), ContainsSubstring("stem is small (there imagenet)"));
}

TEST_CASE("residual networks are known by their names", "[models][resnet][config]") {
  const auto of = [](const std::string& text) { return ResNetImpl::options_from(config(text)); };
  const auto deep = of(R"({"architecture": "resnet152.a1h_in1k", "num_classes": 5})");
  CHECK(deep.layers == std::vector<std::int64_t>{3, 8, 36, 3});
  CHECK(deep.num_classes == 5);
  const auto next = of(R"({"function": "torchvision.models.resnext101_32x8d"})");
  CHECK(next.groups == 32);
  CHECK(next.width_per_group == 8);
  const auto hf = of(R"({"model_type": "resnet", "id2label": {"0": "a", "1": "b", "2": "c"}})");
  CHECK(hf.layers == std::vector<std::int64_t>{3, 4, 6, 3});
  CHECK(hf.widths == std::vector<std::int64_t>{64, 128, 256, 512});
  CHECK(hf.block == models::Block::bottleneck);
  CHECK(hf.num_classes == 3);
}

TEST_CASE("keys that change a ResNet's computation are refused by name and value",
          "[models][resnet][config]") {
  const auto says = [](const std::string& text) -> std::string {
    try {
      (void)ResNetImpl::options_from(config(text));
      return "nothing";
    } catch (const c10::ValueError& error) {
      return error.what();
    }
  };
  const auto timm = [&](const std::string& args) {
    return says(R"({"architecture": "resnet50", "model_args": {)" + args + "}}");
  };
  CHECK_THAT(says(R"({"architecture": "resnet50d"})"),
             ContainsSubstring("architecture is \"resnet50d\"") &&
                 ContainsSubstring("resnet18, resnet34"));
  CHECK_THAT(says(R"({"architecture": "resnet26"})"), ContainsSubstring("nothing"));
  CHECK_THAT(says(R"({"function": "torchvision.models.resnet26"})"),
             ContainsSubstring("function is \"torchvision.models.resnet26\""));
  CHECK_THAT(timm(R"("stem_type": "deep")"), ContainsSubstring("-D variants"));
  CHECK_THAT(timm(R"("avg_down": true)"), ContainsSubstring("avg_down is true"));
  CHECK_THAT(timm(R"("drop_path_rate": 0.2)"), ContainsSubstring("StochasticDepth"));
  CHECK_THAT(timm(R"("avg_down": false, "base_width": 64)"), ContainsSubstring("nothing"));
  CHECK_THAT(says(R"({"model_type": "resnet", "hidden_act": "prelu"})"),
             ContainsSubstring("hidden_act is \"prelu\""));
  CHECK_THAT(says(R"({"model_type": "resnet", "hidden_sizes": [6, 8], "depths": [1, 1]})"),
             ContainsSubstring("multiples of 4"));
}

TEST_CASE("the nonlinearity of a residual network is the one that its config names",
          "[models][resnet][config]") {
  for (const models::Block kind : {models::Block::basic, models::Block::bottleneck}) {
    models::ResNetOptions options = tiny(kind);
    options.layers = {1, 1, 2, 1};
    options.widths = {8, 8, 12, 16};
    options.hidden_act = nn::Activation::silu;
    ResNet net(options);
    net->eval();
    const at::Tensor x = torch::randn({2, 3, 64, 64});
    const at::Tensor stem = at::silu(net->bn1(net->conv1(x)));
    at::Tensor y = net->maxpool ? net->maxpool(stem) : stem;
    for (const auto& stage : net->stages) {
      for (const auto& block : stage->children()) {
        const auto part = [&](const char* name, const at::Tensor& z) {
          return block->named_children()[name]->as<nn::BatchNorm2d>()
                     ? block->named_children()[name]->as<nn::BatchNorm2d>()->forward(z)
                     : block->named_children()[name]->as<nn::Conv2d>()->forward(z);
        };
        at::Tensor z = part("bn2", part("conv2", part("bn1", part("conv1", y)).relu()));
        if (kind == models::Block::bottleneck) {
          z = part("bn3", part("conv3", z.relu()));
        }
        y = at::silu(z + dynamic_cast<models::ResidualBlock&>(*block).shortcut(y));
      }
    }
    CHECK(net->features(x).allclose(y, 1e-4, 1e-5));
    net->set_layout(VisionLayout::huggingface);
    CHECK(net->config().text("hidden_act", "") == "silu");
    CHECK(models::ResNetImpl::options_from(net->config()).hidden_act == nn::Activation::silu);
    net->set_layout(VisionLayout::timm);
    CHECK_THROWS_WITH(net->config(), ContainsSubstring("hidden_act is silu"));
  }
}

TEST_CASE("the larger networks have torchvision's sizes", "[models][resnet]") {
  CHECK(parameter_count(*models::resnet152()) == 60'192'808);
  CHECK(parameter_count(*models::resnext50_32x4d()) == 25'028'904);
  CHECK(parameter_count(*models::resnext101_32x8d()) == 88'791'336);
  CHECK(parameter_count(*models::resnext101_64x4d()) == 83'455'272);
  CHECK(parameter_count(*models::wide_resnet50_2()) == 68'883'240);
  CHECK(parameter_count(*models::wide_resnet101_2()) == 126'886'696);
}

TEST_CASE("a residual network goes from folder to folder and from library to library",
          "[models][resnet][pretrained]") {
  const TemporaryFolder folder;
  ResNet net(models::ResNetOptions{.layers = {1, 1, 2, 1}, .num_classes = 5});
  net(torch::randn({4, 3, 64, 64}));  // running statistics of its own
  net->eval();
  const at::Tensor x = torch::randn({2, 3, 64, 64});
  const at::Tensor y = net(x);
  ResNet last = net;
  for (const VisionLayout layout : {VisionLayout::timm, VisionLayout::huggingface,
                                    VisionLayout::torchvision, VisionLayout::timm_wrapper}) {
    const std::string path = (folder / std::string(to_string(layout))).string();
    last->set_layout(layout);
    models::save_pretrained(last, path);
    auto read = models::from_pretrained<ResNet>(path);
    read->eval();
    CHECK(read->options().layout == layout);
    CHECK(read(x).equal(y));
    CHECK(read->bn1->num_batches_tracked.item<std::int64_t>() == 1);
    last = read;
  }
}

TEST_CASE("what stochastic depth multiplies by in evaluation is in the weights that are written",
          "[models][resnet][pretrained][stochastic_depth]") {
  const TemporaryFolder folder;
  for (const auto block : {models::Block::basic, models::Block::bottleneck}) {
    models::ResNetOptions options = tiny(block);
    options.layers = {1, 1, 2, 1};
    options.widths = {8, 8, 12, 16};
    options.stem_width = 64;
    ResNet net(options);
    net(torch::randn({4, 3, 64, 64}));
    const auto blocks = tutti::functional::apply_stochastic_depth(*net, {.drop_rate = 0.8});
    net->eval();
    const at::Tensor x = torch::randn({2, 3, 64, 64});
    const at::Tensor y = net(x);
    const at::Tensor scale =
        net->stages[3]->ptr(0)->named_parameters()[block == models::Block::basic ? "bn2.weight"
                                                                                 : "bn3.weight"];
    for (const VisionLayout layout : {VisionLayout::timm, VisionLayout::huggingface}) {
      const std::string path =
          (folder / (std::string(to_string(layout)) + (block == models::Block::basic ? "b" : "n")))
              .string();
      net->set_layout(layout);
      models::save_pretrained(net, path);
      CHECK(net(x).equal(y));
      CHECK(scale.equal(at::ones_like(scale)));
      auto read = models::from_pretrained<ResNet>(path);
      read->eval();
      CHECK(read(x).allclose(y, 1e-4, 1e-5));
      CHECK(blocks->drop_rates().back() == 0.8);
    }
  }
}

TEST_CASE("a pretrained network is read for images of one channel when that is asked for",
          "[models][resnet][pretrained]") {
  const TemporaryFolder folder;
  ResNet net(models::ResNetOptions{.layers = {1, 1, 2, 1}, .num_classes = 5});
  net->eval();
  const at::Tensor grey = torch::randn({2, 1, 64, 64});
  const at::Tensor y = net(grey.expand({2, 3, 64, 64}));
  for (const VisionLayout layout : {VisionLayout::timm, VisionLayout::huggingface}) {
    const bool timm = layout == VisionLayout::timm;
    net->set_layout(layout);
    const std::string path = (folder / std::string(to_string(layout))).string();
    models::save_pretrained(net, path);
    const auto one = [&](PretrainedConfig& edited) {
      auto args = edited.section("model_args");
      args.set("in_chans", 1);
      timm ? edited.set("model_args", args.values()) : edited.set("num_channels", 1);
    };
    CHECK_THROWS_WITH(models::from_pretrained<ResNet>(path, {.edit_config = one}),
                      ContainsSubstring("A first convolution is fitted to images of other"));
    models::PretrainedReport report;
    auto read = models::from_pretrained<ResNet>(
        path, {.ignore_mismatched_sizes = true, .edit_config = one, .report = &report});
    CHECK(report.adapted.size() == 1);
    CHECK(report.initialised.empty());
    read->eval();
    CHECK(read(grey).allclose(y, 1e-3, 1e-4));
  }
}

TEST_CASE("counters of batches that a file lacks are 0, as in PyTorch",
          "[models][resnet][pretrained]") {
  const TemporaryFolder folder;
  ResNet net(tiny(models::Block::basic));
  net(torch::randn({4, 3, 64, 64}));
  net->eval();
  const std::string path = (folder / "old.safetensors").string();
  std::vector<tutti::checkpoint::NamedTensor> tensors;
  for (const auto& entry : net->weight_layout().tensors) {
    if (!entry.name.ends_with("num_batches_tracked")) {
      tensors.emplace_back(entry.name, entry.tensor);
    }
  }
  tutti::checkpoint::write_safetensors(path, tensors);
  ResNet read(tiny(models::Block::basic));
  read->bn1->num_batches_tracked.fill_(3);
  const auto report = models::load_pretrained(read->weight_layout(), path);
  CHECK(report.zeroed.size() == 6);
  CHECK(read->bn1->num_batches_tracked.item<std::int64_t>() == 0);
  read->eval();
  const at::Tensor x = torch::randn({2, 3, 64, 64});
  CHECK(read(x).equal(net(x)));
  std::erase_if(tensors, [](const auto& one) { return one.first == "bn1.running_mean"; });
  std::filesystem::remove(path);
  tutti::checkpoint::write_safetensors(path, tensors);
  CHECK_THROWS_WITH(models::load_pretrained(read->weight_layout(), path),
                    ContainsSubstring("2 missing") && ContainsSubstring("bn1.running_mean"));
}

TEST_CASE("files of variants with deep stems or pooled shortcuts are refused",
          "[models][resnet][pretrained]") {
  const TemporaryFolder folder;
  ResNet net(tiny(models::Block::basic));
  for (const char* name : {"conv1.0.weight", "layer1.0.downsample.2.weight"}) {
    const std::string path = (folder / (std::string(name) + ".safetensors")).string();
    tutti::checkpoint::write_safetensors(path, {{name, at::ones({4})}});
    CHECK_THROWS_WITH(models::load_pretrained(net->weight_layout(), path),
                      ContainsSubstring(name) && ContainsSubstring("-D"));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
