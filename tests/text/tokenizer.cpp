#include <tutti/text/tokenizer.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

#ifdef TUTTI_WITH_UTF8PROC

namespace {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using text::Tokenizer;
using Ids = std::vector<std::int64_t>;

// A tokenizer.json with a word for each letter a to e, BERT's special tokens, and what else is
// given: members of the file, each with a comma behind it.
std::string word_pieces(const std::string& more = {}) {
  return "{" + more + R"("version": "1.0",
    "added_tokens": [
      {"id": 0, "content": "[PAD]", "special": true},
      {"id": 1, "content": "[UNK]", "special": true},
      {"id": 2, "content": "[CLS]", "special": true},
      {"id": 3, "content": "[SEP]", "special": true}],
    "normalizer": {"type": "BertNormalizer", "lowercase": true},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
      "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
               {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
               {"Sequence": {"id": "B", "type_id": 1}},
               {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
      "special_tokens": {"[CLS]": {"ids": [2]}, "[SEP]": {"ids": [3]}}},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
      "max_input_chars_per_word": 10,
      "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "b": 5, "c": 6, "d": 7,
                "e": 8, "##b": 9, "##bc": 10, ".": 11}}})";
}

std::string bpe(const std::string& model_more = {}, const std::string& vocab = {}) {
  return R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE",)" +
         model_more + R"("vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġa": 4, "Ã": 5, "©": 6)" +
         vocab + R"(},
      "merges": [["a", "b"], ["Ġ", "a"]]}})";
}

Ids ids_of(const Tokenizer& tokenizer, const std::string& text) {
  return tokenizer.encode(text, {.add_special_tokens = false}).ids;
}

}  // namespace

TEST_CASE("word pieces are the longest from the left, and special tokens stand around them",
          "[text][tokenizer]") {
  const auto tokenizer = Tokenizer::from_json(word_pieces());
  const text::Encoding found = tokenizer.encode("Abc zzz d.");
  CHECK(found.ids == Ids{2, 4, 10, 1, 7, 11, 3});
  CHECK(found.type_ids == Ids(7, 0));
  CHECK(found.special_tokens_mask == Ids{1, 0, 0, 0, 0, 0, 1});
  CHECK(found.attention_mask == Ids(7, 1));
  const std::vector<std::array<std::int64_t, 2>> offsets{{0, 0}, {0, 1},  {1, 3}, {4, 7},
                                                         {8, 9}, {9, 10}, {0, 0}};
  CHECK((found.offsets == offsets));
  CHECK(tokenizer.decode(found.ids) == "abc d.");
  CHECK(tokenizer.decode(found.ids, false) == "[CLS] abc [UNK] d. [SEP]");
  CHECK(tokenizer.vocab_size() == 12);
  CHECK(tokenizer.token_to_id("##bc") == 10);
  CHECK_FALSE(tokenizer.token_to_id("##zz"));
  CHECK(tokenizer.id_to_token(10) == "##bc");
}

TEST_CASE("a pair has the types that the template says", "[text][tokenizer]") {
  const text::Encoding found = Tokenizer::from_json(word_pieces()).encode("a", "b c");
  CHECK(found.ids == Ids{2, 4, 3, 5, 6, 3});
  CHECK(found.type_ids == Ids{0, 0, 0, 1, 1, 1});
}

TEST_CASE("a file's truncation leaves room for special tokens", "[text][tokenizer]") {
  const auto with = [](const std::string& rule) {
    return Tokenizer::from_json(word_pieces("\"truncation\": " + rule + ","));
  };
  const auto longest =
      with(R"({"max_length": 6, "strategy": "LongestFirst", "stride": 0, "direction": "Right"})");
  CHECK(longest.encode("a b c d e a").ids == Ids{2, 4, 5, 6, 7, 3});
  CHECK(longest.encode("a b c d", "e").ids == Ids{2, 4, 5, 3, 8, 3});
  CHECK(longest.encode("a", "b c d e").ids == Ids{2, 4, 3, 5, 6, 3});
  CHECK(longest.encode("a b c", "d e a").ids == Ids{2, 4, 3, 7, 8, 3});  // 1 and 2 of 3
  const auto left =
      with(R"({"max_length": 4, "strategy": "OnlyFirst", "stride": 0, "direction": "Left"})");
  CHECK(left.encode("a b c d").ids == Ids{2, 6, 7, 3});
  CHECK_THROWS_WITH(left.encode("a b", "c d"), ContainsSubstring("nothing is left of the other"));
}

