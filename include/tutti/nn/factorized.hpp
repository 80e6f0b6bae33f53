// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/low_rank.hpp>
#include <tutti/nn/slot.hpp>

#include <ATen/ops/linalg_qr.h>

/// Layers that are two thinner ones in a row.
namespace tutti::nn {

/// What the factored layers have in common; the layers inside one are not factored again.
class Factorized : public Substitute {
 public:
  ~Factorized() override;
  using Substitute::Substitute;

  /// The factors of the layer's matrix, product `b.matmul(a)`, and its bias.
  struct Factors {
    at::Tensor a;     ///< [rank, fan-in]
    at::Tensor b;     ///< [out, rank]
    at::Tensor bias;  ///< [out]; undefined where there is none
  };

  /// The inner width.
  [[nodiscard]] virtual std::int64_t rank() const = 0;

  /// The trained numbers, as matrices, in fp32 at least.
  [[nodiscard]] virtual Factors factors() const = 0;

  /// The parameters behind factors(): the first layer's weight, the second's, its bias.
  [[nodiscard]] virtual Factors parameters_by_role() const = 0;

  /// Takes new factors, of any rank: the layers and their parameters are made anew.
  virtual void set_factors(const Factors& factors) = 0;

  /// Both layers are still those that were made here.
  [[nodiscard]] virtual bool is_intact() const = 0;

  /// The factors of the smallest rank that keeps this part of the sum of squared singular values.
  [[nodiscard]] Factors truncated(double energy) const {
    const c10::AutoGradMode no_grad(false);
    const Factors all = factors();
    const auto [qb, rb] = at::linalg_qr(all.b);      // [out, k], [k, k]
    const auto [qa, ra] = at::linalg_qr(all.a.t());  // [fan-in, k], [k, k]
    const auto [u, s, vh] = at::linalg_svd(rb.matmul(ra.t()), /*full_matrices=*/false);
    const at::Tensor kept = s.square().cumsum(0);
    const double enough = energy * kept[-1].item<double>();
    const std::int64_t k = std::min(kept.lt(enough).sum().item<std::int64_t>() + 1, s.size(0));
    const at::Tensor root = s.narrow(0, 0, k).sqrt();
    return {vh.narrow(0, 0, k).mul(root.unsqueeze(1)).matmul(qa.t()),
            qb.matmul(u.narrow(1, 0, k).mul(root)), all.bias};
  }
};

/// A Linear or Conv2d of low rank: `module0` to `rank` numbers or channels, `module1` from there.
///
/// A convolution keeps kernel, stride, padding and dilation in module0; module1 has a 1x1 kernel.
/// The bias is module1's.
template <class Layer>
class FactorizedImpl : public Factorized {
 public:
  using Plain = typename Layer::Impl::Plain;
  static constexpr bool is_linear = std::is_same_v<Layer, Linear>;
  using Options = std::conditional_t<is_linear, torch::nn::LinearOptions, torch::nn::Conv2dOptions>;

  /// Starts as the best approximation of `layer`, in its dtype; where its weight is zero, module0
  /// starts at random, for two zeros do not learn. latent: its rank, see functional::latent_size().
  /// add_bias: also where the layer has none.
  /// Throws c10::Error (ValueError) for a rank that saves nothing, c10::NotImplementedError for a
  /// convolution with groups.
  explicit FactorizedImpl(const Plain& layer, double latent = 0.25, bool add_bias = false)
      : options_(layer.options) {
    TUTTI_CHECK_NOT_IMPLEMENTED(groups(layer) == 1, "Factorized: the convolution has ",
                                groups(layer), " groups, expected 1");
    const std::int64_t rank = rank_for(layer, latent);
    TUTTI_CHECK_VALUE(rank <= useful_rank(layer), "Factorized: latent ", latent, " means ", rank,
                      " between layers, expected ", useful_rank(layer), " at most, for more takes ",
                      "more work than the layer as it is");
    const c10::AutoGradMode no_grad(false);
    const auto [a, b] = functional::split_matrix(layer.weight.detach().flatten(1).t(), rank);
    at::Tensor bias = layer.bias.defined() ? layer.bias.detach() : at::Tensor{};
    if (!bias.defined() && add_bias) {
      bias = at::zeros({layer.weight.size(0)}, layer.weight.options());
    }
    module0 = register_module("module0", make(0, rank, false));
    module1 = register_module("module1", make(1, rank, bias.defined()));
    this->to(layer.weight.device(), layer.weight.scalar_type());
    const at::Tensor rows = a.t();  // (rank, fan-in); of a zero weight they would be zero for ever
    const at::Tensor used = rows.ne(0).any(1, /*keepdim=*/true);
    fill({rows.where(used, module0->weight.flatten(1)), b.t(), bias});
  }

  /// Freshly initialised.
  explicit FactorizedImpl(const Options& options, double latent = 0.25)
      : FactorizedImpl(Plain(options), latent) {}

  /// The inner width that `latent` means for `layer`.
  static std::int64_t rank_for(const Plain& layer, double latent) {
    return functional::latent_size(latent, ends(layer.options).first, ends(layer.options).second);
  }

  /// The largest inner width that saves work for `layer`.
  static std::int64_t useful_rank(const Plain& layer) {
    return functional::largest_useful_rank(layer.weight.numel() / layer.weight.size(0),
                                           layer.weight.size(0));
  }

