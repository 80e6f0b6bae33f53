// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/text/detail/steps.hpp>

#ifdef TUTTI_WITH_UTF8PROC

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

// The models of a tokenizer.json: from a piece of text to ids.

namespace tutti::text::detail {

/// A token of a piece.
struct Token {
  std::int64_t id = 0;
  Span span;
  // White space at the ends of an added token, as it stands in the normalized text.
  std::uint32_t blanks_ahead = 0;
  std::uint32_t blanks_behind = 0;
};

// As the reference trims offsets: white space, and the character that stands for a space.
inline bool is_blank(char32_t c) {
  return c == U'\u0120' || is_white_space(c);
}

/// A map by text that can be asked with a view.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
template <class Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

/// Ids by token.
class Vocabulary {
 public:
  Vocabulary() = default;
  /// Throws c10::ValueError for an id that is negative, too large for the number of tokens by far,
  /// or given twice.
  explicit Vocabulary(const Json& vocab) {
    const auto most = static_cast<std::int64_t>(vocab.size()) * 2 + 65536;
    for (const auto& [token, id] : vocab.object()) {
      const std::int64_t number = id.integer();
      TUTTI_CHECK_VALUE(number >= 0 && number < most, "tokenizer: the token \"", token,
                        "\" has the id ", number, " in a vocabulary of ", vocab.size());
      add(token, number);
    }
  }

  void add(const std::string& token, std::int64_t id) {
    const auto place = static_cast<std::size_t>(id);
    if (place >= tokens_.size()) {
      tokens_.resize(place + 1);
      there_.resize(place + 1);
    }
    TUTTI_CHECK_VALUE(!there_[place] || tokens_[place] == token, "tokenizer: the tokens \"",
                      tokens_[place], "\" and \"", token, "\" have both the id ", id);
    tokens_[place] = token;
    there_[place] = true;
    ids_.insert_or_assign(token, id);
  }

