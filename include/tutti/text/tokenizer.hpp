// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#ifdef TUTTI_WITH_UTF8PROC
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/regular_file.hpp>
#include <tutti/text/detail/added_tokens.hpp>
#include <tutti/text/detail/bpe_trainer.hpp>
#include <tutti/text/detail/decoder.hpp>
#include <tutti/text/detail/post_processor.hpp>
#include <tutti/text/detail/tokenizer_files.hpp>
#endif

/// Text to tokens and back, by a tokenizer.json as Hugging Face's tokenizers writes it.
///
/// Needs libutf8proc: the target tutti::utf8proc, which the CMake function tutti_find_utf8proc()
/// makes and which defines TUTTI_WITH_UTF8PROC.
namespace tutti::text {

/// What a text, or a pair of texts, becomes. All lists are equally long.
struct Encoding {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> type_ids;  ///< 0: of the text, 1: of its pair, as the file says
  /// Half-open ranges of code points of the text (or of its pair) that a token was made of;
  /// {0, 0} for special tokens and padding.
  std::vector<std::array<std::int64_t, 2>> offsets;
  std::vector<std::int64_t> special_tokens_mask;  ///< 1: added by the template, or padding
  std::vector<std::int64_t> attention_mask;       ///< 0: padding
};

/// Options of Tokenizer::encode() and encode_batch().
struct EncodeOptions {
  bool add_special_tokens = true;  ///< what the file's template adds, as <s> or [CLS] and [SEP]
  std::size_t threads = 1;         ///< of encode_batch(); 0: as many as the machine runs at once
};

/// Options of Tokenizer::train_bpe().
struct TrainBpeOptions {
  std::int64_t vocab_size = 30000;  ///< tokens in all; at least the special ones and 256 bytes
  std::int64_t min_frequency = 2;   ///< how often a pair must occur to be merged
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  ///< ids 0, 1, ...
  bool add_prefix_space = false;  ///< a text that begins with no space is given one
};

/// Options of Tokenizer::save_pretrained(). What is empty is left to what stands in the folder.
struct SaveTokenizerOptions {
  std::string bos_token{};  ///< these four are tokens of the vocabulary
  std::string eos_token{};
  std::string unk_token{};
  std::string pad_token{};
  std::int64_t model_max_length = 0;  ///< tokens that the model takes at most; 0: no bound
  std::string chat_template{};        ///< the text of a Jinja template
};

#ifndef TUTTI_WITH_UTF8PROC

class Tokenizer {
 public:
  template <bool linked = false>
  static Tokenizer load(const std::string&) {
    static_assert(linked,
                  "tutti: this program reads a tokenizer without libutf8proc; install "
                  "libutf8proc-dev, call tutti_find_utf8proc() in CMake and link the target "
                  "tutti::utf8proc (or compile with -DTUTTI_WITH_UTF8PROC=1 and link -lutf8proc).");
    return {};
  }
};

#else

namespace detail {

// All that a tokenizer.json says; never changes, so that threads share it.
struct TokenizerParts {
  Vocabulary model;       // what the model makes
  Vocabulary vocabulary;  // with the added tokens
  std::vector<AddedToken> added;
  std::vector<bool> is_added;    // by id
  std::vector<bool> is_special;  // by id
  // Added tokens that are decoded as they stand in the normalized text, by id.
  std::unordered_map<std::int64_t, std::string> decoded;
  AddedTokens raw;         // cut out of the text as it is
  AddedTokens normalized;  // cut out of the normalized text
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::optional<Bpe> bpe;
  std::optional<WordPiece> word_piece;
  PostProcessor post;
  Decoder decoder;
  std::optional<Truncation> truncation;
  std::optional<Padding> padding;
  std::string file;  // its text
};

}  // namespace detail

/// A tokenizer. Copies share what was read; all members may be called by several threads at once.
///
/// Known are byte-level BPE (GPT-2, Llama 3, Qwen 2, SmolLM2 and the like), WordPiece (BERT) and
/// BPE with byte fallback (Llama 2), with added tokens, normalizers, templates, truncation and
/// padding. Whatever else a file asks for is refused by its name. Source: Hugging Face tokenizers
/// 0.23.
class Tokenizer {
 public:
  /// path: a tokenizer.json, or the folder that it is in.
  /// Throws c10::ValueError naming the file when it cannot be read, is no JSON, or asks for what is
  /// not supported.
  static Tokenizer load(const std::string& path);

