// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/im2col.h>
#include <ATen/ops/linalg_lstsq.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/expanding_array.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

/// Linear maps as products of two thinner ones.
///
/// Source: Jaderberg et al., "Speeding up Convolutional Neural Networks with Low Rank Expansions",
/// BMVC 2014; Zhang et al., "Accelerating Very Deep Convolutional Networks", TPAMI 2016.
namespace tutti::functional {

/// The inner width that `latent` asks for between `in` and `out`: from 1 on the number itself,
/// below 1 that fraction of the smaller of the two, rounded down and at least 1.
std::int64_t latent_size(double latent, std::int64_t in, std::int64_t out);

/// The largest inner width with which two maps take fewer multiplications than one from `fan_in` to
/// `out` numbers. fan_in: for a convolution input channels times the kernel's area.
std::int64_t largest_useful_rank(std::int64_t fan_in, std::int64_t out);

/// A matrix as a product, or as it was.
struct LowRank {
  at::Tensor Wa{};         ///< [D, k], or [D, M] where there is no Wb
  at::Tensor Wb{};         ///< [k, M]; undefined: one matrix is as good
  at::Tensor bias{};       ///< [M]
  std::int64_t rank = -1;  ///< k; -1: nothing was gained and the input came back
  double nmse = 0;         ///< error on the data against the variance of the outputs
};

/// `t` in fp32 where it is half or bfloat16, for decompositions have no kernel for those.
at::Tensor widened(const at::Tensor& t);

/// The best product of rank `rank` of `W`, [D, M], in the least-squares sense: the largest singular
/// values, their roots on either side. Returns [D, k] and [k, M], in W's dtype.
std::pair<at::Tensor, at::Tensor> split_matrix(const at::Tensor& W, std::int64_t rank);

/// Finds a product of two thinner matrices that maps `X` to `Y` about as well as the given one.
///
/// X: [N, D], inputs. Y: [N, M], outputs. Wa: [D, M], or with Wb [D, k]. Wb: [k, M], where the map
/// is a product already. bias: [M]; undefined: 0. rank: of the result, a number or a fraction of D.
/// n_iters: rounds of alternating least squares after the split by singular values. keep_best: of
/// the split and the rounds the one with the least error counts, not the last, which is the
/// reference's choice. Returns factors of that rank, in fp32 at least, and a bias that centres the
/// error. A rank of D or M and more has rank -1, and the one map that fits the data best; one that
/// is not below that of the factors has rank -1 and these. Throws c10::Error (ValueError) when
/// shapes do not fit or rank is not positive. Source: MosaicML Composer,
/// `composer.algorithms.factorize.factorize_core.factorize_matrix`.
LowRank factorize_matrix(const at::Tensor& X, const at::Tensor& Y, const at::Tensor& Wa,
                         const at::Tensor& Wb = {}, const at::Tensor& bias = {}, double rank = 0.25,
                         std::int64_t n_iters = 3, bool keep_best = true);

/// How a convolution walks over its input.
struct Walk2d {
  torch::ExpandingArray<2> stride = 1;
  torch::ExpandingArray<2> padding = 0;
  torch::ExpandingArray<2> dilation = 1;
};

/// Finds two convolutions, the second of kernel 1, that map `X` about as the given ones do.
///
/// X: [N, in, H, W]. Wa: [out, in, kh, kw], or with Wb [k, in, kh, kw]. Wb: [out, k, 1, 1]. rank:
/// of the result, a number or a fraction of in * kh * kw. bias_a, bias_b: of either, may be
/// undefined. Returns weights of these shapes; otherwise as factorize_matrix(). Throws c10::Error
/// for a bias_b without a Wb. Source: MosaicML Composer,
/// `composer.algorithms.factorize.factorize_core.factorize_conv2d`.
LowRank factorize_conv2d(const at::Tensor& X, const at::Tensor& Wa, const at::Tensor& Wb = {},
                         double rank = 0.25, const at::Tensor& bias_a = {},
                         const at::Tensor& bias_b = {}, std::int64_t n_iters = 3,
                         const Walk2d& walk = {});

}  // namespace tutti::functional

#if TUTTI_BODIES
#include <tutti/nn/low_rank.inl.hpp>
#endif
