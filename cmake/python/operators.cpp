// SPDX-License-Identifier: Apache-2.0
// The algorithms' functions on tensors as operators of PyTorch, torch.ops.tutti.*, and what
// tutti.load() reads runs with. docs/python.md lists them. Each calls the function that the policy
// of the same name calls; layers are made over the given tensors for one call. What draws takes a
// seed and gives the same for the same one.
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/library.h>

#include <tutti/algorithms/alibi.hpp>
#include <tutti/algorithms/augmix.hpp>
#include <tutti/algorithms/channels_last.hpp>
#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/detail/averages.hpp>
#include <tutti/algorithms/detail/perturbed_weights.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/algorithms/randaugment.hpp>
#include <tutti/algorithms/selective_backprop.hpp>
#include <tutti/algorithms/seq_length_warmup.hpp>
#include <tutti/algorithms/skip_spikes.hpp>
#include <tutti/algorithms/swa.hpp>
#include <tutti/checkpoint/latest.hpp>
#include <tutti/checkpoint/weights.hpp>
#include <tutti/models/stochastic_blocks.hpp>
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
using MaybeTensor = std::optional<Tensor>;
using Ints = std::vector<std::int64_t>;
using Tensors = std::vector<Tensor>;
using Names = std::vector<std::string>;
namespace functional = tutti::functional;
namespace nn = tutti::nn;

tutti::Rng drawing(std::int64_t seed) {
  return tutti::Rng(static_cast<std::uint64_t>(seed));
}

Tensor or_undefined(const MaybeTensor& tensor) {
  return tensor.value_or(Tensor());
}

// Enumerators by name: what to_string() says, where there is one.
template <class E>
std::string_view name_of(E one) {
  return to_string(one);
}
std::string_view name_of(tutti::BlurBorder border) {
  using enum tutti::BlurBorder;
  return border == zero ? "zero" : border == renormalize ? "renormalize" : "reflect";
}
std::string_view name_of(tutti::Anneal strategy) {
  return strategy == tutti::Anneal::linear ? "linear" : "cosine";
}
std::string_view name_of(tutti::DropMethod method) {
  return method == tutti::DropMethod::block ? "block" : "sample";
}

// The one of that name.
template <class E>
E called(std::string_view text, std::initializer_list<E> all, const char* what) {
  std::string known;
  for (const E one : all) {
    if (name_of(one) == text) {
      return one;
    }
    known += (known.empty() ? "\"" : ", \"") + std::string(name_of(one)) + "\"";
  }
  TUTTI_CHECK_VALUE(false, what, " is \"", text, "\", expected one of ", known);
}

tutti::AugmentationSet augmentation_set(std::string_view text) {
  using enum tutti::AugmentationSet;
  return called(text, {all, safe, original}, "augmentation_set");
}

tutti::BlurBorder blur_border(std::string_view text) {
  using enum tutti::BlurBorder;
  return called(text, {zero, renormalize, reflect}, "border");
}

tutti::fused::Box box_of(const Ints& sides) {
  TUTTI_CHECK_VALUE(sides.size() == 4, "box has ", sides.size(),
                    " numbers, expected 4: top, left, bottom, right");
  return {sides[0], sides[1], sides[2], sides[3]};
}

Ints sides_of(const tutti::fused::Box& box) {
  return {box.top, box.left, box.bottom, box.right};
}

// A batch of tensors by name, as a dictionary's keys and values.
tutti::Batch batch_of(const Names& names, const Tensors& tensors) {
  TUTTI_CHECK_VALUE(names.size() == tensors.size(), "there are ", names.size(), " names and ",
                    tensors.size(), " tensors, expected as many");
  tutti::Batch batch;
  for (std::size_t i = 0; i < names.size(); ++i) {
    batch[names[i]] = tensors[i];
  }
  return batch;
}

Tensors tensors_of(const tutti::Batch& batch) {
  Tensors out;
  for (const auto& [name, tensor] : batch) {
    out.push_back(tensor);
  }
  return out;
}

// ---- changes of a batch ----

