// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared by the tests of language models: configurations and weights of the golden cases, and data.

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <tutti/data/instructions.hpp>
#include <tutti/data/packing.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/gpt2.hpp>

#include "support/golden.hpp"

namespace language {

inline tutti::models::GPT2Options gpt2_options(const golden::Json& config) {
  return {.vocab_size = config["vocab_size"].integer(),
          .n_positions = config["n_positions"].integer(),
          .n_embd = config["n_embd"].integer(),
          .n_layer = config["n_layer"].integer(),
          .n_head = config["n_head"].integer()};
}

inline tutti::models::BertOptions bert_options(const golden::Json& config) {
  const golden::Json* act = config.find("hidden_act");
  tutti::models::BertOptions options{
      .vocab_size = config["vocab_size"].integer(),
      .hidden_size = config["hidden_size"].integer(),
      .num_hidden_layers = config["num_hidden_layers"].integer(),
      .num_attention_heads = config["num_attention_heads"].integer(),
      .intermediate_size = config["intermediate_size"].integer(),
      .max_position_embeddings = config["max_position_embeddings"].integer()};
  if (act != nullptr) {
    options.hidden_act = tutti::nn::activation_named(act->string()).value();
  }
  return options;
}

/// Copies tensors into the model's of the same names. All of the model's have to be there.
inline void load(torch::nn::Module& model, const golden::Tensors& tensors) {
  model.to(tensors.begin()->second.device());
  const torch::NoGradGuard no_grad;
  std::size_t loaded = 0;
  for (auto& item : model.named_parameters()) {
    item.value().copy_(tensors.at(item.key()));
    ++loaded;
  }
  if (loaded != tensors.size()) {
    throw std::invalid_argument("the model takes " + std::to_string(loaded) + " of " +
                                std::to_string(tensors.size()) + " tensors");
  }
}

/// Sequences that count upwards, modulo `vocabulary`: after the first token nothing is to guess.
inline std::vector<tutti::Batch> counting(std::int64_t length, std::int64_t vocabulary,
                                          int batches = 8) {
  std::vector<tutti::Batch> out;
  for (int i = 0; i < batches; ++i) {
    const at::Tensor first = at::randint(vocabulary, {8, 1}, at::kLong);
    const at::Tensor ids = (first + at::arange(length)).remainder(vocabulary);
    out.push_back({{"input_ids", ids}, {"labels", ids.clone()}});
  }
  return out;
}

/// Whether gradients are the same bits with and without activation checkpointing, in training mode.
template <class Net>
bool same_gradients_checkpointed(Net& net, const tutti::Batch& batch) {
  const auto gradients = [&](bool checkpoints) {
    net.set_activation_checkpointing(checkpoints);
    net.zero_grad();
    at::manual_seed(11);  // dropout is on
    net.loss(net.forward(batch), batch).total().backward();
    std::vector<at::Tensor> out;
    for (const at::Tensor& parameter : net.parameters()) {
      out.push_back(parameter.grad().clone());
    }
    return out;
  };
  const auto plain = gradients(false);
  const auto checkpointed = gradients(true);
  return !plain.empty() &&
         std::equal(plain.begin(), plain.end(), checkpointed.begin(), checkpointed.end(),
                    [](const auto& a, const auto& b) { return a.equal(b); });
}

/// Documents of tokens below `vocabulary`, of `lengths`, and the same ones packed in rows: two that
/// have 13 tokens between them, padded to 14.
struct PackedDocuments {
  std::vector<tutti::Batch> alone;
  tutti::Batch packed;
};

inline PackedDocuments packed_documents(std::int64_t vocabulary) {
  PackedDocuments out;
  std::vector<tutti::Batch> rows;
  for (const std::vector<std::int64_t>& row : {std::vector<std::int64_t>{5, 2, 6}, {4, 7, 1}}) {
    std::vector<tutti::Batch> documents;
    for (const std::int64_t length : row) {
      documents.push_back({{"input_ids", at::randint(vocabulary, {length}, at::kLong)}});
      const at::Tensor ids = documents.back().at("input_ids").unsqueeze(0);
      out.alone.push_back({{"input_ids", ids}, {"labels", ids}});
    }
    rows.push_back(tutti::data::join_documents(documents));
  }
  out.packed = tutti::data::PadSequences{.multiple_of = 7}(rows);
  return out;
}

/// Whether the losses of packed documents, token by token, and the gradients of their sum are those
/// of the documents by themselves.
template <class Net>
bool packed_as_alone(Net& net, std::int64_t vocabulary) {
  const auto gradients = [&] {
    std::vector<at::Tensor> out;
    for (const at::Tensor& parameter : net.parameters()) {
      if (parameter.grad().defined()) {  // some are frozen
        out.push_back(parameter.grad().clone());
      }
    }
    net.zero_grad();
    return out;
  };
  const auto losses = [&](const tutti::Batch& batch) {
    const at::Tensor next = tutti::models::detail::next_tokens(batch);
    const at::Tensor each = at::cross_entropy_loss(net.forward(batch).tensor().flatten(0, -2),
                                                   next.flatten(), {}, at::Reduction::None);
    return each.index({next.flatten().ne(-100)});
  };
  const PackedDocuments documents = packed_documents(vocabulary);
  std::vector<at::Tensor> alone;
  for (const tutti::Batch& document : documents.alone) {
    alone.push_back(losses(document));
  }
  const at::Tensor wanted = at::cat(alone);
  wanted.sum().backward();
  const std::vector<at::Tensor> wanted_gradients = gradients();
  const auto same = [&](const tutti::Batch& batch) {
    const at::Tensor got = losses(batch);
    got.sum().backward();
    bool equal = got.sizes() == wanted.sizes() && got.allclose(wanted, 1e-5, 1e-5);
    const std::vector<at::Tensor> got_gradients = gradients();
    for (std::size_t i = 0; i < got_gradients.size(); ++i) {
      equal = equal && got_gradients[i].allclose(wanted_gradients[i], 1e-4, 1e-5);
    }
    return equal;
  };
  tutti::Batch counted;  // positions follow from where documents begin
  for (const auto& [name, tensor] : documents.packed) {
    if (name != "position_ids") {
      counted[name] = tensor;
    }
  }
  tutti::Batch mixed = counted;  // and without the boundaries the losses are others
  mixed.at("sequence_id") = at::zeros_like(mixed.at("sequence_id"));
  return same(documents.packed) && same(counted) && !same(mixed);
}

}  // namespace language
