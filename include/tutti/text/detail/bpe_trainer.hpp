// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/text/detail/steps.hpp>
#include <tutti/text/detail/subwords.hpp>

#ifdef TUTTI_WITH_UTF8PROC

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>

// Learns the merges of a byte-level BPE from texts.

namespace tutti::text::detail {

/// Counts pieces of texts, and merges the pair of neighbours that occurs most often until the
/// vocabulary is full; of pairs that occur equally often the one of the smaller ids, the first
/// part's first.
///
/// How often each pair occurs, and in which pieces, is kept; a merge visits the pieces of its pair
/// alone. A heap gives the next pair; a count in it that has changed meanwhile is put back.
/// Source: Sennrich et al., 2016; tokenizers 0.23, models/bpe/trainer.rs.
class BpeTrainer {
 public:
  /// Counts the pieces of one more text. Throws c10::ValueError when it is no UTF-8.
  void feed(std::string_view text, const PreTokenizer& pieces) {
    constexpr std::size_t part = std::size_t{1} << 20;  // the memory of a text is that of its parts
    while (!text.empty()) {  // a later part begins with white space, so it gets no prefix
      const std::size_t end = part_end(text, part);
      pieces(to_text(text.substr(0, end)),
             [&](const Text& from, std::size_t begin, std::size_t stop) {
               ++counts_[to_utf8(std::u32string_view(from.chars).substr(begin, stop - begin))];
             });
      text.remove_prefix(end);
    }
  }

  /// special_tokens: the first ids. The 256 bytes follow, in the order of their characters.
  void train(std::size_t vocab_size, std::int64_t min_frequency,
             const std::vector<std::string>& special_tokens) {
    for (const std::string& token : special_tokens) {
      id_of(token);
    }
    std::array<char32_t, 256> alphabet = byte_alphabet();
    std::sort(alphabet.begin(), alphabet.end());
    for (const char32_t c : alphabet) {
      id_of(to_utf8({&c, 1}));
    }
    make_words();
    while (tokens_.size() < vocab_size && !heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), later);
      const Candidate top = heap_.back();
      heap_.pop_back();
      const auto found = pairs_.find(top.pair);
      if (found == pairs_.end() || found->second.count != top.count) {
        if (found != pairs_.end() && found->second.count > 0) {
          push(top.pair, found->second.count);
        }
      } else if (top.count < std::max<std::int64_t>(min_frequency, 1)) {
        break;
      } else {
        merge(top.pair);
      }
    }
  }

  /// How often each piece was fed, until train().
  const std::unordered_map<std::string, std::int64_t>& pieces() const { return counts_; }
  /// By id.
  const std::vector<std::string>& tokens() const { return tokens_; }
  /// The ids of both parts, in the order of their merges.
  const std::vector<std::pair<std::int64_t, std::int64_t>>& merges() const { return merges_; }

 private:
  struct Word {
    std::vector<std::uint32_t> ids;
    std::int64_t count;
  };
  struct Pair {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // that have had it; some more than once
  };
  struct Candidate {
    std::int64_t count;
    std::uint64_t pair;
  };

  static bool later(const Candidate& a, const Candidate& b) {
    return a.count != b.count ? a.count < b.count : a.pair > b.pair;
  }

  // Where a part of a text ends: in front of a space behind what is none, so that no piece is
  // cut: none has white space behind other characters, and none depends on what stands before it.
  static std::size_t part_end(std::string_view text, std::size_t least) {
    for (std::size_t at = least; at < text.size(); ++at) {
      const auto before = static_cast<unsigned char>(text[at - 1]);
      if (text[at] == ' ' && before > ' ' && before < 0x7F) {
        return at;
      }
    }
    return text.size();
  }

  static std::uint64_t pair_of(std::uint32_t first, std::uint32_t second) {
    return std::uint64_t{first} << 32 | second;
  }

  std::uint32_t id_of(const std::string& token) {
    const auto [found, added] = ids_.emplace(token, static_cast<std::uint32_t>(tokens_.size()));
    if (added) {
      tokens_.push_back(token);
    }
    return found->second;
  }

  void push(std::uint64_t pair, std::int64_t count) {
    heap_.push_back({count, pair});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  void make_words() {
    std::array<std::uint32_t, 256> bytes{};
    for (std::size_t b = 0; b < bytes.size(); ++b) {
      bytes[b] = id_of(to_utf8({&byte_alphabet()[b], 1}));
    }
    words_.reserve(counts_.size());
    for (const auto& [piece, count] : counts_) {
      Word word{{}, count};
      for (const char c : piece) {
        word.ids.push_back(bytes[static_cast<unsigned char>(c)]);
      }
      const auto number = static_cast<std::uint32_t>(words_.size());
      for (std::size_t i = 1; i < word.ids.size(); ++i) {
        add(pair_of(word.ids[i - 1], word.ids[i]), count, number);
      }
      words_.push_back(std::move(word));
    }
    counts_.clear();
    heap_.reserve(pairs_.size());
    for (const auto& [pair, facts] : pairs_) {
      heap_.push_back({facts.count, pair});
    }
    std::make_heap(heap_.begin(), heap_.end(), later);
  }

  void add(std::uint64_t pair, std::int64_t count, std::uint32_t word) {
    Pair& facts = pairs_[pair];
    facts.count += count;
    if (count > 0 && (facts.words.empty() || facts.words.back() != word)) {
      facts.words.push_back(word);
    }
  }

  void merge(std::uint64_t pair) {
    const auto first = static_cast<std::uint32_t>(pair >> 32);
    const auto second = static_cast<std::uint32_t>(pair);
    const std::vector<std::uint32_t> where = std::move(pairs_[pair].words);
    const std::uint32_t id = id_of(tokens_[first] + tokens_[second]);
    merges_.emplace_back(first, second);
    grown_.clear();
    for (const std::uint32_t number : where) {
      merge_in(number, first, second, id);
    }
    pairs_.erase(pair);
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const std::uint64_t one : grown_) {
      const auto found = pairs_.find(one);
      if (found != pairs_.end() && found->second.count > 0) {
        push(one, found->second.count);
      }
    }
  }

  void merge_in(std::uint32_t number, std::uint32_t first, std::uint32_t second, std::uint32_t id) {
    Word& word = words_[number];
    std::vector<std::uint32_t>& ids = word.ids;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const bool here = ids[i] == first && i + 1 < ids.size() && ids[i + 1] == second;
      if (here) {
        if (kept > 0) {
          add(pair_of(ids[kept - 1], first), -word.count, number);
          add(pair_of(ids[kept - 1], id), word.count, number);
          grown_.push_back(pair_of(ids[kept - 1], id));
        }
        if (i + 2 < ids.size()) {
          add(pair_of(second, ids[i + 2]), -word.count, number);
          add(pair_of(id, ids[i + 2]), word.count, number);
          grown_.push_back(pair_of(id, ids[i + 2]));
        }
        ids[kept++] = id;
        ++i;
      } else {
        ids[kept++] = ids[i];
      }
    }
    ids.resize(kept);
  }

  std::unordered_map<std::string, std::int64_t> counts_;  // of pieces
  std::unordered_map<std::string, std::uint32_t> ids_;
  std::vector<std::string> tokens_;
  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, Pair> pairs_;
  std::vector<Candidate> heap_;
  std::vector<std::uint64_t> grown_;  // pairs that a merge has made
  std::vector<std::pair<std::int64_t, std::int64_t>> merges_;
};