std::tuple<Tensor, Tensor, double, Tensor> mixup_batch(const Tensor& input, const Tensor& target,
                                                       std::int64_t seed, double alpha,
                                                       std::optional<double> mixing,
                                                       const MaybeTensor& indices) {
  tutti::Rng rng = drawing(seed);
  auto out = functional::mixup_batch(
      input, target, rng, {.alpha = alpha, .mixing = mixing, .indices = or_undefined(indices)});
  return {out.input, out.permuted_target, out.mixing, out.indices};
}

std::tuple<Tensor, Tensor, double, Ints, Tensor> cutmix_batch(
    const Tensor& input, const Tensor& target, std::int64_t seed, double alpha,
    std::optional<double> keep, std::optional<double> length, const std::optional<Ints>& box,
    const MaybeTensor& indices, bool uniform_sampling) {
  tutti::Rng rng = drawing(seed);
  auto out = functional::cutmix_batch(input, target, rng,
                                      {.alpha = alpha,
                                       .lambda = keep,
                                       .length = length,
                                       .box = box ? std::optional(box_of(*box)) : std::nullopt,
                                       .indices = or_undefined(indices),
                                       .uniform_sampling = uniform_sampling});
  return {out.input, out.permuted_target, out.adjusted_lambda, sides_of(out.box), out.indices};
}

Tensor paste_box(const Tensor& x, const Tensor& indices, const Ints& box) {
  return functional::paste_box(x, indices, box_of(box));
}

Tensor cutout_batch(const Tensor& x, std::int64_t seed, std::int64_t num_holes, double length,
                    bool uniform_sampling, bool per_image) {
  tutti::Rng rng = drawing(seed);
  return functional::cutout_batch(x, rng,
                                  {.num_holes = num_holes,
                                   .length = length,
                                   .uniform_sampling = uniform_sampling,
                                   .per_image = per_image});
}

Tensor colout_batch(const Tensor& x, std::int64_t seed, double p_row, double p_col) {
  tutti::Rng rng = drawing(seed);
  return functional::colout_batch(x, rng, {.p_row = p_row, .p_col = p_col});
}

std::tuple<Tensor, Tensor> colout_batch_with_target(const Tensor& x, const Tensor& target,
                                                    std::int64_t seed, double p_row, double p_col,
                                                    std::string_view resize_target) {
  using enum tutti::ResizeTarget;
  tutti::Rng rng = drawing(seed);
  auto out = functional::colout_batch(
      x, target, rng,
      {.p_row = p_row,
       .p_col = p_col,
       .resize_target = called(resize_target, {automatic, always, never}, "resize_target")});
  return {out.input, out.target};
}

Tensor augmix_image(const Tensor& images, std::int64_t seed, double severity, std::int64_t depth,
                    std::int64_t width, double alpha, std::string_view set) {
  tutti::Rng rng = drawing(seed);
  return functional::augmix_image(images, rng,
                                  {.severity = severity,
                                   .depth = depth,
                                   .width = width,
                                   .alpha = alpha,
                                   .augmentation_set = augmentation_set(set)});
}

Tensor randaugment_image(const Tensor& images, std::int64_t seed, double severity,
                         std::int64_t depth, std::string_view set) {
  tutti::Rng rng = drawing(seed);
  return functional::randaugment_image(
      images, rng,
      {.severity = severity, .depth = depth, .augmentation_set = augmentation_set(set)});
}

std::tuple<Tensor, Tensor> resize_batch(const Tensor& input, const Tensor& target,
                                        double scale_factor, std::int64_t seed,
                                        std::string_view mode, std::string_view interpolation,
                                        bool resize_targets) {
  using Mode = tutti::ResizeMode;
  using How = tutti::Interpolation;
  tutti::Rng rng = drawing(seed);
  auto out = functional::resize_batch(
      input, target, scale_factor, rng,
      {.mode = called(mode, {Mode::crop, Mode::resize}, "mode"),
       .interpolation =
           called(interpolation, {How::nearest, How::bilinear, How::antialias}, "interpolation"),
       .resize_targets = resize_targets});
  return {out.input, out.target};
}

Tensors set_batch_sequence_length(const Names& names, const Tensors& tensors,
                                  std::int64_t curr_seq_len, bool truncate,
                                  bool preserve_end_of_sequence) {
  return tensors_of(functional::set_batch_sequence_length(batch_of(names, tensors), curr_seq_len,
                                                          truncate, preserve_end_of_sequence));
}

