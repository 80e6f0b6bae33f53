// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/callbacks/generate.hpp>

namespace tutti {

TUTTI_INLINE void Generate::validate() const {
  expect(!prompts.empty(), "Generate: prompts is empty; give it at least one text.");
  expect(encode != nullptr && decode != nullptr,
         "Generate: encode or decode is not set; set both to functions of the model's tokenizer.");
  expect(batch_size >= 0, "Generate: batch_size", batch_size, "0 or more");
  expect(!generation.seed,
         "Generate: generation.seed is set, but the trainer's seed decides; "
         "leave it out.");
  generation.validate();
}

TUTTI_INLINE std::vector<Generate::Tokens> Generate::continue_from(
    const State& state, const std::vector<Tokens>& texts) {
  const bool pads = dynamic_cast<const models::CausalLanguageModel*>(state.model.get()) != nullptr;
  const std::size_t most = !pads            ? 1
                           : batch_size > 0 ? static_cast<std::size_t>(batch_size)
                                            : texts.size();
  models::GenerationConfig config = generation;
  std::vector<Tokens> out;
  for (std::size_t i = 0; i < texts.size(); i += most) {
    const auto first = texts.begin() + static_cast<std::ptrdiff_t>(i);
    const auto [ids, mask] =
        padded({first, first + static_cast<std::ptrdiff_t>(std::min(most, texts.size() - i))});
    config.seed =
        static_cast<std::uint64_t>(rng.integer(0, std::numeric_limits<std::int64_t>::max()));
    const auto low = state.autocast();
    const at::Tensor text =
        models::generate(state.task, ids.to(state.device), config, mask.to(state.device));
    for (Tokens& written : models::written_tokens(text, ids.size(1), config)) {
      out.push_back(std::move(written));
    }
  }
  return out;
}

TUTTI_INLINE void Generate::check_prompts(const State& state) const {
  const auto* model = dynamic_cast<const models::CausalLanguageModel*>(state.model.get());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    try {
      const Tokens text = encode(prompts[i]);
      const auto length = static_cast<std::int64_t>(text.size());
      static_cast<void>(padded({&text, 1}));
      const std::int64_t more = models::detail::room(generation, length);
      if (model != nullptr) {
        models::detail::check_ids(at::tensor(text), model->vocab_size());
        const bool may_end_early =
            !generation.eos_token_id.empty() || !generation.stop_sequences.empty();
        const std::int64_t most = model->max_positions();
        TUTTI_CHECK(most == 0 || length + (may_end_early ? 1 : more) <= most, "it has ", length,
                    " tokens, ", more, " are to follow, and the model has room for ", most,
                    "; shorten it, or set generation.max_new_tokens to less");
      }
    } catch (const c10::Error& error) {
      TUTTI_CHECK(false, "Generate: prompts[", i, "]: ", error.what_without_backtrace());
    }
  }
}

TUTTI_INLINE std::pair<at::Tensor, at::Tensor> Generate::padded(
    std::span<const Tokens> texts) const {
  std::size_t longest = 0;
  for (const Tokens& text : texts) {
    TUTTI_CHECK(!text.empty(),
                "Generate: a prompt has no tokens; give it a text, or let encode "
                "begin with a token for the start");
    longest = std::max(longest, text.size());
  }
  const auto rows = static_cast<std::int64_t>(texts.size());
  const at::Tensor ids = at::full({rows, static_cast<std::int64_t>(longest)},
                                  *generation.pad_token_id, at::kLong);  // 0 where not set
  const at::Tensor mask = at::zeros_like(ids);
  auto* token = ids.mutable_data_ptr<std::int64_t>();
  auto* kept = mask.mutable_data_ptr<std::int64_t>();
  for (const Tokens& text : texts) {
    std::copy(text.rbegin(), text.rend(), std::make_reverse_iterator(token + longest));
    std::fill_n(kept + (longest - text.size()), text.size(), 1);
    token += longest;
    kept += longest;
  }
  return {ids, mask};
}

}  // namespace tutti