TEST_CASE("a batch is padded as the file says", "[text][tokenizer]") {
  const auto tokenizer = Tokenizer::from_json(word_pieces(
      R"("padding": {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": 4,
                     "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},)"));
  const std::vector<std::string> texts{"a", "a b c"};
  for (const std::size_t threads : {1U, 3U}) {
    const auto found = tokenizer.encode_batch(texts, {.threads = threads});
    CHECK(found.at(0).ids == Ids{2, 4, 3, 0, 0, 0, 0, 0});
    CHECK(found.at(0).attention_mask == Ids{1, 1, 1, 0, 0, 0, 0, 0});
    CHECK(found.at(1).ids == Ids{2, 4, 5, 6, 3, 0, 0, 0});
  }
}

TEST_CASE("a file does not pad to more than memory has", "[text][tokenizer]") {
  const auto padded = [](const std::string& rule) {
    return Tokenizer::from_json(word_pieces("\"padding\": " + rule + ",")).encode("a").ids.size();
  };
  CHECK(padded(R"({"strategy": {"Fixed": 10}})") == 10);
  CHECK_THROWS_WITH(padded(R"({"strategy": {"Fixed": 2000000000}})"),
                    ContainsSubstring("\"Fixed\" of the padding is 2000000000, expected at most "
                                      "4194304 tokens; set \"padding\" to null"));
  CHECK_THROWS_WITH(padded(R"({"strategy": "BatchLongest", "pad_to_multiple_of": 2000000000})"),
                    ContainsSubstring("\"pad_to_multiple_of\" of the padding is 2000000000"));
}

TEST_CASE("bytes that are no character become U+FFFD", "[text][tokenizer]") {
  const auto tokenizer = Tokenizer::from_json(bpe());
  CHECK(ids_of(tokenizer, "ab a\xC3\xA9") == Ids{2, 4, 5, 6});
  CHECK(tokenizer.decode(Ids{5, 6}) == "\xC3\xA9");
  CHECK(tokenizer.decode(Ids{5, 0, 6}) ==
        "\xEF\xBF\xBD"
        "a\xEF\xBF\xBD");
}

TEST_CASE("the leftmost pair of the lowest rank is merged, also in a long piece",
          "[text][tokenizer]") {
  const auto tokenizer = Tokenizer::from_json(bpe());
  std::string long_text;
  Ids expected;
  for (int i = 0; i < 5000; ++i) {
    long_text += "ab";
    expected.push_back(2);
  }
  CHECK(ids_of(tokenizer, long_text) == expected);
  CHECK(ids_of(tokenizer, "aab") == Ids{0, 2});
}

TEST_CASE("what a text must not be and an id is not says so", "[text][tokenizer]") {
  const auto tokenizer = Tokenizer::from_json(bpe());
  CHECK_THROWS_WITH(tokenizer.encode("ab\xFF"), ContainsSubstring("no UTF-8 at byte 2 of 3"));
  CHECK_THROWS_AS(tokenizer.encode("\xED\xA0\x80"), c10::ValueError);  // a surrogate
  CHECK_THROWS_WITH(tokenizer.decode(Ids{7}), ContainsSubstring("7 is no token"));
  CHECK_THROWS_AS(tokenizer.id_to_token(-1), c10::IndexError);
  const std::vector<std::string> texts{"a", "\xFF", "b"};
  CHECK_THROWS_AS(tokenizer.encode_batch(texts, {.threads = 2}), c10::ValueError);
}

