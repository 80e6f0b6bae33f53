// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/interval.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/eval_mode.hpp>

namespace tutti {

/// Lets a language model write on from given texts, to see what it has learnt.
///
///     Generate{.prompts = {"Once upon a time"}, .interval = "1ep",
///              .encode = &to_tokens, .decode = &to_text}
///
/// When the interval is due (at BatchEnd, EpochEnd or IterationEnd) and at FitEnd, rank 0 logs a
/// table `generations` with the columns prompt and generation. Works with models that take
/// `input_ids` [1, T] and return logits [1, T, vocabulary] whose last row is for the next token. A
/// token is the likeliest one, or with do_sample drawn, by a stream of the policy's own: training
/// is not disturbed. Each prompt goes through the model once for every token.
///
/// Differences from the reference: texts become tokens by functions of yours, since there is no
/// tokenizer; prompts are not padded but taken one by one; only rank 0 computes.
/// Source: MosaicML Composer, `composer.callbacks.Generate`.
struct Generate final {
  using Tokens = std::vector<std::int64_t>;

  std::vector<std::string> prompts{};                              ///< obligatory
  Time interval = "1ep";                                           ///< from one time to the next
  Tokens (*encode)(std::string_view) = nullptr;                    ///< text to tokens; obligatory
  std::string (*decode)(std::span<const std::int64_t>) = nullptr;  ///< and back; obligatory
  std::int64_t max_new_tokens = 20;                                ///< >= 1
  Maybe<std::int64_t> eos_token_id{};                              ///< ends a text, and is decoded
  bool do_sample = false;                                          ///< draw tokens
  double temperature = 1.0;                                        ///< of drawing; > 0
  std::int64_t top_k = 50;  ///< draw from the likeliest; 0: from all

  Rng rng{};       ///< seeded by the trainer
  Interval due{};  ///< written by the policy

  static constexpr std::string_view name = "Generate";
  static constexpr Role role = Role::callback;
  using events = types<FitStart, BatchEnd, EpochEnd, IterationEnd, FitEnd>;

  /// Throws c10::ValueError when an option is missing or out of range.
  void validate() const {
    expect(!prompts.empty(), "Generate: prompts is empty; give it at least one text.");
    expect(
        encode != nullptr && decode != nullptr,
        "Generate: encode or decode is not set; set both to functions of the model's tokenizer.");
    expect(max_new_tokens >= 1, "Generate: max_new_tokens", max_new_tokens, "at least 1");
    expect(temperature > 0, "Generate: temperature", temperature, "more than 0");
    expect(top_k >= 0, "Generate: top_k", top_k, "0 or more");
  }

  bool match(BatchEnd e, const State& state) const { return due.due(e, state.progress()); }
  bool match(EpochEnd e, const State& state) const { return due.due(e, state.progress()); }
  bool match(IterationEnd e, const State& state) const { return due.due(e, state.progress()); }
  bool match(FitEnd e, const State& state) const { return due.due(e, state.progress()); }

  void apply(FitStart, State&) {
    due = {.every = interval, .at_end = IntervalEnd::fit_end, .checkpoint_events = false};
  }
  void apply(BatchEnd e, State& state) { generate(e, state); }
  void apply(EpochEnd e, State& state) { generate(e, state); }
  void apply(IterationEnd e, State& state) { generate(e, state); }
  void apply(FitEnd e, State& state) { generate(e, state); }

  /// What the model appends to these tokens.
  /// tokens: at least one, all of the model's vocabulary.
  [[nodiscard]] Tokens continue_from(const State& state, Tokens tokens) {
    TUTTI_CHECK(!tokens.empty(),
                "Generate: a prompt has no tokens; give it a text, or let encode "
                "begin with a token for the start");
    const std::size_t given = tokens.size();
    for (std::int64_t i = 0; i < max_new_tokens; ++i) {
      const std::int64_t token = next(logits(state, tokens));
      tokens.push_back(token);
      if (eos_token_id && token == *eos_token_id) {
        break;
      }
    }
    return {tokens.begin() + static_cast<std::ptrdiff_t>(given), tokens.end()};
  }

 private:
  template <Event E>
  void generate(E event, State& state) {
    static_cast<void>(due(event, state.progress()));  // remembers this batch
    if (state.rank != 0) {
      return;
    }
    const c10::AutoGradMode no_gradients(false);
    const nn::EvalMode eval(*state.model);
    static const std::vector<std::string> columns{"prompt", "generation"};
    std::vector<std::vector<std::string>> rows;
    for (const std::string& prompt : prompts) {
      rows.push_back({prompt, decode(continue_from(state, encode(prompt)))});
    }
    state.logger.log_table({.name = "generations", .columns = columns, .rows = rows},
                           state.timestamp.batch);
  }

  // Logits of the token after these, [vocabulary], on the host.
  static at::Tensor logits(const State& state, const Tokens& tokens) {
    const at::Tensor ids = at::empty({1, static_cast<std::int64_t>(tokens.size())}, at::kLong);
    std::copy(tokens.begin(), tokens.end(), ids.mutable_data_ptr<std::int64_t>());
    const auto low = state.autocast();
    const Outputs outputs = state.task.eval_forward(Batch{{"input_ids", ids.to(state.device)}});
    const at::Tensor& all = outputs.tensor();
    TUTTI_CHECK(all.dim() == 3 && all.size(0) == 1, "Generate: the model's outputs are ",
                all.sizes(),
                ", expected logits [1, T, vocabulary]; take Generate out of the recipe "
                "of a model that does not predict tokens");
    return all.select(0, 0).select(0, -1).to(at::kCPU, at::kDouble);
  }

  // The likeliest token, or one drawn from the likeliest.
  std::int64_t next(const at::Tensor& logits) {
    if (!do_sample) {
      return logits.argmax().item<std::int64_t>();
    }
    const std::int64_t all = logits.size(0);
    const std::int64_t from = top_k == 0 ? all : std::min(top_k, all);
    const auto [values, tokens] = logits.topk(from);
    const at::Tensor sums = values.div(temperature).softmax(0).cumsum(0);
    const double* sum = sums.const_data_ptr<double>();
    const auto drawn = std::upper_bound(sum, sum + from, rng.uniform()) - sum;
    return tokens[std::min<std::int64_t>(drawn, from - 1)].item<std::int64_t>();
  }
};

}  // namespace tutti
