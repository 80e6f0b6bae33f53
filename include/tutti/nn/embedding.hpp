// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/nn/slot.hpp>

#include <torch/nn/modules/embedding.h>

/// The embedding that surgery can replace.
namespace tutti::nn {

/// torch::nn::Embedding, replaceable: indices [...] to [..., embedding_dim]; parameter `weight`.
using EmbeddingImpl = Replaceable<torch::nn::EmbeddingImpl>;

/// Holder of an EmbeddingImpl, as torch::nn::Embedding is.
class Embedding : public torch::nn::ModuleHolder<EmbeddingImpl> {
 public:
  using torch::nn::ModuleHolder<EmbeddingImpl>::ModuleHolder;
  using Impl = EmbeddingImpl;

  /// An embedding over a given table. embeddings: [num_embeddings, embedding_dim].
  static Embedding from_pretrained(const at::Tensor& embeddings,
                                   const torch::nn::EmbeddingFromPretrainedOptions& options = {}) {
    const torch::nn::Embedding plain = torch::nn::Embedding::from_pretrained(embeddings, options);
    return {std::make_shared<EmbeddingImpl>(*plain)};
  }
};

}  // namespace tutti::nn

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_LAYER(EmbeddingImpl);
#endif
