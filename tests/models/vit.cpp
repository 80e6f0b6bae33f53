#include <tutti/models/vit.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
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
#include <tutti/callbacks/hugging_face_checkpointer.hpp>
#include <tutti/core/autocast.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/models/from_pretrained.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/save_pretrained.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/trainer.hpp>

#include "models/vision.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace functional = tutti::functional;
namespace models = tutti::models;
namespace nn = tutti::nn;
namespace surgery = tutti::surgery;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;
using models::PretrainedConfig;
using models::VisionLayout;
using models::VisionTransformer;
using models::VisionTransformerImpl;
using models::VitPool;

// What the compiler lets stand beside a vision transformer, and what not.
template <class P>
constexpr bool trains =
    tutti::Supports<P, VisionTransformerImpl> && tutti::Supports<P, VisionTransformer> &&
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

// What timm's files can have that torchvision's cannot.
models::VisionTransformerOptions timm_options() {
  auto options = vision::tiny();
  options.qkv_bias = false;
  options.init_values = 0.5;
  options.global_pool = VitPool::avg;
  options.class_token = false;
  options.layout = VisionLayout::timm;
  return options;
}

PretrainedConfig config(const std::string& text) {
  const auto json = tutti::detail::parse_json(text);
  return PretrainedConfig(json.object());
}

std::vector<std::string> names_on_disk(VisionTransformer& net, VisionLayout layout) {
  std::vector<std::string> names;
  for (const auto& entry : net->weight_layout(layout).tensors) {
    names.push_back(entry.name);
  }
  return names;
}

// Weights, the zeros of the last layer too, that are no others'.
void draw_weights(VisionTransformer& net) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters()) {
    parameter.normal_(0, 0.3);
  }
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
  options.image_size = 11;  // of which 8 pixels are whole patches
  options.layout = VisionLayout::huggingface;
  auto cut = VisionTransformer(options);
  draw_weights(cut);
  cut->eval();
  const at::Tensor eleven = torch::randn({2, 3, 11, 11});
  CHECK(cut(eleven).equal(
      cut(at::constant_pad_nd(eleven.slice(2, 0, 8).slice(3, 0, 8), {0, 3, 0, 3}, 1.0))));
  options = vision::tiny();
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