TEST_CASE("a tokenizer.json that asks for what is not supported is refused by its name",
          "[text][tokenizer]") {
  const auto refused = [](const std::string& json, const std::string& says) {
    CHECK_THROWS_WITH(Tokenizer::from_json(json), ContainsSubstring(says));
  };
  const std::string empty = R"("model": {"type": "BPE", "vocab": {}, "merges": []}})";
  refused("{", "refused");
  refused("{}", "model");
  refused(R"({"model": {"type": "Unigram", "vocab": {}}})", "the model \"Unigram\"");
  refused(R"({"normalizer": {"type": "Nmt"}, )" + empty, "the normalizer \"Nmt\"");
  refused(R"({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}})", "the model \"Unigram\"");
  refused("", "tokenizer.json is empty, expected a JSON object");
  refused(" \n", "tokenizer.json is empty");
  refused(R"({"pre_tokenizer": {"type": "Whitespace"}, )" + empty,
          "the pre_tokenizer \"Whitespace\"");
  refused(R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"},
              {"type": "Digits"}]}, )" +
              empty,
          "the pre_tokenizer \"Digits\" stands behind another that splits");
  refused(R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\d"},
              "behavior": "Isolated", "invert": false}, )" +
              empty,
          "expression \"\\d\"");
  refused(R"({"post_processor": {"type": "Swapping"}, )" + empty, "post_processor \"Swapping\"");
  refused(R"({"decoder": {"type": "CTC"}, )" + empty, "the decoder \"CTC\"");
  refused(bpe({}, R"(, "z": 9)"), "no token has the id 7");
  refused(bpe(R"("dropout": 0.1,)"), "\"dropout\"");
  refused(bpe(R"("unk_token": "?",)"), "unk_token \"?\"");
  refused(bpe({}, R"(, "z": 6)"), "have both the id 6");
  refused(bpe({}, R"(, "z": -1)"), "has the id -1");
  refused(bpe({}, R"(, "z": 4000000000000)"), "has the id 4000000000000");
  refused(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a a"]}})",
          "needs the token \"aa\"");
  refused(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["aa"]}})",
          "not two tokens and a space");
  refused(std::string(100'000, '['), "refused");
}

// What follows is what tokenizers 0.23.3 makes of the same files.
namespace {

using Ranges = std::vector<std::array<std::int64_t, 2>>;

// The file of bpe() with other members, each with a comma behind it, in front.
Tokenizer bpe_with(const std::string& members, const std::string& model_more = {}) {
  return Tokenizer::from_json("{" + members + bpe(model_more).substr(1));
}

// A BPE of characters.
Tokenizer characters(const std::string& members, const std::string& model_more = {}) {
  return Tokenizer::from_json(
      "{" + members + R"("model": {"type": "BPE", "merges": [],)" + model_more +
      R"("vocab": {"<unk>": 0, "a": 1, "b": 2, "<0xC3>": 3, "<0xA9>": 4}}})");
}

text::Encoding plain(const Tokenizer& tokenizer, const std::string& text) {
  return tokenizer.encode(text, {.add_special_tokens = false});
}

}  // namespace

TEST_CASE("white space that an added token takes with it does not hide another",
          "[text][tokenizer]") {
  const auto tokenizer = bpe_with(R"("added_tokens": [{"id": 7, "content": "<r>", "rstrip": true},
                                                      {"id": 8, "content": "\n"}],)");
  const auto first = tokenizer.encode("a<r> \nb");
  CHECK(first.ids == Ids{0, 7, 8, 1});
  CHECK((first.offsets == Ranges{{0, 1}, {1, 6}, {5, 6}, {6, 7}}));
  CHECK(ids_of(tokenizer, "a<r>\n ab") == Ids{0, 7, 8, 3, 2});
}

TEST_CASE("what is no token takes no place in the offsets", "[text][tokenizer]") {
  const auto found = plain(bpe_with({}), "ax\xC3\xA9 b");
  CHECK(found.ids == Ids{0, 5, 6, 3, 1});
  CHECK((found.offsets == Ranges{{0, 1}, {1, 3}, {2, 3}, {3, 4}, {4, 5}}));
}

TEST_CASE("bytes of a character stand ahead of an unknown token", "[text][tokenizer]") {
  const std::string rule = R"("unk_token": "<unk>", "byte_fallback": true,)";
  CHECK(ids_of(characters({}, rule),
               "a\xC3\xA9xy\xC3\xA9"
               "b") == Ids{1, 3, 4, 0, 3, 4, 0, 2});
  const auto fused = plain(characters({}, rule + R"("fuse_unk": true,)"), "xy\xC3\xA9ya");
  CHECK(fused.ids == Ids{3, 4, 0, 1});
  CHECK((fused.offsets == Ranges{{0, 1}, {1, 2}, {2, 4}, {4, 5}}));
}

TEST_CASE("what replaces a text has the place of its end", "[text][tokenizer]") {
  const auto found = plain(characters(R"("normalizer": {"type": "Replace", "content": "ab",
                                                        "pattern": {"String": "xy"}},)"),
                           "xya");
  CHECK(found.ids == Ids{1, 2, 1});
  CHECK((found.offsets == Ranges{{1, 2}, {1, 2}, {2, 3}}));
}

