// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

/// One model over several ranks: layers of which each rank has a part.
///
/// All ranks of the group have the same input, and make the same calls in the same order, in the
/// backward pass too. Gradients of a part are those of the same part of the whole layer. With
/// SequenceParallel::yes, what is between the layers (norms, dropout, residuals) is on each rank's
/// part of the positions, and parameters that see only those, norms and the biases of row layers,
/// need their gradients summed: sum_gradients().
/// Source: Shoeybi et al., "Megatron-LM", 2019; Korthikanti et al., "Reducing Activation
/// Recomputation in Large Transformer Models", 2022.

namespace tutti::dist {

/// Whether activations between parallel layers are cut along the sequence, dimension 1.
enum class SequenceParallel { no, yes };

/// The ranks over which a layer is spread.
struct TensorParallel {
  std::shared_ptr<Communicator> group;
  SequenceParallel sequence = SequenceParallel::no;

  [[nodiscard]] int rank() const { return group->rank(); }
  [[nodiscard]] int size() const { return group->size(); }
};

namespace detail {

inline at::Tensor summed(const at::Tensor& tensor, Communicator& group) {
  at::Tensor out = tensor.clone(at::MemoryFormat::Contiguous);
  group.all_reduce(out, ReduceOp::sum);
  return out;
}

inline at::Tensor own_part(const at::Tensor& tensor, std::int64_t dim, Communicator& group) {
  const std::int64_t size = tensor.size(dim) / group.size();
  return tensor.narrow(dim, size * group.rank(), size).contiguous();
}

inline at::Tensor gathered(const at::Tensor& tensor, std::int64_t dim, Communicator& group) {
  return at::cat(group.all_gather(tensor.contiguous()), dim);
}

// Of [N, length, ...] this rank's positions of the sum over the ranks, added in rank order.
inline at::Tensor scattered(const at::Tensor& tensor, Communicator& group) {
  const std::int64_t size = tensor.size(1) / group.size();
  const at::Tensor parts = tensor.unflatten(1, {group.size(), size})
                               .movedim(1, 0)
                               .contiguous();  // [ranks, N, size, ...]
  const at::Tensor out = at::empty(parts.sizes().slice(1), parts.options());
  group.reduce_scatter_into(out, parts);
  return out;
}

inline void check_sequence(const at::Tensor& x, const Communicator& group) {
  TUTTI_CHECK(x.dim() >= 2 && x.size(1) % group.size() == 0, "tensor_parallel: a tensor ",
              x.sizes(), " was to be cut along dimension 1 over ", group.size(),
              " ranks, which has to divide it");
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using GroupOwner = std::shared_ptr<Communicator>;

// Keeps the group until the backward pass is over.
struct GroupHolder final : torch::CustomClassHolder {
  explicit GroupHolder(GroupOwner owner) : group(std::move(owner)) {}
  GroupOwner group;
};

inline void keep_group(AutogradContext* context, const GroupOwner& group) {
  context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
}

inline Communicator& group_of(AutogradContext* context) {
  return *c10::static_intrusive_pointer_cast<GroupHolder>(context->saved_data["group"].toCapsule())
              ->group;
}

// Forward: nothing. Backward: the sum over the ranks.
struct SumGradient final : torch::autograd::Function<SumGradient> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const GroupOwner& group) {
    keep_group(context, group);
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    Communicator& group = group_of(context);
    return {summed(gradients[0], group), at::Tensor()};
  }
};

// Forward: the sum over the ranks. Backward: nothing.
struct Sum final : torch::autograd::Function<Sum> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, const GroupOwner& group) {
    return summed(x, *group);
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], at::Tensor()};
  }
};

// Forward: all positions. Backward: the sum over the ranks, of which each keeps its positions.
struct GatherSequence final : torch::autograd::Function<GatherSequence> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const GroupOwner& group) {
    keep_group(context, group);
    return gathered(x, 1, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    Communicator& group = group_of(context);
    return {scattered(gradients[0], group), at::Tensor()};
  }
};

// Forward: the sum over the ranks, of which each keeps its positions. Backward: all positions.
struct ScatterSequence final : torch::autograd::Function<ScatterSequence> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const GroupOwner& group) {
    keep_group(context, group);
    check_sequence(x, *group);
    return scattered(x, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    Communicator& group = group_of(context);
    return {gathered(gradients[0], 1, group), at::Tensor()};
  }
};

// Forward: own positions. Backward: all positions.
struct SplitSequence final : torch::autograd::Function<SplitSequence> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const GroupOwner& group) {
    keep_group(context, group);
    check_sequence(x, *group);
    return own_part(x, 1, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gathered(gradients[0], 1, group_of(context)), at::Tensor()};
  }
};

// Forward: all parts in a dimension. Backward: the own one.
struct Join final : torch::autograd::Function<Join> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, std::int64_t dim,
                            const GroupOwner& group) {
    keep_group(context, group);
    context->saved_data["dim"] = dim;
    return gathered(x, dim, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const std::int64_t dim = context->saved_data["dim"].toInt();
    return {own_part(gradients[0], dim, group_of(context)), at::Tensor(), at::Tensor()};
  }
};

}  // namespace detail

