// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/optim/muon.hpp>

#include <ATen/ops/stack_ops.h>
#include <c10/util/accumulate.h>

namespace tutti::functional {

TUTTI_INLINE at::Tensor orthogonalize(const at::Tensor& x, std::int64_t steps,
                                      const std::array<double, 3>& coefficients, double eps) {
  TUTTI_CHECK(x.dim() >= 2 && x.is_floating_point(), "orthogonalize: x is ", x.sizes(), " of ",
              x.scalar_type(), ", expected [..., rows, columns], floating point.");
  const std::int64_t rows = x.size(-2);
  const std::int64_t columns = x.size(-1);
  if (x.numel() == 0) {
    return x.clone();
  }
  const auto [a, b, c] = coefficients;
  at::Tensor y = x.reshape({-1, rows, columns});  // [n, rows, columns]
  if (rows > columns) {
    y = y.transpose(1, 2);
  }
  y = y.div(y.norm(2, {1, 2}, /*keepdim=*/true).clamp_min_(eps));
  for (std::int64_t step = 0; step < steps; ++step) {
    const at::Tensor gram = y.bmm(y.transpose(1, 2));
    y = y.baddbmm(gram.baddbmm(gram, gram, b, c), y, a);
  }
  return (rows > columns ? y.transpose(1, 2) : y).reshape(x.sizes());
}

}  // namespace tutti::functional

namespace tutti::optim::detail {

// In what type a matrix is orthogonalized.
TUTTI_INLINE at::ScalarType muon_type(const Muon& h, const Bucket& b) {
  const bool fast = !b.device.is_cpu() || ::tutti::detail::has_fast_bfloat16();
  if (h.ns_dtype == "bfloat16" || (h.ns_dtype == "auto" && fast && b.type != at::kDouble)) {
    return at::kBFloat16;
  }
  return b.type == at::kDouble ? at::kDouble : at::kFloat;
}

TUTTI_INLINE List orthogonalized(const Muon& h, const List& matrices) {
  return functional::orthogonalize(at::_ops::stack::call(matrices, 0), h.ns_steps,
                                   h.ns_coefficients, h.eps)
      .unbind(0);
}

// The same of matrices with so many rows, of which each rank has some. Ranks take turns in putting
// a matrix together and give everyone their rows of the result. first: whose turn it is.
TUTTI_INLINE List orthogonalized(const Muon& h, const List& parts, std::int64_t rows,
                                 const Shards& shards, std::int64_t first) {
  const std::int64_t ranks = shards.ranks();
  const std::int64_t chunk = shards.rows_of_rank(rows);
  const std::int64_t columns = parts.front().size(1);
  const std::int64_t mine = parts.front().size(0);
  const auto count = static_cast<std::int64_t>(parts.size());
  const std::int64_t most = (count + ranks - 1) / ranks;  // matrices of one rank
  const auto place = [&](const at::Tensor& all, std::int64_t k) {
    return all[(first + k) % ranks][k / ranks].narrow(0, 0, mine);
  };
  const at::Tensor given = parts.front().new_zeros({ranks, most, chunk, columns});
  for (std::int64_t k = 0; k < count; ++k) {
    place(given, k).copy_(parts[static_cast<std::size_t>(k)]);
  }
  const at::Tensor own = shards
                             .exchange(given)  // [ranks, most, chunk, columns]
                             .transpose(0, 1)
                             .reshape({most, ranks * chunk, columns})
                             .narrow(1, 0, rows);
  const std::int64_t turn = (shards.rank() + ranks - first % ranks) % ranks;
  const std::int64_t so_many = turn < count ? (count - turn + ranks - 1) / ranks : 0;
  const at::Tensor steps = parts.front().new_zeros({most, ranks * chunk, columns});
  if (so_many > 0) {
    steps.narrow(0, 0, so_many)
        .narrow(1, 0, rows)
        .copy_(functional::orthogonalize(own.narrow(0, 0, so_many), h.ns_steps, h.ns_coefficients,
                                         h.eps));
  }
  const at::Tensor returned =
      shards.exchange(steps.view({most, ranks, chunk, columns}).transpose(0, 1).contiguous());
  List out;
  for (std::int64_t k = 0; k < count; ++k) {
    out.push_back(place(returned, k));
  }
  return out;
}

TUTTI_INLINE void muon_step(const Muon& h, const Bucket& b, const Shards* shards) {
  const List& momenta = b.buffers[2];
  lerp_(momenta, b.gradients, 1 - h.momentum);
  const List updates = h.nesterov ? lerp(b.gradients, momenta, h.momentum) : momenta;
  decay_weights(b, h.lr * h.weight_decay);
  const at::ScalarType type = muon_type(h, b);
  const auto sizes_of = [&](std::size_t i) {
    return shards != nullptr ? shards->whole_sizes(b.parameters[i]) : b.parameters[i].sizes();
  };
  const auto shape_of = [&](std::size_t i) {
    const at::IntArrayRef sizes = sizes_of(i);
    return std::pair(sizes[0], c10::multiply_integers(sizes.slice(1)));
  };
  std::vector<std::size_t> by_shape;
  for (std::size_t i = 0; i < updates.size(); ++i) {
    if (c10::multiply_integers(sizes_of(i)) > 0) {
      by_shape.push_back(i);
    }
  }
  std::stable_sort(by_shape.begin(), by_shape.end(), [&](std::size_t left, std::size_t right) {
    return shape_of(left) < shape_of(right);
  });
  std::int64_t turn = 0;
  for (auto first = by_shape.begin(); first != by_shape.end();) {
    const auto shape = shape_of(*first);
    const auto last =
        std::find_if(first, by_shape.end(), [&](std::size_t i) { return shape_of(i) != shape; });
    const std::vector<std::size_t> members(first, last);
    first = last;
    const auto [rows, columns] = shape;
    List matrices;
    for (const std::size_t i : members) {
      matrices.push_back(updates[i].reshape({updates[i].size(0), columns}).to(type));
    }
    const List steps = shards != nullptr ? orthogonalized(h, matrices, rows, *shards, turn)
                                         : orthogonalized(h, matrices);
    turn += static_cast<std::int64_t>(members.size());
    const auto tall = static_cast<double>(rows);
    const auto wide = static_cast<double>(columns);
    const double adjusted = h.adjust_lr_fn == "original" ? std::sqrt(std::max(1.0, tall / wide))
                                                         : 0.2 * std::sqrt(std::max(tall, wide));
    for (std::size_t k = 0; k < members.size(); ++k) {
      const at::Tensor& parameter = b.parameters[members[k]];
      parameter.add_(steps[k].reshape(parameter.sizes()), -h.lr * adjusted);
    }
  }
}

}  // namespace tutti::optim::detail
