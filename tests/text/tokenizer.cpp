#include <tutti/text/tokenizer.hpp>

#include <string>
#include <vector>

#include "support/catch.hpp"

#ifdef TUTTI_WITH_UTF8PROC

#include <fstream>

#include "support/temporary_folder.hpp"

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
  refused(R"({"pre_tokenizer": {"type": "Digits"}, )" + empty, "the pre_tokenizer \"Digits\"");
  refused(R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\d"},
              "behavior": "Isolated", "invert": false}, )" +
              empty,
          "expression \"\\d\"");
  refused(R"({"post_processor": {"type": "RobertaProcessing"}, )" + empty, "RobertaProcessing");
  refused(R"({"decoder": {"type": "CTC"}, )" + empty, "the decoder \"CTC\"");
  refused(bpe(R"("dropout": 0.1,)"), "\"dropout\"");
  refused(bpe(R"("unk_token": "?",)"), "unk_token \"?\"");
  refused(bpe({}, R"(, "z": 9)"), "no token has the id 7");
  refused(bpe({}, R"(, "z": 6)"), "have both the id 6");
  refused(bpe({}, R"(, "z": -1)"), "has the id -1");
  refused(bpe({}, R"(, "z": 4000000000000)"), "has the id 4000000000000");
  refused(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a a"]}})",
          "needs the token \"aa\"");
  refused(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["aa"]}})",
          "not two tokens and a space");
  refused(std::string(100'000, '['), "refused");
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

#else

TEST_CASE("tokenizers", "[text][tokenizer]") {
  tutti_test::skip("libutf8proc was not found");
}

#endif
