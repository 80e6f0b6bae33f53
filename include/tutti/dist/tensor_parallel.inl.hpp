// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/dist/tensor_parallel.hpp>

#include <algorithm>
#include <limits>

#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <tutti/core/detail/throw.hpp>

namespace tutti::dist {

namespace detail {

TUTTI_INLINE at::Tensor summed(const at::Tensor& tensor, Communicator& group) {
  at::Tensor out = tensor.clone(at::MemoryFormat::Contiguous);
  group.all_reduce(out, ReduceOp::sum);
  return out;
}

TUTTI_INLINE at::Tensor own_part(const at::Tensor& tensor, std::int64_t dim, Communicator& group) {
  const std::int64_t size = tensor.size(dim) / group.size();
  return tensor.narrow(dim, size * group.rank(), size).contiguous();
}

TUTTI_INLINE at::Tensor gathered(const at::Tensor& tensor, std::int64_t dim, Communicator& group) {
  return at::cat(group.all_gather(tensor.contiguous()), dim);
}

// Of [N, length, ...] this rank's positions of the sum over the ranks, added in rank order.
TUTTI_INLINE at::Tensor scattered(const at::Tensor& tensor, Communicator& group) {
  const std::int64_t size = tensor.size(1) / group.size();
  const at::Tensor parts = tensor.unflatten(1, {group.size(), size})
                               .movedim(1, 0)
                               .contiguous();  // [ranks, N, size, ...]
  const at::Tensor out = at::empty(parts.sizes().slice(1), parts.options());
  group.reduce_scatter_into(out, parts);
  return out;
}

TUTTI_INLINE void check_sequence(const at::Tensor& x, const Communicator& group) {
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

TUTTI_INLINE void keep_group(AutogradContext* context, const GroupOwner& group) {
  context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
}

TUTTI_INLINE Communicator& group_of(AutogradContext* context) {
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

TUTTI_INLINE at::Tensor split_sequence(const at::Tensor& x, const TensorParallel& over) {
  return detail::SplitSequence::apply(x, over.group);
}

TUTTI_INLINE at::Tensor join_sequence(const at::Tensor& x, const TensorParallel& over) {
  return detail::Join::apply(x, 1, over.group);
}

TUTTI_INLINE at::Tensor join_vocabulary(const at::Tensor& logits, std::int64_t vocabulary,
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

TUTTI_INLINE at::Tensor sum_gradient(const at::Tensor& parameter,
                                     const std::shared_ptr<Communicator>& group) {
  return parameter.defined() ? detail::SumGradient::apply(parameter, group) : parameter;
}

TUTTI_INLINE at::Tensor enter_parallel(const at::Tensor& x, const TensorParallel& over) {
  return over.sequence == SequenceParallel::yes ? detail::GatherSequence::apply(x, over.group)
                                                : detail::SumGradient::apply(x, over.group);
}

TUTTI_INLINE at::Tensor leave_parallel(const at::Tensor& x, const TensorParallel& over) {
  return over.sequence == SequenceParallel::yes ? detail::ScatterSequence::apply(x, over.group)
                                                : detail::Sum::apply(x, over.group);
}

TUTTI_INLINE std::pair<std::int64_t, std::int64_t> own_rows(std::int64_t size,
                                                            const TensorParallel& over) {
  const std::int64_t chunk = (size + over.size() - 1) / over.size();
  return {std::min(size, over.rank() * chunk), std::min(size, (over.rank() + 1) * chunk)};
}

TUTTI_INLINE at::Tensor parallel_part(const at::Tensor& whole, std::int64_t dim,
                                      const TensorParallel& over, std::int64_t tensors) {
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

TUTTI_INLINE at::Tensor column_linear(const at::Tensor& x, const at::Tensor& weight,
                                      const at::Tensor& bias, const TensorParallel& over) {
  return at::linear(enter_parallel(x, over), weight, bias);
}

TUTTI_INLINE at::Tensor row_linear(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& bias, const TensorParallel& over) {
  const at::Tensor out = leave_parallel(at::linear(x, weight), over);
  return bias.defined() ? out.add(bias) : out;
}

TUTTI_INLINE at::Tensor vocabulary_embedding(const at::Tensor& ids, const at::Tensor& weight,
                                             std::int64_t vocabulary, const TensorParallel& over,
                                             std::int64_t padding) {
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

TUTTI_INLINE at::Tensor vocabulary_losses(const at::Tensor& logits, const at::Tensor& targets,
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

TUTTI_INLINE at::Tensor vocabulary_cross_entropy(const at::Tensor& logits,
                                                 const at::Tensor& targets, std::int64_t vocabulary,
                                                 const TensorParallel& over) {
  return vocabulary_losses(logits, targets, vocabulary, over).sum().div(targets.ne(-100).sum());
}

TUTTI_INLINE void sum_gradients(const std::vector<at::Tensor>& parameters,
                                const TensorParallel& over) {
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) {
      over.group->all_reduce(parameter.grad(), ReduceOp::sum);
    }
  }
}

}  // namespace tutti::dist
