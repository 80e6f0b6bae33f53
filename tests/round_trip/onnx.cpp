// SPDX-License-Identifier: Apache-2.0
// Models that export_onnx() writes, run by onnxruntime on batches of other sizes than the
// example's.

#include "support/catch.hpp"
#include "support/python.hpp"
#include "support/temporary_folder.hpp"

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/gated_linear_units.hpp>
#include <tutti/algorithms/ghost_batchnorm.hpp>
#include <tutti/algorithms/lora.hpp>
#include <tutti/algorithms/low_precision_layernorm.hpp>
#include <tutti/algorithms/squeeze_excite.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/cifar_resnet.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/models/export_onnx.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/vit.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace functional = tutti::functional;
namespace models = tutti::models;
using tutti::Batch;
using Axes = std::map<std::string, std::map<std::int64_t, std::string>>;

// Exports a model, and writes what it computes for other batches.
struct Exporter {
  std::filesystem::path folder;

  void operator()(const std::string& name, const tutti::OnnxModel& model,
                  const std::vector<Batch>& batches, const tutti::OnnxOptions& options = {}) const {
    INFO(name);
    tutti::export_onnx(model, batches[0], (folder / (name + ".onnx")).string(), options);
    const torch::NoGradGuard no_grad;
    model.module()->eval();
    for (std::size_t i = 1; i < batches.size(); ++i) {
      std::vector<tutti::checkpoint::NamedTensor> tensors;
      for (const auto& [key, tensor] : batches[i]) {
        tensors.emplace_back("in." + key, tensor);
      }
      for (const auto& [key, tensor] : model.forward(batches[i])) {
        tensors.emplace_back("out." + key, tensor);
      }
      tutti::checkpoint::write_safetensors(
          folder / (name + "." + std::to_string(i) + ".safetensors"), tensors);
    }
  }
};

std::vector<Batch> images(std::int64_t size) {
  return {torch::randn({2, 3, size, size}), torch::randn({5, 3, size, size}),
          torch::randn({1, 3, size, size})};
}

Batch tokens(std::int64_t n, std::int64_t length, bool padded) {
  Batch out;
  out["input_ids"] = torch::randint(0, 50, {n, length});
  if (padded) {
    out["attention_mask"] = torch::ones({n, length}, torch::kLong);
    out["attention_mask"].select(0, n - 1).slice(0, length - 2).zero_();
  }
  return out;
}

// Sequences of other numbers and lengths.
std::vector<Batch> sequences(bool padded) {
  return {tokens(2, 8, padded), tokens(3, 13, padded), tokens(1, 5, padded)};
}

Axes lengths(bool padded) {
  Axes out{{"input_ids", {{1, "sequence"}}}};
  if (padded) {
    out["attention_mask"] = {{1, "sequence"}};
  }
  return out;
}

models::GPT2LMHeadModel gpt2() {
  return models::GPT2LMHeadModel(models::GPT2Options{
      .vocab_size = 50, .n_positions = 32, .n_embd = 16, .n_layer = 2, .n_head = 2});
}

models::BertOptions bert() {
  return {.vocab_size = 50,
          .hidden_size = 16,
          .num_hidden_layers = 2,
          .num_attention_heads = 2,
          .intermediate_size = 32,
          .max_position_embeddings = 32};
}

models::LlamaForCausalLM llama(std::int64_t window) {
  return models::LlamaForCausalLM(models::LlamaOptions{
      .model_type = window > 0 ? models::LlamaType::mistral : models::LlamaType::llama,
      .vocab_size = 50,
      .hidden_size = 32,
      .intermediate_size = 48,
      .num_hidden_layers = 2,
      .num_attention_heads = 4,
      .num_key_value_heads = 2,
      .max_position_embeddings = 64,
      .sliding_window = window});
}

models::VisionTransformer vit(models::VitPool pool) {
  return models::VisionTransformer(
      models::VisionTransformerOptions{.image_size = 16,
                                       .patch_size = 4,
                                       .num_layers = 2,
                                       .num_heads = 4,
                                       .hidden_dim = 32,
                                       .mlp_dim = 48,
                                       .num_classes = 5,
                                       .global_pool = pool,
                                       .class_token = pool == models::VitPool::token});
}

// Running statistics and weights that are not 0 and 1.
template <class Net>
Net shaken(Net net, std::int64_t size) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : net->parameters()) {
    parameter.add_(torch::randn_like(parameter).mul_(0.05));
  }
  net->train();
  for (int i = 0; i < 3; ++i) {
    net->forward(torch::randn({8, 3, size, size}));
  }
  return net;
}

