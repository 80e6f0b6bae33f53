#include <tutti/text/chat_template.hpp>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using text::ChatTemplate;
using text::ChatTemplateOptions;
using tutti::detail::Json;

constexpr char chatml[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ "
    "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\\n' }}{% endif %}";

// What Transformers 5.23 made of published templates.
Json recorded() {
  std::string problem;
  const auto text = tutti::detail::read_regular_file(
      std::string(TUTTI_SOURCE_DIR) + "/tests/text/chat_templates.json", problem);
  REQUIRE(text);
  return tutti::detail::parse_json(*text);
}

std::vector<ChatMessage> messages_of(const Json& list) {
  std::vector<ChatMessage> out;
  for (const Json& one : list.array()) {
    out.push_back({one["role"].string(), one["content"].string()});
  }
  return out;
}

// What a template that is known by its hash alone writes.
std::string write(const text::detail::KnownChatTemplate& known, const Json& from,
                  const std::vector<ChatMessage>& messages, const ChatTemplateOptions& options) {
  text::detail::ChatText out;
  known.format({messages, from["bos_token"].string(), from["eos_token"].string(),
                options.add_generation_prompt, options.enable_thinking, options.date_string},
               out);
  return out.text;
}

void check_texts(const Json& conversations, const Json& from, const char* key,
                 const ChatTemplateOptions& options) {
  const std::string& digits = from["hash"].string();
  std::uint64_t hash = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), hash, 16);
  const auto* known = text::detail::known_chat_template(hash);
  REQUIRE(known != nullptr);
  const auto apply = [&](const std::vector<ChatMessage>& messages) {
    if (const Json* chat_template = from.find("template")) {
      const auto chat = ChatTemplate::from_text(chat_template->string(), from["bos_token"].string(),
                                                from["eos_token"].string());
      REQUIRE(chat.family() == known->name);
      return chat.apply_chat_template(messages, options);
    }
    return write(*known, from, messages, options);
  };
  for (std::size_t i = 0; i < conversations.size(); ++i) {
    INFO(from["name"].string() << ", " << key << ", conversation " << i);
    const auto messages = messages_of(conversations[i]);
    const Json& expected = from[key][i];
    if (expected.is_string()) {
      CHECK(apply(messages) == expected.string());
    } else {
      CHECK_THROWS_WITH(apply(messages), ContainsSubstring(expected["error"].string()));
    }
  }
}

}  // namespace

TEST_CASE("chats become the texts that Transformers makes of them", "[text][chat_template]") {
  const Json file = recorded();
  REQUIRE(file["templates"].size() == 25);
  for (const Json& one : file["templates"].array()) {
    const ChatTemplateOptions plain{.date_string =
                                        one["name"].string() == "llama3.2" ? "26 Jul 2024" : ""};
    ChatTemplateOptions prompt = plain;
    prompt.add_generation_prompt = true;
    check_texts(file["conversations"], one, "texts", plain);
    check_texts(file["conversations"], one, "prompts", prompt);
    if (one.contains("prompts_without_thinking")) {
      prompt.enable_thinking = false;
      check_texts(file["conversations"], one, "prompts_without_thinking", prompt);
    }
  }
}

TEST_CASE("a template is known by its text, however its line ends are written",
          "[text][chat_template]") {
  const std::string text = chatml;
  CHECK(ChatTemplate::from_text(text).family() == "ChatML");
  CHECK(ChatTemplate::from_text(text + "\n").family() == "ChatML");
  CHECK(ChatTemplate::from_text(text + "\r\n").family() == "ChatML");
  CHECK_THROWS_WITH(ChatTemplate::from_text(text + "\n\n"), ContainsSubstring("is not known"));
  CHECK_THROWS_WITH(ChatTemplate::from_text(text + "!"), ContainsSubstring("is not known"));
  CHECK_THROWS_AS(ChatTemplate::from_text(""), c10::ValueError);
}

