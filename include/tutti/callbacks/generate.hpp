// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/module.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/interval.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/dist/flight_recorder.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/models/causal_lm.hpp>
#include <tutti/models/generate.hpp>

namespace tutti {

/// Lets a language model write on from given texts, to see what it has learnt.
///
///     Generate{.prompts = {"Once upon a time"}, .interval = "1ep",
///              .encode = &to_tokens, .decode = &to_text,
///              .generation = {.max_new_tokens = 60, .do_sample = true, .top_p = 0.9}}
///
/// When the interval is due (at BatchEnd, EpochEnd or IterationEnd) and at FitEnd, rank 0 logs a
/// table `generations` with the columns prompt and generation. The texts are those of
/// models::generate(): for models that derive from models::CausalLanguageModel, all prompts in one
/// batch with a cache; for others that take `input_ids` [1, T] and return logits
/// [1, T, vocabulary], one prompt after the other. Drawing has a stream of the policy's own:
/// training is not disturbed.
///
/// Differences from the reference: texts become tokens by functions of yours; only rank 0 computes.
/// Source: MosaicML Composer, `composer.callbacks.Generate`.
struct Generate final {
  using Tokens = std::vector<std::int64_t>;

  std::vector<std::string> prompts{};                              ///< obligatory
  Time interval = "1ep";                                           ///< from one time to the next
  Tokens (*encode)(std::string_view) = nullptr;                    ///< text to tokens; obligatory
  std::string (*decode)(std::span<const std::int64_t>) = nullptr;  ///< and back; obligatory
  std::int64_t batch_size = 0;            ///< prompts that are read together; 0: all
  models::GenerationConfig generation{};  ///< how it writes

  Rng rng{};  ///< seeded by the trainer

  /// What it holds while it runs; not an option.
  struct Run {
    Interval due{};  ///< when it writes next
  } run{};

  static constexpr std::string_view name = "Generate";
  static constexpr About about{
      .no_tensor_parallel = "rank 0 generates alone and would wait for the parts of the others",
  };
  static constexpr Role role = Role::callback;
  using events = types<FitStart, BatchEnd, EpochEnd, IterationEnd, FitEnd>;

  /// Throws c10::ValueError when an option is missing or out of range.
  void validate() const;

  bool match(BatchEnd e, const State& state) const { return run.due.due(e, state.progress()); }
  bool match(EpochEnd e, const State& state) const { return run.due.due(e, state.progress()); }
  bool match(IterationEnd e, const State& state) const { return run.due.due(e, state.progress()); }
  bool match(FitEnd e, const State& state) const { return run.due.due(e, state.progress()); }

  void apply(FitStart, State& state) {
    check_prompts(state);
    run.due = {.every = interval, .at_end = IntervalEnd::fit_end, .checkpoint_events = false};
  }
  void apply(BatchEnd e, State& state) { generate(e, state); }
  void apply(EpochEnd e, State& state) { generate(e, state); }
  void apply(IterationEnd e, State& state) { generate(e, state); }
  void apply(FitEnd e, State& state) { generate(e, state); }

  /// What the model appends to each of these texts.
  /// texts: at least one token each, all of the model's vocabulary.
  [[nodiscard]] std::vector<Tokens> continue_from(const State& state,
                                                  const std::vector<Tokens>& texts);

 private:
  template <Event E>
  void generate(E event, State& state) {
    static_cast<void>(run.due(event, state.progress()));  // remembers this batch
    const dist::PhaseScope generating(dist::Phase::unwatched);
    // Of a sharded model every rank has the whole meanwhile.
    const auto whole = state.sharding != nullptr && !state.sharding->keeps_whole()
                           ? state.sharding->summon()
                           : nullptr;
    if (state.rank != 0) {
      return;
    }
    std::vector<Tokens> texts;
    for (const std::string& prompt : prompts) {
      texts.push_back(encode(prompt));
    }
    const std::vector<Tokens> written = continue_from(state, texts);
    static const std::vector<std::string> columns{"prompt", "generation"};
    std::vector<std::vector<std::string>> rows;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      rows.push_back({prompts[i], decode(written[i])});
    }
    state.logger.log_table({.name = "generations", .columns = columns, .rows = rows},
                           state.timestamp.batch);
  }

  // Throws c10::Error when the model has no room for a prompt, or it has no tokens or other ones
  // than the model, which is better known now than at the first interval.
  void check_prompts(const State& state) const;

  // The texts as rows that end at the same place, and which of it are tokens of theirs.
  std::pair<at::Tensor, at::Tensor> padded(std::span<const Tokens> texts) const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/callbacks/generate.inl.hpp>
#endif