Tensors shorten_sequences(const Names& names, const Tensors& tensors, double scaling) {
  return tensors_of(functional::shorten_sequences(batch_of(names, tensors), scaling));
}

Tensor draw_by_loss(const Tensor& losses, std::int64_t seed, double keep) {
  tutti::Rng rng = drawing(seed);
  return functional::draw_by_loss(losses, rng, keep);
}

// ---- parts of layers ----

Tensor blur_2d(const Tensor& x, std::int64_t channels, at::IntArrayRef stride,
               const MaybeTensor& filter, std::string_view border) {
  return functional::blur_2d(x, channels, stride, or_undefined(filter), blur_border(border));
}

Tensor blurmax_pool2d(const Tensor& x, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode,
                      const MaybeTensor& filter, std::string_view border) {
  return functional::blurmax_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode,
                                    or_undefined(filter), blur_border(border));
}

Tensor alibi_bias(std::int64_t n_heads, std::int64_t length, bool causal,
                  std::optional<at::Device> device) {
  return functional::alibi_bias(n_heads, length, causal, device.value_or(at::kCPU));
}

template <class Norm>
Tensor ghost_norm(const Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias,
                  const MaybeTensor& mean, const MaybeTensor& variance, const MaybeTensor& seen,
                  bool training, std::int64_t ghost_batch_size, std::optional<double> momentum,
                  double eps) {
  // Without tensors of its own: each is given, or there is none.
  typename Norm::Impl::Plain layer(
      torch::nn::BatchNormOptions(x.size(1)).affine(false).track_running_stats(false));
  layer.options.eps(eps).momentum(momentum).track_running_stats(mean.has_value());
  layer.options.affine(weight.has_value());
  layer.weight = or_undefined(weight);
  layer.bias = or_undefined(bias);
  layer.running_mean = or_undefined(mean);
  layer.running_var = or_undefined(variance);
  layer.num_batches_tracked = or_undefined(seen);
  nn::GhostBatchNormImpl<Norm> ghost(layer, ghost_batch_size);
  ghost.train(training);
  return ghost.forward(x);
}

Tensor ghost_batch_norm(const Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias,
                        const MaybeTensor& running_mean, const MaybeTensor& running_var,
                        const MaybeTensor& num_batches_tracked, bool training,
                        std::int64_t ghost_batch_size, std::optional<double> momentum, double eps) {
  TUTTI_CHECK_VALUE(ghost_batch_size >= 1, "ghost_batch_norm: ghost_batch_size is ",
                    ghost_batch_size, ", expected 1 or more");
  TUTTI_CHECK_VALUE(x.dim() >= 2 && x.dim() <= 5, "ghost_batch_norm: x is ", x.sizes(),
                    ", expected [N, C] and up to three sides more");
  TUTTI_CHECK_VALUE(running_mean.has_value() == running_var.has_value() &&
                        running_mean.has_value() == num_batches_tracked.has_value(),
                    "ghost_batch_norm: give running_mean, running_var and num_batches_tracked "
                    "together, or none of them");
  TUTTI_CHECK_VALUE(training || running_mean.has_value(),
                    "ghost_batch_norm: without training the running statistics are needed");
  const auto norm = x.dim() == 5   ? ghost_norm<nn::BatchNorm3d>
                    : x.dim() == 4 ? ghost_norm<nn::BatchNorm2d>
                                   : ghost_norm<nn::BatchNorm1d>;
  return norm(x, weight, bias, running_mean, running_var, num_batches_tracked, training,
              ghost_batch_size, momentum, eps);
}

// A layer of gyro dropout that has been called `call` times before.
Tensor gyro_dropout(const Tensor& x, std::int64_t seed, std::int64_t call, double p,
                    std::int64_t sigma, std::int64_t tau, std::int64_t period, bool training) {
  TUTTI_CHECK_VALUE(call >= 0, "gyro_dropout: call is ", call, ", expected 0 or more");
  nn::GyroDropoutImpl layer({.p = p, .sigma = sigma, .tau = tau, .period = period}, drawing(seed));
  layer.train(training);
  if (training && x.dim() >= 2) {  // the draws of the periods before this one
    Ints shape(static_cast<std::size_t>(x.dim()), 1);
    const std::size_t features = x.dim() == 3 ? 2 : 1;
    shape[features] = x.size(static_cast<std::int64_t>(features));
    const Tensor nothing = x.new_zeros({1}).expand(shape);
    for (std::int64_t i = 0; i < call; ++i) {
      layer.forward(nothing);
    }
  }
  return layer.forward(x);
}