TEST_CASE("a vision transformer under stochastic depth is not written, since no folder can say it",
          "[models][vit][stochastic_depth][pretrained]") {
  const TemporaryFolder folder;
  auto net = tiny();
  functional::apply_stochastic_depth(*net, {.drop_rate = 0.5});
  const std::string path = (folder / "a").string();
  const auto why = ContainsSubstring(
      "'encoder.layers.encoder_layer_0' is joined by an algorithm (StochasticDepth), which in");
  CHECK_THROWS_WITH(models::save_pretrained(net, path), why);
  CHECK_THROWS_WITH(models::save_pretrained(net, path),
                    ContainsSubstring("call set_join({}) on each ResidualBlock"));
  CHECK(sorted_names(folder.path()).empty());
  const tutti::HuggingFaceCheckpointer own{.model = net, .folder = (folder / "hf").string()};
  const tutti::StochasticDepth warming{.drop_warmup = "1dur"};  // a rate of 0 as the run begins
  CHECK_THROWS_WITH(
      tutti::Trainer(tutti::Classifier{net, {.num_classes = 4}}, run_of("1ep"), warming, own).fit(),
      why);

  surgery::for_each<models::ResidualBlock>(
      *net, [](models::ResidualBlock& block, const surgery::Visit&) { block.set_join({}); });
  net->eval();
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  models::save_pretrained(net, path);
  auto read = models::from_pretrained<VisionTransformer>(path);
  read->eval();
  CHECK(read(x).equal(net(x)));
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

TEST_CASE("layers that only timm has are there when its options ask for them",
          "[models][vit][layouts]") {
  VisionTransformer net(timm_options());
  const auto parameters = net->named_parameters();
  CHECK_FALSE(parameters.contains("class_token"));
  CHECK_FALSE(parameters.contains("encoder.ln.weight"));
  CHECK_FALSE(parameters.contains("encoder.layers.encoder_layer_0.self_attention.in_proj_bias"));
  CHECK(parameters["fc_norm.weight"].sizes() == at::IntArrayRef{16});
  CHECK(parameters["encoder.pos_embedding"].sizes() == at::IntArrayRef{1, 4, 16});
  CHECK(parameters["encoder.layers.encoder_layer_1.ls2.gamma"].eq(0.5).all().item<bool>());

  draw_weights(net);
  net->eval();
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  const at::Tensor patches = net->conv_proj(x).flatten(2).transpose(1, 2);
  at::Tensor y = patches + net->encoder->pos_embedding;
  for (std::size_t i = 0; i < 2; ++i) {
    auto& block = net->encoder->layers->at<models::VitBlockImpl>(i);
    y = y + block.ls1->gamma * block.self_attention(block.ln_1(y));
    y = y + block.ls2->gamma * block.mlp(block.ln_2(y));
  }
  CHECK(net(x).allclose(net->heads(net->fc_norm(y.mean(1))), 1e-4, 1e-5));
  const auto copy = std::dynamic_pointer_cast<VisionTransformerImpl>(net->clone());
  CHECK(copy->forward(x).equal(net(x)));
}

TEST_CASE("a mean over the patches leaves the class token out", "[models][vit][layouts]") {
  auto options = vision::tiny();
  options.global_pool = VitPool::avg;
  options.fc_norm = false;
  VisionTransformer net(options);
  draw_weights(net);
  net->eval();
  CHECK(net->fc_norm.is_empty());
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  const at::Tensor patches = net->conv_proj(x).flatten(2).transpose(1, 2);
  const at::Tensor tokens = at::cat({net->class_token.expand({2, -1, -1}), patches}, 1);
  const at::Tensor y = net->encoder(tokens);
  CHECK(net(x).allclose(net->heads(y.slice(1, 1).mean(1)), 1e-4, 1e-5));
}

TEST_CASE("activations and dropouts are those that the options say", "[models][vit][layouts]") {
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  auto options = vision::tiny();
  VisionTransformer plain(options);
  draw_weights(plain);
  for (const nn::Activation act : {nn::Activation::gelu_new, nn::Activation::relu,
                                   nn::Activation::silu, nn::Activation::quick_gelu}) {
    options.hidden_act = act;
    VisionTransformer net(options);
    const torch::NoGradGuard no_grad;
    for (const auto& entry : plain->named_parameters()) {
      net->named_parameters()[entry.key()].copy_(entry.value());
    }
    const auto& block = net->encoder->layers->at<models::VitBlockImpl>(0);
    const at::Tensor z = torch::randn({3, 16});
    auto up = std::dynamic_pointer_cast<torch::nn::LinearImpl>(block.mlp->named_children()["0"]);
    auto down = std::dynamic_pointer_cast<torch::nn::LinearImpl>(block.mlp->named_children()["3"]);
    auto& mlp = net->encoder->layers->at<models::VitBlockImpl>(0).mlp;
    CHECK(mlp(z).allclose(at::linear(nn::activate(act, at::linear(z, up->weight, up->bias)),
                                     down->weight, down->bias),
                          1e-4, 1e-5));
    CHECK_FALSE(net(x).allclose(plain(x)));
  }
  options.dropout = 0.5;
  options.activation_dropout = 0.25;
  options.position_dropout = 0.125;
  options.head_dropout = 0.75;
  VisionTransformer net(options);
  auto& block = net->encoder->layers->at<models::VitBlockImpl>(0);
  const auto rate = [](const torch::nn::Module& parent, const char* name) {
    return dynamic_cast<const torch::nn::DropoutImpl&>(*parent.named_children()[name]).options.p();
  };
  CHECK(rate(*block.mlp, "2") == 0.25);
  CHECK(rate(*block.mlp, "4") == 0.5);
  CHECK(net->encoder->dropout->options.p() == 0.125);
  CHECK(rate(*net->heads, "drop") == 0.75);
}

TEST_CASE("names on disk are those of each library, in its order", "[models][vit][layouts]") {
  auto net = tiny();
  CHECK(names_on_disk(net, VisionLayout::torchvision) == golden::state_keys(*net));
  const auto timm = names_on_disk(net, VisionLayout::timm);
  CHECK(std::vector<std::string>(timm.begin(), timm.begin() + 16) ==
        std::vector<std::string>{
            "cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias",
            "blocks.0.norm1.weight", "blocks.0.norm1.bias", "blocks.0.attn.qkv.weight",
            "blocks.0.attn.qkv.bias", "blocks.0.attn.proj.weight", "blocks.0.attn.proj.bias",
            "blocks.0.norm2.weight", "blocks.0.norm2.bias", "blocks.0.mlp.fc1.weight",
            "blocks.0.mlp.fc1.bias", "blocks.0.mlp.fc2.weight", "blocks.0.mlp.fc2.bias"});
  CHECK(std::vector<std::string>(timm.end() - 4, timm.end()) ==
        std::vector<std::string>{"norm.weight", "norm.bias", "head.weight", "head.bias"});
  CHECK(names_on_disk(net, VisionLayout::timm_wrapper)[1] == "timm_model.pos_embed");
  CHECK(net->weight_layout(VisionLayout::timm_wrapper).base_prefix == "timm_model.");
  const auto hf = names_on_disk(net, VisionLayout::huggingface);
  CHECK(hf.size() == timm.size() + 2 * 4);  // three projections in place of one, in two layers
  CHECK(hf[4] == "vit.encoder.layer.0.attention.attention.query.weight");
  CHECK(hf[9] == "vit.encoder.layer.0.attention.attention.value.bias");
  CHECK(hf.back() == "classifier.bias");

  VisionTransformer other(timm_options());
  const auto names = names_on_disk(other, VisionLayout::timm);
  CHECK(names[0] == "pos_embed");
  CHECK(names[3] == "blocks.0.norm1.weight");
  CHECK(names[8] == "blocks.0.ls1.gamma");
  CHECK(names[names.size() - 4] == "fc_norm.weight");
}

TEST_CASE("weights go through every layout unchanged", "[models][vit][layouts]") {
  auto net = tiny();
  draw_weights(net);
  net->eval();
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  for (const VisionLayout layout : {VisionLayout::torchvision, VisionLayout::timm,
                                    VisionLayout::timm_wrapper, VisionLayout::huggingface}) {
    auto other = tiny();
    other->eval();
    const auto from = net->weight_layout(layout);
    const auto to = other->weight_layout(layout);
    std::int64_t covered = 0;
    for (std::size_t i = 0; i < from.tensors.size(); ++i) {
      to.tensors[i].tensor.copy_(from.tensors[i].tensor.clone());
      covered += from.tensors[i].tensor.numel();
    }
    CHECK(covered == parameter_count(*net));
    CHECK(other(x).equal(net(x)));
  }
}

TEST_CASE("layers without a name in a library's files are refused", "[models][vit][layouts]") {
  VisionTransformer net(timm_options());
  CHECK_THROWS_WITH(net->weight_layout(VisionLayout::huggingface),
                    ContainsSubstring("LayerScale (init_values), fc_norm and a model without"));
  auto options = vision::tiny();
  options.representation_size = 5;
  VisionTransformer pre(options);
  CHECK_THROWS_WITH(pre->weight_layout(VisionLayout::timm),
                    ContainsSubstring("representation_size is 5, for which files of timm"));
  options = vision::tiny();
  options.class_token = false;
  CHECK_THROWS_WITH(VisionTransformer(options),
                    ContainsSubstring("class_token is false and global_pool is token"));
}

TEST_CASE("a config says the options again, in every layout that can", "[models][vit][config]") {
  for (const VisionLayout layout : {VisionLayout::torchvision, VisionLayout::timm,
                                    VisionLayout::timm_wrapper, VisionLayout::huggingface}) {
    auto options = vision::tiny();
    options.layout = layout;
    options.in_channels = layout == VisionLayout::torchvision ? 3 : 5;
    options.dropout = 0.25;
    if (layout == VisionLayout::huggingface) {
      options.layer_norm_eps = 1e-12;
      options.activation_dropout = 0;
      options.qkv_bias = false;
      options.hidden_act = nn::Activation::gelu_new;
    }
    VisionTransformer net(options);
    const PretrainedConfig config = net->config();
    INFO(to_string(layout));
    CHECK(models::vision_layout_of(config) == layout);
    const auto again = VisionTransformerImpl::options_from(config);
    CHECK(models::detail::named_options(again) == models::detail::named_options(options));
    CHECK(again.layout == layout);
  }
  VisionTransformer all(timm_options());
  const auto again = VisionTransformerImpl::options_from(all->config());
  CHECK(models::detail::named_options(again) == models::detail::named_options(timm_options()));
}

TEST_CASE("what a library cannot express is refused by name and value", "[models][vit][config]") {
  auto options = timm_options();
  VisionTransformer net(options);
  net->set_layout(VisionLayout::torchvision);
  CHECK_THROWS_WITH(net->config(),
                    ContainsSubstring("a config of torchvision cannot express this model: ") &&
                        ContainsSubstring("qkv_bias is false (there true)") &&
                        ContainsSubstring("global_pool is avg (there token)") &&
                        ContainsSubstring("init_values is 0.5 (there 0.0)"));
  options = vision::tiny();
  options.layer_norm_eps = 1e-12;
  options.layout = VisionLayout::timm;
  CHECK_THROWS_WITH(VisionTransformer(options)->config(),
                    ContainsSubstring("layer_norm_eps is 1e-12 (there 1e-06)"));
}

TEST_CASE("keys of the config that a model was read from stay", "[models][vit][config]") {
  auto source = config(R"({"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 24, "image_size": 8, "patch_size": 4,
    "hidden_act": "gelu_pytorch_tanh", "id2label": {"0": "cat", "1": "dog"}, "note": "mine"})");
  VisionTransformer net(VisionTransformerImpl::options_from(source));
  net->source_config = source;
  CHECK(net->options().num_classes == 2);
  CHECK(net->options().layer_norm_eps == 1e-12);
  const auto written = net->config();
  CHECK(written.text("note", "") == "mine");
  CHECK(written.text("hidden_act", "") == "gelu_pytorch_tanh");
  CHECK(*written.find("id2label") == *source.find("id2label"));
  net->set_layout(VisionLayout::torchvision);
  CHECK_THROWS_WITH(net->config(), ContainsSubstring("hidden_act is gelu_new (there gelu)"));
}

