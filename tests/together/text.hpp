// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <tutti/algorithms/alibi.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gated_linear_units.hpp>
#include <tutti/algorithms/low_precision_layernorm.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/algorithms/seq_length_warmup.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/optim/sgd.hpp>

#include "together/pairs.hpp"

// A small BERT and tokens on which every algorithm for text acts.
namespace together {

inline auto bert(at::ScalarType dtype = at::kFloat, double drop = 0, std::int64_t layers = 2) {
  at::manual_seed(5);
  auto model = std::make_shared<tutti::models::BertForMaskedLMImpl>(
      tutti::models::BertOptions{.vocab_size = 32,
                                 .hidden_size = 32,
                                 .num_hidden_layers = layers,
                                 .num_attention_heads = 2,
                                 .intermediate_size = 32,
                                 .hidden_dropout_prob = drop,
                                 .attention_probs_dropout_prob = drop,
                                 .max_position_embeddings = 16});
  model->to(dtype);
  return model;
}

/// `count` batches of 8 sequences of 16 tokens.
inline std::vector<tutti::Batch> sentences(int count) {
  at::manual_seed(6);
  std::vector<tutti::Batch> out;
  for (int i = 0; i < count; ++i) {
    const at::Tensor ids = at::randint(1, 32, {8, 16}, at::kLong);
    out.push_back(tutti::Batch{
        {"input_ids", ids}, {"attention_mask", at::ones_like(ids)}, {"labels", ids.roll(1, 1)}});
  }
  return out;
}

inline tutti::TrainerOptions text_options(std::int64_t epochs, int batches,
                                          std::int64_t microbatch) {
  return run_options(sentences(batches), epochs, microbatch);
}

template <>
inline tutti::ALiBi small<tutti::ALiBi>() {
  return {.max_sequence_length = 16, .train_sequence_length_scaling = 0.5};
}
template <>
inline tutti::SeqLengthWarmup small<tutti::SeqLengthWarmup>() {
  return {.duration = 0.5, .min_seq_length = 4, .max_seq_length = 8, .step_size = 2};
}

}  // namespace together