TEST_CASE("RoBERTa's template has two separators and one type", "[text][tokenizer]") {
  const auto tokenizer = bpe_with(
      R"("added_tokens": [{"id": 7, "content": "<s>", "special": true},
                          {"id": 8, "content": "</s>", "special": true}],
         "post_processor": {"type": "RobertaProcessing", "cls": ["<s>", 7], "sep": ["</s>", 8],
                            "trim_offsets": true, "add_prefix_space": false},)");
  const auto found = tokenizer.encode(" a b", " ab");
  CHECK(found.ids == Ids{7, 4, 3, 1, 8, 8, 3, 2, 8});
  CHECK(found.type_ids == Ids(9, 0));
  CHECK(found.special_tokens_mask == Ids{1, 0, 0, 0, 1, 1, 0, 0, 1});
  CHECK((found.offsets ==
         Ranges{{0, 0}, {1, 2}, {3, 3}, {3, 4}, {0, 0}, {0, 0}, {1, 1}, {1, 3}, {0, 0}}));
  const auto bare = tokenizer.encode(" a b", " ab", {.add_special_tokens = false});
  CHECK(bare.ids == Ids{4, 3, 1, 3, 2});
  CHECK(bare.type_ids == Ids(5, 0));
}

TEST_CASE("a template orders texts and types them also without special tokens",
          "[text][tokenizer]") {
  const auto tokenizer = bpe_with(
      R"("added_tokens": [{"id": 7, "content": "</s>", "special": true}],
         "post_processor": {"type": "TemplateProcessing",
           "single": [{"SpecialToken": {"id": "</s>", "type_id": 3}},
                      {"Sequence": {"id": "A", "type_id": 2}}],
           "pair": [{"Sequence": {"id": "B", "type_id": 1}},
                    {"SpecialToken": {"id": "</s>", "type_id": 3}},
                    {"Sequence": {"id": "A", "type_id": 2}}],
           "special_tokens": {"</s>": {"ids": [7]}}},)");
  const auto bare = tokenizer.encode("a", "b", {.add_special_tokens = false});
  CHECK(bare.ids == Ids{1, 0});
  CHECK(bare.type_ids == Ids{1, 2});
  const auto found = tokenizer.encode("a", "b");
  CHECK(found.ids == Ids{1, 7, 0});
  CHECK(found.type_ids == Ids{1, 3, 2});
  CHECK(plain(tokenizer, "a").type_ids == Ids{2});
}

TEST_CASE("a text without a pair is not cut by a rule for pairs", "[text][tokenizer]") {
  const auto tokenizer = bpe_with(R"("truncation": {"direction": "Right", "max_length": 2,
                                                    "strategy": "OnlySecond", "stride": 0},)");
  CHECK(tokenizer.encode("a").ids == Ids{0});
  CHECK(tokenizer.encode("a", "b b b").ids == Ids{0, 1});
  CHECK_THROWS_WITH(tokenizer.encode("ab ab"), ContainsSubstring("cuts the pair alone"));
}

TEST_CASE("lower case and marks are those of the reference's tables", "[text][tokenizer]") {
  const auto tokenizer = Tokenizer::from_json(
      R"({"normalizer": {"type": "Sequence",
                         "normalizers": [{"type": "Lowercase"}, {"type": "StripAccents"}]},
          "model": {"type": "BPE", "merges": [],
                    "vocab": {"\u019B": 0, "\uD803\uDD70": 1, "\uD833\uDF00": 2, "x": 3}}})");
  // U+A7DC and U+10D50 have lower case since Unicode 16; U+0903 and U+1CF2 are marks, and U+1CF00,
  // which is newer, is none.
  CHECK(
      ids_of(tokenizer, "\xEA\x9F\x9C\xF0\x90\xB5\x90\xE0\xA4\x83x\xE1\xB3\xB2\xF0\x9C\xBC\x80") ==
      Ids{0, 1, 3, 2});
}

