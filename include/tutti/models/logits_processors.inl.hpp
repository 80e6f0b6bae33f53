// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/logits_processors.hpp>

namespace tutti::detail {

TUTTI_INLINE at::Tensor without_scores(const at::Tensor& scores, const at::Tensor& which) {
  return scores.masked_fill(which, -std::numeric_limits<double>::infinity());
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor penalize_repetition(const at::Tensor& scores, const at::Tensor& tokens,
                                            double penalty) {
  TUTTI_CHECK(scores.dim() == 2 && tokens.dim() == 2 && scores.size(0) == tokens.size(0),
              "penalize_repetition: the scores are ", scores.sizes(), " and the tokens ",
              tokens.sizes(), ", expected [N, V] and [N, T]");
  const at::Tensor of_tokens = scores.gather(1, tokens);
  return scores.scatter(1, tokens,
                        at::where(of_tokens.lt(0), of_tokens.mul(penalty), of_tokens.div(penalty)));
}

TUTTI_INLINE at::Tensor apply_temperature(const at::Tensor& scores, double temperature) {
  return scores.div(temperature);
}

TUTTI_INLINE at::Tensor keep_top_k(const at::Tensor& scores, std::int64_t k) {
  const at::Tensor largest = std::get<0>(scores.topk(std::min(k, scores.size(-1))));
  return detail::without_scores(scores, scores.lt(largest.narrow(-1, largest.size(-1) - 1, 1)));
}

TUTTI_INLINE at::Tensor keep_top_p(const at::Tensor& scores, double p) {
  const auto [sorted, order] = scores.sort(/*dim=*/-1, /*descending=*/false);
  const at::Tensor sums = sorted.softmax(-1).cumsum(-1);
  at::Tensor out = sums.le(1 - p);
  out.narrow(-1, out.size(-1) - 1, 1).fill_(false);  // the likeliest
  return detail::without_scores(scores, out.scatter(-1, order, out));
}

TUTTI_INLINE at::Tensor keep_min_p(const at::Tensor& scores, double p) {
  const at::Tensor likely = scores.softmax(-1);
  return detail::without_scores(scores, likely.lt(likely.amax(-1, /*keepdim=*/true).mul(p)));
}

TUTTI_INLINE at::Tensor process_scores(const at::Tensor& scores, const at::Tensor& tokens,
                                       const models::GenerationConfig& config) {
  at::Tensor out = scores;
  if (config.repetition_penalty != 1) {
    out = penalize_repetition(out, tokens, config.repetition_penalty);
  }
  if (!config.do_sample) {
    return out;
  }
  if (config.temperature != 1) {
    out = apply_temperature(out, config.temperature);
  }
  if (config.top_k > 0) {
    out = keep_top_k(out, config.top_k);
  }
  if (config.top_p < 1) {
    out = keep_top_p(out, config.top_p);
  }
  return config.min_p > 0 ? keep_min_p(out, config.min_p) : out;
}

}  // namespace tutti::functional