Tensor low_precision_layer_norm(const Tensor& x, const Ints& normalized_shape,
                                const MaybeTensor& weight, const MaybeTensor& bias, double eps) {
  nn::LowPrecisionLayerNormImpl layer(
      torch::nn::LayerNormOptions(normalized_shape).eps(eps).elementwise_affine(false));
  layer.weight = or_undefined(weight);
  layer.bias = or_undefined(bias);
  return layer.forward(x);
}

Tensor low_precision_group_norm(const Tensor& x, std::int64_t num_groups, const MaybeTensor& weight,
                                const MaybeTensor& bias, double eps) {
  TUTTI_CHECK_VALUE(x.dim() >= 2, "low_precision_group_norm: x is ", x.sizes(),
                    ", expected [N, C, ...]");
  nn::LowPrecisionGroupNormImpl layer(
      torch::nn::GroupNormOptions(num_groups, x.size(1)).eps(eps).affine(false));
  layer.weight = or_undefined(weight);
  layer.bias = or_undefined(bias);
  return layer.forward(x);
}

Tensor rms_norm(const Tensor& x, const MaybeTensor& weight, double eps) {
  return functional::rms_norm(x, or_undefined(weight), eps);
}

Tensor gated_linear_unit(const Tensor& gate, const Tensor& up, std::string_view activation) {
  const auto known = nn::activation_named(activation);
  TUTTI_CHECK_VALUE(known, "gated_linear_unit: activation is \"", activation,
                    "\", expected one of ", nn::activation_names());
  return nn::activate(*known, gate).mul(up);
}

Tensor squeeze_excite(const Tensor& x, const Tensor& squeeze, const Tensor& excite) {
  TUTTI_CHECK_VALUE(
      x.dim() == 4 && squeeze.dim() == 2 && squeeze.size(1) == x.size(1) && excite.dim() == 2 &&
          excite.size(0) == x.size(1) && excite.size(1) == squeeze.size(0),
      "squeeze_excite: x is ", x.sizes(), ", squeeze ", squeeze.sizes(), " and excite ",
      excite.sizes(), ", expected [N, C, H, W], [inner, C] and [C, inner]");
  nn::SqueezeExcite2dImpl layer(1, 1);
  layer.pool_and_mlp->ptr<nn::LinearImpl>(2)->weight = squeeze;
  layer.pool_and_mlp->ptr<nn::LinearImpl>(4)->weight = excite;
  return layer.forward(x);
}

// A residual block whose parts are computed already.
struct Computed final : torch::nn::Module, tutti::models::ResidualBlock {
  Computed(const Tensor& of_residual, const Tensor& of_shortcut)
      : residual_(of_residual), shortcut_(of_shortcut) {}
  Tensor residual(const Tensor&) override { return residual_.clone(); }
  Tensor shortcut(const Tensor&) override { return shortcut_; }
  bool projects() const override { return false; }
  Tensor finish(const Tensor& sum) override { return sum; }
  Tensor forward(const Tensor& x) { return joined(x); }

 private:
  Tensor residual_;
  Tensor shortcut_;
};

Tensor stochastic_depth(const Tensor& residual, const Tensor& shortcut, std::int64_t seed,
                        double drop_rate, std::string_view method, bool training) {
  using enum tutti::DropMethod;
  TUTTI_CHECK_VALUE(drop_rate >= 0 && drop_rate <= 1, "stochastic_depth: drop_rate is ", drop_rate,
                    ", expected a number from 0 to 1");
  TUTTI_CHECK_VALUE(residual.sizes() == shortcut.sizes() && residual.dim() >= 1,
                    "stochastic_depth: residual is ", residual.sizes(), " and shortcut ",
                    shortcut.sizes(), ", expected one shape [N, ...]");
  const auto blocks = std::make_shared<tutti::models::StochasticBlocks>(
      called(method, {block, sample}, "method"), tutti::DropDistribution::uniform, drawing(seed));
  Computed one(residual, shortcut);
  tutti::models::StochasticBlocks::add(blocks, one);
  blocks->set_drop_rate(drop_rate);
  one.train(training);
  return one.forward(shortcut);
}

