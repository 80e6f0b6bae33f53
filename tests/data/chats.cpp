#include <tutti/data/chats.hpp>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <tutti/data/instructions.hpp>
#ifdef TUTTI_WITH_UTF8PROC
#include <tutti/text/chat_template.hpp>
#endif

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using data::has_chats;
using data::read_chats;
using Ids = std::vector<std::int64_t>;

std::string file_of(const TemporaryFolder& folder, const std::string& text) {
  const auto path = folder / "train.jsonl";
  std::ofstream(path) << text;
  return path.string();
}

// A letter is a token; the assistant writes its letters and a 0 behind them.
EncodedChat letters(const std::vector<ChatMessage>& messages) {
  EncodedChat out;
  for (const ChatMessage& message : messages) {
    for (const char letter : message.content + '\0') {
      out.ids.push_back(letter);
      out.assistant_mask.push_back(message.role == "assistant" ? 1 : 0);
    }
  }
  return out;
}

constexpr char two_turns[] =
    R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"},)"
    R"( {"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}], "more": 0})";

}  // namespace

TEST_CASE("a file of JSON lines has chats of several turns", "[data][chats]") {
  const TemporaryFolder folder;
  const std::string path = file_of(folder, std::string(two_turns) + "\n\n" + two_turns);
  CHECK(has_chats(path));
  CHECK_FALSE(has_chats(path, "conversations"));
  const auto chats = read_chats(path, {.encode_chat = letters});
  REQUIRE(chats.size() == 2);
  CHECK(chats[1].ids == Ids{'a', 0, 'b', 'c', 0, 'd', 0, 'e', 0});
  CHECK(chats[1].assistant_mask == Ids{0, 0, 1, 1, 1, 0, 0, 1, 1});
  const auto cut = read_chats(path, {.encode_chat = letters, .max_length = 4});
  CHECK(cut.at(0).ids == Ids{'a', 0, 'b', 'c'});
  CHECK(cut.at(0).assistant_mask == Ids{0, 0, 1, 1});
}

TEST_CASE("a chat that is cut before its answer is left out", "[data][chats]") {
  const TemporaryFolder folder;
  const std::string longer =
      R"({"messages": [{"role": "user", "content": "abc"}, {"role": "assistant", "content": ""}]})";
  const std::string path = file_of(folder, longer + "\n" + two_turns);
  CHECK(read_chats(path, {.encode_chat = letters}).size() == 2);
  const auto rest = read_chats(path, {.encode_chat = letters, .max_length = 4});
  REQUIRE(rest.size() == 1);
  CHECK(rest[0].ids.size() == 4);
  CHECK_THROWS_WITH(read_chats(path, {.encode_chat = letters, .max_length = 2}),
                    ContainsSubstring("has no chat whose first 2 tokens have an answer"));
}

TEST_CASE("a line that is no chat is named", "[data][chats]") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& line, const std::string& says) {
    const std::string path = file_of(folder, std::string(two_turns) + "\n" + line);
    CHECK_THROWS_WITH(read_chats(path, {.encode_chat = letters}),
                      ContainsSubstring(path + "', line 2: ") && ContainsSubstring(says));
  };
  const auto chat = [](const std::string& message) {
    return "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, " + message + "]}";
  };
  refused("{", "JSON");
  refused("[]", "it is an array, expected an object with \"messages\"");
  refused("{}", "\"messages\" is not there, expected a list of messages");
  refused("{\"messages\": \"a\"}", "\"messages\" is a string, expected a list");
  refused(chat("3"), "\"role\" of message 1 is not there, expected a text");
  refused(chat("{\"role\": \"assistant\"}"), "\"content\" of message 1 is not there");
  refused(chat("{\"role\": \"assistant\", \"content\": null}"), "of message 1 is null");
  refused(chat("{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": []}"),
          "message 1 calls tools, which are not supported");
  refused(chat("{\"role\": \"user\", \"content\": \"b\"}"), "nothing to learn");
  const std::string path = file_of(folder, two_turns);
  CHECK_THROWS_WITH(read_chats(path, {}), ContainsSubstring("set encode_chat"));
  CHECK_THROWS_WITH(read_chats(path, {.encode_chat = letters, .max_length = 1}),
                    ContainsSubstring("max_length is 1"));
  const auto uneven = [](const std::vector<ChatMessage>&) { return EncodedChat{{1, 2}, {1}}; };
  CHECK_THROWS_WITH(read_chats(path, {.encode_chat = uneven}),
                    ContainsSubstring("line 1: encode_chat gave 2 ids and a mask of 1"));
}

#ifdef TUTTI_WITH_UTF8PROC

TEST_CASE("chats become examples by a model's template", "[data][chats]") {
  const TemporaryFolder folder;
  const auto tokenizer = text::Tokenizer::train_bpe(
      "abc", {.vocab_size = 262, .special_tokens = {"[INST]", "[/INST]", "<s>", "</s>"}});
  const auto chat = text::ChatTemplate::from_text(
      "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != "
      "(loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate "
      "user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ "
      "'[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ "
      "message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles "
      "are supported!') }}{% endif %}{% endfor %}",
      "<s>", "</s>");
  const data::InstructionSet set(
      read_chats(file_of(folder, two_turns), {.encode_chat = [&](const auto& messages) {
                   return chat.encode_chat(tokenizer, messages);
                 }}));
  REQUIRE(set.size() == 1);
  const at::Tensor ids = set.get(0).at("input_ids");
  const at::Tensor learnt = ids.index({set.get(0).at("labels").ne(-100)}).contiguous();
  const auto text_of = [&](const at::Tensor& some) {
    return tokenizer.decode(
        {some.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(some.numel())}, false);
  };
  CHECK(text_of(ids) == "<s>[INST] a [/INST]bc</s>[INST] d [/INST]e</s>");
  CHECK(text_of(learnt) == "bc</s>e</s>");
}

#endif

}  // namespace UNITY_BUILD_UNIQUE_ID
