// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/generate.hpp>

namespace tutti::models::detail {

/// Gives a model that keeps nothing the whole text at every step.
class UncachedLogits final : public NextLogits {
 public:
  explicit UncachedLogits(const AnyModel& model) : model_(model) {}

  void begin(std::int64_t, std::int64_t) override {}
  at::Tensor operator()(const at::Tensor& tokens, std::int64_t, const at::Tensor& mask) override {
    Batch batch{{"input_ids", tokens}};
    if (mask.defined()) {
      batch["attention_mask"] = mask;
    }
    const Outputs outputs = model_.eval_forward(batch);
    const at::Tensor& all = outputs.tensor();
    TUTTI_CHECK(all.dim() == 3 && all.size(0) == tokens.size(0) && all.size(1) == tokens.size(1),
                "generate: the model's outputs are ", all.sizes(), ", expected logits [",
                tokens.size(0), ", ", tokens.size(1),
                ", vocabulary]; the model does not predict tokens");
    return all.select(1, -1);
  }

 private:
  const AnyModel& model_;
};

/// Whether these tokens, which a row has written, end it.
TUTTI_INLINE bool ends(const std::vector<std::int64_t>& written, const GenerationConfig& config) {
  const auto& eos = config.eos_token_id;
  if (std::find(eos.begin(), eos.end(), written.back()) != eos.end()) {
    return true;
  }
  return std::any_of(config.stop_sequences.begin(), config.stop_sequences.end(),
                     [&](const std::vector<std::int64_t>& stop) {
                       return stop.size() <= written.size() &&
                              std::equal(stop.rbegin(), stop.rend(), written.rbegin());
                     });
}

/// The rows of a text that grows, and how each ends.
class Writing {
 public:
  Writing(const at::Tensor& input_ids, const GenerationConfig& config, std::int64_t new_tokens)
      : config_(config),
        rows_(static_cast<std::size_t>(input_ids.size(0))),
        prompt_(input_ids.size(1)),
        length_(prompt_) {
    all_ = at::empty({input_ids.size(0), prompt_ + new_tokens}, input_ids.options());
    all_.narrow(1, 0, prompt_).copy_(input_ids);
    const std::uint64_t seed = config.seed ? *config.seed : drawn_seed();
    for (std::size_t i = 0; config.do_sample && i < rows_.size(); ++i) {
      rows_[i].rng = Rng(seed, i);
    }
  }

  [[nodiscard]] at::Tensor text() const { return all_.narrow(1, 0, length_); }

  /// Some row goes on.
  [[nodiscard]] bool goes_on() const {
    return std::any_of(rows_.begin(), rows_.end(), [](const Row& row) { return !row.ended; });
  }

  /// Appends a token to each row, chosen by its scores [N, V]; returns them.
  std::vector<std::int64_t> append(const at::Tensor& scores) {
    const at::Tensor chosen = (config_.do_sample ? draw(scores) : scores.argmax(-1)).to(at::kCPU);
    const auto* token = chosen.const_data_ptr<std::int64_t>();
    std::vector<std::int64_t> out(token, token + rows_.size());
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].ended) {
        out[i] = padding();
      } else {
        rows_[i].written.push_back(out[i]);
        rows_[i].ended = ends(rows_[i].written, config_);
      }
    }
    at::Tensor next = at::empty({all_.size(0)}, chosen.options());
    std::copy(out.begin(), out.end(), next.mutable_data_ptr<std::int64_t>());
    all_.select(1, length_++).copy_(next);
    return out;
  }

 private:
  struct Row {
    Rng rng{};
    std::vector<std::int64_t> written{};
    bool ended = false;
  };

  static std::uint64_t drawn_seed() {
    return static_cast<std::uint64_t>(at::empty({}, at::kLong).random_().item<std::int64_t>());
  }

  // A token of each row, [N], by the inverse of the distribution's sums.
  at::Tensor draw(const at::Tensor& scores) {
    const at::Tensor sums = scores.softmax(-1, at::kDouble).cumsum(-1);
    const at::Tensor all = sums.narrow(-1, sums.size(-1) - 1, 1);
    at::Tensor at_random = at::empty({scores.size(0), 1}, at::kDouble);
    auto* uniform = at_random.mutable_data_ptr<double>();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      uniform[i] = rows_[i].rng.uniform();
    }
    // Tokens that were removed have probability 0, so none of them is where a sum rises.
    const at::Tensor below = sums.le(at_random.to(sums.device()).mul(all));
    return below.logical_and_(sums.lt(all)).sum(-1);
  }

  [[nodiscard]] std::int64_t padding() const {
    return config_.pad_token_id ? *config_.pad_token_id : config_.eos_token_id.front();
  }

  const GenerationConfig& config_;
  std::vector<Row> rows_;
  std::int64_t prompt_;
  std::int64_t length_;
  at::Tensor all_;  // [N, prompt + new tokens], of which length_ columns are written
};

/// How many tokens are to be written.
TUTTI_INLINE std::int64_t room(const GenerationConfig& config, std::int64_t prompt) {
  if (config.max_new_tokens || !config.max_length) {
    return config.max_new_tokens ? *config.max_new_tokens : 20;
  }
  TUTTI_CHECK_VALUE(*config.max_length > prompt, "generate: the prompts have ", prompt,
                    " tokens and max_length is ", *config.max_length,
                    ", which leaves no room; set max_new_tokens");
  return *config.max_length - prompt;
}