// A linear layer with an adapter over the given tensors, for one call.
nn::LoraLinearImpl<nn::Linear> lora_layer(const Tensor& weight, const MaybeTensor& bias,
                                          const Tensor& a, const Tensor& b, double scaling) {
  TUTTI_CHECK_VALUE(weight.dim() == 2 && a.dim() == 2 && b.dim() == 2 &&
                        a.size(1) == weight.size(1) && b.size(0) == weight.size(0) &&
                        a.size(0) == b.size(1),
                    "lora: weight is ", weight.sizes(), ", a ", a.sizes(), " and b ", b.sizes(),
                    ", expected [out, in], [r, in] and [out, r]");
  torch::nn::LinearImpl linear(torch::nn::LinearOptions(1, 1).bias(false));
  linear.weight = weight;
  linear.bias = or_undefined(bias);
  nn::LoraLinearImpl<nn::Linear> layer(linear, {.r = 1, .scaling = scaling});
  layer.lora_A->weight = a;
  layer.lora_B->weight = b;
  return layer;
}

Tensor lora_linear(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, const Tensor& a,
                   const Tensor& b, double scaling) {
  return lora_layer(weight, bias, a, b, scaling).forward(x);
}

Tensor lora_merged(const Tensor& weight, const Tensor& a, const Tensor& b, double scaling) {
  return lora_layer(weight, std::nullopt, a, b, scaling).merged_weight();
}

// ---- weights and gradients ----

void power_iteration(const Tensor& matrix, const Tensor& u, const Tensor& v,
                     std::int64_t n_power_iterations, double eps) {
  functional::power_iteration(matrix, u, v, {.n_power_iterations = n_power_iterations, .eps = eps});
}

std::tuple<Tensor, Tensor> split_matrix(const Tensor& matrix, std::int64_t rank) {
  return functional::split_matrix(matrix, rank);
}

std::tuple<Tensor, MaybeTensor, MaybeTensor, std::int64_t, double> tuple_of(
    const functional::LowRank& found) {
  const auto maybe = [](const Tensor& t) { return t.defined() ? MaybeTensor(t) : std::nullopt; };
  return {found.Wa, maybe(found.Wb), maybe(found.bias), found.rank, found.nmse};
}

auto factorize_matrix(const Tensor& inputs, const Tensor& outputs, const Tensor& a,
                      const MaybeTensor& b, const MaybeTensor& bias, double rank,
                      std::int64_t n_iters, bool keep_best) {
  return tuple_of(functional::factorize_matrix(inputs, outputs, a, or_undefined(b),
                                               or_undefined(bias), rank, n_iters, keep_best));
}

auto factorize_conv2d(const Tensor& inputs, const Tensor& a, const MaybeTensor& b, double rank,
                      const MaybeTensor& bias_a, const MaybeTensor& bias_b, std::int64_t n_iters,
                      at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation) {
  return tuple_of(functional::factorize_conv2d(inputs, a, or_undefined(b), rank,
                                               or_undefined(bias_a), or_undefined(bias_b), n_iters,
                                               {stride, padding, dilation}));
}

MaybeTensor apply_gradient_clipping(const Tensors& parameters, std::string_view clipping_type,
                                    double clipping_threshold, double adaptive_floor) {
  using Type = tutti::ClippingType;
  const Tensor norm = functional::apply_gradient_clipping(
      parameters, called(clipping_type, {Type::norm, Type::value, Type::adaptive}, "clipping_type"),
      clipping_threshold, adaptive_floor);
  return norm.defined() ? MaybeTensor(norm) : std::nullopt;
}

