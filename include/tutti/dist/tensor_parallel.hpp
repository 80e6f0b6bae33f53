// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/dist/communicator.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

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

/// This rank's positions of x, [N, length, ...], which all ranks have alike: where sequence
/// parallel begins behind layers that are not. The gradient is that of all positions. Throws
/// c10::Error when the ranks do not divide the length.
at::Tensor split_sequence(const at::Tensor& x, const TensorParallel& over);

/// All positions of x, of which each rank has its own, [N, length / ranks, ...]: where sequence
/// parallel ends before layers that are not, of which all ranks compute the same.
at::Tensor join_sequence(const at::Tensor& x, const TensorParallel& over);

/// The logits [..., vocabulary] of which each rank has those of its own_rows(); all ranks compute
/// the same with them.
at::Tensor join_vocabulary(const at::Tensor& logits, std::int64_t vocabulary,
                           const TensorParallel& over);

/// A parameter that every rank has whole and uses for a part of the positions, or of the heads: its
/// gradient is summed over the ranks in the backward pass.
at::Tensor sum_gradient(const at::Tensor& parameter, const std::shared_ptr<Communicator>& group);

/// What a column layer does with its input, [N, length, ...]: with sequence parallel, all positions
/// of the ranks' parts; else the input itself, whose gradient is summed over the ranks.
at::Tensor enter_parallel(const at::Tensor& x, const TensorParallel& over);

/// What a row layer does with its output: the sum over the ranks, of which with sequence parallel
/// each keeps its positions. Throws c10::Error when the ranks do not divide the length.
at::Tensor leave_parallel(const at::Tensor& x, const TensorParallel& over);

/// Rows of a vocabulary, or of anything, that this rank has: ceil(size / ranks) each, the last
/// ranks less. Returns begin and end.
std::pair<std::int64_t, std::int64_t> own_rows(std::int64_t size, const TensorParallel& over);

/// This rank's part of a tensor that is cut evenly in a dimension.
///
/// tensors: of how many it is made that are cut each by itself: 3 for the weight of queries, keys
/// and values in one, of which a rank has its heads of each. Returns a copy. Throws c10::Error when
/// the ranks do not divide it.
at::Tensor parallel_part(const at::Tensor& whole, std::int64_t dim, const TensorParallel& over,
                         std::int64_t tensors = 1);

/// A linear layer of which each rank has some outputs: x Wᵀ + b of its rows of W and b.
///
/// x: [N, length, in]; weight: [out / ranks, in]; bias: [out / ranks] or undefined.
/// Returns [N, length, out / ranks], of all positions.
at::Tensor column_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const TensorParallel& over);

/// A linear layer of which each rank has some inputs, as column layers and what is between give
/// them.
///
/// x: [N, length, in / ranks]; weight: [out, in / ranks]; bias: [out], whole on every rank, or
/// undefined; it is added once, after the sum. Returns [N, length, out]; of own positions with
/// sequence parallel.
at::Tensor row_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const TensorParallel& over);

/// The rows of a table for ids of which each rank has some: own_rows() of the vocabulary.
///
/// ids: int64 [N, length], the same on all ranks; weight: [own rows, width]; vocabulary: rows of
/// the whole table; padding: the id whose row does not learn, below 0: none. Returns
/// [N, length, width]; of own positions with sequence parallel. Throws c10::Error on a CPU for an
/// id that is not of the vocabulary.
at::Tensor vocabulary_embedding(const at::Tensor& ids, const at::Tensor& weight,
                                std::int64_t vocabulary, const TensorParallel& over,
                                std::int64_t padding = -1);

/// The cross entropy of each of n logits of which each rank has its rows of the vocabulary.
///
/// logits: [n, own rows] of this rank, which may be none; half types are computed in fp32. targets:
/// int64 [n], of the whole vocabulary, the same on all ranks, or -100 for none. vocabulary: all
/// rows. Three times n numbers are sent, not the logits. Returns [n], equal on all ranks, 0 where
/// there is no target. Throws c10::Error on a CPU for a target that is not of the vocabulary.
at::Tensor vocabulary_losses(const at::Tensor& logits, const at::Tensor& targets,
                             std::int64_t vocabulary, const TensorParallel& over);

/// The mean of vocabulary_losses() over the targets that are not -100; a scalar.
at::Tensor vocabulary_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                    std::int64_t vocabulary, const TensorParallel& over);

/// Sums the gradients of parameters that every rank has whole and that saw a part of the positions
/// only; a collective. Undefined gradients count as none on all ranks.
void sum_gradients(const std::vector<at::Tensor>& parameters, const TensorParallel& over);

}  // namespace tutti::dist

#if TUTTI_BODIES
#include <tutti/dist/tensor_parallel.inl.hpp>
#endif