TEST_CASE("a Metaspace takes all marks of the first token, and added tokens are normalized",
          "[text][tokenizer]") {
  const auto tokenizer = Tokenizer::from_json(
      R"({"normalizer": {"type": "Prepend", "prepend": "▁"},
          "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
          "added_tokens": [{"id": 3, "content": "N"}],
          "model": {"type": "BPE", "merges": [], "vocab": {"▁a▁b": 0, "▁": 1, "c": 2}}})");
  CHECK(tokenizer.decode(Ids{0, 1, 2}) == "ab c");
  CHECK(tokenizer.decode(Ids{1, 0}) == " a b");
  CHECK(tokenizer.decode(Ids{2, 3, 2}) == "c Nc");
  CHECK(tokenizer.id_to_token(3) == "N");
}

TEST_CASE("a piece is a token by its bytes, and the last of equal merges counts",
          "[text][tokenizer]") {
  const auto tokenizer = Tokenizer::from_json(
      R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
          "model": {"type": "BPE", "ignore_merges": true,
                    "vocab": {"Ã": 0, "©": 1, "模": 2, "a": 3, "b": 4, "c": 5, "ab": 6, "bc": 7},
                    "merges": [["a", "b"], ["b", "c"], ["a", "b"]]}})");
  CHECK(ids_of(tokenizer, "\xC3\xA9") == Ids{0, 1});
  CHECK(ids_of(tokenizer, "模").empty());
  CHECK(ids_of(tokenizer, "abc") == Ids{3, 7});
}

TEST_CASE("bytes behind a Split are split once more where they say so", "[text][tokenizer]") {
  const text::detail::PreTokenizer pieces(tutti::detail::parse_json(
      R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated",
           "invert": false, "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|)"
      R"([^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|)"
      R"(\\s+(?!\\S)|\\s+"}},
          {"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}]})"));
  std::vector<std::string> found;
  pieces(text::detail::to_text("a-b 12"),
         [&](const auto& from, std::size_t begin, std::size_t end) {
           found.push_back(
               text::detail::to_utf8(std::u32string_view(from.chars).substr(begin, end - begin)));
         });
  CHECK(found == std::vector<std::string>{" a", " -", "b", " ", " 1", " 2"});
}

TEST_CASE("numbers are cut off ahead of each of the steps that may be the last",
          "[text][tokenizer]") {
  const auto pieces_of = [](const std::string& digits, const std::string& last,
                            const std::string& text) {
    const text::detail::PreTokenizer pieces(
        tutti::detail::parse_json(R"({"type": "Sequence", "pretokenizers": [{"type": "Digits")" +
                                  digits + "}" + last + "]}"));
    std::vector<std::string> found;
    pieces(text::detail::to_text(text), [&](const auto& from, std::size_t begin, std::size_t end) {
      found.push_back(
          text::detail::to_utf8(std::u32string_view(from.chars).substr(begin, end - begin)));
    });
    return found;
  };
  using Pieces = std::vector<std::string>;
  const std::string each = R"(, "individual_digits": true)";
  CHECK(pieces_of("", "", "a 12b3") == Pieces{"a ", "12", "b", "3"});
  CHECK(pieces_of(each, "", "a 12b\xC2\xBD") == Pieces{"a ", "1", "2", "b", "\xC2\xBD"});
  CHECK(pieces_of("", "", "a\xF0\x96\xBF\xB4") ==
        Pieces{"a", "\xF0\x96\xBF\xB4"});  // of Unicode 17
  const std::string bytes = R"(, {"type": "ByteLevel", "add_prefix_space": false})";
  CHECK(pieces_of(each, bytes, "a  12b c") == Pieces{"a", "  ", "1", "2", "b", " c"});
  CHECK(pieces_of("", bytes, "a  12b c") == Pieces{"a", "  ", "12", "b", " c"});
  const std::string words = R"(, {"type": "BertPreTokenizer"})";
  CHECK(pieces_of(each, words, "ab12, c") == Pieces{"ab", "1", "2", ",", "c"});
  const std::string marks =
      R"(, {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"})";
  CHECK(pieces_of("", marks, "ab 12") == Pieces{"_ab", "_", "_12"});
}