TEST_CASE("timm's architectures are known by their names", "[models][vit][config]") {
  const auto of = [](const std::string& text) {
    return VisionTransformerImpl::options_from(config(text));
  };
  const auto tiny = of(R"({"architecture": "vit_tiny_patch16_384.augreg_in21k_ft_in1k",
    "num_classes": 10, "pretrained_cfg": {"input_size": [3, 384, 384], "num_classes": 1000}})");
  CHECK(tiny.hidden_dim == 192);
  CHECK(tiny.num_heads == 3);
  CHECK(tiny.mlp_dim == 768);
  CHECK(tiny.image_size == 384);
  CHECK(tiny.num_classes == 10);
  CHECK(tiny.layer_norm_eps == 1e-6);
  const auto large = of(R"({"architecture": "vit_large_patch14_224"})");
  CHECK(large.num_layers == 24);
  CHECK(large.patch_size == 14);
  CHECK(large.mlp_dim == 4096);
  CHECK(of(R"({"architecture": "deit_base_patch16_224"})").num_heads == 12);
  const auto torchvision = of(R"({"function": "torchvision.models.vit_h_14", "num_classes": 3})");
  CHECK(torchvision.hidden_dim == 1280);
  CHECK(torchvision.mlp_dim == 5120);
}

TEST_CASE("a config of another network says what reads it", "[models][vit][config]") {
  const auto of = [](const char* text) {
    return VisionTransformerImpl::options_from(config(text));
  };
  for (const char* other : {R"({"architecture": "resnet18"})", R"({"model_type": "resnet"})",
                            R"({"function": "torchvision.models.resnet18"})"}) {
    CHECK_THROWS_WITH(of(other), ContainsSubstring("resnet") &&
                                     ContainsSubstring("expected a vision transformer; read this "
                                                       "folder by from_pretrained<ResNet>"));
  }
  CHECK_THROWS_WITH(models::ResNetImpl::options_from(config(R"({"model_type": "vit"})")),
                    ContainsSubstring("the architecture is \"vit\", expected a residual network; "
                                      "read this folder by from_pretrained<VisionTransformer>"));
  for (const char* other :
       {R"({"architecture": "convnext_atto"})", R"({"model_type": "swin", "depths": [2]})",
        R"({"architecture": "vit_base_patch16_siglip_224"})"}) {
    CHECK_THROWS_WITH(of(other), ContainsSubstring("cmake/tutti_export.py"));
    CHECK_THROWS_WITH(of(other), ContainsSubstring("load_compiled() (docs/compiled.md)"));
  }
  CHECK_THROWS_WITH(models::vision_family_of(config(R"({"architecture": "efficientnet_b0"})")),
                    ContainsSubstring("any other network of Python is exported by"));
  CHECK_THROWS_WITH(of(R"({"architecture": "vit_tiny_patch16_224", "num_classes": 0})"),
                    ContainsSubstring("num_classes is 0, a network without a head") &&
                        ContainsSubstring("allow_new_heads"));
}

