// Kind tokenizers: ids, offsets and decoded texts of each string, exactly.

#include "golden_interop/runner.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/text/decode_stream.hpp>
#include <tutti/text/tokenizer.hpp>

namespace golden_interop {

namespace {

#ifdef TUTTI_WITH_UTF8PROC

using tutti::text::Tokenizer;

std::vector<std::array<std::int64_t, 2>> ranges(const Json& list) {
  std::vector<std::array<std::int64_t, 2>> out;
  for (const Json& value : list.array()) {
    out.push_back({value[0].integer(), value[1].integer()});
  }
  return out;
}

void run_string(const Case& c, const Tokenizer& tokenizer, const Json& one) {
  const std::string& text = one["text"].string();
  const auto found = tokenizer.encode(text, {.add_special_tokens = false});
  const std::vector<std::int64_t> ids = integers(one["ids"]);
  c.check(found.ids == ids, "ids of \"" + text + "\"");
  c.check(found.offsets == ranges(one["offsets"]), "offsets of \"" + text + "\"");
  c.check(tokenizer.decode(ids, false) == one["decoded"].string(), "text of \"" + text + "\"");
  const std::string& plain = one["decoded_without_special"].string();
  c.check(tokenizer.decode(ids) == plain, "text without special tokens of \"" + text + "\"");
  tutti::text::DecodeStream stream(tokenizer);
  std::string streamed;
  for (const std::int64_t id : ids) {
    streamed += stream.step(id);
  }
  c.check(streamed + stream.finish() == plain, "text token by token of \"" + text + "\"");
}

void run_tokenizer(const Case& c) {
  const auto tokenizer = Tokenizer::load(c.folder.string());
  const Json cases = c.read("cases.json");
  c.check(tokenizer.vocab_size() == cases["vocab_size"].integer(), "vocab_size");
  for (const Json& one : cases["strings"].array()) {
    run_string(c, tokenizer, one);
  }
  for (const Json& one : cases["with_special_tokens"].array()) {
    const std::string& text = one["text"].string();
    const auto found = tokenizer.encode(text);
    c.check(found.ids == integers(one["ids"]) && found.type_ids == integers(one["type_ids"]) &&
                found.special_tokens_mask == integers(one["special_tokens_mask"]),
            "special tokens around \"" + text + "\"");
  }
  for (const Json& one : cases["pairs"].array()) {
    const auto found = tokenizer.encode(one["text"].string(), one["pair"].string());
    c.check(found.ids == integers(one["ids"]) && found.type_ids == integers(one["type_ids"]),
            "pair of \"" + one["text"].string() + "\"");
  }
}

#else

void run_tokenizer(const Case&) {
  throw Skipped("libutf8proc was not found");
}

#endif

const bool tokenizers_registered = register_kind("tokenizers", run_tokenizer);

}  // namespace

}  // namespace golden_interop