/// This rank's positions of x, [N, length, ...], which all ranks have alike: where sequence
/// parallel begins behind layers that are not. The gradient is that of all positions. Throws
/// c10::Error when the ranks do not divide the length.
inline at::Tensor split_sequence(const at::Tensor& x, const TensorParallel& over) {
  return detail::SplitSequence::apply(x, over.group);
}

/// All positions of x, of which each rank has its own, [N, length / ranks, ...]: where sequence
/// parallel ends before layers that are not, of which all ranks compute the same.
inline at::Tensor join_sequence(const at::Tensor& x, const TensorParallel& over) {
  return detail::Join::apply(x, 1, over.group);
}

/// The logits [..., vocabulary] of which each rank has those of its own_rows(); all ranks compute
/// the same with them.
inline at::Tensor join_vocabulary(const at::Tensor& logits, std::int64_t vocabulary,
                                  const TensorParallel& over) {
  const std::int64_t most = (vocabulary + over.size() - 1) / over.size();
  at::Tensor own = logits;
  if (const std::int64_t missing = most - own.size(-1); missing > 0) {
    std::vector<std::int64_t> sizes = own.sizes().vec();
    sizes.back() = missing;
    own = at::cat({own, own.new_zeros(sizes)}, -1);
  }
  return detail::Join::apply(own, own.dim() - 1, over.group).narrow(-1, 0, vocabulary);
}

/// A parameter that every rank has whole and uses for a part of the positions, or of the heads: its
/// gradient is summed over the ranks in the backward pass.
inline at::Tensor sum_gradient(const at::Tensor& parameter,
                               const std::shared_ptr<Communicator>& group) {
  return parameter.defined() ? detail::SumGradient::apply(parameter, group) : parameter;
}

/// What a column layer does with its input, [N, length, ...]: with sequence parallel, all positions
/// of the ranks' parts; else the input itself, whose gradient is summed over the ranks.
inline at::Tensor enter_parallel(const at::Tensor& x, const TensorParallel& over) {
  return over.sequence == SequenceParallel::yes ? detail::GatherSequence::apply(x, over.group)
                                                : detail::SumGradient::apply(x, over.group);
}

/// What a row layer does with its output: the sum over the ranks, of which with sequence parallel
/// each keeps its positions. Throws c10::Error when the ranks do not divide the length.
inline at::Tensor leave_parallel(const at::Tensor& x, const TensorParallel& over) {
  return over.sequence == SequenceParallel::yes ? detail::ScatterSequence::apply(x, over.group)
                                                : detail::Sum::apply(x, over.group);
}

/// Rows of a vocabulary, or of anything, that this rank has: ceil(size / ranks) each, the last
/// ranks less. Returns begin and end.
inline std::pair<std::int64_t, std::int64_t> own_rows(std::int64_t size,
                                                      const TensorParallel& over) {
  const std::int64_t chunk = (size + over.size() - 1) / over.size();
  return {std::min(size, over.rank() * chunk), std::min(size, (over.rank() + 1) * chunk)};
}

/// This rank's part of a tensor that is cut evenly in a dimension.
///
/// tensors: of how many it is made that are cut each by itself: 3 for the weight of queries, keys
/// and values in one, of which a rank has its heads of each. Returns a copy. Throws c10::Error when
/// the ranks do not divide it.
inline at::Tensor parallel_part(const at::Tensor& whole, std::int64_t dim,
                                const TensorParallel& over, std::int64_t tensors = 1) {
  TUTTI_CHECK(tensors >= 1 && whole.size(dim) % (tensors * over.size()) == 0,
              "tensor_parallel: dimension ", dim, " of a tensor ", whole.sizes(),
              " was to be cut over ", over.size(), " ranks",
              tensors > 1 ? " in " + std::to_string(tensors) + " tensors" : std::string(),
              "; their number has to divide it");
  std::vector<at::Tensor> parts;
  for (const at::Tensor& one : whole.detach().chunk(tensors, dim)) {
    parts.push_back(detail::own_part(one, dim, *over.group));
  }
  return at::cat(parts, dim);
}

/// A linear layer of which each rank has some outputs: x Wᵀ + b of its rows of W and b.
///
/// x: [N, length, in]; weight: [out / ranks, in]; bias: [out / ranks] or undefined.
/// Returns [N, length, out / ranks], of all positions.
inline at::Tensor column_linear(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& bias, const TensorParallel& over) {
  return at::linear(enter_parallel(x, over), weight, bias);
}

/// A linear layer of which each rank has some inputs, as column layers and what is between give
/// them.
///
/// x: [N, length, in / ranks]; weight: [out, in / ranks]; bias: [out], whole on every rank, or
/// undefined; it is added once, after the sum. Returns [N, length, out]; of own positions with
/// sequence parallel.
inline at::Tensor row_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             const TensorParallel& over) {
  const at::Tensor out = leave_parallel(at::linear(x, weight), over);
  return bias.defined() ? out.add(bias) : out;
}