TEST_CASE("a chat without messages or with other roles is refused", "[text][chat_template]") {
  const auto chat = ChatTemplate::from_text(chatml);
  CHECK_THROWS_WITH(chat.apply_chat_template({}), ContainsSubstring("no message"));
  CHECK_THROWS_WITH(chat.apply_chat_template({{"user", "a"}, {"tool", "b"}}),
                    ContainsSubstring("message 1 has the role \"tool\""));
}

TEST_CASE("the date of Llama 3.2 is today's, that of Llama 3.1 is fixed", "[text][chat_template]") {
  const Json bos = tutti::detail::parse_json(R"({"bos_token": "", "eos_token": ""})");
  const auto text = [&](std::uint64_t hash, const std::string& date) {
    return write(*text::detail::known_chat_template(hash), bos, {{"user", "a"}},
                 {.date_string = date});
  };
  CHECK_THAT(text(0x4fd30286bc0da17c, ""), ContainsSubstring("Today Date: 26 Jul 2024\n"));
  CHECK_THAT(text(0x4fd30286bc0da17c, "01 Feb 2030"), ContainsSubstring("Date: 01 Feb 2030\n"));
  CHECK_THAT(text(0x1a6da26e3aef1b34, ""),
             ContainsSubstring("Today Date: " + text::detail::today() + "\n"));
  CHECK(text::detail::today().size() == 11);
}

TEST_CASE("a folder's template is a text, one of a list, or a file of its own",
          "[text][chat_template]") {
  const TemporaryFolder folder;
  const auto config = [&](const std::string& json) {
    std::ofstream(folder.path() / "tokenizer_config.json") << json;
  };
  const auto load = [&](std::string_view name = "default") {
    return ChatTemplate::load(folder.path().string(), name);
  };
  CHECK_THROWS_WITH(load(), ContainsSubstring("tokenizer_config.json' cannot be read"));
  config("{");
  CHECK_THROWS_WITH(load(), ContainsSubstring("JSON"));
  config("{}");
  CHECK_THROWS_WITH(load(), ContainsSubstring("has no \"chat_template\""));

  const std::string quoted =
      std::string("\"") + R"({% for message in messages %})" +
      R"({{'<|im_start|>' + message['role'] + '\n' + message['content'] + )" +
      R"('<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ )" +
      R"('<|im_start|>assistant\n' }}{% endif %}")";
  config("{\"chat_template\": " + quoted + "}");
  CHECK(load().apply_chat_template({{"user", "a"}}) == "<|im_start|>user\na<|im_end|>\n");
  CHECK_THROWS_WITH(load("tool_use"), ContainsSubstring("none that is called \"tool_use\""));
  config(R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": [
      {"name": "tool_use", "template": "{{ tools }}"}, {"name": "default", "template": )" +
         quoted + "}]}");
  CHECK(load().family() == "ChatML");
  CHECK_THROWS_WITH(load("tool_use"), ContainsSubstring("\"{{ tools }}...\" is not known"));
  CHECK_THROWS_WITH(load("rag"), ContainsSubstring("there are: tool_use, default"));
  std::ofstream(folder.path() / "chat_template.jinja")
      << "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] "
         "' "
         "+ message['content'] + '[/INST]' }}{% elif message['role'] == 'system' %}{{ "
         "'[SYSTEM_PROMPT] ' + message['content'] + '[/SYSTEM_PROMPT]' }}{% elif message['role'] "
         "== "
         "'assistant' %}{{ ' ' + message['content'] + eos_token }}{% else %}{{ "
         "raise_exception('Only user, system and assistant roles are supported!') }}{% endif %}{% "
         "endfor %}\n";
  const std::vector<tutti::ChatMessage> turn{{"user", "a"}, {"assistant", "b"}};
  CHECK(load().apply_chat_template(turn) == "<s>[INST] a[/INST] b</s>");
  // Without tokenizer_config.json the tokens are those of the other file; without both, not known.
  std::filesystem::remove(folder / "tokenizer_config.json");
  CHECK_THROWS_WITH(load(), ContainsSubstring("is there to say which these are"));
  CHECK_THROWS_WITH(load("tool_use"), ContainsSubstring("tokenizer_config.json' cannot be read"));
  std::ofstream(folder / "special_tokens_map.json")
      << R"({"bos_token": "<S>", "eos_token": {"content": "</S>"}})";
  CHECK(load().apply_chat_template(turn) == "<S>[INST] a[/INST] b</S>");
}

