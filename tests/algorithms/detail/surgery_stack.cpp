#include <tutti/algorithms/detail/low_precision.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <vector>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/channels_last.hpp>
#include <tutti/algorithms/factorize.hpp>
#include <tutti/algorithms/ghost_batchnorm.hpp>
#include <tutti/algorithms/low_precision_groupnorm.hpp>
#include <tutti/algorithms/low_precision_layernorm.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/algorithms/spectral_norm.hpp>
#include <tutti/algorithms/squeeze_excite.hpp>
#include <tutti/algorithms/stochastic_depth.hpp>
#include <tutti/algorithms/sync_batchnorm.hpp>
#include <tutti/algorithms/weight_norm.hpp>
#include <tutti/algorithms/weight_standardization.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/trainer.hpp>

#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace models = tutti::models;
namespace nn = tutti::nn;
namespace surgery = tutti::surgery;

// A small residual network with a convolution and a group normalisation in front of it.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    at::manual_seed(3);
    stem = register_module("stem", nn::Conv2d(3, 3, 1));
    norm = register_module("norm", nn::GroupNorm(torch::nn::GroupNormOptions(1, 3)));
    body = register_module(
        "body",
        models::ResNet(models::ResNetOptions{
            .layers = {1, 2}, .widths = {8, 16}, .stem = models::Stem::small, .num_classes = 3}));
  }
  at::Tensor forward(const at::Tensor& x) { return body(norm(stem(x))); }
  nn::Conv2d stem{nullptr};
  nn::GroupNorm norm{nullptr};
  models::ResNet body{nullptr};
};

std::vector<tutti::Batch> images(int count) {
  at::manual_seed(11);
  std::vector<tutti::Batch> out;
  for (int i = 0; i < count; ++i) {
    out.emplace_back(at::randn({8, 3, 8, 8}), at::randint(3, {8}, at::kLong));
  }
  return out;
}

tutti::TrainerOptions options(tutti::Precision precision) {
  return {.train = images(3),
          .max_duration = "2ep",
          .optimizer = tutti::DecoupledAdamW{.lr = 0.01},
          .device_train_microbatch_size = 4,
          .device = "cpu",
          .precision = precision,
          .seed = 5,
          .progress_bar = false};
}

// Listed in an order that the rules have to change.
auto trainer_of(const std::shared_ptr<NetImpl>& net, tutti::TrainerOptions how) {
  return std::make_unique<
      tutti::Trainer<tutti::ChannelsLast, tutti::WeightStandardization, tutti::StochasticDepth,
                     tutti::LowPrecisionGroupNorm, tutti::GhostBatchNorm, tutti::BlurPool,
                     tutti::Factorize, tutti::SqueezeExcite, tutti::SAM>>(
      tutti::Classifier(net, {.num_classes = 3, .train_metrics = tutti::Metrics{}}), std::move(how),
      tutti::ChannelsLast{}, tutti::WeightStandardization{},
      tutti::StochasticDepth{.drop_rate = 0.5, .drop_warmup = "1ep"},
      tutti::LowPrecisionGroupNorm{.if_none = surgery::IfNone::ignore},
      tutti::GhostBatchNorm{.ghost_batch_size = 2}, tutti::BlurPool{.min_channels = 4},
      tutti::Factorize{.min_channels = 16, .latent_channels = 4},
      tutti::SqueezeExcite{.latent_channels = 2, .min_channels = 8}, tutti::SAM{.interval = 2});
}

}  // namespace

// Layers that their parent calls directly, which no surgery can replace.
struct PlainMembersImpl : torch::nn::Module {
  torch::nn::Conv2d conv =
      register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(64, 64, 3).stride(2)));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(1024, 1024));
  torch::nn::BatchNorm2d batch_norm = register_module("batch_norm", torch::nn::BatchNorm2d(64));
  torch::nn::GroupNorm group_norm =
      register_module("group_norm", torch::nn::GroupNorm(torch::nn::GroupNormOptions(4, 64)));
  torch::nn::LayerNorm layer_norm =
      register_module("layer_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})));
  torch::nn::MaxPool2d pool = register_module("pool", torch::nn::MaxPool2d(2));
};

