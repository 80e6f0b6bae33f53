// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/throw.hpp>

#include <ATen/core/Reduction.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <c10/core/GradMode.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

/// What the language models share.
namespace tutti::models::detail {

// The batch's attention mask as bool [N, 1, 1, T]: which keys are seen; undefined: all.
inline at::Tensor seen_keys(const Batch& batch) {
  return batch.contains("attention_mask")
             ? batch.at("attention_mask").ne(0).unsqueeze(1).unsqueeze(1)
             : at::Tensor();
}

// The positions 0 to T-1 of ids [N, T], which the table has to have: [1, T].
inline at::Tensor positions(const at::Tensor& ids, const at::Tensor& table,
                            std::string_view model) {
  TUTTI_CHECK(ids.dim() == 2, model, ": the token indices are ", ids.sizes(), ", expected [N, T]");
  TUTTI_CHECK(ids.size(1) <= table.size(0), model, ": the sequences have length ", ids.size(1),
              " and the model ", table.size(0),
              " positions; shorten them, or apply ALiBi with a "
              "larger max_sequence_length");
  return at::arange(ids.size(1), ids.options().dtype(at::kLong)).unsqueeze(0);
}

// The mean loss of logits [N, T, V] against tokens [N, T], of which -100 counts nothing.
inline at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& tokens) {
  return at::cross_entropy_loss(logits.flatten(0, -2), tokens.flatten());
}

// The same for each sequence, [N]; 0 for one of which no token counts.
inline at::Tensor sequence_losses(const at::Tensor& logits, const at::Tensor& tokens) {
  const at::Tensor each =
      at::cross_entropy_loss(logits.flatten(0, -2), tokens.flatten(), {}, at::Reduction::None)
          .view(tokens.sizes());
  return each.sum(1).div(tokens.ne(-100).sum(1).clamp_min(1));
}

// Initialises the layers of `model` as Hugging Face does: normal numbers, no biases.
inline void initialize(torch::nn::Module& model, double range) {
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* linear = dynamic_cast<torch::nn::LinearImpl*>(module.get())) {
      torch::nn::init::normal_(linear->weight, 0, range);
      if (linear->bias.defined()) {
        torch::nn::init::zeros_(linear->bias);
      }
    } else if (auto* embedding = dynamic_cast<torch::nn::EmbeddingImpl*>(module.get())) {
      torch::nn::init::normal_(embedding->weight, 0, range);
      if (const auto padding = embedding->options.padding_idx()) {
        const c10::AutoGradMode no_grad(false);
        embedding->weight[*padding].zero_();
      }
    }
  }
}

}  // namespace tutti::models::detail
