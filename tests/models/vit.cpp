#include <tutti/models/vit.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tutti/algorithms/alibi.hpp>
#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/factorize.hpp>
#include <tutti/algorithms/gated_linear_units.hpp>
#include <tutti/algorithms/gyro_dropout.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/low_precision_layernorm.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/algorithms/seq_length_warmup.hpp>
#include <tutti/algorithms/stochastic_depth.hpp>
#include <tutti/core/autocast.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/trainer.hpp>

#include "models/vision.hpp"

namespace {

namespace functional = tutti::functional;
namespace models = tutti::models;
namespace nn = tutti::nn;
namespace surgery = tutti::surgery;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;
using models::VisionTransformer;
using models::VisionTransformerImpl;

// What the compiler lets stand beside a vision transformer, and what not.
template <class P>
constexpr bool trains =
    tutti::Supports<P, VisionTransformerImpl>&& tutti::Supports<P, VisionTransformer>&&
        tutti::Supports<P, tutti::Classifier<VisionTransformerImpl>>;
static_assert(trains<tutti::MixUp> && trains<tutti::CutMix> && trains<tutti::CutOut>);
static_assert(trains<tutti::LabelSmoothing> && trains<tutti::StochasticDepth>);
static_assert(trains<tutti::GyroDropout> && trains<tutti::Factorize> && trains<tutti::BlurPool>);
template <class P>
constexpr bool refused = !tutti::Supports<P, VisionTransformerImpl> &&
                         !tutti::Supports<P, tutti::Classifier<VisionTransformerImpl>>;
static_assert(refused<tutti::ProgressiveResizing> && refused<tutti::ColOut>);
static_assert(refused<tutti::ALiBi> && refused<tutti::SeqLengthWarmup>);
static_assert(refused<tutti::GatedLinearUnits>);

VisionTransformer tiny(double dropout = 0, double attention_dropout = 0) {
  auto options = vision::tiny();
  options.dropout = dropout;
  options.attention_dropout = attention_dropout;
  VisionTransformer net(options);
  const torch::NoGradGuard no_grad;
  net->parameters().end()[-2].normal_(0, 0.1);  // the last layer's weight, which starts as zeros
  return net;
}

// Images of which one quarter is bright; the class says which.
std::vector<tutti::Batch> quarters(int count) {
  at::manual_seed(4);
  std::vector<tutti::Batch> out;
  for (int i = 0; i < count; ++i) {
    const at::Tensor classes = at::randint(4, {16}, at::kLong);
    const at::Tensor x = at::randn({16, 3, 8, 8}) * 0.3;
    for (std::int64_t n = 0; n < 16; ++n) {
      const auto at = classes[n].item<std::int64_t>();
      x[n].slice(1, at / 2 * 4, at / 2 * 4 + 4).slice(2, at % 2 * 4, at % 2 * 4 + 4).add_(1);
    }
    out.emplace_back(x, classes);
  }
  return out;
}

tutti::TrainerOptions run_of(tutti::Time length) {
  return {.train = quarters(8),
          .max_duration = length,
          .optimizer = tutti::DecoupledAdamW{.lr = 1e-2},
          .device = "cpu",
          .seed = 5,
          .progress_bar = false};
}

std::vector<std::string> names_of(std::int64_t layers) {
  std::vector<std::string> names = {"class_token", "conv_proj.weight", "conv_proj.bias",
                                    "encoder.pos_embedding"};
  for (std::int64_t i = 0; i < layers; ++i) {
    for (const char* name : {"ln_1.weight", "ln_1.bias", "self_attention.in_proj_weight",
                             "self_attention.in_proj_bias", "self_attention.out_proj.weight",
                             "self_attention.out_proj.bias", "ln_2.weight", "ln_2.bias",
                             "mlp.0.weight", "mlp.0.bias", "mlp.3.weight", "mlp.3.bias"}) {
      names.push_back("encoder.layers.encoder_layer_" + std::to_string(i) + "." + name);
    }
  }
  for (const char* name : {"encoder.ln.weight", "encoder.ln.bias"}) {
    names.emplace_back(name);
  }
  return names;
}

std::int64_t parameter_count(const torch::nn::Module& model) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    count += parameter.numel();
  }
  return count;
}

}  // namespace