  /// json: the text of a tokenizer.json. Throws as load().
  static Tokenizer from_json(std::string_view json);

  /// Learns a byte-level BPE, cut into pieces as GPT-2's, from texts.
  ///
  /// Vocabulary and merges are those of BpeTrainer of tokenizers with the alphabet of ByteLevel.
  /// Where texts have too few pairs the vocabulary stays smaller.
  /// Throws c10::ValueError when an option is out of range or a text is no UTF-8.
  static Tokenizer train_bpe(std::span<const std::string> texts,
                             const TrainBpeOptions& options = {});

  /// The same of a single text.
  static Tokenizer train_bpe(std::string_view text, const TrainBpeOptions& options = {});

  /// Writes the tokenizer.json that it was made from; in a folder under that name.
  /// Throws c10::Error when the file cannot be written.
  void save(const std::string& path) const;

  /// Writes tokenizer.json and the tokenizer_config.json by which AutoTokenizer of Transformers
  /// makes the same tokenizer, its special tokens included. Beside a config.json alone it makes one
  /// of the model's class, which may give other ids.
  ///
  /// folder: made where it is not there. A tokenizer_config.json that is there keeps the members
  /// that the options do not give, its tokenizer_class too.
  /// Throws c10::ValueError when a token is none of the vocabulary, model_max_length is negative or
  /// the tokenizer_config.json that is there is no JSON object; c10::Error when a file cannot be
  /// written.
  void save_pretrained(const std::string& folder, const SaveTokenizerOptions& options = {}) const;

  /// text: UTF-8. Truncated and padded where the file says so (padding to a fixed length only).
  /// Throws c10::ValueError when the text is no UTF-8.
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// A text and its pair, as a question and an answer.
  Encoding encode(std::string_view text, std::string_view pair,
                  const EncodeOptions& options = {}) const;

  /// Each text by itself; where the file pads, all are as long as the longest.
  std::vector<Encoding> encode_batch(std::span<const std::string> texts,
                                     const EncodeOptions& options = {}) const;

  /// The text of ids. What is no UTF-8 becomes U+FFFD.
  ///
  /// skip_special_tokens: leaves out the added tokens that the file calls special.
  /// Throws c10::IndexError for an id that is no token.
  std::string decode(std::span<const std::int64_t> ids, bool skip_special_tokens = true) const;

  /// The id of a token, as the file writes it; none when it is no token.
  std::optional<std::int64_t> token_to_id(std::string_view token) const {
    return parts_->vocabulary.id(token);
  }

  /// Throws c10::IndexError for an id that is no token.
  const std::string& id_to_token(std::int64_t id) const;

  /// One more than the largest id, added tokens included: the vocab_size that a model needs.
  std::int64_t vocab_size() const { return static_cast<std::int64_t>(parts_->vocabulary.size()); }

 private:
  Tokenizer() = default;

  void read(const tutti::detail::Json& file);
  void read_added(const tutti::detail::Json& file);

  std::vector<detail::Token> tokens_of(std::string_view text, detail::Bpe::Work& work) const;
  void trim_offsets(std::vector<detail::Token>& tokens, bool prefix_space) const;
  Encoding encode_with(std::string_view text, const std::string_view* pair,
                       const EncodeOptions& options) const;
  void truncate(std::vector<detail::Token>& first, std::vector<detail::Token>* second,
                std::int64_t added) const;
  void pad(Encoding& encoding, std::int64_t length) const;
  Encoding padded(Encoding encoding) const;
  std::int64_t padded_length(std::int64_t length) const;