// The exception names the policy, the member, and the type to declare it as.
template <class Apply>
void check_plain_members(const Apply& apply, const std::string& who,
                         const std::vector<std::string>& members, const std::string& type) {
  INFO(who);
  PlainMembersImpl net;
  const std::vector<std::string> names = net.named_parameters().keys();
  try {
    apply(net);
    FAIL_CHECK("nothing was thrown");
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    INFO(text);
    CHECK(text.starts_with(who + ": no "));
    CHECK(text.find(" was replaced: it passed over ") != std::string::npos);
    for (const std::string& member : members) {
      CHECK(text.find(member) != std::string::npos);
    }
    CHECK(text.find("a plain member that its parent calls directly: declare it as tutti::nn::" +
                    type + ", or put it into a Sequential") != std::string::npos);
  }
  CHECK(net.named_parameters().keys() == names);
}

TEST_CASE("every surgery that finds plain members alone says what to declare", "[surgery]") {
  namespace functional = tutti::functional;
  const auto error = surgery::IfNone::error;
  const auto half = tutti::Precision::amp_bf16;
  check_plain_members(
      [](torch::nn::Module& net) { functional::apply_blurpool(net, {.if_none = error}); },
      "BlurPool", {"conv", "pool"}, "MaxPool2d");
  check_plain_members(
      [](torch::nn::Module& net) { functional::apply_squeeze_excite(net, {.min_channels = 64}); },
      "SqueezeExcite", {"conv"}, "Conv2d");
  check_plain_members([](torch::nn::Module& net) { functional::apply_ghost_batchnorm(net); },
                      "GhostBatchNorm", {"batch_norm"}, "BatchNorm2d");
  check_plain_members(
      [](torch::nn::Module& net) {
        functional::apply_sync_batchnorm(net, [](const at::Tensor&) {});
      },
      "SyncBatchNorm", {"batch_norm"}, "BatchNorm2d");
  check_plain_members(
      [](torch::nn::Module& net) {
        functional::apply_low_precision_groupnorm(net, half, {}, error);
      },
      "LowPrecisionGroupNorm", {"group_norm"}, "GroupNorm");
  check_plain_members(
      [](torch::nn::Module& net) {
        functional::apply_low_precision_layernorm(net, half, {}, error);
      },
      "LowPrecisionLayerNorm", {"layer_norm"}, "LayerNorm");
  check_plain_members([](torch::nn::Module& net) { functional::apply_weight_standardization(net); },
                      "WeightStandardization", {"conv"}, "Conv2d");
  check_plain_members(
      [](torch::nn::Module& net) { functional::apply_factorization(net, {.if_none = error}); },
      "Factorize", {"conv", "linear"}, "Linear");
  check_plain_members([](torch::nn::Module& net) { functional::apply_weight_norm(net); },
                      "WeightNorm", {"conv", "linear"}, "Linear");
  check_plain_members([](torch::nn::Module& net) { functional::apply_spectral_norm(net); },
                      "SpectralNorm", {"conv", "linear"}, "Linear");
}

TEST_CASE("all surgery of one model together trains and resumes bit for bit", "[surgery][resume]") {
  for (const auto precision : {tutti::Precision::fp32, tutti::Precision::amp_bf16}) {
    const TemporaryFolder folder;
    auto whole = std::make_shared<NetImpl>();
    auto first = options(precision);
    first.save_folder = folder.path().string();
    first.save_interval = "1ep";
    const auto run = trainer_of(whole, first);
    run->fit();

    const auto names = whole->named_parameters();
    CHECK(names.contains("body.layer2.1.conv1.conv.module0.parametrizations.weight.original"));
    CHECK(names.contains("body.layer2.1.conv1.se.pool_and_mlp.2.weight"));
    CHECK(names.contains("body.layer2.1.bn1.batchnorm.weight"));
    CHECK(surgery::count<nn::BlurConv2d>(*whole) > 0);
    CHECK(surgery::count<nn::LowPrecisionGroupNorm>(*whole) ==
          (precision == tutti::Precision::fp32 ? 0 : 1));
    for (const auto& parameter : whole->parameters()) {
      CHECK((parameter.dim() != 4 || parameter.is_contiguous(at::MemoryFormat::ChannelsLast)));
    }
    CHECK(tiny::flat(*whole).isfinite().all().item<bool>());

    auto resumed = std::make_shared<NetImpl>();
    auto second = options(precision);
    second.load_path = folder.path().string() + "/ep1-ba3";
    const auto rest = trainer_of(resumed, second);
    rest->fit();
    CHECK(tiny::flat(*resumed).equal(tiny::flat(*whole)));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