  std::optional<std::int64_t> id(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  bool contains(std::int64_t id) const {
    return id >= 0 && static_cast<std::size_t>(id) < there_.size() &&
           there_[static_cast<std::size_t>(id)];
  }
  const std::string& token(std::int64_t id) const { return tokens_[static_cast<std::size_t>(id)]; }

  /// One more than the largest id.
  std::size_t size() const { return tokens_.size(); }

 private:
  TextMap<std::int64_t> ids_;
  std::vector<std::string> tokens_;
  std::vector<bool> there_;
};

/// Code points of GPT-2's alphabet, one for each byte.
inline const std::array<char32_t, 256>& byte_alphabet() {
  static const auto alphabet = [] {
    std::array<char32_t, 256> out{};
    char32_t next = 256;
    for (std::size_t b = 0; b < out.size(); ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      out[b] = itself ? static_cast<char32_t>(b) : next++;
    }
    return out;
  }();
  return alphabet;
}

/// The byte that a character of the alphabet stands for, or -1.
inline int byte_of(char32_t c) {
  static const auto bytes = [] {
    std::array<int, 512> out{};
    out.fill(-1);
    for (std::size_t b = 0; b < 256; ++b) {
      out[byte_alphabet()[b]] = static_cast<int>(b);
    }
    return out;
  }();
  return c < bytes.size() ? bytes[c] : -1;
}

/// The bytes that a token of a byte-level vocabulary stands for; its own UTF-8 when a character of
/// it is none of the alphabet.
inline std::string bytes_of_token(const std::string& token) {
  std::string bytes;
  for (const char32_t c : to_text(token).chars) {
    const int byte = byte_of(c);
    if (byte < 0) {
      return token;
    }
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

/// Byte pair encoding: the symbols of a piece are merged pair by pair, the pair of the lowest rank
/// first, of equal ones the leftmost.
///
/// Source: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016.
class Bpe {
 public:
  /// bytes: a piece is a sequence of bytes in GPT-2's alphabet, else of code points.
  /// Throws c10::ValueError for what the file asks for and is not supported, by its name, and for
  /// merges whose parts or whole are no tokens.
  Bpe(const Json& model, const Vocabulary& vocabulary, bool bytes)
      : vocabulary_(vocabulary), bytes_(bytes) {
    refuse(model);
    ignore_merges_ = flag(model, "ignore_merges", false);
    fuse_unk_ = flag(model, "fuse_unk", false);
    if (const Json* unk = model.find("unk_token"); unk != nullptr && !unk->is_null()) {
      unk_ = vocabulary.id(unk->string()).value_or(-1);
      TUTTI_CHECK_VALUE(unk_ >= 0, "tokenizer: the unk_token \"", unk->string(),
                        "\" is not in the vocabulary");
    }
    find_bytes(flag(model, "byte_fallback", false));
    const Json& merges = model.at("merges");
    merges_.reserve(merges.size() * 2);
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
      add_merge(merges[rank], rank);
    }
    if (bytes_ && ignore_merges_) {
      for (std::size_t id = 0; id < vocabulary.size(); ++id) {
        if (vocabulary.contains(static_cast<std::int64_t>(id))) {
          const std::string& token = vocabulary.token(static_cast<std::int64_t>(id));
          const std::u32string chars = to_text(token).chars;
          if (std::all_of(chars.begin(), chars.end(), [](char32_t c) { return byte_of(c) >= 0; })) {
            whole_.emplace(bytes_of_token(token), static_cast<std::int64_t>(id));
          }
        }
      }
    }
  }

  // A symbol of a piece: the bytes [begin, end) of the UTF-8 of its code points, or of its bytes in
  // the alphabet. What is no token and left out takes no place, as in the reference.
  struct Symbol {
    std::int64_t id;
    std::uint32_t begin;
    std::uint32_t end;
  };

  /// Memory of one thread at a time, and the pieces that it has seen.
  struct Work {
    TextMap<std::vector<Symbol>> seen;
    std::string key;                          // a piece in UTF-8
    std::vector<std::uint32_t> char_of_byte;  // of what symbols count
    std::vector<Symbol> symbols;
    std::vector<std::int64_t> next;      // of a symbol; -1: it is the last
    std::vector<std::int64_t> previous;  // -1: it is the first; -2: it was merged into another
    std::vector<std::pair<std::uint32_t, std::uint32_t>> heap;  // rank and place
  };

  void operator()(const Text& text, std::size_t begin, std::size_t end, Work& work,
                  std::vector<Token>& out) const {
    work.key.clear();
    work.char_of_byte.clear();
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t before = work.key.size();
      append_utf8(work.key, text.chars[i]);
      for (std::size_t at = before; at < work.key.size(); ++at) {
        work.char_of_byte.resize(work.char_of_byte.size() + width(work.key[at]),
                                 static_cast<std::uint32_t>(i));
      }
    }
    const auto add = [&](const std::vector<Symbol>& symbols) {
      for (const Symbol& one : symbols) {
        out.push_back({.id = one.id,
                       .span = {text.spans[work.char_of_byte[one.begin]].begin,
                                text.spans[work.char_of_byte[one.end - 1]].end}});
      }
    };
    constexpr std::size_t longest = 256;  // a piece that is kept
    constexpr std::size_t most = 16384;   // pieces that are kept
    if (const auto known = work.seen.find(work.key); known != work.seen.end()) {
      return add(known->second);
    }
    merge(work);
    add(work.symbols);
    if (work.key.size() <= longest) {
      if (work.seen.size() >= most) {
        work.seen.clear();
      }
      work.seen.emplace(work.key, work.symbols);
    }
  }

 private:
  struct Merge {
    std::uint32_t rank;
    std::int64_t id;
  };

  static void refuse(const Json& model) {
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json* found = model.find(key);
      const bool none = found == nullptr || found->is_null() ||
                        (found->is_string() && found->string().empty()) ||
                        (found->is_number() && found->number() == 0);
      TUTTI_CHECK_VALUE(none, "tokenizer: the BPE model has \"", key,
                        "\", which is not supported, expected null");
    }
  }

  // The tokens of single bytes: of the alphabet, or <0x00> and so on of byte_fallback.
  void find_bytes(bool fallback) {
    byte_ids_.fill(-1);
    fallback_ = fallback;
    constexpr char digits[] = "0123456789ABCDEF";
    for (std::size_t b = 0; b < byte_ids_.size(); ++b) {
      const std::string token = bytes_ ? to_utf8({&byte_alphabet()[b], 1})
                                       : std::string("<0x") + digits[b >> 4] + digits[b & 15] + '>';
      if (bytes_ || fallback) {
        byte_ids_[b] = vocabulary_.id(token).value_or(-1);
      }
    }
  }

