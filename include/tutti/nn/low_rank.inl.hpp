// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/nn/low_rank.hpp>

namespace tutti::functional {

TUTTI_INLINE std::int64_t latent_size(double latent, std::int64_t in, std::int64_t out) {
  if (latent >= 1) {
    return static_cast<std::int64_t>(latent);
  }
  const auto width = static_cast<std::int64_t>(latent * static_cast<double>(std::min(in, out)));
  return std::max<std::int64_t>(width, 1);
}

TUTTI_INLINE std::int64_t largest_useful_rank(std::int64_t fan_in, std::int64_t out) {
  const auto product = static_cast<double>(fan_in) * static_cast<double>(out);
  return static_cast<std::int64_t>(std::ceil(product / static_cast<double>(fan_in + out) - 1));
}

TUTTI_INLINE at::Tensor widened(const at::Tensor& t) {
  const bool narrow = t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16;
  return narrow ? t.to(at::kFloat) : t;
}

TUTTI_INLINE std::pair<at::Tensor, at::Tensor> split_matrix(const at::Tensor& W,
                                                            std::int64_t rank) {
  const auto [U, S, Vh] = at::linalg_svd(widened(W), /*full_matrices=*/false);
  const at::Tensor root = S.narrow(0, 0, rank).sqrt();
  return {U.narrow(1, 0, rank).mul(root).to(W.scalar_type()),
          Vh.narrow(0, 0, rank).mul(root.unsqueeze(1)).to(W.scalar_type())};
}

TUTTI_INLINE LowRank factorize_matrix(const at::Tensor& X, const at::Tensor& Y,
                                      const at::Tensor& Wa, const at::Tensor& Wb,
                                      const at::Tensor& bias, double rank, std::int64_t n_iters,
                                      bool keep_best) {
  const c10::AutoGradMode no_grad(false);
  TUTTI_CHECK_VALUE(X.dim() == 2 && Y.dim() == 2 && X.size(0) == Y.size(0) && Wa.dim() == 2 &&
                        Wa.size(0) == X.size(1) && (Wb.defined() ? Wb : Wa).size(1) == Y.size(1),
                    "factorize_matrix: X is ", X.sizes(), ", Y ", Y.sizes(), " and Wa ", Wa.sizes(),
                    "; expected [N, D], [N, M] and a map from D to M");
  TUTTI_CHECK_VALUE(rank > 0, "factorize_matrix: rank is ", rank, ", expected more than 0");
  const std::int64_t wanted =
      rank < 1
          ? std::min(static_cast<std::int64_t>(rank * static_cast<double>(X.size(1))), Wa.size(1))
          : static_cast<std::int64_t>(rank);
  const std::int64_t k = std::max<std::int64_t>(wanted, 1);
  const at::Tensor offset = bias.defined() ? bias.detach() : at::zeros({Y.size(1)}, Y.options());
  const auto solve = [](const at::Tensor& left, const at::Tensor& right) {
    return std::get<0>(at::linalg_lstsq(left, right));
  };
  const at::Tensor x = widened(X);
  const at::Tensor y = widened(Y);
  const at::Tensor centred = y.sub(offset);
  if (k >= X.size(1) || k >= Y.size(1)) {
    return {solve(x, centred).to(Wa.scalar_type()), {}, offset, -1, 0};
  }
  if (Wb.defined() && k >= Wa.size(1)) {
    return {Wa, Wb, offset, -1, 0};
  }
  const at::Tensor whole = n_iters > 0 ? solve(x, centred) : at::Tensor{};  // [D, M]
  LowRank best;
  auto [a, b] = split_matrix(Wb.defined() ? widened(Wa).matmul(widened(Wb)) : widened(Wa), k);
  for (std::int64_t i = 0; i <= n_iters; ++i) {
    if (i > 0) {
      b = solve(x.matmul(a), centred);
      a = solve(b.t(), whole.t()).t();
    }
    const at::Tensor error = centred.sub(x.matmul(a).matmul(b));
    const at::Tensor shift = error.mean(0);
    const double nmse = error.sub(shift).square().mean().div(y.var()).item<double>();
    if (i == 0 || !keep_best || nmse < best.nmse) {
      best = {a, b, offset.add(shift), k, nmse};
    }
  }
  return best;
}

TUTTI_INLINE LowRank factorize_conv2d(const at::Tensor& X, const at::Tensor& Wa,
                                      const at::Tensor& Wb, double rank, const at::Tensor& bias_a,
                                      const at::Tensor& bias_b, std::int64_t n_iters,
                                      const Walk2d& walk) {
  const c10::AutoGradMode no_grad(false);
  TUTTI_CHECK_NOT_IMPLEMENTED(X.size(1) == Wa.size(1), "factorize_conv2d: X has ", X.size(1),
                              " channels and the kernel ", Wa.size(1),
                              "; convolutions with groups cannot be factored");
  TUTTI_CHECK(Wb.defined() || !bias_b.defined(),
              "factorize_conv2d: there is a bias_b and no Wb, the convolution that it is of; give "
              "the bias of a single convolution as bias_a");
  at::Tensor y = at::conv2d(X, Wa, bias_a, *walk.stride, *walk.padding, *walk.dilation);
  if (Wb.defined()) {
    y = at::conv2d(y, Wb, bias_b);
  }
  const auto rows = [](const at::Tensor& t) { return t.transpose(1, 2).flatten(0, 1); };
  const at::Tensor patches = at::im2col(X, Wa.sizes().slice(2), *walk.dilation, *walk.padding,
                                        *walk.stride);  // [N, in * kh * kw, positions]
  const auto matrix = [](const at::Tensor& kernel) { return kernel.flatten(1).t(); };
  LowRank out = factorize_matrix(rows(patches), rows(y.flatten(2)), matrix(Wa),
                                 Wb.defined() ? matrix(Wb) : at::Tensor{},
                                 Wb.defined() ? bias_b : bias_a, rank, n_iters);
  auto shape = Wa.sizes().vec();
  shape[0] = out.Wa.size(1);
  out.Wa = out.Wa.t().reshape(shape);
  if (out.Wb.defined()) {
    out.Wb = out.Wb.t().unsqueeze(-1).unsqueeze(-1).contiguous();
  }
  return out;
}

}  // namespace tutti::functional