TEST_CASE("keys that change the computation are refused by name and value",
          "[models][vit][config]") {
  const auto says = [](const std::string& text) -> std::string {
    try {
      (void)VisionTransformerImpl::options_from(config(text));
      return "nothing";
    } catch (const c10::ValueError& error) {
      return error.what();
    }
  };
  const auto timm = [&](const std::string& args) {
    return says(R"({"architecture": "vit_base_patch16_224", "model_args": {)" + args + "}}");
  };
  CHECK_THAT(timm(R"("reg_tokens": 4)"), ContainsSubstring("model_args: reg_tokens is 4"));
  CHECK_THAT(timm(R"("qk_norm": true)"), ContainsSubstring("qk_norm is true"));
  CHECK_THAT(timm(R"("pre_norm": true)"), ContainsSubstring("pre_norm is true"));
  CHECK_THAT(timm(R"("drop_path_rate": 0.1)"),
             ContainsSubstring("drop_path_rate is 0.1") && ContainsSubstring("StochasticDepth"));
  CHECK_THAT(timm(R"("global_pool": "map")"), ContainsSubstring("global_pool is \"map\""));
  CHECK_THAT(timm(R"("img_size": [32, 64])"), ContainsSubstring("img_size is [32"));
  CHECK_THAT(timm(R"("qk_norm": false, "reg_tokens": 0, "norm_layer": null)"),
             ContainsSubstring("nothing"));
  CHECK_THAT(says(R"({"architecture": "vit_base_patch16_clip_224"})"),
             ContainsSubstring("architecture is \"vit_base_patch16_clip_224\""));
  CHECK_THAT(says(R"({"model_type": "vit", "hidden_act": "prelu"})"),
             ContainsSubstring("hidden_act is \"prelu\""));
  CHECK_THAT(says(R"({"class": "torchvision.models.VisionTransformer",
                      "conv_stem_configs": [1]})"),
             ContainsSubstring("conv_stem_configs is [1]"));
}