TEST_CASE("logits and gradients are torchvision's, whichever way they are computed",
          "[models][vit][golden]") {
  const auto functions = golden::functions();
  if (std::find(functions.begin(), functions.end(), "vision_transformer") == functions.end()) {
    return tutti_test::skip("the folder of TUTTI_GOLDEN has no vision_transformer");
  }
  for (const golden::Case& c : golden::cases("vision_transformer")) {
    const auto check = [&](const std::string& key, const at::Tensor& got) {
      CHECK_GOLDEN(c, key, got);
    };
    auto options = vision::options(c.params);
    VisionTransformer net(options);
    vision::run(c, net, check);
    functional::apply_stochastic_depth(*net, {.stochastic_method = tutti::DropMethod::sample,
                                              .drop_rate = 1e-300});  // residual and shortcut apart
    vision::run(c, net, check);
    options.attention_dropout = 1e-300;  // dropout's own path computes the probabilities one by one
    VisionTransformer dropping(options);
    vision::run(c, dropping, check);
  }
}

TEST_CASE("names, their order and sizes of ViT-B are torchvision's", "[models][vit]") {
  auto names = names_of(12);
  names.insert(names.end(), {"heads.head.weight", "heads.head.bias"});
  const auto large = models::vit_b_16();
  CHECK(golden::state_keys(*large) == names);
  CHECK(parameter_count(*large) == 86'567'656);
  CHECK(large->encoder->pos_embedding.sizes() == at::IntArrayRef{1, 197, 768});
  CHECK(parameter_count(*models::vit_b_32()) == 88'224'232);

  auto options = vision::tiny();
  options.representation_size = 7;
  names = names_of(2);
  names.insert(names.end(), {"heads.pre_logits.weight", "heads.pre_logits.bias",
                             "heads.head.weight", "heads.head.bias"});
  CHECK(golden::state_keys(*VisionTransformer(options)) == names);
}

TEST_CASE("weights of a vision transformer are drawn as torchvision draws them", "[models][vit]") {
  torch::manual_seed(3);
  VisionTransformer net(models::VisionTransformerOptions{.image_size = 32,
                                                         .patch_size = 8,
                                                         .num_layers = 1,
                                                         .num_heads = 3,
                                                         .hidden_dim = 192,
                                                         .mlp_dim = 384,
                                                         .num_classes = 5,
                                                         .representation_size = 100});
  const auto all = net->named_parameters();
  const auto deviation = [&](const std::string& name) { return all[name].std().item<double>(); };
  const std::string layer = "encoder.layers.encoder_layer_0.";
  CHECK_THAT(deviation("conv_proj.weight"), WithinRel(std::sqrt(1. / 192), 0.03));
  CHECK_THAT(deviation("encoder.pos_embedding"), WithinRel(0.02, 0.05));
  CHECK_THAT(deviation(layer + "self_attention.in_proj_weight"),
             WithinRel(std::sqrt(2. / 768), 0.03));
  CHECK_THAT(deviation(layer + "self_attention.out_proj.weight"),
             WithinRel(1 / std::sqrt(3. * 192), 0.03));
  CHECK_THAT(deviation(layer + "mlp.0.weight"), WithinRel(std::sqrt(2. / 576), 0.03));
  CHECK_THAT(deviation(layer + "mlp.3.weight"), WithinRel(std::sqrt(2. / 576), 0.03));
  CHECK_THAT(deviation(layer + "mlp.0.bias"), WithinRel(1e-6, 0.2));
  CHECK_THAT(deviation("heads.pre_logits.weight"), WithinRel(std::sqrt(1. / 192), 0.03));
  for (const std::string& zero :
       {std::string("class_token"), std::string("conv_proj.bias"),
        layer + "self_attention.in_proj_bias", layer + "self_attention.out_proj.bias",
        std::string("heads.pre_logits.bias"), std::string("heads.head.weight")}) {
    INFO(zero);
    CHECK(all[zero].eq(0).all().item<bool>());
  }
  const nn::LayerNorm& norm = net->encoder->ln;
  CHECK(norm->options.eps() == 1e-6);

  VisionTransformer single(models::VisionTransformerOptions{.image_size = 2,
                                                            .patch_size = 1,
                                                            .num_layers = 1,
                                                            .num_heads = 1,
                                                            .hidden_dim = 2000,
                                                            .mlp_dim = 1,
                                                            .num_classes = 1,
                                                            .in_channels = 1});
  const at::Tensor& cut =
      single->conv_proj->weight;  // of deviation 1, so that 2 cuts something off
  CHECK(cut.abs().max().item<double>() <= 2);
  CHECK_THAT(cut.std().item<double>(), WithinRel(0.8796, 0.06));
}

