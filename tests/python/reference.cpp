// SPDX-License-Identifier: Apache-2.0
// Writes what tutti's functions make of some tensors, for operators.py to compare with
// torch.ops.tutti.*: the file argv[1] has the inputs, "in.<name>", and of each case its results,
// "<case>.<number>"; numbers are tensors of doubles.
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/sgd.h>

#include <tutti/algorithms/alibi.hpp>
#include <tutti/algorithms/augmix.hpp>
#include <tutti/algorithms/channels_last.hpp>
#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/algorithms/randaugment.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/algorithms/selective_backprop.hpp>
#include <tutti/algorithms/seq_length_warmup.hpp>
#include <tutti/algorithms/skip_spikes.hpp>
#include <tutti/algorithms/stochastic_depth.hpp>
#include <tutti/algorithms/swa.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/nn/activation.hpp>
#include <tutti/nn/blur.hpp>
#include <tutti/nn/ghost_batchnorm.hpp>
#include <tutti/nn/gyro_dropout.hpp>
#include <tutti/nn/lora.hpp>
#include <tutti/nn/low_precision.hpp>
#include <tutti/nn/low_rank.hpp>
#include <tutti/nn/rms_norm.hpp>
#include <tutti/nn/spectral_norm.hpp>
#include <tutti/nn/squeeze_excite.hpp>
#include <tutti/nn/swiglu.hpp>
#include <tutti/nn/weight_norm.hpp>
#include <tutti/nn/weight_standardization.hpp>

namespace {

using at::Tensor;
namespace functional = tutti::functional;
namespace nn = tutti::nn;

class Writer {
 public:
  Tensor input(const std::string& name, const Tensor& value) {
    all_.emplace_back("in." + name, value.contiguous());
    return value;
  }

  template <class... Results>
  void results(const std::string& name, const Results&... results) {
    int i = 0;
    (all_.emplace_back(name + '.' + std::to_string(i++), stored(results)), ...);
  }

  void write(const char* path) const { tutti::checkpoint::write_safetensors(path, all_); }

 private:
  static Tensor stored(const Tensor& value) { return value.detach().contiguous(); }
  static Tensor stored(double value) { return at::scalar_tensor(value, at::kDouble); }