  /// Two layers save work. Not where the convolution has groups.
  static bool could_help(const Plain& layer, double latent) {
    return groups(layer) == 1 && rank_for(layer, latent) <= useful_rank(layer);
  }

  /// x: as the layer takes. Returns what it gives, nearly.
  at::Tensor forward(const at::Tensor& x) { return module1(module0(x)); }

  /// Lowers the rank to `rank`, such that the outputs for `x` change least.
  /// Throws c10::Error (ValueError) when rank is above the present one or below 1.
  void set_rank(const at::Tensor& x, std::int64_t rank) {
    TUTTI_CHECK_VALUE(rank >= 1 && rank <= this->rank(), "set_rank: rank is ", rank,
                      ", expected 1 to ", this->rank(), ", the present one");
    if (rank == this->rank()) {
      return;
    }
    const c10::AutoGradMode no_grad(false);
    const Factors now = factors();
    const auto k = static_cast<double>(rank);
    functional::LowRank less;
    if constexpr (is_linear) {
      const at::Tensor rows = x.flatten(0, -2);
      less = functional::factorize_matrix(rows, forward(rows), now.a.t(), now.b.t(), now.bias, k);
    } else {
      less = functional::factorize_conv2d(x, module0->weight, module1->weight, k, {}, now.bias, 3,
                                          walk_of(*module0));
    }
    set_factors({is_linear ? less.Wa.t() : less.Wa.flatten(1),
                 is_linear ? less.Wb.t() : less.Wb.flatten(1),
                 now.bias.defined() ? less.bias : at::Tensor{}});
  }

  [[nodiscard]] std::int64_t rank() const override { return module0->weight.size(0); }
  [[nodiscard]] Factors factors() const override {
    return {functional::widened(module0->weight.detach().flatten(1)),
            functional::widened(module1->weight.detach().flatten(1)),
            module1->bias.defined() ? module1->bias.detach() : at::Tensor{}};
  }
  [[nodiscard]] Factors parameters_by_role() const override {
    return {module0->weight, module1->weight, module1->bias};
  }
  [[nodiscard]] bool is_intact() const override {
    const auto plain = [](const Layer& layer) {
      return typeid(*layer) == typeid(typename Layer::Impl) && !layer->slot();
    };
    return plain(module0) && plain(module1);
  }

  void set_factors(const Factors& factors) override {
    const c10::AutoGradMode no_grad(false);
    const Factors old = parameters_by_role();
    const std::int64_t rank = factors.a.size(0);
    module0 = this->replace_module("module0", make(0, rank, false));
    module1 = this->replace_module("module1", make(1, rank, factors.bias.defined()));
    this->to(old.a.device(), old.a.scalar_type());
    this->train(this->is_training());
    fill(factors);
    module0->weight.set_requires_grad(old.a.requires_grad());
    module1->weight.set_requires_grad(old.b.requires_grad());
    if (old.bias.defined() && module1->bias.defined()) {
      module1->bias.set_requires_grad(old.bias.requires_grad());
    }
  }

  Layer module0{nullptr};
  Layer module1{nullptr};

 private:
  using LayerOptions = std::remove_cvref_t<decltype(Plain::options)>;

  static std::pair<std::int64_t, std::int64_t> ends(const LayerOptions& options) {
    if constexpr (is_linear) {
      return {options.in_features(), options.out_features()};
    } else {
      return {options.in_channels(), options.out_channels()};
    }
  }
  static std::int64_t groups(const Plain& layer) {
    if constexpr (is_linear) {
      return 1;
    } else {
      return layer.options.groups();
    }
  }
  static functional::Walk2d walk_of(const torch::nn::Conv2dImpl& conv) {
    const auto* padding = std::get_if<torch::ExpandingArray<2>>(&conv.options.padding());
    TUTTI_CHECK_NOT_IMPLEMENTED(
        padding != nullptr &&
            std::holds_alternative<torch::enumtype::kZeros>(conv.options.padding_mode()),
        "set_rank: the convolution pads in another way than with a number of zeros");
    return {conv.options.stride(), *padding, conv.options.dilation()};
  }

  // The first or the second layer.
  Layer make(int which, std::int64_t rank, bool bias) const {
    const auto [in, out] = ends(options_);
    if constexpr (is_linear) {
      return Layer(
          torch::nn::LinearOptions(which == 0 ? in : rank, which == 0 ? rank : out).bias(bias));
    } else if (which == 0) {
      return Layer(torch::nn::Conv2dOptions(in, rank, options_.kernel_size())
                       .stride(options_.stride())
                       .padding(options_.padding())
                       .dilation(options_.dilation())
                       .padding_mode(options_.padding_mode())
                       .bias(bias));
    } else {
      return Layer(torch::nn::Conv2dOptions(rank, out, 1).bias(bias));
    }
  }

  void fill(const Factors& factors) {
    module0->weight.copy_(factors.a.reshape(module0->weight.sizes()));
    module1->weight.copy_(factors.b.reshape(module1->weight.sizes()));
    if (factors.bias.defined()) {
      module1->bias.copy_(factors.bias);
    }
  }

  LayerOptions options_;
};

/// The factorized Linear and Conv2d that apply_factorization puts in.
using FactorizedLinear = FactorizedImpl<Linear>;
using FactorizedConv2d = FactorizedImpl<Conv2d>;

}  // namespace tutti::nn

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE Factorized::~Factorized() = default;

}  // namespace tutti::nn

#endif