void export_images(const Exporter& save) {
  torch::nn::Sequential mlp(torch::nn::Flatten(), torch::nn::Linear(3 * 16, 8), torch::nn::Mish(),
                            torch::nn::Dropout(0.5), torch::nn::Linear(8, 3));
  save("mlp", mlp, images(4));
  save("cifar_resnet", shaken(models::cifar_resnet20(), 32), images(32));
  save("resnet", tutti::Classifier(shaken(models::resnet18({.num_classes = 10}), 64)), images(64));
  save("vit", shaken(vit(models::VitPool::token), 16), images(16));
  save("vit_avg", shaken(vit(models::VitPool::avg), 16), images(16));
  auto changed = models::cifar_resnet20();
  functional::apply_blurpool(*changed, {});
  functional::apply_squeeze_excite(*changed, {.min_channels = 16});
  functional::apply_ghost_batchnorm(*changed, {.ghost_batch_size = 4});
  save("changed_resnet", shaken(changed, 32), images(32));
}

void export_language(const Exporter& save) {
  for (const bool padded : {false, true}) {
    const std::string end = padded ? "_padded" : "";
    const tutti::OnnxOptions options{.dynamic_axes = lengths(padded)};
    save("gpt2" + end, gpt2().ptr(), sequences(padded), options);
    save("bert" + end, models::BertForMaskedLM(bert()).ptr(), sequences(padded), options);
    save("llama" + end, llama(0).ptr(), sequences(padded), options);
    save("classifier" + end, models::BertForSequenceClassification(bert(), 3).ptr(),
         sequences(padded), options);
  }
  save("mistral", llama(4).ptr(), sequences(true), {.dynamic_axes = lengths(true)});
  auto changed = models::BertForMaskedLM(bert());
  functional::apply_gated_linear_units(*changed);
  functional::apply_low_precision_layernorm(*changed, tutti::Precision::amp_bf16);
  save("changed_bert", changed.ptr(), sequences(true), {.dynamic_axes = lengths(true)});
  auto adapted = gpt2();
  functional::apply_lora(*adapted, {.r = 2, .target_modules = {"c_attn", "c_proj"}});
  save("lora", adapted.ptr(), sequences(false), {.dynamic_axes = lengths(false)});
}

