#include <tutti/text/decode_stream.hpp>

#include <string>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

#ifdef TUTTI_WITH_UTF8PROC

using namespace tutti;

TEST_CASE("bytes of a character become text when the last has come", "[text][decode_stream]") {
  const auto tokenizer = text::Tokenizer::from_json(R"({"decoder": {"type": "ByteLevel"},
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
      "model": {"type": "BPE", "vocab": {"ab": 0, "Ã": 1, "©": 2, "Ġ": 3}, "merges": []}})");
  text::DecodeStream stream(tokenizer);
  CHECK(stream.step(0) == "ab");
  CHECK(stream.step(1).empty());
  CHECK(stream.step(2) == "\xC3\xA9");
  CHECK(stream.step(3) == " ");
  CHECK(stream.step(1).empty());
  CHECK(stream.finish() == "\xEF\xBF\xBD");
  CHECK_THROWS_AS(stream.step(4), c10::IndexError);
}

TEST_CASE("only the first token of a text loses its space", "[text][decode_stream]") {
  const auto tokenizer = text::Tokenizer::from_json(R"({
      "decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
      "added_tokens": [{"id": 0, "content": "<s>", "special": true}],
      "model": {"type": "BPE", "merges": [],
        "vocab": {"<s>": 0, "▁a": 1, "▁b": 2, "<0xC3>": 3, "<0xA9>": 4}}})");
  text::DecodeStream stream(tokenizer);
  std::string text;
  for (const std::int64_t id : {0, 1, 2, 0, 3, 4, 1}) {
    text += stream.step(id);
  }
  CHECK(text == "a b\xC3\xA9 a");
  CHECK(stream.finish().empty());
}

TEST_CASE("no text is lost where a byte spoils those before it", "[text][decode_stream]") {
  const auto tokenizer = text::Tokenizer::from_json(R"({
      "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
      "model": {"type": "BPE", "merges": [], "vocab": {"a": 0, "<0x3D>": 1, "<0x8A>": 2}}})");
  text::DecodeStream stream(tokenizer);
  std::string text;
  for (const std::int64_t id : {0, 1, 2, 0}) {
    text += stream.step(id);
  }
  CHECK(text ==
        "a=\xEF\xBF\xBD\xEF\xBF\xBD"
        "a");
  CHECK(stream.finish().empty());
}

#else

TEST_CASE("streams of tokens", "[text][decode_stream]") {
  tutti_test::skip("libutf8proc was not found");
}

#endif

}  // namespace UNITY_BUILD_UNIQUE_ID