TEST_CASE("positions of another grid are resized, the class token's kept",
          "[models][vit][layouts]") {
  const at::Tensor positions = at::arange(1 + 2 * 2, at::kFloat).view({1, 5, 1}).mul(10);
  const auto resized = [&](VisionLayout layout) {
    return models::detail::resample_positions(positions, 1, 3, layout).flatten();
  };
  // [[10, 20], [30, 40]] at 3x3 by the definition: cubic convolution with a = -0.5 over clipped
  // weights (antialias), with a = -0.75 over repeated edges, and the same with aligned corners.
  CHECK(resized(VisionLayout::timm)
            .allclose(at::tensor({0.0F, 8.02632F, 13.68421F, 19.34211F, 19.34211F, 25.0F, 30.65789F,
                                  30.65789F, 36.31579F, 41.97368F}),
                      1e-5, 1e-4));
  CHECK(resized(VisionLayout::huggingface)
            .allclose(at::tensor({0.0F, 7.39583F, 13.26389F, 19.13194F, 19.13194F, 25.0F, 30.86806F,
                                  30.86806F, 36.73611F, 42.60417F}),
                      1e-5, 1e-4));
  CHECK(resized(VisionLayout::torchvision)
            .allclose(
                at::tensor({0.0F, 10.0F, 15.0F, 20.0F, 20.0F, 25.0F, 30.0F, 30.0F, 35.0F, 40.0F}),
                1e-5, 1e-4));
  auto net = tiny();
  for (const VisionLayout layout :
       {VisionLayout::timm, VisionLayout::torchvision, VisionLayout::huggingface}) {
    const auto tensors = net->weight_layout(layout).tensors;
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [](const auto& entry) { return bool(entry.adapt); });
    REQUIRE(found != tensors.end());
    CHECK(found->adapt(torch::ones({1, 1 + 3 * 3, 16})).sizes() == at::IntArrayRef{1, 5, 16});
    CHECK_THROWS_WITH(found->adapt(torch::ones({1, 8, 16})),
                      ContainsSubstring("expected [1, 1 + n * n, width]"));
  }
}