/// The rows of a table for ids of which each rank has some: own_rows() of the vocabulary.
///
/// ids: int64 [N, length], the same on all ranks; weight: [own rows, width]; vocabulary: rows of
/// the whole table; padding: the id whose row does not learn, below 0: none. Returns
/// [N, length, width]; of own positions with sequence parallel. Throws c10::Error on a CPU for an
/// id that is not of the vocabulary.
inline at::Tensor vocabulary_embedding(const at::Tensor& ids, const at::Tensor& weight,
                                       std::int64_t vocabulary, const TensorParallel& over,
                                       std::int64_t padding = -1) {
  TUTTI_CHECK(!ids.is_cpu() || ids.numel() == 0 ||
                  ids.ge(0).logical_and(ids.lt(vocabulary)).all().item<bool>(),
              "vocabulary_embedding: an id is not of the vocabulary, expected 0 to ",
              vocabulary - 1);
  const auto [begin, end] = own_rows(vocabulary, over);
  TUTTI_CHECK(weight.size(0) == end - begin, "vocabulary_embedding: this rank has ", weight.size(0),
              " rows of ", vocabulary, ", expected ", end - begin);
  if (begin == end) {
    const at::Tensor none =
        weight.sum().add(weight.new_zeros({ids.size(0), ids.size(1), weight.size(1)}));
    return leave_parallel(none, over);
  }
  const at::Tensor own = ids.ge(begin).logical_and(ids.lt(end));
  const std::int64_t no_gradient = padding >= begin && padding < end ? padding - begin : -1;
  const at::Tensor rows =
      at::embedding(weight, ids.sub(begin).clamp(0, end - begin - 1), no_gradient);
  return leave_parallel(rows.mul(own.unsqueeze(-1).to(rows.scalar_type())), over);
}

/// The cross entropy of each of n logits of which each rank has its rows of the vocabulary.
///
/// logits: [n, own rows] of this rank, which may be none; half types are computed in fp32. targets:
/// int64 [n], of the whole vocabulary, the same on all ranks, or -100 for none. vocabulary: all
/// rows. Three times n numbers are sent, not the logits. Returns [n], equal on all ranks, 0 where
/// there is no target. Throws c10::Error on a CPU for a target that is not of the vocabulary.
inline at::Tensor vocabulary_losses(const at::Tensor& logits, const at::Tensor& targets,
                                    std::int64_t vocabulary, const TensorParallel& over) {
  const auto [begin, end] = own_rows(vocabulary, over);
  TUTTI_CHECK(logits.dim() == 2 && logits.size(1) == end - begin,
              "vocabulary_cross_entropy: this rank has logits ", logits.sizes(), ", expected [n, ",
              end - begin, "] of ", vocabulary, " rows");
  const at::Tensor counts = targets.ne(-100);
  if (targets.is_cpu() && targets.numel() > 0) {
    TUTTI_CHECK((targets.ge(0).logical_and(targets.lt(vocabulary)))
                    .logical_or(counts.logical_not())
                    .all()
                    .item<bool>(),
                "vocabulary_cross_entropy: a target is not of the vocabulary, expected 0 to ",
                vocabulary - 1, ", or -100 for none");
  }
  const bool half = logits.scalar_type() == at::kHalf || logits.scalar_type() == at::kBFloat16;
  const at::Tensor x = half ? logits.to(at::kFloat) : logits;
  const std::shared_ptr<Communicator>& group = over.group;
  const bool has_rows = begin < end;  // else it makes the calls of the others, in both directions
  const at::Tensor most =
      has_rows ? x.detach().amax(-1)
               : at::full({x.size(0)}, -std::numeric_limits<double>::infinity(), x.options());
  group->all_reduce(most, ReduceOp::maximum);
  const at::Tensor sum = detail::Sum::apply(x.sub(most.unsqueeze(-1)).exp().sum(-1), group);
  at::Tensor own_target = at::zeros_like(most);
  if (has_rows) {
    const at::Tensor own = targets.ge(begin).logical_and(targets.lt(end)).to(x.scalar_type());
    const at::Tensor place = targets.sub(begin).clamp(0, end - begin - 1).unsqueeze(-1);
    own_target = x.gather(-1, place).squeeze(-1).sub(most).mul(own);
  }
  const at::Tensor target = detail::Sum::apply(own_target, group);
  return sum.log().sub(target).mul(counts.to(x.scalar_type()));
}

/// The mean of vocabulary_losses() over the targets that are not -100; a scalar.
inline at::Tensor vocabulary_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                           std::int64_t vocabulary, const TensorParallel& over) {
  return vocabulary_losses(logits, targets, vocabulary, over).sum().div(targets.ne(-100).sum());
}

/// Sums the gradients of parameters that every rank has whole and that saw a part of the positions
/// only; a collective. Undefined gradients count as none on all ranks.
inline void sum_gradients(const std::vector<at::Tensor>& parameters, const TensorParallel& over) {
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) {
      over.group->all_reduce(parameter.grad(), ReduceOp::sum);
    }
  }
}

}  // namespace tutti::dist
