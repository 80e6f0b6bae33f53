// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/augmix.hpp>
#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/channels_last.hpp>
#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/ghost_batchnorm.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/low_precision_groupnorm.hpp>
#include <tutti/algorithms/low_precision_layernorm.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/algorithms/randaugment.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/algorithms/selective_backprop.hpp>
#include <tutti/algorithms/squeeze_excite.hpp>
#include <tutti/algorithms/stochastic_depth.hpp>
#include <tutti/algorithms/swa.hpp>
#include <tutti/algorithms/weight_standardization.hpp>
#include <tutti/data/image_loader.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/models/resnet.hpp>

#include "together/pairs.hpp"

// A small network and images on which every algorithm for images acts.
namespace together {

/// A residual block without normalisation over the batch.
struct BlockImpl : torch::nn::Module, tutti::models::ResidualBlock {
  BlockImpl() {
    const auto conv = [] {
      return tutti::nn::Conv2d(torch::nn::Conv2dOptions(16, 16, 3).padding(1));
    };
    conv1 = register_module("conv1", conv());
    norm = register_module("norm", tutti::nn::GroupNorm(torch::nn::GroupNormOptions(4, 16)));
    conv2 = register_module("conv2", conv());
  }
  at::Tensor forward(const at::Tensor& x) { return joined(x); }
  at::Tensor residual(const at::Tensor& x) override { return conv2(norm(conv1(x)).relu()); }
  at::Tensor shortcut(const at::Tensor& x) override { return x; }
  [[nodiscard]] bool projects() const override { return false; }
  tutti::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  tutti::nn::GroupNorm norm{nullptr};
};
TORCH_MODULE(Block);

/// x: [N, 3, H, W]. Gives logits [N, 4].
struct Vision : torch::nn::Module {
  explicit Vision(bool batch_norm, at::ScalarType dtype, double drop) {
    at::manual_seed(5);
    stem =
        register_module("stem", tutti::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3).padding(1)));
    if (batch_norm) {
      bn = register_module("bn", tutti::nn::BatchNorm2d(16));
    }
    block = register_module("block", Block());
    down = register_module(
        "down", tutti::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).stride(2).padding(1)));
    pool = register_module("pool", tutti::nn::MaxPool2d(torch::nn::MaxPool2dOptions(2)));
    norm = register_module("norm", tutti::nn::LayerNorm(torch::nn::LayerNormOptions({32})));
    hidden = register_module("hidden", tutti::nn::Linear(32, 32));
    dropout = register_module("dropout", tutti::nn::Dropout(drop));
    fc = register_module("fc", tutti::nn::Linear(32, 4));
    to(dtype);
  }
  at::Tensor forward(at::Tensor x) {
    x = stem(x.to(fc->weight.scalar_type()));
    x = block(bn ? bn(x) : x);
    x = pool(down(x).relu()).mean({2, 3});
    return fc(dropout(hidden(norm(x)).relu()));
  }
  tutti::nn::Conv2d stem{nullptr}, down{nullptr};
  tutti::nn::BatchNorm2d bn{nullptr};
  Block block{nullptr};
  tutti::nn::MaxPool2d pool{nullptr};
  tutti::nn::LayerNorm norm{nullptr};
  tutti::nn::Linear hidden{nullptr}, fc{nullptr};
  tutti::nn::Dropout dropout{nullptr};
};

inline auto vision(bool batch_norm, at::ScalarType dtype = at::kFloat, double drop = 0) {
  return tutti::Classifier{std::make_shared<Vision>(batch_norm, dtype, drop), {.num_classes = 4}};
}

/// `batches` batches of `size` images of side x side.
inline tutti::ImageLoader images(std::int64_t batches, std::int64_t size = 8,
                                 std::int64_t side = 16) {
  at::manual_seed(6);
  return {at::randint(256, {size * batches, 3, side, side}, at::kByte),
          at::randint(4, {size * batches}, at::kLong),
          {.batch_size = size}};
}

inline tutti::TrainerOptions vision_options(std::int64_t epochs, std::int64_t batches,
                                            std::int64_t microbatch) {
  return run_options(images(batches), epochs, microbatch);
}

template <>
inline tutti::BlurPool small<tutti::BlurPool>() {
  return {.min_channels = 8};
}
template <>
inline tutti::ColOut small<tutti::ColOut>() {
  return {.p_row = 0.2, .p_col = 0.3};
}
template <>
inline tutti::GhostBatchNorm small<tutti::GhostBatchNorm>() {
  return {.ghost_batch_size = 2, .if_none = tutti::surgery::IfNone::ignore};
}
template <>
inline tutti::ProgressiveResizing small<tutti::ProgressiveResizing>() {
  return {.initial_scale = 0.5};
}
template <>
inline tutti::SelectiveBackprop small<tutti::SelectiveBackprop>() {
  return {.start = 0.0, .end = 1.0, .interrupt = 0};
}
template <>
inline tutti::SqueezeExcite small<tutti::SqueezeExcite>() {
  return {.latent_channels = 0.5, .min_channels = 16};
}
template <>
inline tutti::StochasticDepth small<tutti::StochasticDepth>() {
  return {.drop_rate = 0.5};
}
template <>
inline tutti::SWA small<tutti::SWA>() {
  return {.swa_start = "0.2dur", .swa_end = "0.7dur", .update_interval = "1ba"};
}

template <>
inline constexpr std::string_view per_microbatch<tutti::MixUp> =
    "MixUp mixes the examples of a microbatch";
template <>
inline constexpr std::string_view per_microbatch<tutti::CutMix> =
    "CutMix mixes the examples of a microbatch";
template <>
inline constexpr std::string_view per_microbatch<tutti::StochasticDepth> =
    "StochasticDepth draws for every forward pass";

/// Every pair of the pack, on the network with batch normalisation when GhostBatchNorm is in it.
template <class P>
void check_vision_pairs() {
  check_pairs<P>(8, 2, [](std::size_t i, std::size_t j, std::int64_t microbatch) {
    const bool ghosts = P::names[i] == "GhostBatchNorm" || P::names[j] == "GhostBatchNorm";
    // In doubles, so that only what is computed differs, and not how it is rounded.
    return P::gradient(vision(ghosts, at::kDouble), vision_options(1, 1, microbatch), i, j);
  });
}

/// Saves and resumes with every pair of the pack, on a network with running statistics and dropout.
template <class P>
void check_vision_resumes() {
  check_resume_pairs<P>([] { return vision(true, at::kFloat, 0.2); },
                        [](std::int64_t size) { return run_options(images(2, 4, 12), 2, size); },
                        2);
}

/// The network for algorithm i of the pack.
template <class P>
auto vision_for(std::size_t i) {
  return vision(P::names[i] == "GhostBatchNorm");
}

}  // namespace together