TEST_CASE("a vision transformer goes from folder to folder and from library to library",
          "[models][vit][pretrained]") {
  const TemporaryFolder folder;
  auto net = tiny();
  draw_weights(net);
  net->eval();
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  const at::Tensor y = net(x);
  VisionTransformer last = net;
  for (const VisionLayout layout : {VisionLayout::timm, VisionLayout::huggingface,
                                    VisionLayout::torchvision, VisionLayout::timm_wrapper}) {
    const std::string path = (folder / std::string(to_string(layout))).string();
    last->set_layout(layout);
    models::save_pretrained(last, path);
    auto read = models::from_pretrained<VisionTransformer>(path);
    read->eval();
    CHECK(read->options().layout == layout);
    CHECK(read(x).equal(y));
    last = read;
  }
}

TEST_CASE("a folder is read for images of another size and for other classes",
          "[models][vit][pretrained]") {
  const TemporaryFolder folder;
  auto net = tiny();
  draw_weights(net);
  net->set_layout(VisionLayout::huggingface);
  const std::string path = (folder / "small").string();
  models::save_pretrained(net, path);
  models::PretrainedReport report;
  auto large = models::from_pretrained<VisionTransformer>(
      path, {.edit_config = [](PretrainedConfig& config) { config.set("image_size", 12); },
             .report = &report});
  CHECK(large->encoder->pos_embedding.equal(models::detail::resample_positions(
      net->encoder->pos_embedding, 1, 3, VisionLayout::huggingface)));
  CHECK(report.text().find("position_embeddings") != std::string::npos);
  CHECK(large(torch::randn({1, 3, 12, 12})).sizes() == at::IntArrayRef{1, 4});

  const auto two = [](PretrainedConfig& config) {
    config.erase("id2label");
    config.set("num_labels", 2);
  };
  CHECK_THROWS_WITH(models::from_pretrained<VisionTransformer>(path, {.edit_config = two}),
                    ContainsSubstring("classifier.weight"));
  auto other = models::from_pretrained<VisionTransformer>(
      path, {.ignore_mismatched_sizes = true, .edit_config = two, .report = &report});
  CHECK(report.initialised == std::vector<std::string>{"classifier.weight", "classifier.bias"});
  CHECK(other->conv_proj->weight.equal(net->conv_proj->weight));
  CHECK(other(torch::randn({3, 3, 8, 8})).sizes() == at::IntArrayRef{3, 2});
}

