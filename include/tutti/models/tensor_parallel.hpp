// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/dist/start_alike.hpp>
#include <tutti/dist/tensor_parallel.hpp>
#include <tutti/models/detail/spread_models.hpp>

#include <torch/nn/module.h>

/// The library's transformers over several ranks, as Megatron-LM spreads them.
namespace tutti::models {

/// How tensor_parallel() spreads a model. All ranks have the same.
struct TensorParallelOptions {
  /// Ranks that have one copy of the model together: neighbours, rank = copy * degree + part; 0:
  /// all. Less than all, which it has to divide: copies are trained on different examples.
  int degree = 0;

  /// Whether norms, dropouts and residuals between the parallel layers are computed by each rank
  /// for its own positions alone. The same bytes travel, as an all-gather and a reduce-scatter in
  /// place of a sum, and activations there take 1 / degree of the memory. In training the degree
  /// has to divide the length of sequences; passes without gradients that it does not divide are
  /// computed as with `no`.
  dist::SequenceParallel sequence = dist::SequenceParallel::no;
};

/// Spreads a model over ranks: of its layers each rank keeps and computes a part. A collective.
///
///     tutti::dist::initialize();
///     auto net = tutti::models::GPT2LMHeadModel(options);
///     tutti::models::tensor_parallel(*net, {.degree = 2});
///     tutti::Trainer trainer{net.ptr(), ...};
///
/// model: GPT2LMHeadModel, LlamaForCausalLM (Llama, Mistral, Qwen), BertForMaskedLM,
/// BertForSequenceClassification or VisionTransformer, whole and the same on every rank; rank 0's
/// numbers become everybody's. Each rank then has its heads of attention, its widths of the
/// feed-forward halves and, of language models, its tokens of embedding and head; all else is whole
/// on every rank. Fewer heads of keys and values than ranks: several ranks have the same one.
/// Modules keep their names, and parameters are the same tensors, of the part's size.
///
/// Ranks of a copy need the same batches; the Trainer deals them out so. Forward and backward
/// passes are collectives of those ranks. Loss and gradients are those of one process, up to
/// rounding; the gradients of parts are parts. While a language model trains, its outputs are the
/// logits of this rank's tokens, which its loss and metrics put together: [N, T, own tokens];
/// evaluation gives all. Dropout within attention and feed-forward halves, and with sequence
/// parallel all of it, draws for each rank by seeds out of the default generator, which has to be
/// in the same state on the ranks of a copy.
///
/// world: all ranks. Throws c10::Error, on every rank, for a model that is none of these, that
/// differs between ranks, is spread already or was changed by surgery; c10::ValueError for a degree
/// that does not divide the ranks, or does not divide heads, widths or, with sequence parallel, the
/// tokens of images.
/// Source: Shoeybi et al., "Megatron-LM", 2019; Korthikanti et al., "Reducing Activation
/// Recomputation in Large Transformer Models", 2022.
void tensor_parallel(torch::nn::Module& model, const TensorParallelOptions& options = {},
                     std::shared_ptr<dist::Communicator> world = dist::default_group());

}  // namespace tutti::models

#if TUTTI_BODIES
#include <tutti/models/tensor_parallel.inl.hpp>
#endif