  void add_merge(const Json& merge, std::size_t rank) {
    std::string first;
    std::string second;
    if (merge.is_string()) {  // files of before 2024: "a b"
      const std::string& both = merge.string();
      const std::size_t space = both.find(' ');
      TUTTI_CHECK_VALUE(space != std::string::npos && both.find(' ', space + 1) == both.npos,
                        "tokenizer: the merge \"", both, "\" is not two tokens and a space");
      first = both.substr(0, space);
      second = both.substr(space + 1);
    } else {
      TUTTI_CHECK_VALUE(merge.size() == 2, "tokenizer: merge ", rank, " has ", merge.size(),
                        " parts, expected 2");
      first = merge[0].string();
      second = merge[1].string();
    }
    std::array<std::int64_t, 3> ids{};
    const std::array<std::string, 3> tokens{first, second, first + second};
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = vocabulary_.id(tokens[i]).value_or(-1);
      TUTTI_CHECK_VALUE(ids[i] >= 0, "tokenizer: merge ", rank, " of \"", first, "\" and \"",
                        second, "\" needs the token \"", tokens[i],
                        "\", which is not in the vocabulary");
    }
    merges_.insert_or_assign(pair_of(ids[0], ids[1]),
                             Merge{static_cast<std::uint32_t>(rank), ids[2]});
  }

  // How many bytes of UTF-8 a byte of a piece takes among those that symbols count.
  std::uint32_t width(char byte) const {
    const bool is_ascii = byte > 32 && byte < 127;  // these are themselves in the alphabet
    return bytes_ && !is_ascii ? 2 : 1;
  }

  static std::uint64_t pair_of(std::int64_t first, std::int64_t second) {
    return static_cast<std::uint64_t>(first) << 32 | static_cast<std::uint64_t>(second);
  }

  // Symbols one behind the other, and the bytes of an unk_token that is not added yet.
  struct Symbols {
    std::vector<Symbol>& out;
    std::int64_t unk;
    std::uint32_t place = 0;
    std::uint32_t unknown = 0;

    void add(std::int64_t id, std::uint32_t bytes) {
      out.push_back({id, place, place + bytes});
      place += bytes;
    }
    void add_unknown() {
      if (unknown != 0) {
        add(unk, unknown);
        unknown = 0;
      }
    }
  };

  std::int64_t byte_id(char byte) const { return byte_ids_[static_cast<unsigned char>(byte)]; }

  // Whether a character that is no token becomes the tokens of its bytes.
  bool falls_back(std::string_view character) const {
    return fallback_ && !bytes_ && std::all_of(character.begin(), character.end(), [&](char byte) {
             return byte_id(byte) >= 0;
           });
  }

  // The symbols that the piece in `work.key` begins with.
  void split(Work& work) const {
    work.symbols.clear();
    Symbols symbols{work.symbols, unk_};
    for (std::string_view rest = work.key; !rest.empty();) {
      const std::string_view one = rest.substr(0, bytes_ ? 1 : decode_utf8(rest).bytes);
      rest.remove_prefix(one.size());
      const std::int64_t id = bytes_ ? byte_id(one[0]) : vocabulary_.id(one).value_or(-1);
      const auto bytes = bytes_ ? width(one[0]) : static_cast<std::uint32_t>(one.size());
      if (id >= 0) {
        symbols.add_unknown();
        symbols.add(id, bytes);
      } else if (falls_back(one)) {  // the reference puts these ahead of an unk_token that waits
        for (const char byte : one) {
          symbols.add(byte_id(byte), 1);
        }
      } else if (unk_ >= 0) {
        if (!fuse_unk_) {
          symbols.add_unknown();
        }
        symbols.unknown += bytes;
      }
    }
    symbols.add_unknown();
  }

  const Merge* merge_at(const Work& work, std::int64_t at) const {
    const std::int64_t next = at < 0 ? -1 : work.next[static_cast<std::size_t>(at)];
    if (next < 0) {
      return nullptr;
    }
    const auto found = merges_.find(pair_of(work.symbols[static_cast<std::size_t>(at)].id,
                                            work.symbols[static_cast<std::size_t>(next)].id));
    return found == merges_.end() ? nullptr : &found->second;
  }

  void offer(Work& work, std::int64_t at) const {
    if (const Merge* merge = merge_at(work, at)) {
      work.heap.emplace_back(merge->rank, static_cast<std::uint32_t>(at));
      std::push_heap(work.heap.begin(), work.heap.end(), std::greater<>());
    }
  }