TEST_CASE("a space that was put in front of an added token leaves its offsets",
          "[text][tokenizer]") {
  const auto tokenizer = bpe_with(
      R"("normalizer": {"type": "Prepend", "prepend": " "},
         "post_processor": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
         "added_tokens": [{"id": 7, "content": "Nab"}],)");
  CHECK((tokenizer.encode("Nab").offsets == Ranges{{1, 3}}));
}

TEST_CASE("a tokenizer is read from its file or its folder", "[text][tokenizer]") {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "tokenizer.json") << bpe();
  CHECK(Tokenizer::load(folder.path().string()).vocab_size() == 7);
  CHECK(Tokenizer::load((folder.path() / "tokenizer.json").string()).vocab_size() == 7);
  CHECK_THROWS_WITH(Tokenizer::load((folder.path() / "none").string()),
                    ContainsSubstring("give a tokenizer.json or its folder"));
  std::ofstream(folder.path() / "tokenizer.json") << "{}";
  CHECK_THROWS_WITH(Tokenizer::load(folder.path().string()),
                    ContainsSubstring("tokenizer.json': tokenizer: "));
}

namespace {

// BPE as it is defined: each step counts all pairs anew.
struct Learnt {
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;
};

Learnt learn_plainly(const std::map<std::string, int>& pieces, std::size_t vocab_size, int least) {
  Learnt out;
  std::map<std::string, std::size_t> ids;
  const auto id_of = [&](const std::string& token) {
    if (ids.emplace(token, out.tokens.size()).second) {
      out.tokens.push_back(token);
    }
    return ids.at(token);
  };
  id_of("<|endoftext|>");
  std::vector<char32_t> alphabet(text::detail::byte_alphabet().begin(),
                                 text::detail::byte_alphabet().end());
  std::sort(alphabet.begin(), alphabet.end());
  for (const char32_t c : alphabet) {
    id_of(text::detail::to_utf8({&c, 1}));
  }
  std::vector<std::pair<std::vector<std::size_t>, int>> words;
  for (const auto& [piece, count] : pieces) {
    std::vector<std::size_t> word;
    for (const char c : piece) {
      word.push_back(id_of(text::detail::to_utf8(
          {&text::detail::byte_alphabet()[static_cast<unsigned char>(c)], 1})));
    }
    words.emplace_back(word, count);
  }
  while (out.tokens.size() < vocab_size) {
    std::map<std::pair<std::size_t, std::size_t>, int> counts;
    for (const auto& [word, count] : words) {
      for (std::size_t i = 1; i < word.size(); ++i) {
        counts[{word[i - 1], word[i]}] += count;
      }
    }
    const auto best = std::max_element(counts.begin(), counts.end(), [](auto& a, auto& b) {
      return a.second < b.second;  // the first of equal ones, which has the smallest ids
    });
    if (best == counts.end() || best->second < least) {
      break;
    }
    const auto [first, second] = best->first;
    out.merges.emplace_back(out.tokens[first], out.tokens[second]);
    const std::size_t id = id_of(out.tokens[first] + out.tokens[second]);
    for (auto& [word, count] : words) {
      std::vector<std::size_t> merged;
      for (std::size_t i = 0; i < word.size(); ++i) {
        const bool here = i + 1 < word.size() && word[i] == first && word[i + 1] == second;
        merged.push_back(here ? id : word[i]);
        i += here ? 1 : 0;
      }
      word = merged;
    }
  }
  return out;
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void check_learnt(const Tokenizer& tokenizer, const Learnt& expected) {
  const TemporaryFolder folder;
  tokenizer.save(folder.path().string());
  const auto file = tutti::detail::parse_json(
      file_text((folder.path() / "tokenizer.json").string()), {.values = 1'000'000});
  std::vector<std::pair<std::string, std::string>> merges;
  for (const auto& merge : file["model"]["merges"].array()) {
    merges.emplace_back(merge[0].string(), merge[1].string());
  }
  CHECK(merges == expected.merges);
  REQUIRE(tokenizer.vocab_size() == static_cast<std::int64_t>(expected.tokens.size()));
  for (std::size_t id = 0; id < expected.tokens.size(); ++id) {
    CHECK(tokenizer.id_to_token(static_cast<std::int64_t>(id)) == expected.tokens[id]);
  }
}

}  // namespace

TEST_CASE("a byte-level BPE is learnt as its definition says", "[text][tokenizer]") {
  const std::map<std::string, int> pieces{
      {"low", 5},  {"lower", 2},  {"newest", 6},           {"widest", 3},
      {"aaaa", 4}, {"abcabc", 3}, {"\xC3\xA9\xC3\xA9", 4}, {"bc", 2}};
  std::vector<std::string> texts;  // a text is a piece
  for (const auto& [piece, count] : pieces) {
    texts.insert(texts.end(), static_cast<std::size_t>(count), piece);
  }
  for (const int least : {1, 2, 4}) {
    const auto tokenizer = Tokenizer::train_bpe(texts, {.vocab_size = 290, .min_frequency = least});
    check_learnt(tokenizer, learn_plainly(pieces, 290, least));
  }
  check_learnt(Tokenizer::train_bpe(texts, {.vocab_size = 262}), learn_plainly(pieces, 262, 2));
  check_learnt(Tokenizer::train_bpe(texts, {.vocab_size = 257}), learn_plainly(pieces, 257, 2));
}

TEST_CASE("a BPE learnt from random texts is that of the definition", "[text][tokenizer]") {
  std::uint32_t state = 12345;
  const auto draw = [&](std::uint32_t below) {
    state = state * 1664525 + 1013904223;
    return (state >> 16) % below;
  };
  for (int run = 0; run < 20; ++run) {
    std::map<std::string, int> pieces;
    std::vector<std::string> texts;
    for (int i = 0; i < 60; ++i) {
      std::string piece;
      for (std::uint32_t size = 1 + draw(9); size > 0; --size) {
        piece += static_cast<char>('a' + draw(3));
      }
      ++pieces[piece];
      texts.push_back(piece);
    }
    check_learnt(Tokenizer::train_bpe(texts, {.vocab_size = 330}), learn_plainly(pieces, 330, 2));
  }
}

TEST_CASE("a tokenizer that was learnt encodes, is saved and read again", "[text][tokenizer]") {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += "The trainer trains, and the model learns \xC3\xA9t\xC3\xA9 " + std::to_string(i % 7) +
            ".\n\n";
  }
  const auto tokenizer = Tokenizer::train_bpe(
      text, {.vocab_size = 400, .special_tokens = {"<|endoftext|>", "<|pad|>"}});
  CHECK(tokenizer.token_to_id("<|pad|>") == 1);
  const std::string some = "the trainer learns<|endoftext|> \xF0\x9F\x99\x82";
  const Ids ids = ids_of(tokenizer, some);
  CHECK(ids.size() < 12);
  CHECK(tokenizer.decode(ids, false) == some);
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "mine.json").string();
  tokenizer.save(path);
  CHECK(ids_of(Tokenizer::load(path), some) == ids);
  CHECK_THROWS_WITH(tokenizer.save((folder.path() / "none" / "a.json").string()),
                    ContainsSubstring("cannot be written"));
}