TEST_CASE("images and shapes that do not fit are refused", "[models][vit]") {
  auto net = tiny();
  CHECK(net(torch::randn({2, 3, 8, 8})).sizes() == at::IntArrayRef{2, 4});
  CHECK_THROWS_WITH(net(torch::randn({2, 3, 8, 12})),
                    ContainsSubstring("the images are [2, 3, 8, 12], expected [N, 3, 8, 8]; resize "
                                      "them, or make the model with their image_size"));
  CHECK_THROWS_WITH(net(torch::randn({2, 1, 8, 8})), ContainsSubstring("are [2, 1, 8, 8]"));
  CHECK_THROWS_WITH(net(torch::randn({3, 8, 8})), ContainsSubstring("are [3, 8, 8]"));

  CHECK_THROWS_WITH(models::vit_b_16({.image_size = 100}),
                    ContainsSubstring("image_size is 100 and patch_size 16, expected images of "
                                      "whole patches"));
  auto options = vision::tiny();
  options.num_heads = 3;
  CHECK_THROWS_WITH(
      VisionTransformer(options),
      ContainsSubstring("hidden_dim is 16 and num_heads 3, expected a width that is"));
  options.num_heads = 0;
  CHECK_THROWS_AS(VisionTransformer(options), c10::ValueError);
  options = vision::tiny();
  options.num_classes = 0;
  CHECK_THROWS_WITH(VisionTransformer(options),
                    ContainsSubstring("num_classes is 0, expected 1 or more"));
  options = vision::tiny();
  options.representation_size = -1;
  CHECK_THROWS_WITH(VisionTransformer(options), ContainsSubstring("representation_size is -1"));
}

TEST_CASE("surgery reaches the layers of a vision transformer", "[models][vit][surgery]") {
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  auto net = tiny(0.1);
  net->eval();
  const at::Tensor y = net(x);
  CHECK(net(x.contiguous(at::MemoryFormat::ChannelsLast)).allclose(y, 1e-4, 1e-5));
  CHECK(functional::apply_low_precision_layernorm(*net, tutti::Precision::amp_bf16).count() == 5);
  CHECK(net(x).equal(y));  // without autocast
  CHECK(functional::apply_gyro_dropout(*net, 10, 1, 0.5, 8, 2).count() == 1 + 3 * 2);
  CHECK(net(x).equal(y));
  net->train();
  CHECK_FALSE(net(x).allclose(y));
  net->eval();
  const auto blurred = functional::apply_blurpool(*net, {.min_channels = 3});
  CHECK(blurred.convs.replaced == std::vector<std::string>{"conv_proj"});
  CHECK_FALSE(net(x).allclose(y));

  auto thin = tiny();
  const auto whole = parameter_count(*thin);
  const auto report =
      functional::apply_factorization(*thin, {.min_features = 16, .latent_features = 4});
  CHECK(report.linears.count() == 3 * 2);
  CHECK(report.linears.replaced.front() ==
        "encoder.layers.encoder_layer_0.self_attention.out_proj");
  CHECK(parameter_count(*thin) < whole);
  CHECK(thin(x).sizes() == at::IntArrayRef{2, 4});

  auto attends = tiny(0, 0.1);
  CHECK(functional::apply_gyro_dropout(*attends, 10, 1, 0.5, 8, 2).count() == 1 + 4 * 2);
  CHECK_THROWS_WITH(functional::apply_alibi(*tiny(), 16), ContainsSubstring("PositionBiased"));
  CHECK_THROWS_WITH(functional::apply_gated_linear_units(*tiny()), ContainsSubstring("GatedHost"));
}

