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
  /// for its own positions alone. The same bytes travel, and activations there take 1 / degree of
  /// the memory. In training the degree has to divide the length of sequences; passes without
  /// gradients that it does not divide are computed as with `no`.
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

namespace tutti::models::detail {

// Calls `f` with the model as the type that it has. Throws c10::Error when there is none.
template <class F>
void with_type(torch::nn::Module& model, F&& f) {
  if (auto* gpt2 = dynamic_cast<GPT2LMHeadModelImpl*>(&model)) {
    f(*gpt2);
  } else if (auto* llama = dynamic_cast<LlamaForCausalLMImpl*>(&model)) {
    f(*llama);
  } else if (auto* masked = dynamic_cast<BertForMaskedLMImpl*>(&model)) {
    f(*masked);
  } else if (auto* bert = dynamic_cast<BertForSequenceClassificationImpl*>(&model)) {
    f(*bert);
  } else if (auto* vit = dynamic_cast<VisionTransformerImpl*>(&model)) {
    f(*vit);
  } else {
    TUTTI_CHECK(false, "tensor_parallel: the model is ", model.name(),
                ", expected GPT2LMHeadModel, LlamaForCausalLM, BertForMaskedLM, "
                "BertForSequenceClassification or VisionTransformer of tutti::models; spread other "
                "models by the functions of <tutti/dist/tensor_parallel.hpp>");
  }
}

// Why this rank cannot spread the model so; empty: it can.
TUTTI_INLINE std::string why_not_spread(torch::nn::Module& model,
                                        const TensorParallelOptions& options,
                                        const dist::Communicator& world) {
  try {
    const int degree = options.degree == 0 ? world.size() : options.degree;
    TUTTI_CHECK_VALUE(degree >= 1 && world.size() % degree == 0, "tensor_parallel: degree is ",
                      degree, " in a run of ", world.size(),
                      " ranks, expected 0 (all of them) or a number that divides theirs");
    const SpreadWish wish{.ranks = degree,
                          .along_sequence = options.sequence == dist::SequenceParallel::yes};
    with_type(model, [&](auto& one) { check_spread(one, wish); });
    check_slots(model);
    return {};
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

}  // namespace tutti::models::detail

namespace tutti::models {

TUTTI_INLINE void tensor_parallel(torch::nn::Module& model, const TensorParallelOptions& options,
                                  std::shared_ptr<dist::Communicator> world) {
  const auto refusals = world->all_gather_bytes(detail::why_not_spread(model, options, *world));
  for (const std::string& refusal : refusals) {
    TUTTI_CHECK_VALUE(refusal.empty(), refusal);
  }
  dist::start_alike(model,
                    "degree " + std::to_string(options.degree) + ", sequence parallel " +
                        (options.sequence == dist::SequenceParallel::yes ? "yes" : "no") + "\n",
                    *world, "tensor_parallel");
  const int degree = options.degree == 0 ? world->size() : options.degree;
  if (degree == 1) {
    return;
  }
  auto spread = std::make_shared<detail::Spread>();
  spread->model = std::make_shared<dist::SpreadModel>(std::move(world), degree);
  spread->sequence = options.sequence;
  detail::Spreader spreader(spread);
  detail::with_type(model, [&](auto& one) { detail::spread(one, spreader); });
}

}  // namespace tutti::models

#endif