/// The tokenizer.json of what was learnt, as tokenizers writes that of GPT-2.
inline std::string trained_json(const BpeTrainer& trainer, std::size_t special_tokens,
                                bool add_prefix_space) {
  using tutti::detail::json_quoted;
  const std::string space = add_prefix_space ? "true" : "false";
  std::string out = "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n";
  out += "\"added_tokens\": [";
  for (std::size_t id = 0; id < special_tokens; ++id) {
    out += (id == 0 ? "\n" : ",\n") + std::string("{\"id\": ") + std::to_string(id) +
           ", \"content\": " + json_quoted(trainer.tokens()[id]) +
           ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
           "\"special\": true}";
  }
  const auto step = [&](const char* name, const char* trims) {
    out += std::string("\"") + name +
           "\": {\"type\": \"ByteLevel\", \"add_prefix_space\": " + space +
           ", \"trim_offsets\": " + trims + ", \"use_regex\": true},\n";
  };
  out += "],\n\"normalizer\": null,\n";
  step("pre_tokenizer", "true");
  step("post_processor", "false");
  step("decoder", "true");
  out +=
      "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
      "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
      "\"byte_fallback\": false, \"ignore_merges\": false,\n\"vocab\": {";
  for (std::size_t id = 0; id < trainer.tokens().size(); ++id) {
    out += (id == 0 ? "\n" : ",\n") + json_quoted(trainer.tokens()[id]) + ": " + std::to_string(id);
  }
  out += "},\n\"merges\": [";
  const char* comma = "\n";
  for (const auto& [first, second] : trainer.merges()) {
    out += comma;
    out += '[' + json_quoted(trainer.tokens()[static_cast<std::size_t>(first)]) + ", " +
           json_quoted(trainer.tokens()[static_cast<std::size_t>(second)]) + ']';
    comma = ",\n";
  }
  return out + "]}}\n";
}

/// The tokenizer.json that is learnt from texts.
inline std::string train_bpe(std::span<const std::string_view> texts, std::int64_t vocab_size,
                             std::int64_t min_frequency,
                             const std::vector<std::string>& special_tokens,
                             bool add_prefix_space) {
  const std::int64_t least = 256 + static_cast<std::int64_t>(special_tokens.size());
  TUTTI_CHECK_VALUE(vocab_size >= least, "tokenizer: vocab_size is ", vocab_size, ", expected ",
                    least, " or more: the special tokens and 256 bytes");
  TUTTI_CHECK_VALUE(min_frequency >= 1, "tokenizer: min_frequency is ", min_frequency,
                    ", expected 1 or more");
  for (std::size_t i = 0; i < special_tokens.size(); ++i) {
    const std::string& token = special_tokens[i];
    const auto before = special_tokens.begin() + static_cast<std::ptrdiff_t>(i);
    TUTTI_CHECK_VALUE(
        to_text(token).size() > 1 && std::find(special_tokens.begin(), before, token) == before,
        "tokenizer: the special token \"", token,
        "\" is there twice or has fewer than two characters");
  }
  const PreTokenizer pieces(
      tutti::detail::parse_json(std::string(R"({"type": "ByteLevel", "add_prefix_space": )") +
                                (add_prefix_space ? "true}" : "false}")));
  BpeTrainer trainer;
  for (const std::string_view text : texts) {
    trainer.feed(text, pieces);
  }
  trainer.train(static_cast<std::size_t>(vocab_size), min_frequency, special_tokens);
  return trained_json(trainer, special_tokens.size(), add_prefix_space);
}

}  // namespace tutti::text::detail

#endif