TEST_CASE("a tokenizer is saved with what AutoTokenizer reads", "[text][tokenizer]") {
  const TemporaryFolder above;
  const std::string folder = (above.path() / "a" / "b").string();
  const auto tokenizer = Tokenizer::train_bpe(
      std::string("a text"), {.vocab_size = 258, .special_tokens = {"<s>", "</s>"}});
  const auto config = [&] {
    return tutti::detail::parse_json(file_text(folder + "/tokenizer_config.json"));
  };
  tokenizer.save_pretrained(folder, {.eos_token = "</s>"});
  CHECK(ids_of(Tokenizer::load(folder), "a text") == ids_of(tokenizer, "a text"));
  CHECK(config() == tutti::detail::parse_json(R"({"tokenizer_class": "PreTrainedTokenizerFast",
      "clean_up_tokenization_spaces": false, "model_input_names": ["input_ids", "attention_mask"],
      "eos_token": "</s>"})"));
  tokenizer.save_pretrained(folder, {.bos_token = "<s>",
                                     .unk_token = "a",
                                     .pad_token = "</s>",
                                     .model_max_length = 128,
                                     .chat_template = "{{ messages }}"});
  CHECK(config().at("eos_token").string() == "</s>");  // stays
  CHECK(config().at("bos_token").string() == "<s>");
  CHECK(config().at("unk_token").string() == "a");
  CHECK(config().at("pad_token").string() == "</s>");
  CHECK(config().at("model_max_length").integer() == 128);
  CHECK(config().at("chat_template").string() == "{{ messages }}");

  std::ofstream(folder + "/tokenizer_config.json")
      << R"({"tokenizer_class": "LlamaTokenizer", "eos_token": {"content": "x"}, "own": 1})";
  std::ofstream(folder + "/chat_template.jinja") << "old";
  Tokenizer::from_json(word_pieces())
      .save_pretrained(folder, {.eos_token = "[SEP]", .chat_template = "new"});
  CHECK(config().at("tokenizer_class").string() == "LlamaTokenizer");
  CHECK(config().at("eos_token").string() == "[SEP]");
  CHECK(config().at("own").integer() == 1);
  CHECK(config().at("model_input_names").size() == 3);
  CHECK(file_text(folder + "/chat_template.jinja") == "new");
}