  // The tokens of the piece in `work.key`, into `work.symbols`.
  void merge(Work& work) const {
    if (ignore_merges_) {
      const auto found = bytes_ ? whole_of(work.key) : vocabulary_.id(work.key);
      if (found) {
        work.symbols.assign(1, {*found, 0, static_cast<std::uint32_t>(work.char_of_byte.size())});
        return;
      }
    }
    split(work);
    const auto count = static_cast<std::int64_t>(work.symbols.size());
    work.next.resize(work.symbols.size());
    work.previous.resize(work.symbols.size());
    for (std::int64_t i = 0; i < count; ++i) {
      work.previous[static_cast<std::size_t>(i)] = i - 1;
      work.next[static_cast<std::size_t>(i)] = i + 1 < count ? i + 1 : -1;
    }
    work.heap.clear();
    for (std::int64_t i = 0; i + 1 < count; ++i) {
      offer(work, i);
    }
    while (!work.heap.empty()) {
      std::pop_heap(work.heap.begin(), work.heap.end(), std::greater<>());
      const auto [rank, at] = work.heap.back();
      work.heap.pop_back();
      const Merge* merge = work.previous[at] == -2 ? nullptr : merge_at(work, at);
      if (merge != nullptr && merge->rank == rank) {
        join(work, at, merge->id);
      }
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < work.symbols.size(); ++i) {
      if (work.previous[i] != -2) {
        work.symbols[kept++] = work.symbols[i];
      }
    }
    work.symbols.resize(kept);
  }

  void join(Work& work, std::size_t at, std::int64_t id) const {
    const auto next = static_cast<std::size_t>(work.next[at]);
    work.symbols[at] = {id, work.symbols[at].begin, work.symbols[next].end};
    work.next[at] = work.next[next];
    work.previous[next] = -2;
    if (work.next[at] >= 0) {
      work.previous[static_cast<std::size_t>(work.next[at])] = static_cast<std::int64_t>(at);
    }
    offer(work, work.previous[at]);
    offer(work, static_cast<std::int64_t>(at));
  }

  std::optional<std::int64_t> whole_of(std::string_view piece) const {
    const auto found = whole_.find(piece);
    return found == whole_.end() ? std::nullopt : std::optional(found->second);
  }

  const Vocabulary& vocabulary_;
  bool bytes_;
  bool fallback_ = false;
  bool ignore_merges_ = false;
  bool fuse_unk_ = false;
  std::int64_t unk_ = -1;
  std::array<std::int64_t, 256> byte_ids_{};
  std::unordered_map<std::uint64_t, Merge> merges_;
  TextMap<std::int64_t> whole_;
};

// The memory that threads encode with; one that is free is taken, else a new one made.
class WorkPool {
 public:
  std::unique_ptr<Bpe::Work> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      return std::make_unique<Bpe::Work>();
    }
    auto work = std::move(free_.back());
    free_.pop_back();
    return work;
  }
  void give(std::unique_ptr<Bpe::Work> work) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(work));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Bpe::Work>> free_;
};

/// The longest tokens from the left; all but the first of a piece have a prefix.
///
/// Source: Devlin et al., "BERT", 2019, and its tokenizer.
class WordPiece {
 public:
  /// Throws c10::ValueError when the token for what is unknown is not in the vocabulary.
  WordPiece(const Json& model, const Vocabulary& vocabulary)
      : vocabulary_(vocabulary),
        prefix_(model.at("continuing_subword_prefix").string()),
        longest_(model.at("max_input_chars_per_word").integer()) {
    const std::string& unk = model.at("unk_token").string();
    unk_ = vocabulary.id(unk).value_or(-1);
    TUTTI_CHECK_VALUE(unk_ >= 0, "tokenizer: the unk_token \"", unk, "\" is not in the vocabulary");
  }

  void operator()(const Text& text, std::size_t begin, std::size_t end,
                  std::vector<Token>& out) const {
    const std::size_t before = out.size();
    bool known = static_cast<std::int64_t>(end - begin) <= longest_;
    for (std::size_t at = begin; known && at < end;) {
      std::string token = at == begin ? std::string() : prefix_;
      std::vector<std::size_t> sizes;  // of the token with one character more each
      for (std::size_t i = at; i < end; ++i) {
        append_utf8(token, text.chars[i]);
        sizes.push_back(token.size());
      }
      std::optional<std::int64_t> id;
      std::size_t count = sizes.size();
      for (; count > 0; --count) {
        id = vocabulary_.id(std::string_view(token).substr(0, sizes[count - 1]));
        if (id) {
          break;
        }
      }
      known = id.has_value();
      if (known) {
        out.push_back({.id = *id, .span = {text.spans[at].begin, text.spans[at + count - 1].end}});
        at += count;
      }
    }
    if (!known) {
      out.resize(before);
      out.push_back({.id = unk_, .span = {text.spans[begin].begin, text.spans[end - 1].end}});
    }
  }

 private:
  const Vocabulary& vocabulary_;
  std::string prefix_;
  std::int64_t longest_;
  std::int64_t unk_ = -1;
};

}  // namespace tutti::text::detail

#endif
