// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/chat.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/regular_file.hpp>
#include <tutti/text/detail/chat_formats.hpp>
#include <tutti/text/tokenizer.hpp>

/// Chats as the texts that a model was trained on.
namespace tutti::text {

/// Options of ChatTemplate::apply_chat_template(), as Transformers has them.
struct ChatTemplateOptions {
  bool add_generation_prompt = false;  ///< ends with what stands before an answer
  bool enable_thinking = true;         ///< Qwen 3: false: a prompt has empty thoughts
  /// Llama 3.1 and 3.2: the date that the system message names, as "26 Jul 2024"; empty: that very
  /// date for 3.1, today's for 3.2.
  std::string date_string = {};
};

/// A chat template of a Hugging Face folder, recognised by its text.
///
///     const auto chat = tutti::text::ChatTemplate::load("Qwen2.5-0.5B-Instruct");
///     const std::string prompt = chat.apply_chat_template({{"user", "Who are you?"}},
///                                                         {.add_generation_prompt = true});
///
/// Known are ChatML, Qwen 1.5 to 3, Llama 2 to 3.2, Mistral's and Mixtral's, Zephyr and Gemma. The
/// texts are those of Transformers for messages of the roles system, user and assistant; tools are
/// not supported.
class ChatTemplate {
 public:
  /// folder: has chat_template.jinja, or tokenizer_config.json with "chat_template", a text or a
  /// list of named ones, of which `name` is taken. The tokens of beginning and end are those of
  /// tokenizer_config.json, where that is missing of special_tokens_map.json.
  /// Throws c10::ValueError when there is none of that name, its text is not known, or it writes a
  /// token that no file has.
  static ChatTemplate load(const std::string& folder, std::string_view name = "default");

  /// chat_template: the text. bos_token, eos_token: what a text begins and a turn ends with where
  /// the template says so. Throws c10::ValueError when the text is not known.
  static ChatTemplate from_text(std::string_view chat_template, std::string bos_token = {},
                                std::string eos_token = {});

  /// Whose it is, as "Llama 3.1".
  [[nodiscard]] std::string_view family() const { return known_->name; }

  /// The text of a chat.
  ///
  /// Throws c10::ValueError when there is no message, a role is neither system, user nor assistant,
  /// or the template refuses the order of the roles; the sentence is the template's.
  [[nodiscard]] std::string apply_chat_template(const std::vector<ChatMessage>& messages,
                                                const ChatTemplateOptions& options = {}) const {
    return render(messages, options).text;
  }

#ifdef TUTTI_WITH_UTF8PROC
  /// The tokens of a chat, and which of them the assistant writes. The tokenizer adds nothing, as
  /// special tokens stand in the text. Throws as apply_chat_template().
  [[nodiscard]] EncodedChat encode_chat(const Tokenizer& tokenizer,
                                        const std::vector<ChatMessage>& messages,
                                        const ChatTemplateOptions& options = {}) const;
#endif

 private:
  ChatTemplate(const detail::KnownChatTemplate& known, std::string bos, std::string eos)
      : known_(&known), bos_(std::move(bos)), eos_(std::move(eos)) {}

  [[nodiscard]] detail::ChatText render(const std::vector<ChatMessage>& messages,
                                        const ChatTemplateOptions& options) const;

  const detail::KnownChatTemplate* known_;
  std::string bos_;
  std::string eos_;
};

}  // namespace tutti::text

