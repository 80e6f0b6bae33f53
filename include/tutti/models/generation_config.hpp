// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/models/pretrained_config.hpp>

/// How a language model writes on: greedily or by drawing, and for how long.
namespace tutti::models {

/// The options of generate(), under the names of Transformers.
///
///     GenerationConfig config{.max_new_tokens = 64, .do_sample = true, .top_p = 0.9, .seed = 17};
///     auto config = GenerationConfig::read(folder);   // what the model's authors recommend
///
/// A text ends with one of the eos tokens or of the stop sequences, or when it is long enough.
/// Source: Transformers, `GenerationConfig`.
struct GenerationConfig {
  Maybe<std::int64_t> max_new_tokens{};  ///< at most, without the prompt; >= 1
  Maybe<std::int64_t> max_length{};  ///< with the prompt, where max_new_tokens is not set; >= 1.
                                     ///< Neither is set: 20 new tokens

  bool do_sample = false;  ///< draw tokens; else the likeliest one is taken

  double repetition_penalty = 1.0;  ///< > 0; above 1 makes tokens of the text so far less likely
  double temperature = 1.0;         ///< of drawing; > 0
  std::int64_t top_k = 50;          ///< draw from this many of the likeliest; 0: from all
  double top_p = 1.0;  ///< draw from the likeliest that have this probability together; in [0, 1]
  double min_p = 0.0;  ///< draw from those at least this part as likely as the likeliest; in [0, 1]

  std::vector<std::int64_t> eos_token_id{};  ///< each of them ends a text; none below 0 ever comes
  Maybe<std::int64_t> pad_token_id{};  ///< what follows in a row that has ended; not set: the first
                                       ///< eos token
  Maybe<std::int64_t> bos_token_id{};  ///< begins a text where there is no prompt

  /// Each of these token sequences ends a text, as an eos token does: stop texts as tokens. Tokens
  /// of the prompt do not count.
  std::vector<std::vector<std::int64_t>> stop_sequences{};

  /// Of drawing: the same seed gives the same text. Not set: LibTorch's generator gives one.
  Maybe<std::uint64_t> seed{};

  /// Reads `generation_config.json` of a folder; where there is none, the ids of `config.json`.
  ///
  /// Keys that are absent or null have the defaults above; a `top_k` of null is 0. Keys that change
  /// nothing of the text, and unknown ones, are passed over.
  /// Throws c10::Error (ValueError) for a key that changes the text and is not supported, by its
  /// name and value, such as num_beams above 1; as validate() does; and when both files are
  /// missing.
  static GenerationConfig read(const std::string& folder);

  /// The same of the keys of such a file.
  static GenerationConfig from(const PretrainedConfig& keys);

  /// Writes `generation_config.json` into a folder that has none. What the file has no key for,
  /// stop_sequences and seed, is left out.
  void write(const std::string& folder) const;

  /// Throws c10::ValueError when an option is out of range.
  void validate() const;
};

/// The options that differ from the defaults, as one line of JSON.
std::string to_string(const GenerationConfig& config);

}  // namespace tutti::models

#if TUTTI_BODIES
#include <tutti/models/generation_config.inl.hpp>
#endif