Tensors sam_ascend(const Tensors& weights, const Tensors& gradients, double rho, double epsilon) {
  TUTTI_CHECK_VALUE(weights.size() == gradients.size() && !weights.empty(),
                    "sam_ascend: there are ", weights.size(), " weights and ", gradients.size(),
                    " gradients, expected as many and at least one");
  TUTTI_CHECK_VALUE(rho >= 0, "sam_ascend: rho is ", rho, ", expected 0 or more");
  const c10::AutoGradMode no_grad(false);
  Tensors up;
  tutti::detail::Gradients slope;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    TUTTI_CHECK_VALUE(weights[i].sizes() == gradients[i].sizes(), "sam_ascend: weight ", i, " is ",
                      weights[i].sizes(), " and its gradient ", gradients[i].sizes(),
                      ", expected one shape");
    up.push_back(weights[i].detach().clone());
    slope.gradients.push_back(gradients[i]);
  }
  if (tutti::detail::all_on_cpu(slope.gradients)) {
    tutti::detail::point_uphill_on_host(weights, slope, up, rho, epsilon, nullptr);
  } else {
    for (Tensor& gradient : slope.gradients) {  // they are used up
      gradient = gradient.clone();
    }
    tutti::detail::point_uphill_on_device(weights, slope, up, rho, epsilon, nullptr);
  }
  return up;
}

void average(const Tensors& averages, const Tensors& weights, double smoothing,
             bool average_integers, const char* what) {
  TUTTI_CHECK_VALUE(averages.size() == weights.size(), what, ": there are ", averages.size(),
                    " averages and ", weights.size(), " weights, expected as many");
  TUTTI_CHECK_VALUE(smoothing >= 0 && smoothing <= 1, what, ": smoothing is ", smoothing,
                    ", expected a number from 0 to 1");
  tutti::detail::AverageLists lists;
  for (std::size_t i = 0; i < averages.size(); ++i) {
    TUTTI_CHECK_VALUE(averages[i].sizes() == weights[i].sizes(), what, ": average ", i, " is ",
                      averages[i].sizes(), " and its weight ", weights[i].sizes(),
                      ", expected one shape");
    lists.add(averages[i].detach(), weights[i].detach());
  }
  lists.update(smoothing, average_integers);
}

void compute_ema(const Tensors& averages, const Tensors& weights, double smoothing,
                 bool average_integers) {
  average(averages, weights, smoothing, average_integers, "compute_ema_");
}

void update_mean(const Tensors& means, const Tensors& weights, std::int64_t count) {
  TUTTI_CHECK_VALUE(count >= 0, "update_mean_: count is ", count, ", expected 0 or more");
  const auto n = static_cast<double>(count);
  average(means, weights, n / (n + 1), /*average_integers=*/false, "update_mean_");
}

double swa_learning_rate(double from, double to, std::int64_t updates, std::int64_t anneal_steps,
                         std::string_view strategy) {
  using enum tutti::Anneal;
  return functional::swa_learning_rate(from, to, updates, anneal_steps,
                                       called(strategy, {linear, cosine}, "strategy"));
}

// ---- schedules, and what reads runs ----

bool is_spike(const std::vector<double>& recent, double value, double deviations, double min_rise) {
  return functional::is_spike(recent, value, deviations, min_rise);
}

std::optional<std::string> find_latest(const std::string& folder, const std::string& latest) {
  return tutti::checkpoint::find_latest(folder, latest);
}

std::tuple<Names, Tensors> tensors_in(const tutti::Archive& archive) {
  std::tuple<Names, Tensors> out;
  archive.each_leaf([&](const std::string& name, const tutti::Archive::Leaf& leaf) {
    std::get<0>(out).push_back(name);
    std::get<1>(out).push_back(*leaf.tensor());
  });
  return out;
}

std::tuple<Names, Tensors> read_weights(const std::string& path) {
  return tensors_in(tutti::checkpoint::read_weights(path));
}

// The weights that TrainerOptions::restore_best keeps in a checkpoint; no names where there are
// none.
std::tuple<Names, Tensors> read_kept_best(const std::string& path) {
  const tutti::Archive state = tutti::checkpoint::read_checkpoint(path, {.model = false}).state;
  if (!state.contains("best") || !state.child("best").contains("value")) {
    return {};
  }
  return tensors_in(state.child("best").child("model"));
}

}  // namespace