#ifdef TUTTI_WITH_UTF8PROC

TEST_CASE("the mask of an encoded chat has what the assistant writes", "[text][chat_template]") {
  const auto tokenizer = text::Tokenizer::from_json(R"({
    "added_tokens": [{"id": 9, "content": "<|im_start|>", "special": true},
                     {"id": 10, "content": "<|im_end|>", "special": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": {"type": "ByteLevel", "trim_offsets": true, "add_prefix_space": false},
    "model": {"type": "BPE", "merges": [["Ã", "©"]],
      "vocab": {"a": 0, "s": 1, "u": 2, "r": 3, "Ã": 4, "©": 5, "Ã©": 6, "Ċ": 7, "Ġ": 8,
                "e": 11, "i": 12, "t": 13, "n": 14}}})");
  const auto chat = ChatTemplate::from_text(chatml);
  const EncodedChat found = chat.encode_chat(
      tokenizer, {{"user", "\xC3\xA9"}, {"assistant", " \xC3\xA9t\n"}, {"user", "a"}});
  using Ids = std::vector<std::int64_t>;
  CHECK(found.ids == Ids{9, 2, 1,  11, 3,  7, 6,  10, 7,              // user
                         9, 0, 1,  1,  12, 1, 13, 0,  14, 13, 7,      // assistant
                         8, 6, 13, 7,  10, 7,                         // its answer
                         9, 2, 1,  11, 3,  7, 0,  10, 7});            // user
  CHECK(found.assistant_mask == Ids{0, 0, 0, 0, 0, 0, 0, 0, 0,        //
                                    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                    1, 1, 1, 1, 1, 0,                 //
                                    0, 0, 0, 0, 0, 0, 0, 0, 0});
}

// Printed by apply_chat_template(..., return_assistant_tokens_mask=True) of Transformers 5.23 for
// ChatML with {% generation %} around what the assistant writes, and a BPE that tokenizers learnt.
TEST_CASE("the assistant's tokens are those of Transformers", "[text][chat_template][golden]") {
  std::string text;
  for (int i = 0; i < 3; ++i) {
    text +=
        "Count on from ten, please. user assistant system One two three! What is a fugue? A "
        "piece of music, of voices that enter one after the other.\n";
  }
  const auto tokenizer = text::Tokenizer::train_bpe(
      text, {.vocab_size = 300, .special_tokens = {"<|im_start|>", "<|im_end|>"}});
  const EncodedChat found = ChatTemplate::from_text(chatml).encode_chat(
      tokenizer, {{"system", "One voice."},
                  {"user", "What is a fugue?"},
                  {"assistant", " A piece of music\n"},
                  {"user", "of ten?"},
                  {"assistant", "of voices, \xC3\xA9"}});
  using Ids = std::vector<std::int64_t>;
  CHECK(found.ids == Ids{0,   297, 296, 278, 200, 273, 222, 87,  292, 15,  1,   200, 0,   268, 260,
                         200, 274, 264, 222, 266, 262, 269, 86,  284, 70,  32,  1,   200, 0,   275,
                         84,  266, 298, 200, 222, 34,  270, 288, 271, 222, 290, 286, 200, 1,   200,
                         0,   268, 260, 200, 80,  71,  259, 279, 32,  1,   200, 0,   275, 84,  266,
                         298, 200, 80,  71,  222, 87,  292, 84,  13,  222, 129, 104, 1,   200});
  Ids mask(74, 0);
  std::fill(mask.begin() + 34, mask.begin() + 44, 1);
  std::fill(mask.begin() + 62, mask.begin() + 73, 1);
  CHECK(found.assistant_mask == mask);
}

#endif

}  // namespace UNITY_BUILD_UNIQUE_ID