namespace tutti::text {

namespace detail {

// "<s>" of "<s>" or {"content": "<s>"}; empty where there is none.
inline std::string token_of_config(const tutti::detail::Json& config, const char* key) {
  const auto* found = config.find(key);
  if (found != nullptr && found->is_object()) {
    found = found->find("content");
  }
  return found != nullptr && found->is_string() ? found->string() : std::string();
}

// The text of the template `name` in a tokenizer_config.json.
inline std::string template_of_config(const tutti::detail::Json& config, std::string_view name,
                                      const std::string& path) {
  const auto* found = config.find("chat_template");
  TUTTI_CHECK_VALUE(found != nullptr && !found->is_null(), "chat template: '", path,
                    "' has no \"chat_template\", and there is no chat_template.jinja; the model "
                    "was not trained on chats");
  std::string names;
  if (found->is_string()) {
    if (name == "default") {
      return found->string();
    }
    names = "default";
  } else {
    for (const auto& one : found->array()) {
      if (one.at("name").string() == name) {
        return one.at("template").string();
      }
      names += (names.empty() ? "" : ", ") + one.at("name").string();
    }
  }
  refuse_chat("'" + path + "' has none that is called \"" + std::string(name) +
              "\"; there are: " + names);
}

}  // namespace detail

inline ChatTemplate ChatTemplate::from_text(std::string_view chat_template, std::string bos_token,
                                            std::string eos_token) {
  const auto* known = detail::known_chat_template(detail::hash_of_template(chat_template));
  TUTTI_CHECK_VALUE(known != nullptr, "chat template: the template \"",
                    tutti::detail::utf8_cut(chat_template, 60),
                    "...\" is not known; supported are those of ChatML, Qwen, Llama, Mistral, "
                    "Zephyr and Gemma as they were published. Write the text of a chat yourself");
  return {*known, std::move(bos_token), std::move(eos_token)};
}

inline ChatTemplate ChatTemplate::load(const std::string& folder, std::string_view name) {
  std::string path = folder + "/tokenizer_config.json";
  std::string problem;
  std::string unread;
  auto text = tutti::detail::read_regular_file(path, problem, std::uint64_t{1} << 26);
  const auto own = name == "default"
                       ? tutti::detail::read_regular_file(folder + "/chat_template.jinja", unread,
                                                          std::uint64_t{1} << 24)
                       : std::nullopt;
  TUTTI_CHECK_VALUE(text || own, "chat template: '", path, "' cannot be read: ", problem);
  try {
    if (!text) {
      path = folder + "/special_tokens_map.json";
      text = tutti::detail::read_regular_file(path, unread, std::uint64_t{1} << 26);
    }
    const auto config = tutti::detail::parse_json(text.value_or("{}"), {.values = 10'000'000});
    const std::string found = own ? *own : detail::template_of_config(config, name, path);
    const std::string bos = detail::token_of_config(config, "bos_token");
    const std::string eos = detail::token_of_config(config, "eos_token");
    TUTTI_CHECK_VALUE(text || (found.find("bos_token") == std::string::npos &&
                               found.find("eos_token") == std::string::npos),
                      "chat template: '", folder,
                      "/chat_template.jinja' writes the tokens of beginning or end, and neither "
                      "tokenizer_config.json (",
                      problem, ") nor special_tokens_map.json (", unread,
                      ") is there to say which these are; put one of them beside it");
    return from_text(found, bos, eos);
  } catch (const std::invalid_argument& error) {
    ::tutti::detail::raise<c10::ValueError>({__func__, __FILE__, __LINE__},
                                            "chat template: '" + path + "': " + error.what());
  }
}

inline detail::ChatText ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                             const ChatTemplateOptions& options) const {
  TUTTI_CHECK_VALUE(!messages.empty(), "chat template: there is no message");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    TUTTI_CHECK_VALUE(role == "system" || role == "user" || role == "assistant",
                      "chat template: message ", i, " has the role \"", role,
                      "\", expected system, user or assistant");
  }
  detail::ChatText out;
  known_->format({.messages = messages,
                  .bos = bos_,
                  .eos = eos_,
                  .add_generation_prompt = options.add_generation_prompt,
                  .enable_thinking = options.enable_thinking,
                  .date = options.date_string},
                 out);
  return out;
}

#ifdef TUTTI_WITH_UTF8PROC

inline EncodedChat ChatTemplate::encode_chat(const Tokenizer& tokenizer,
                                             const std::vector<ChatMessage>& messages,
                                             const ChatTemplateOptions& options) const {
  const detail::ChatText chat = render(messages, options);
  Encoding found = tokenizer.encode(chat.text, {.add_special_tokens = false});
  // Which code points the assistant writes; their number counts bytes that begin one.
  std::vector<bool> written;
  auto answer = chat.answers.begin();
  for (std::size_t at = 0; at < chat.text.size(); ++at) {
    while (answer != chat.answers.end() && (*answer)[1] <= at) {
      ++answer;
    }
    if ((static_cast<unsigned char>(chat.text[at]) & 0xC0) != 0x80) {
      written.push_back(answer != chat.answers.end() && (*answer)[0] <= at);
    }
  }
  EncodedChat out{std::move(found.ids), {}};
  for (const auto& [begin, end] : found.offsets) {
    out.assistant_mask.push_back(end > 0 && written[static_cast<std::size_t>(end - 1)] ? 1 : 0);
  }
  return out;
}

#endif

}  // namespace tutti::text