// Operators that the models above do not call, each as a network of its own.
void export_operators(const Exporter& save) {
  namespace F = torch::nn::functional;
  using T = const at::Tensor&;
  const auto layer = std::make_shared<torch::nn::IdentityImpl>();
  const auto one = [&](const std::string& name, const std::function<at::Tensor(T)>& run) {
    save("operators_" + name,
         {layer, [run](const Batch& batch) { return tutti::Outputs(run(batch.inputs())); }},
         {torch::randn({2, 4, 6, 6}), torch::randn({3, 4, 6, 6}), torch::randn({1, 4, 6, 6})});
  };
  one("activations", [](T x) {
    return F::elu(x) + F::selu(x) + F::celu(x) + F::leaky_relu(x) + F::softplus(x) +
           F::logsigmoid(x) + F::mish(x) + at::hardswish(x) + at::hardsigmoid(x) + F::relu6(x) +
           F::hardtanh(x) + F::silu(x) + F::softsign(x) + F::tanhshrink(x) + at::gelu(x) +
           at::gelu(x, "tanh") + F::prelu(x, at::linspace(0, 1, 4)) + x.log_softmax(1);
  });
  one("arithmetic", [](T x) {
    const at::Tensor most = at::maximum(x, x.neg()) + at::minimum(x, x.mul(3));
    const at::Tensor parts = x.erf() + x.sin() + x.cos() + x.floor() + x.ceil() + x.round() +
                             x.sign() + x.floor_divide(0.3) + x.remainder(0.7);
    return most + parts + (x.abs() + 1).rsqrt() + x.square().add(1).log() +
           x.pow(2).div(3).sub(x, 0.5) + x.exp().reciprocal() + (2 - x) + x.clamp(-0.5, 0.7) +
           at::addcmul(x, x, x, 0.3) + x.lerp(x.abs().sqrt(), 0.25);
  });
  one("comparisons", [](T x) {
    const at::Tensor some = x.gt(0).logical_and(x.lt(1)).logical_or(x.le(-1));
    return at::where(some, x, x.mul(2))
        .masked_fill(x.ge(1.5).logical_xor(x.eq(0)), 9)
        .add(x.ne(0).bitwise_not())
        .add(x.gt(2).any(1, true));
  });
  one("reductions", [](T x) {
    return at::cat({x.mean({2, 3}), x.sum({1, 2}).slice(1, 0, 4), x.amax({1, 3}),
                    std::get<0>(x.max(1)).mean(1), x.var({2, 3}), x.std({2, 3}),
                    x.flatten(1).norm(2, 1, true), x.argmax(1).sum(1).to(at::kFloat),
                    x.cumsum(2).sum(1).mean(1), x.mean().expand({x.size(0), 1})},
                   1);
  });
  one("shapes", [](T x) {
    const at::Tensor order = at::tensor({3, 2, 1, 0}, at::kLong);
    return at::stack({x.permute({0, 2, 3, 1}).flip(1).transpose(1, 3).contiguous(),
                      x.repeat({1, 2, 1, 1}).narrow(1, 2, 4), at::cat(x.chunk(3, 3), 3),
                      at::cat(x.split(4, 2), 2), x.unbind(1)[2].unsqueeze(1).expand_as(x),
                      x.select(2, -1).unsqueeze(2).expand_as(x), x.index_select(1, order),
                      x.index({torch::indexing::Slice(), order}),
                      x.slice(2, 1, 6, 2).repeat({1, 1, 2, 1})})
        .mean(0);
  });
  one("padding", [](T x) {
    return F::pad(x, F::PadFuncOptions({1, 2, 0, 1}).value(3)) +
           at::replication_pad2d(x, {1, 2, 0, 1}) + at::reflection_pad2d(x, {2, 1, 1, 0});
  });
  one("pooling", [](T x) {
    return at::cat(
        {at::max_pool2d(x, {3, 3}, {2, 2}, {1, 1}).flatten(1),
         at::max_pool2d(x, {3, 3}, {2, 2}, {0, 0}, {1, 1}, /*ceil_mode=*/true).flatten(1),
         at::avg_pool2d(x, {3, 3}, {1, 1}, {1, 1}).flatten(1),
         at::avg_pool2d(x, {3, 3}, {1, 1}, {1, 1}, false, /*count_include_pad=*/false).flatten(1),
         at::adaptive_avg_pool2d(x, {2, 3}).flatten(1),
         std::get<0>(at::adaptive_max_pool2d(x, {2, 3})).flatten(1)},
        1);
  });
  one("interpolation", [](T x) {
    const std::vector<double> factors{1.5, 2.5};
    return at::cat({at::upsample_nearest2d(x, at::OptionalIntArrayRef(), factors).flatten(1),
                    at::upsample_bilinear2d(x, {9, 4}, /*align_corners=*/false).flatten(1),
                    at::upsample_bilinear2d(x, {9, 4}, /*align_corners=*/true).flatten(1),
                    at::upsample_bicubic2d(x, {9, 12}, /*align_corners=*/false).flatten(1),
                    at::upsample_nearest2d(x, {10, 7}, 1.7, 1.3).flatten(1),
                    at::upsample_bilinear2d(x, {10, 7}, false, 1.7, 1.3).flatten(1),
                    at::pixel_shuffle(x, 2).flatten(1)},
                   1);
  });
  one("normalisation", [](T x) {
    return at::group_norm(x, 2, at::linspace(1, 2, 4), at::linspace(0, 1, 4)) +
           at::instance_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false) +
           at::layer_norm(x, {6, 6}) + at::rms_norm(x, {6}, at::linspace(1, 2, 6));
  });
  one("convolutions", [](T x) {
    const at::Tensor w = at::linspace(-1, 1, 4 * 2 * 9).view({4, 2, 3, 3});
    const at::IntArrayRef once{1, 1};
    return at::cat({at::conv2d(x, w, {}, {2, 1}, {1, 0}, {1, 2}, 2).flatten(1),
                    at::conv_transpose2d(x, w, {}, {2, 2}, {1, 1}, {1, 1}, 2).flatten(1),
                    at::conv2d(x, w, {}, once, "same", once, 2).flatten(1),
                    at::conv1d(x.flatten(2), w.select(3, 0), {}, 1, 1, 1, 2).flatten(1)},
                   1);
  });
  const at::Tensor mask = at::ones({6, 6}, at::kBool).tril();
  mask.select(0, 2).zero_();  // sees nothing
  one("attention", [mask](T x) {
    const at::Tensor two = x.narrow(1, 0, 2);
    return at::scaled_dot_product_attention(x, x, x, {}, 0, /*is_causal=*/true) +
           at::scaled_dot_product_attention(x, x, x, mask) +
           at::scaled_dot_product_attention(x, two, two, {}, 0, false, 0.3, /*enable_gqa=*/true) +
           at::einsum("nhqd,nhkd->nhqk", {x, x}).softmax(-1).matmul(x);
  });
  one("new_tensors", [](T x) {
    const auto like = x.options();
    return x + at::arange(6, like) + at::full({x.size(0), 1, 1, 1}, 2.0) +
           at::ones_like(x).triu(1) + x.new_zeros({x.size(0), 4, 1, 1}) +
           at::arange(x.size(0), like).view({-1, 1, 1, 1});
  });
  one("in_place", [](T x) {
    const at::Tensor y = x.mul(2);
    y.add_(1).relu_();
    y.add_(x).clamp_(0, 2);
    return at::zeros_like(y).copy_(y).sub_(0.5);
  });
}

}  // namespace

TEST_CASE("onnxruntime computes what exported models compute, for other batches too",
          "[round_trip][onnx][python]") {
  const std::string modules = "onnxruntime, safetensors";
  const std::string python = tutti_test::python_with(modules);
  if (python.empty()) {
    return tutti_test::skip(tutti_test::no_python_with(modules));
  }
  const TemporaryFolder folder;
  const Exporter save{folder.path()};
  export_images(save);
  export_language(save);
  export_operators(save);
  const std::string script = TUTTI_SOURCE_DIR "/tests/round_trip/onnx_files.py";
  CHECK(std::system(
            (python + " '" + script + "' check '" + folder.path().string() + "'").c_str()) == 0);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