TEST_CASE("stochastic depth leaves out whole blocks", "[models][vit][stochastic_depth]") {
  auto net = tiny();
  auto& first = net->encoder->layers->at<models::VitBlockImpl>(0);
  const at::Tensor x = torch::randn({3, 5, 16});
  const at::Tensor y = first.forward(x);
  const auto blocks = functional::apply_stochastic_depth(
      *net, {.drop_rate = 1, .drop_distribution = tutti::DropDistribution::uniform});
  CHECK(blocks->size() == 2);
  CHECK(first.forward(x).is_same(x));
  blocks->set_drop_rate(0);
  CHECK(first.forward(x).equal(y));
  blocks->set_drop_rate(0.5);
  net->eval();
  CHECK(first.forward(x).allclose((x + y) / 2, 1e-5, 1e-6));

  const tutti::Autocast on(at::kCPU, at::kBFloat16);  // the sum stays in fp32
  const at::Tensor low = first.forward(x);
  CHECK(low.scalar_type() == at::kFloat);
  CHECK(low.allclose((x + y) / 2, 0.03, 0.03));
}

TEST_CASE("a vision transformer clones deeply", "[models][vit]") {
  auto net = tiny();
  const auto copy = std::dynamic_pointer_cast<VisionTransformerImpl>(net->clone());
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  CHECK(golden::state_keys(*copy) == golden::state_keys(*net));
  CHECK(copy->forward(x).equal(net(x)));
  const torch::NoGradGuard no_grad;
  copy->class_token.add_(1);
  CHECK_FALSE(copy->forward(x).equal(net(x)));
}

TEST_CASE("a copy of a vision transformer is frozen where the original is", "[models][vit]") {
  auto net = tiny();
  for (auto& parameter : net->parameters()) {
    parameter.set_requires_grad(false);
  }
  net->heads->parameters().back().set_requires_grad(true);
  const auto copy = net->clone();
  for (const auto& entry : copy->named_parameters()) {
    INFO(entry.key());
    CHECK(entry.value().requires_grad() == (entry.key() == "heads.head.bias"));
  }
}

TEST_CASE("a vision transformer learns where an image is bright", "[models][vit][trainer]") {
  at::manual_seed(3);
  auto options = vision::tiny();
  options.dropout = options.attention_dropout = 0.05;
  VisionTransformer net(options);
  tutti::Classifier model{net, {.num_classes = 4}};
  const auto batch = quarters(1)[0];
  const auto loss = [&] { return model.loss(model.forward(batch), batch).total().item<double>(); };
  CHECK_THAT(loss(), WithinRel(std::log(4.0), 1e-5));  // the first logits are zeros
  tutti::Trainer trainer{model, run_of("25ep"), tutti::StochasticDepth{.drop_rate = 0.1},
                         tutti::LabelSmoothing{.smoothing = 0.01}};
  trainer.fit();
  net->eval();
  CHECK(loss() < 0.1);
}

TEST_CASE("a trainer that knows nothing of the model stops at images of another size",
          "[models][vit][trainer]") {
  const tutti::AnyModel model = tutti::Classifier{tiny(), {.num_classes = 4}};
  tutti::Trainer trainer{model, run_of("1ep"), tutti::ProgressiveResizing{}};
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("the images are [16, 3, 4, 4], expected "
                                                     "[N, 3, 8, 8]"));
}