  std::shared_ptr<detail::TokenizerParts> parts_ = std::make_shared<detail::TokenizerParts>();
  std::shared_ptr<detail::WorkPool> pool_ = std::make_shared<detail::WorkPool>();
};

#endif

}  // namespace tutti::text

#ifdef TUTTI_WITH_UTF8PROC

namespace tutti::text {

inline Tokenizer Tokenizer::load(const std::string& path) {
  constexpr std::uint64_t most = std::uint64_t{1} << 28;
  std::string problem;
  std::string name = path;
  auto text = tutti::detail::read_regular_file(name, problem, most);
  if (!text) {
    name = path + "/tokenizer.json";
    std::string inside;
    text = tutti::detail::read_regular_file(name, inside, most);
    TUTTI_CHECK_VALUE(text, "tokenizer: neither '", path, "' (", problem, ") nor '", name, "' (",
                      inside, ") can be read; give a tokenizer.json or its folder");
  }
  try {
    return from_json(*text);
  } catch (const c10::Error& error) {
    ::tutti::detail::raise<c10::ValueError>({__func__, __FILE__, __LINE__},
                                            "'" + name + "': " + error.what_without_backtrace());
  }
}

inline Tokenizer Tokenizer::from_json(std::string_view json) {
  TUTTI_CHECK_VALUE(
      json.find_first_not_of(" \t\r\n") != std::string_view::npos,
      "tokenizer: the tokenizer.json is empty, expected a JSON object with a \"model\"; "
      "copy or save it once more");
  try {
    // A value takes some hundred bytes of memory, also where the text has two for it.
    const auto file = tutti::detail::parse_json(json, {.values = 100'000 + json.size() / 4});
    Tokenizer out;
    out.read(file);
    out.parts_->file = json;
    return out;
  } catch (const std::invalid_argument& error) {
    ::tutti::detail::raise<c10::ValueError>(
        {__func__, __FILE__, __LINE__},
        std::string("tokenizer: the tokenizer.json is refused: ") + error.what());
  }
}

inline Tokenizer Tokenizer::train_bpe(std::span<const std::string> texts,
                                      const TrainBpeOptions& options) {
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  return from_json(detail::train_bpe(views, options.vocab_size, options.min_frequency,
                                     options.special_tokens, options.add_prefix_space));
}

inline Tokenizer Tokenizer::train_bpe(std::string_view text, const TrainBpeOptions& options) {
  return from_json(detail::train_bpe({&text, 1}, options.vocab_size, options.min_frequency,
                                     options.special_tokens, options.add_prefix_space));
}

inline void Tokenizer::save(const std::string& path) const {
  detail::write_tokenizer(path, parts_->file);
}

inline void Tokenizer::save_pretrained(const std::string& folder,
                                       const SaveTokenizerOptions& options) const {
  tutti::detail::Json::Object given;
  const auto give = [&](const char* key, const std::string& token) {
    TUTTI_CHECK_VALUE(token.empty() || token_to_id(token), "tokenizer: ", key, " is \"", token,
                      "\", which is none of the ", vocab_size(),
                      " tokens of the vocabulary; give one of them, or learn it as one of the "
                      "special_tokens of train_bpe");
    if (!token.empty()) {
      given.emplace_back(key, token);
    }
  };
  give("bos_token", options.bos_token);
  give("eos_token", options.eos_token);
  give("unk_token", options.unk_token);
  give("pad_token", options.pad_token);
  TUTTI_CHECK_VALUE(options.model_max_length >= 0, "tokenizer: model_max_length is ",
                    options.model_max_length, ", expected the model's number of positions, or 0");
  if (options.model_max_length > 0) {
    given.emplace_back("model_max_length", options.model_max_length);
  }
  if (!options.chat_template.empty()) {
    given.emplace_back("chat_template", options.chat_template);
  }
  detail::write_pretrained_tokenizer(folder, parts_->file, given, parts_->word_piece.has_value());
}

inline void Tokenizer::read(const tutti::detail::Json& file) {
  const auto& model = file.at("model");
  const auto step = [&](const char* name) {
    const auto* found = file.find(name);
    return found != nullptr ? *found : tutti::detail::Json();
  };
  const auto* type = model.find("type");
  const std::string kind = type != nullptr            ? type->string()
                           : model.contains("merges") ? "BPE"  // files of before 2020
                                                      : "WordPiece";
  if (kind != "BPE" && kind != "WordPiece") {
    detail::refuse_step("model", kind, "BPE or WordPiece");
  }
  parts_->model = detail::Vocabulary(model.at("vocab"));
  parts_->normalizer = detail::Normalizer(step("normalizer"));
  parts_->pre_tokenizer = detail::PreTokenizer(step("pre_tokenizer"));
  parts_->post = detail::PostProcessor(step("post_processor"));
  parts_->decoder = detail::Decoder(step("decoder"));
  if (kind == "BPE") {
    parts_->bpe.emplace(model, parts_->model, parts_->pre_tokenizer.bytes());
  } else {
    parts_->word_piece.emplace(model, parts_->model);
  }
  read_added(file);
  parts_->truncation = detail::truncation_of(file);
  parts_->padding = detail::padding_of(file);
}

inline void Tokenizer::read_added(const tutti::detail::Json& file) {
  parts_->vocabulary = parts_->model;
  const auto* tokens = file.find("added_tokens");
  if (tokens != nullptr && !tokens->is_null()) {
    for (const auto& token : tokens->array()) {
      detail::AddedToken added(token);
      const auto most = static_cast<std::int64_t>(parts_->vocabulary.size() + tokens->size()) * 2;
      TUTTI_CHECK_VALUE(added.id < most + 65536, "tokenizer: the added token \"", added.content,
                        "\" has the id ", added.id, " behind a vocabulary of ",
                        parts_->vocabulary.size());
      parts_->vocabulary.add(added.content, added.id);
      parts_->added.push_back(added);
      if (added.normalized && !parts_->normalizer.empty()) {
        added.chars = parts_->normalizer(detail::to_text(added.content)).chars;
        if (std::string text = detail::to_utf8(added.chars); text != added.content) {
          parts_->decoded.emplace(added.id, std::move(text));
        }
      }
      (added.normalized ? parts_->normalized : parts_->raw).add(std::move(added));
    }
  }
  for (std::size_t id = 0; id < parts_->vocabulary.size(); ++id) {
    TUTTI_CHECK_VALUE(parts_->vocabulary.contains(static_cast<std::int64_t>(id)),
                      "tokenizer: no token has the id ", id, ", but the largest is ",
                      parts_->vocabulary.size() - 1, "; the vocabulary has holes");
  }
  parts_->is_added.resize(parts_->vocabulary.size());
  parts_->is_special.resize(parts_->vocabulary.size());
  for (const detail::AddedToken& token : parts_->added) {
    parts_->is_added[static_cast<std::size_t>(token.id)] = true;
    parts_->is_special[static_cast<std::size_t>(token.id)] = token.special;
  }
}

inline const std::string& Tokenizer::id_to_token(std::int64_t id) const {
  TUTTI_CHECK_INDEX(parts_->vocabulary.contains(id), "tokenizer: ", id,
                    " is no token of a vocabulary of ", vocab_size());
  return parts_->vocabulary.token(id);
}

inline std::vector<detail::Token> Tokenizer::tokens_of(std::string_view text,
                                                       detail::Bpe::Work& work) const {
  std::vector<detail::Token> out;
  const auto model = [&](const detail::Text& piece, std::size_t begin, std::size_t end) {
    if (parts_->bpe) {
      (*parts_->bpe)(piece, begin, end, work, out);
    } else {
      (*parts_->word_piece)(piece, begin, end, out);
    }
  };
  for (auto& part : parts_->raw.split(detail::to_text(text))) {
    if (const auto* token = std::get_if<detail::Token>(&part)) {
      out.push_back(*token);
      continue;
    }
    detail::Text stretch = std::get<detail::Text>(std::move(part));
    if (!parts_->normalizer.empty()) {
      stretch = parts_->normalizer(std::move(stretch));
    }
    for (auto& inner : parts_->normalized.split(std::move(stretch))) {
      if (const auto* token = std::get_if<detail::Token>(&inner)) {
        out.push_back(*token);
      } else {
        parts_->pre_tokenizer(std::get<detail::Text>(std::move(inner)), model);
      }
    }
  }
  return out;
}

// White space at the ends of a token leaves its offsets.
inline void Tokenizer::trim_offsets(std::vector<detail::Token>& tokens, bool prefix_space) const {
  for (std::size_t k = 0; k < tokens.size(); ++k) {
    const detail::Token& one = tokens[k];
    detail::Span& span = tokens[k].span;
    std::uint32_t leading = one.blanks_ahead;
    std::uint32_t trailing = one.blanks_behind;
    if (!parts_->is_added[static_cast<std::size_t>(one.id)]) {
      const std::u32string token = detail::to_text(parts_->vocabulary.token(one.id)).chars;
      const auto first = std::find_if_not(token.begin(), token.end(), detail::is_blank);
      const auto last = std::find_if_not(token.rbegin(), token.rend(), detail::is_blank);
      leading = static_cast<std::uint32_t>(first - token.begin());
      trailing = static_cast<std::uint32_t>(last - token.rbegin());
    }
    if (leading == 1 && prefix_space && (k == 0 || span.begin == 0)) {
      leading = 0;
    }
    span.begin = std::min(span.begin + leading, span.end);
    if (trailing != 0 && span.end >= trailing) {
      span.end = std::max(span.end - trailing, span.begin);
    }
  }
}

// Source: tokenizers 0.23, utils/truncation.rs.
inline void Tokenizer::truncate(std::vector<detail::Token>& first,
                                std::vector<detail::Token>* second, std::int64_t added) const {
  const detail::Truncation& rule = *parts_->truncation;
  TUTTI_CHECK_VALUE(rule.max_length >= added, "tokenizer: the truncation's max_length is ",
                    rule.max_length, ", but ", added, " special tokens are added");
  const std::int64_t room = rule.max_length - added;
  const auto n1 = static_cast<std::int64_t>(first.size());
  const auto n2 = second == nullptr ? 0 : static_cast<std::int64_t>(second->size());
  if (n1 + n2 <= room) {
    return;
  }
  TUTTI_CHECK_VALUE(second != nullptr || room == 0 || rule.strategy != "OnlySecond",
                    "tokenizer: a text of ", n1, " tokens has no pair, and the strategy ",
                    "\"OnlySecond\" of the truncation cuts the pair alone; use \"LongestFirst\"");
  if (second == nullptr) {
    rule.cut(first, room);
  } else if (room != 0 && (rule.strategy == "OnlyFirst" || rule.strategy == "OnlySecond")) {
    rule.cut_one(first, *second, room);
  } else {
    rule.cut_both(first, *second, room);
  }
}

namespace detail {

// The tokens of a text and its pair, [2], where the template puts them.
inline Encoding filled(const std::vector<TemplatePart>& parts,
                       const std::array<std::vector<Token>, 2>& tokens) {
  Encoding out;
  const auto add = [&](std::int64_t id, std::int64_t type, Span span, bool special) {
    out.ids.push_back(id);
    out.type_ids.push_back(type);
    out.offsets.push_back({span.begin, span.end});
    out.special_tokens_mask.push_back(special ? 1 : 0);
    out.attention_mask.push_back(1);
  };
  for (const TemplatePart& part : parts) {
    for (const std::int64_t id : part.ids) {
      add(id, part.type_id, {}, true);
    }
    if (part.sequence >= 0) {
      for (const Token& token : tokens[static_cast<std::size_t>(part.sequence)]) {
        add(token.id, part.type_id, token.span, false);
      }
    }
  }
  return out;
}

}  // namespace detail

inline Encoding Tokenizer::encode_with(std::string_view text, const std::string_view* pair,
                                       const EncodeOptions& options) const {
  auto work = pool_->take();
  std::array<std::vector<detail::Token>, 2> tokens;
  tokens[0] = tokens_of(text, *work);
  if (pair != nullptr) {
    tokens[1] = tokens_of(*pair, *work);
  }
  pool_->give(std::move(work));
  const std::vector<detail::TemplatePart> parts =
      parts_->post.parts(pair != nullptr, options.add_special_tokens);
  if (parts_->truncation) {
    std::int64_t added = 0;
    for (const detail::TemplatePart& part : parts) {
      added += static_cast<std::int64_t>(part.ids.size());
    }
    truncate(tokens[0], pair == nullptr ? nullptr : &tokens[1], added);
  }
  for (const bool prefix_space : parts_->post.trims()) {
    trim_offsets(tokens[0], prefix_space);
    trim_offsets(tokens[1], prefix_space);
  }
  return detail::filled(parts, tokens);
}

inline std::int64_t Tokenizer::padded_length(std::int64_t length) const {
  const detail::Padding& rule = *parts_->padding;
  length = rule.fixed != 0 ? rule.fixed : length;
  const std::int64_t multiple = std::max<std::int64_t>(rule.multiple_of, 1);
  return (length + multiple - 1) / multiple * multiple;
}

inline void Tokenizer::pad(Encoding& encoding, std::int64_t length) const {
  const auto size = static_cast<std::int64_t>(encoding.ids.size());
  if (length <= size) {
    return;
  }
  const auto lack = static_cast<std::size_t>(length - size);
  const auto fill = [&](auto& list, auto value) {
    list.insert(parts_->padding->left ? list.begin() : list.end(), lack, value);
  };
  fill(encoding.ids, parts_->padding->id);
  fill(encoding.type_ids, parts_->padding->type_id);
  fill(encoding.offsets, std::array<std::int64_t, 2>{0, 0});
  fill(encoding.special_tokens_mask, std::int64_t{1});
  fill(encoding.attention_mask, std::int64_t{0});
}

inline Encoding Tokenizer::padded(Encoding encoding) const {
  if (parts_->padding) {
    pad(encoding, padded_length(static_cast<std::int64_t>(encoding.ids.size())));
  }
  return encoding;
}

inline Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  return padded(encode_with(text, nullptr, options));
}

inline Encoding Tokenizer::encode(std::string_view text, std::string_view pair,
                                  const EncodeOptions& options) const {
  return padded(encode_with(text, &pair, options));
}

inline std::vector<Encoding> Tokenizer::encode_batch(std::span<const std::string> texts,
                                                     const EncodeOptions& options) const {
  std::vector<Encoding> out(texts.size());
  const std::size_t wanted =
      options.threads != 0 ? options.threads : std::max(1U, std::thread::hardware_concurrency());
  const std::size_t count = std::max<std::size_t>(1, std::min(wanted, texts.size()));
  std::vector<std::exception_ptr> failed(count);
  const auto encode_some = [&](std::size_t worker) {
    try {
      for (std::size_t i = worker; i < texts.size(); i += count) {
        out[i] = encode_with(texts[i], nullptr, options);
      }
    } catch (...) {
      failed[worker] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t worker = 1; worker < count; ++worker) {
      threads.emplace_back(encode_some, worker);
    }
    encode_some(0);
  }
  for (const std::exception_ptr& failure : failed) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
  if (parts_->padding) {
    std::size_t longest = 0;
    for (const Encoding& one : out) {
      longest = std::max(longest, one.ids.size());
    }
    for (Encoding& one : out) {
      pad(one, padded_length(static_cast<std::int64_t>(longest)));
    }
  }
  return out;
}

inline std::string Tokenizer::decode(std::span<const std::int64_t> ids,
                                     bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int64_t id : ids) {
    const std::string& token = id_to_token(id);
    if (!skip_special_tokens || !parts_->is_special[static_cast<std::size_t>(id)]) {
      const auto normalized = parts_->decoded.find(id);
      tokens.push_back(normalized == parts_->decoded.end() ? token : normalized->second);
    }
  }
  return parts_->decoder(std::move(tokens));
}

}  // namespace tutti::text

#endif
