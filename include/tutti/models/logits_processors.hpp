// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/models/generation_config.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/where.h>

/// What happens to the scores of the next token before one is drawn.
///
/// Scores are [N, V], floating; a token that is removed gets -inf, and one is always left. Each
/// function returns new scores and leaves its argument alone.
/// Source: Transformers, `transformers.generation.logits_process`.
namespace tutti::functional {

/// Makes tokens that a row has already less likely: `s < 0 ? s * penalty : s / penalty`.
///
/// tokens: int64 [N, T], the text so far, prompt and padding included. penalty: > 0; 1 changes
/// nothing. Throws c10::Error when the rows differ.
/// Source: Keskar et al., "CTRL: A Conditional Transformer Language Model", 2019, section 4.1.
at::Tensor penalize_repetition(const at::Tensor& scores, const at::Tensor& tokens, double penalty);

/// `scores / temperature`; temperature: > 0, below 1 sharper.
at::Tensor apply_temperature(const at::Tensor& scores, double temperature);

/// Removes scores below the k-th largest; ties with it stay. k: >= 1; above V as V.
/// Source: Fan et al., "Hierarchical Neural Story Generation", ACL 2018.
at::Tensor keep_top_k(const at::Tensor& scores, std::int64_t k);

/// Keeps the fewest of the likeliest tokens that have the probability `p` together: removes, from
/// the least likely on, as long as the sum of what is removed is at most 1 - p. p: in [0, 1].
/// Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020.
at::Tensor keep_top_p(const at::Tensor& scores, double p);

/// Removes tokens less likely than `p` times the likeliest. p: in [0, 1].
/// Source: Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM
/// Outputs", ICLR 2025.
at::Tensor keep_min_p(const at::Tensor& scores, double p);

/// All of these that `config` asks for, in this order: repetition penalty; and where tokens are
/// drawn temperature, top_k, top_p and min_p, each on the result of the one before.
at::Tensor process_scores(const at::Tensor& scores, const at::Tensor& tokens,
                          const models::GenerationConfig& config);

}  // namespace tutti::functional

#if TUTTI_BODIES
#include <tutti/models/logits_processors.inl.hpp>
#endif