  std::vector<tutti::checkpoint::NamedTensor> all_;
};

constexpr std::uint64_t seed = 11;

template <class F>
auto drawn(F&& f) {
  tutti::Rng rng(seed);
  return f(rng);
}

void batches(Writer& out, const Tensor& x, const Tensor& target) {
  const Tensor pixels =
      out.input("pixels", at::randint(0, 256, {2, 3, 32, 32}, at::TensorOptions(at::kByte)));
  const Tensor losses = out.input("losses", at::rand({16}));
  const Tensor ids = out.input("ids", at::randint(0, 50, {4, 12}));
  const Tensor mask = at::ones({4, 12}, at::kLong);
  mask.select(0, 1).narrow(0, 7, 5).zero_();
  out.input("mask", mask);

  const auto mixed = drawn([&](auto& rng) { return functional::mixup_batch(x, target, rng); });
  out.results("mixup_batch", mixed.input, mixed.permuted_target, mixed.mixing, mixed.indices);
  out.results("mix", functional::mix(x, mixed.indices, 0.3));
  const auto cut = drawn([&](auto& rng) { return functional::cutmix_batch(x, target, rng); });
  const auto& box = cut.box;
  out.results("cutmix_batch", cut.input, cut.permuted_target, cut.adjusted_lambda,
              static_cast<double>(box.top), static_cast<double>(box.left),
              static_cast<double>(box.bottom), static_cast<double>(box.right), cut.indices);
  out.results("paste_box", functional::paste_box(x, mixed.indices, {1, 2, 9, 14}));
  out.results("cutout_batch", drawn([&](auto& rng) {
                return functional::cutout_batch(x, rng,
                                                {.num_holes = 2, .length = 0.4, .per_image = true});
              }));
  out.results("colout_batch",
              drawn([&](auto& rng) { return functional::colout_batch(x, rng, {.p_row = 0.3}); }));
  const auto colout = drawn(
      [&](auto& rng) { return functional::colout_batch(x, x.select(1, 0).unsqueeze(1), rng); });
  out.results("colout_batch_target", colout.input, colout.target);
  out.results("augmix_image",
              drawn([&](auto& rng) { return functional::augmix_image(pixels, rng); }));
  out.results("randaugment_image", drawn([&](auto& rng) {
                return functional::randaugment_image(
                    pixels, rng,
                    {.depth = 3, .augmentation_set = tutti::AugmentationSet::original});
              }));
  out.results("smooth_labels", functional::smooth_labels(at::zeros({8, 10}), target, 0.2));
  const auto resized = [&](const functional::ResizeOptions& options) {
    return drawn(
        [&](auto& rng) { return functional::resize_batch(x, target, 0.6, rng, options).input; });
  };
  out.results("resize_batch", resized({}), resized({.mode = tutti::ResizeMode::crop}),
              resized({.interpolation = tutti::Interpolation::antialias}));
  const tutti::Batch text = {{"input_ids", ids}, {"attention_mask", mask}};
  const tutti::Batch cropped = functional::set_batch_sequence_length(text, 5, true, true);
  const tutti::Batch folded = functional::set_batch_sequence_length(text, 5, false);
  out.results("set_batch_sequence_length", cropped.at("input_ids"), cropped.at("attention_mask"),
              folded.at("input_ids"));
  out.results("shorten_sequences", functional::shorten_sequences(text, 0.5).at("input_ids"));
  out.results("draw_by_loss",
              drawn([&](auto& rng) { return functional::draw_by_loss(losses, rng, 0.4); }));
  out.results("channels_last", functional::channels_last(x));
}

template <class Layer, class Part>
Tensor ghost(const Tensor& x, Part&& part) {
  Layer layer(torch::nn::BatchNormOptions(x.size(1)));
  nn::GhostBatchNormImpl<Layer> norm(*layer, 4);
  const Tensor y = norm.forward(x);
  part(*layer);
  return y;
}

void layers(Writer& out, const Tensor& x, const Tensor& rows) {
  const c10::AutoGradMode no_grad(false);  // parameters that learn may have other kernels
  const Tensor up = out.input("up", at::randn({6, 20}));
  const Tensor scale = out.input("scale", at::rand({20}));
  const Tensor squeeze = out.input("squeeze", at::randn({2, 3}));
  const Tensor excite = out.input("excite", at::randn({3, 2}));
  const Tensor weight = out.input("weight", at::randn({7, 20}));
  const Tensor bias = out.input("bias", at::randn({7}));
  const Tensor a = out.input("a", at::randn({4, 20}));
  const Tensor b = out.input("b", at::randn({7, 4}));

  out.results("blur_filter", functional::blur_filter());
  out.results("blur_2d", functional::blur_2d(x, -1, 2),
              functional::blur_2d(x, 3, 1, {}, tutti::BlurBorder::reflect));
  out.results("blurmax_pool2d", functional::blurmax_pool2d(x, 3, 2, 1));
  const auto slopes = functional::alibi_slopes(6);
  out.results("alibi_slopes", slopes[0], slopes[3], slopes[5]);
  out.results("alibi_bias", functional::alibi_bias(6, 9, true),
              functional::alibi_bias(4, 9, false));
  Tensor mean;
  Tensor variance;
  const Tensor normed = ghost<nn::BatchNorm2d>(x, [&](const auto& layer) {
    mean = layer.running_mean;
    variance = layer.running_var;
  });
  out.results("ghost_batch_norm", normed, mean, variance,
              ghost<nn::BatchNorm1d>(rows, [](const auto&) {}));
  nn::GyroDropoutImpl gyro({.p = 0.4, .sigma = 8, .tau = 3, .period = 2}, tutti::Rng(seed));
  for (int call = 0; call < 3; ++call) {
    gyro.forward(rows);
  }
  const Tensor fourth = gyro.forward(rows);
  out.results("gyro_dropout", fourth, gyro.forward(rows));
  nn::LowPrecisionLayerNormImpl layer_norm(torch::nn::LayerNormOptions({20}));
  layer_norm.weight.set_data(scale);
  nn::LowPrecisionGroupNormImpl group_norm(torch::nn::GroupNormOptions(3, 3));
  out.results("low_precision", layer_norm.forward(rows), group_norm.forward(x));
  out.results("rms_norm", functional::rms_norm(rows, scale, 1e-6),
              functional::rms_norm(rows, {}, 1e-5));
  out.results("gated_linear_unit", nn::activate(nn::Activation::gelu, rows).mul(up),
              nn::activate(nn::Activation::silu, rows).mul(up));
  out.results("swiglu", functional::swiglu(rows, up));
  nn::SqueezeExcite2dImpl gate(3, 2);
  gate.pool_and_mlp->ptr<nn::LinearImpl>(2)->weight.set_data(squeeze);
  gate.pool_and_mlp->ptr<nn::LinearImpl>(4)->weight.set_data(excite);
  out.results("squeeze_excite", gate.forward(x));
  torch::nn::LinearImpl linear(20, 7);
  linear.weight.set_data(weight);
  linear.bias.set_data(bias);
  nn::LoraLinearImpl<nn::Linear> adapted(linear, {.r = 4, .scaling = 0.5});
  adapted.lora_A->weight.set_data(a);
  adapted.lora_B->weight.set_data(b);
  out.results("lora", adapted.forward(rows), adapted.merged_weight());
}

// A block whose residual is known, without a nonlinearity.
struct Block final : torch::nn::Module, tutti::models::ResidualBlock {
  explicit Block(Tensor value) : value_(std::move(value)) {}
  Tensor residual(const Tensor&) override { return value_.clone(); }
  Tensor shortcut(const Tensor& x) override { return x; }
  bool projects() const override { return false; }
  Tensor finish(const Tensor& sum) override { return sum; }
  Tensor forward(const Tensor& x) { return joined(x); }