TEST_CASE("what a saved tokenizer cannot have is refused before anything is written",
          "[text][tokenizer]") {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  const auto tokenizer = Tokenizer::from_json(word_pieces());
  CHECK_THROWS_WITH(tokenizer.save_pretrained(path, {.eos_token = "</s>"}),
                    ContainsSubstring("eos_token is \"</s>\", which is none of the 12 tokens"));
  CHECK_THROWS_WITH(tokenizer.save_pretrained(path, {.model_max_length = -1}),
                    ContainsSubstring("model_max_length is -1"));
  std::ofstream(folder.path() / "tokenizer_config.json") << "[1]";
  CHECK_THROWS_WITH(tokenizer.save_pretrained(path),
                    ContainsSubstring("tokenizer_config.json' stands in the folder") &&
                        ContainsSubstring("expected an object"));
  CHECK_FALSE(std::filesystem::exists(folder.path() / "tokenizer.json"));
  CHECK_THROWS_WITH(tokenizer.save_pretrained(path + "/tokenizer_config.json/a"),
                    ContainsSubstring("cannot be made"));
}

TEST_CASE("a long text is learnt in parts without a difference", "[text][tokenizer]") {
  std::string text;
  while (text.size() < (std::size_t{5} << 19)) {
    text += "Some words  of a text\n\n  that's long; " + std::to_string(text.size()) + "\n";
  }
  text::detail::BpeTrainer in_parts;
  const text::detail::PreTokenizer pieces(
      tutti::detail::parse_json(R"({"type": "ByteLevel", "add_prefix_space": false})"));
  in_parts.feed(text, pieces);
  std::map<std::string, std::int64_t> expected;
  pieces(text::detail::to_text(text), [&](const auto& from, std::size_t begin, std::size_t end) {
    ++expected[text::detail::to_utf8(std::u32string_view(from.chars).substr(begin, end - begin))];
  });
  CHECK(std::map<std::string, std::int64_t>(in_parts.pieces().begin(), in_parts.pieces().end()) ==
        expected);
}

TEST_CASE("options that a BPE cannot be learnt with are refused", "[text][tokenizer]") {
  const std::string text = "a text";
  CHECK_THROWS_WITH(Tokenizer::train_bpe(text, {.vocab_size = 256}),
                    ContainsSubstring("vocab_size is 256, expected 257 or more"));
  CHECK_THROWS_WITH(Tokenizer::train_bpe(text, {.min_frequency = 0}),
                    ContainsSubstring("min_frequency is 0"));
  CHECK_THROWS_WITH(Tokenizer::train_bpe(text, {.special_tokens = {"<a>", "<a>"}}),
                    ContainsSubstring("the special token \"<a>\" is there twice"));
  CHECK_THROWS_AS(Tokenizer::train_bpe(std::string("\xFF")), c10::ValueError);
}

#else

TEST_CASE("tokenizers", "[text][tokenizer]") {
  tutti_test::skip("libutf8proc was not found");
}

#endif

}  // namespace UNITY_BUILD_UNIQUE_ID