TORCH_LIBRARY(tutti, m) {
  m.def("mix(Tensor x, Tensor indices, float mixing) -> Tensor", functional::mix);
  m.def(
      "mixup_batch(Tensor input, Tensor target, int seed, float alpha=0.2, float? mixing=None, "
      "Tensor? indices=None) -> (Tensor input, Tensor permuted_target, float mixing, "
      "Tensor indices)",
      mixup_batch);
  m.def("paste_box(Tensor x, Tensor indices, int[] box) -> Tensor", paste_box);
  m.def(
      "cutmix_batch(Tensor input, Tensor target, int seed, float alpha=1.0, float? lam=None, "
      "float? length=None, int[]? box=None, Tensor? indices=None, bool uniform_sampling=False) -> "
      "(Tensor input, Tensor permuted_target, float adjusted_lambda, int[] box, Tensor indices)",
      cutmix_batch);
  m.def(
      "cutout_batch(Tensor x, int seed, int num_holes=1, float length=0.5, "
      "bool uniform_sampling=False, bool per_image=False) -> Tensor",
      cutout_batch);
  m.def("colout_batch(Tensor x, int seed, float p_row=0.15, float p_col=0.15) -> Tensor",
        colout_batch);
  m.def(
      "colout_batch.target(Tensor x, Tensor target, int seed, float p_row=0.15, float p_col=0.15, "
      "str resize_target='automatic') -> (Tensor input, Tensor target)",
      colout_batch_with_target);
  m.def(
      "augmix_image(Tensor images, int seed, float severity=3, int depth=-1, int width=3, "
      "float alpha=1, str augmentation_set='all') -> Tensor",
      augmix_image);
  m.def(
      "randaugment_image(Tensor images, int seed, float severity=9, int depth=2, "
      "str augmentation_set='all') -> Tensor",
      randaugment_image);
  m.def("smooth_labels(Tensor logits, Tensor target, float smoothing=0.1) -> Tensor",
        functional::smooth_labels);
  m.def(
      "resize_batch(Tensor input, Tensor target, float scale_factor, int seed=0, "
      "str mode='resize', str interpolation='nearest', bool resize_targets=False) -> "
      "(Tensor input, Tensor target)",
      resize_batch);
  m.def(
      "set_batch_sequence_length(str[] names, Tensor[] tensors, int curr_seq_len, "
      "bool truncate=True, bool preserve_end_of_sequence=False) -> Tensor[]",
      set_batch_sequence_length);
  m.def("shorten_sequences(str[] names, Tensor[] tensors, float scaling) -> Tensor[]",
        shorten_sequences);
  m.def("draw_by_loss(Tensor losses, int seed, float keep=0.5) -> Tensor", draw_by_loss);
  m.def("channels_last(Tensor x) -> Tensor", functional::channels_last);

  m.def("blur_filter() -> Tensor", functional::blur_filter);
  m.def(
      "blur_2d(Tensor x, int channels=-1, int[2] stride=1, Tensor? filter=None, "
      "str border='zero') -> Tensor",
      blur_2d);
  m.def(
      "blurmax_pool2d(Tensor x, int[2] kernel_size=2, int[2] stride=2, int[2] padding=0, "
      "int[2] dilation=1, bool ceil_mode=False, Tensor? filter=None, str border='zero') -> Tensor",
      blurmax_pool2d);
  m.def("alibi_slopes(int n_heads) -> float[]", functional::alibi_slopes);
  m.def("alibi_bias(int n_heads, int length, bool causal, Device? device=None) -> Tensor",
        alibi_bias);
  m.def(
      "ghost_batch_norm(Tensor x, Tensor? weight=None, Tensor? bias=None, "
      "Tensor(a!)? running_mean=None, Tensor(b!)? running_var=None, "
      "Tensor(c!)? num_batches_tracked=None, bool training=True, int ghost_batch_size=32, "
      "float? momentum=0.1, float eps=1e-05) -> Tensor",
      ghost_batch_norm);
  m.def(
      "gyro_dropout(Tensor x, int seed, int call, float p=0.5, int sigma=256, int tau=16, "
      "int period=1, bool training=True) -> Tensor",
      gyro_dropout);
  m.def(
      "low_precision_layer_norm(Tensor x, int[] normalized_shape, Tensor? weight=None, "
      "Tensor? bias=None, float eps=1e-05) -> Tensor",
      low_precision_layer_norm);
  m.def(
      "low_precision_group_norm(Tensor x, int num_groups, Tensor? weight=None, Tensor? bias=None, "
      "float eps=1e-05) -> Tensor",
      low_precision_group_norm);
  m.def("rms_norm(Tensor x, Tensor? weight=None, float eps=1e-06) -> Tensor", rms_norm);
  m.def("gated_linear_unit(Tensor gate, Tensor up, str activation='gelu') -> Tensor",
        gated_linear_unit);
  m.def("swiglu(Tensor gate, Tensor up) -> Tensor", functional::swiglu);
  m.def("squeeze_excite(Tensor x, Tensor squeeze, Tensor excite) -> Tensor", squeeze_excite);
  m.def(
      "stochastic_depth(Tensor residual, Tensor shortcut, int seed, float drop_rate=0.2, "
      "str method='block', bool training=True) -> Tensor",
      stochastic_depth);
  m.def(
      "lora_linear(Tensor x, Tensor weight, Tensor? bias, Tensor a, Tensor b, float scaling=1) -> "
      "Tensor",
      lora_linear);
  m.def("lora_merged(Tensor weight, Tensor a, Tensor b, float scaling=1) -> Tensor", lora_merged);

  m.def("standardize_weights(Tensor w) -> Tensor", functional::standardize_weights);
  m.def("weight_norm(Tensor v, Tensor g, int dim=0) -> Tensor", functional::weight_norm);
  m.def(
      "power_iteration_(Tensor matrix, Tensor(a!) u, Tensor(b!) v, int n_power_iterations=1, "
      "float eps=1e-12) -> ()",
      power_iteration);
  m.def("spectral_norm(Tensor w, Tensor u, Tensor v) -> Tensor", functional::spectral_norm);
  m.def("latent_size(float latent, int fan_in, int fan_out) -> int", functional::latent_size);
  m.def("split_matrix(Tensor W, int rank) -> (Tensor, Tensor)", split_matrix);
  m.def(
      "factorize_matrix(Tensor X, Tensor Y, Tensor Wa, Tensor? Wb=None, Tensor? bias=None, "
      "float rank=0.25, int n_iters=3, bool keep_best=True) -> (Tensor Wa, Tensor? Wb, "
      "Tensor? bias, int rank, float nmse)",
      factorize_matrix);
  m.def(
      "factorize_conv2d(Tensor X, Tensor Wa, Tensor? Wb=None, float rank=0.25, "
      "Tensor? bias_a=None, Tensor? bias_b=None, int n_iters=3, int[2] stride=1, "
      "int[2] padding=0, int[2] dilation=1) -> (Tensor Wa, Tensor? Wb, Tensor? bias, int rank, "
      "float nmse)",
      factorize_conv2d);
  m.def(
      "apply_gradient_clipping(Tensor[] parameters, str clipping_type, float clipping_threshold, "
      "float adaptive_floor=0.001) -> Tensor?",
      apply_gradient_clipping);
  m.def(
      "sam_ascend(Tensor[] weights, Tensor[] gradients, float rho=0.05, float epsilon=1e-12) -> "
      "Tensor[]",
      sam_ascend);
  m.def(
      "compute_ema_(Tensor(a!)[] averages, Tensor[] weights, float smoothing=0.99, "
      "bool average_integers=False) -> ()",
      compute_ema);
  m.def("update_mean_(Tensor(a!)[] means, Tensor[] weights, int count) -> ()", update_mean);

  m.def(
      "ema_warmup(int step, float decay, float min_decay=0, float gamma=1, "
      "float power=0.6666666666666666) -> float",
      functional::ema_warmup);
  m.def(
      "swa_learning_rate(float start, float end, int updates, int anneal_steps, "
      "str strategy='linear') -> float",
      swa_learning_rate);
  m.def(
      "warmup_seq_length(int batch, int warmup, int min_seq_length, int max_seq_length, "
      "int step_size) -> int",
      functional::warmup_seq_length);
  m.def(
      "should_selective_backprop(float elapsed, int batch_in_epoch, float start=0.5, "
      "float end=0.9, int interrupt=2) -> bool",
      functional::should_selective_backprop);
  m.def("is_spike(float[] recent, float value, float deviations, float min_rise) -> bool",
        is_spike);

  m.def("_find_latest(str folder, str latest) -> str?", find_latest);
  m.def("_read_weights(str path) -> (str[] names, Tensor[] tensors)", read_weights);
  m.def("_read_kept_best(str path) -> (str[] names, Tensor[] tensors)", read_kept_best);
}