 private:
  Tensor value_;
};

void stochastic_depth(Writer& out, const Tensor& rows) {
  const auto run = [&](tutti::DropMethod method, bool training) {
    const auto model = std::make_shared<torch::nn::Module>();
    const auto block = model->register_module("block", std::make_shared<Block>(rows.sin()));
    functional::apply_stochastic_depth(*model, {.stochastic_method = method, .drop_rate = 0.5},
                                       tutti::Rng(seed));
    model->train(training);
    return block->forward(rows);
  };
  out.results("stochastic_depth", run(tutti::DropMethod::block, true),
              run(tutti::DropMethod::sample, true), run(tutti::DropMethod::sample, false));
}

void weights(Writer& out, const Tensor& rows) {
  const Tensor kernel = out.input("kernel", at::randn({5, 3, 3, 3}));
  const Tensor gradient = out.input("gradient", at::randn({5, 3, 3, 3}));
  const Tensor length = out.input("length", at::rand({5, 1, 1, 1}));
  const Tensor u = out.input("u", at::randn({6})).clone();
  const Tensor v = out.input("v", at::randn({20})).clone();
  const Tensor image = out.input("image", at::randn({2, 3, 10, 10}));
  const Tensor to = out.input("to", at::randn({6, 9}));
  const Tensor map = out.input("map", at::randn({20, 9}));

  out.results("standardize_weights", functional::standardize_weights(kernel));
  out.results("weight_norm", functional::weight_norm(kernel, length),
              functional::weight_norm(kernel, at::ones({1}), -1));
  functional::power_iteration(rows, u, v, {.n_power_iterations = 3});
  out.results("power_iteration", u, v);
  out.results("spectral_norm", functional::spectral_norm(rows, u, v));
  const auto [first, second] = functional::split_matrix(rows, 2);
  out.results("split_matrix", first, second);
  const auto low = functional::factorize_matrix(rows, to, map, {}, {}, 4);
  out.results("factorize_matrix", low.Wa, low.Wb, low.bias, static_cast<double>(low.rank),
              low.nmse);
  const auto conv =
      functional::factorize_conv2d(image, kernel, {}, 2, {}, {}, 1, {.stride = 1, .padding = 1});
  out.results("factorize_conv2d", conv.Wa, conv.Wb, static_cast<double>(conv.rank));

  using Type = tutti::ClippingType;
  const auto clipped = [&](Type type) {
    Tensor parameter = kernel.clone().requires_grad_();
    parameter.mutable_grad() = gradient.clone();
    const Tensor norm = functional::apply_gradient_clipping({parameter}, type, 0.05);
    return std::pair(parameter.grad(), norm);
  };
  const auto by_norm = clipped(Type::norm);
  out.results("apply_gradient_clipping", by_norm.first, by_norm.second, clipped(Type::value).first,
              clipped(Type::adaptive).first);
  Tensor climbing = kernel.clone().requires_grad_();
  climbing.mutable_grad() = gradient.clone();
  functional::SAMOptimizer sam(
      std::make_shared<torch::optim::SGD>(std::vector{climbing}, torch::optim::SGDOptions(0.1)),
      0.3);
  Tensor there;
  sam.step([&] {
    there = climbing.detach().clone();  // the second call stands at the worst weights
    return climbing.sum();
  });
  out.results("sam_ascend", there);

  auto model = std::make_shared<torch::nn::Module>();
  model->register_parameter("w", kernel.clone());
  functional::EMAParameters ema(*model);
  functional::WeightMean mean;
  mean.update(*model);
  {
    const c10::AutoGradMode no_grad(false);
    model->parameters()[0].add_(gradient);
  }
  functional::compute_ema(*model, ema, 0.9);
  mean.update(*model);
  out.results("averages", ema.stored()[0], mean.means()[0].second);
}

void numbers(Writer& out) {
  out.results("ema_warmup", functional::ema_warmup(7, 0.99));
  out.results("swa_learning_rate",
              functional::swa_learning_rate(0.1, 0.01, 3, 10, tutti::Anneal::cosine));
  out.results("warmup_seq_length",
              static_cast<double>(functional::warmup_seq_length(30, 100, 8, 128, 8)));
  out.results("should_selective_backprop",
              functional::should_selective_backprop(0.6, 2) ? 1.0 : 0.0);
  const std::vector<double> recent{1.0, 1.1, 0.9};
  out.results("is_spike", functional::is_spike(recent, 3, 4, 0.1) ? 1.0 : 0.0);
  out.results("latent_size", static_cast<double>(functional::latent_size(0.25, 30, 17)));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fputs("usage: python_reference FILE\n", stderr);
    return 2;
  }
  at::manual_seed(3);
  Writer out;
  const Tensor x = out.input("x", at::randn({8, 3, 16, 16}));
  const Tensor target = out.input("target", at::arange(8));
  const Tensor rows = out.input("rows", at::randn({6, 20}));
  batches(out, x, target);
  layers(out, x, rows);
  stochastic_depth(out, rows);
  weights(out, rows);
  numbers(out);
  out.write(argv[1]);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