TEST_CASE("a number of classes is set by either name in the config of any library",
          "[models][vit][pretrained]") {
  const TemporaryFolder folder;
  auto net = tiny();
  draw_weights(net);
  models::PretrainedReport report;
  for (const VisionLayout layout : {VisionLayout::torchvision, VisionLayout::timm,
                                    VisionLayout::timm_wrapper, VisionLayout::huggingface}) {
    INFO(to_string(layout));
    net->set_layout(layout);
    const std::string path = (folder / std::string(to_string(layout))).string();
    models::save_pretrained(net, path);
    const auto read = [&](const std::vector<const char*>& keys, std::int64_t by) {
      std::int64_t count = 7;
      return models::from_pretrained<VisionTransformer>(path, {.ignore_mismatched_sizes = true,
                                                               .edit_config =
                                                                   [&](PretrainedConfig& config) {
                                                                     for (const char* key : keys) {
                                                                       config.set(key, count);
                                                                       count += by;
                                                                     }
                                                                   },
                                                               .report = &report});
    };
    for (const char* key : {"num_labels", "num_classes"}) {
      auto other = read({key}, 0);
      CHECK(other->options().num_classes == 7);
      const std::string again = path + key;
      models::save_pretrained(other, again);
      CHECK(models::from_pretrained<VisionTransformer>(again)->options().num_classes == 7);
    }
    CHECK(read({"num_labels", "num_classes"}, 0)->options().num_classes == 7);
    CHECK_THROWS_WITH(read({"num_labels", "num_classes"}, 1),
                      ContainsSubstring("sets num_labels to 7 and num_classes to 8; set one"));
  }
}

TEST_CASE("an argument of timm beside model_args is refused with the place for it",
          "[models][vit][pretrained]") {
  const TemporaryFolder folder;
  auto net = tiny();
  net->set_layout(VisionLayout::timm);
  const std::string path = (folder / "timm").string();
  models::save_pretrained(net, path);
  const auto read = [&](const std::function<void(PretrainedConfig&)>& edit) {
    return models::from_pretrained<VisionTransformer>(path, {.edit_config = edit});
  };
  for (const char* key : {"img_size", "in_chans", "image_size", "nun_classes"}) {
    CHECK_THROWS_WITH(
        read([&](PretrainedConfig& config) { config.set(key, 12); }),
        ContainsSubstring(std::string("edit_config sets ") + key + " to 12, which ") &&
            ContainsSubstring("in_chans say, are in model_args: take"));
  }
  const auto in_args = [](PretrainedConfig& config, const char* key, std::int64_t value) {
    auto args = config.section("model_args");
    args.set(key, value);
    config.set("model_args", args.values());
  };
  const auto large = read([&](PretrainedConfig& config) { in_args(config, "img_size", 12); });
  CHECK(large->options().image_size == 12);
  CHECK_THROWS_WITH(read([&](PretrainedConfig& config) {
                      in_args(config, "num_classes", 5);
                      config.set("num_classes", 6);
                    }),
                    ContainsSubstring("num_classes to 5 in model_args and to 6 beside it"));
}

TEST_CASE("old names of torchvision are read and other architectures refused",
          "[models][vit][pretrained]") {
  const TemporaryFolder folder;
  auto net = tiny();
  draw_weights(net);
  const std::string path = (folder / "model.safetensors").string();
  const auto write = [&](VisionLayout layout, auto&& change) {
    std::vector<tutti::checkpoint::NamedTensor> tensors;
    for (const auto& entry : net->weight_layout(layout).tensors) {
      tensors.emplace_back(entry.name, entry.tensor);
    }
    change(tensors);
    std::filesystem::remove(path);
    tutti::checkpoint::write_safetensors(path, tensors);
  };
  write(VisionLayout::torchvision, [](auto& tensors) {
    for (auto& [name, tensor] : tensors) {
      for (const auto& [now, old] :
           {std::pair("mlp.0.", "mlp.linear_1."), std::pair("mlp.3.", "mlp.linear_2.")}) {
        if (const auto at = name.find(now); at != std::string::npos) {
          name.replace(at, 6, old);
        }
      }
    }
  });
  auto other = tiny();
  models::load_pretrained(other->weight_layout(VisionLayout::torchvision), path);
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  CHECK(other(x).equal(net(x)));

  for (const char* name : {"reg_token", "blocks.0.attn.q_norm.weight", "norm_pre.weight"}) {
    write(VisionLayout::timm, [&](auto& tensors) { tensors.emplace_back(name, at::ones({4})); });
    CHECK_THROWS_WITH(
        models::load_pretrained(other->weight_layout(VisionLayout::timm), path),
        ContainsSubstring(name) && ContainsSubstring("variant of the vision transformer"));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