/// The mask of the prompts as int64 [N, T]; undefined where nothing is padded.
TUTTI_INLINE at::Tensor mask_of(const at::Tensor& input_ids, const at::Tensor& attention_mask,
                                const GenerationConfig& config) {
  at::Tensor mask = attention_mask;
  if (!mask.defined() && config.pad_token_id) {
    const auto& eos = config.eos_token_id;
    if (std::find(eos.begin(), eos.end(), *config.pad_token_id) != eos.end()) {
      return {};
    }
    mask = input_ids.ne(*config.pad_token_id);
  }
  if (!mask.defined()) {
    return {};
  }
  TUTTI_CHECK(mask.sizes() == input_ids.sizes(), "generate: the attention mask is ", mask.sizes(),
              " and the tokens are ", input_ids.sizes(), ", expected the same shape");
  mask = mask.ne(0);
  if (mask.all().item<bool>()) {
    return {};
  }
  TUTTI_CHECK(mask.select(1, -1).all().item<bool>(),
              "generate: a prompt ends with padding; put the padding on its left, so that all "
              "prompts end at the same place");
  return mask.to(at::kLong);
}

// Token ids that no table has; looked up once, as a device may stop for them.
TUTTI_INLINE void check_ids(const at::Tensor& input_ids, std::int64_t vocab_size) {
  const at::Tensor ends = at::stack({input_ids.min(), input_ids.max()}).to(at::kCPU);
  const auto* end = ends.const_data_ptr<std::int64_t>();
  const std::int64_t id = end[0] < 0 ? end[0] : end[1];
  if (vocab_size > 0) {
    TUTTI_CHECK_INDEX(id >= 0 && id < vocab_size, "generate: a prompt has the token id ", id,
                      ", but the model has ", vocab_size, " tokens, ids 0 to ", vocab_size - 1,
                      "; encode prompts with the tokenizer of this model, that of another has "
                      "other ids");
  }
  TUTTI_CHECK_INDEX(id >= 0, "generate: a prompt has the token id ", id,
                    ", expected 0 or more; pad prompts with an id of the vocabulary");
}

TUTTI_INLINE at::Tensor write_on(torch::nn::Module& module, NextLogits& logits,
                                 const at::Tensor& input_ids, const GenerationConfig& config,
                                 const at::Tensor& attention_mask, const TokenCallback& on_tokens) {
  config.validate();
  TUTTI_CHECK(input_ids.dim() == 2 && input_ids.numel() > 0 && input_ids.scalar_type() == at::kLong,
              "generate: the tokens are ", input_ids.scalar_type(), " ", input_ids.sizes(),
              ", expected int64 [N, T] with at least one each; begin an empty text with the "
              "model's bos token");
  check_ids(input_ids, logits.vocab_size());
  const std::int64_t rows = input_ids.size(0);
  const std::int64_t prompt = input_ids.size(1);
  TUTTI_CHECK_VALUE(rows == 1 || config.stop_sequences.empty() || config.pad_token_id ||
                        !config.eos_token_id.empty(),
                    "generate: the texts end at stop_sequences, and nothing says what follows in "
                    "a row that has ended; set pad_token_id");
  const std::int64_t new_tokens = room(config, prompt);
  const c10::AutoGradMode no_gradients(false);
  const nn::EvalMode eval(module);
  at::Tensor mask = mask_of(input_ids, attention_mask, config);
  if (mask.defined()) {
    mask = at::cat({mask, at::ones({rows, new_tokens}, mask.options())}, 1);
  }
  Writing writing(input_ids, config, new_tokens);
  logits.begin(rows, prompt + new_tokens);
  std::int64_t fresh = prompt;
  for (std::int64_t i = 0; i < new_tokens && writing.goes_on(); ++i) {
    const at::Tensor text = writing.text();
    const at::Tensor seen = mask.defined() ? mask.narrow(1, 0, prompt + i) : mask;
    const at::Tensor scores = logits(text, std::exchange(fresh, 1), seen).to(at::kFloat);
    // Padding is no text that the penalty counts: each row's last token stands in its place.
    const at::Tensor written =
        seen.defined() && config.repetition_penalty != 1
            ? text.where(seen.to(at::kBool), text.narrow(1, prompt + i - 1, 1))
            : text;
    const auto tokens = writing.append(functional::process_scores(scores, written, config));
    if (on_tokens) {
      on_tokens(tokens);
    }
  }
  return writing.text();
}

}  // namespace tutti::models::detail

namespace tutti::models {

TUTTI_INLINE std::vector<std::vector<std::int64_t>> written_tokens(const at::Tensor& text,
                                                                   std::int64_t prompt,
                                                                   const GenerationConfig& config) {
  TUTTI_CHECK(text.dim() == 2 && prompt >= 0 && prompt <= text.size(1),
              "written_tokens: the text is ", text.sizes(), " and the prompt ", prompt,
              ", expected [N, T] and 0 to T");
  const at::Tensor host = text.to(at::kCPU, at::kLong).contiguous();
  std::vector<std::vector<std::int64_t>> out(static_cast<std::size_t>(host.size(0)));
  const auto* token = host.const_data_ptr<std::int64_t>();
  for (std::vector<std::int64_t>& row : out) {
    for (std::int64_t i = prompt; i < host.size(1); ++i) {
      row.push_back(token[i]);
      if (detail::ends(row, config)) {
        break;
      }
    }
    token += host.size(1);
  }
  return out;
}

TUTTI_INLINE at::Tensor generate(const AnyModel& model, const at::Tensor& input_ids,
                                 const GenerationConfig& config, const at::Tensor& attention_mask,
                                 const TokenCallback& on_tokens) {
  torch::nn::Module& module = *model.module();
  if (auto* cached = dynamic_cast<CausalLanguageModel*>(&module)) {
    detail::CachedLogits<CausalLanguageModel> logits(*cached);
    return detail::write_on(module, logits, input_ids, config, attention_mask, on_tokens);
  }
  detail::UncachedLogits logits(model);
  return detail::write_on(module, logits, input_ids, config, attention_mask, on_tokens);
}

}  // namespace tutti::models
