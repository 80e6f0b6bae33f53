// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/chat.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/utf8.hpp>

// What the chat templates that are known write.

namespace tutti::text::detail {

/// What a template is given.
struct ChatInput {
  const std::vector<ChatMessage>& messages;
  const std::string& bos;
  const std::string& eos;
  bool add_generation_prompt;
  bool enable_thinking;
  std::string_view date;

  bool begins_with_system() const { return messages.front().role == "system"; }
};

/// The text of a chat, and which of its bytes the assistant writes.
struct ChatText {
  std::string text;
  std::vector<std::array<std::size_t, 2>> answers;  // half-open

  void add(std::initializer_list<std::string_view> parts) {
    for (const std::string_view part : parts) {
      text += part;
    }
  }
  void add_answer(std::initializer_list<std::string_view> parts) {
    const std::size_t begin = text.size();
    add(parts);
    answers.push_back({begin, text.size()});
  }
  void add_turn(const ChatMessage& message, std::initializer_list<std::string_view> parts) {
    message.role == "assistant" ? add_answer(parts) : add(parts);
  }
};

using ChatFormat = void (*)(const ChatInput& in, ChatText& out);

[[noreturn]] inline void refuse_chat(const std::string& why) {
  ::tutti::detail::raise<c10::ValueError>({__func__, __FILE__, __LINE__}, "chat template: " + why);
}

// White space as Python's str.strip() has it.
inline bool is_stripped(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

inline std::string_view stripped(std::string_view text) {
  using tutti::detail::decode_utf8;
  while (!text.empty() && is_stripped(decode_utf8(text).code)) {
    text.remove_prefix(decode_utf8(text).bytes);
  }
  while (!text.empty()) {
    std::size_t last = text.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) {
      --last;
    }
    if (!is_stripped(decode_utf8(text, last).code)) {
      break;
    }
    text = text.substr(0, last);
  }
  return text;
}

inline std::string_view without_first_newlines(std::string_view text) {
  const std::size_t at = text.find_first_not_of('\n');
  return at == std::string_view::npos ? std::string_view() : text.substr(at);
}

inline std::string_view without_newlines(std::string_view text) {
  text = without_first_newlines(text);
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

// User and assistant take turns from message `first` on.
inline void expect_turns(const ChatInput& in, std::size_t first, const char* sentence) {
  for (std::size_t i = first; i < in.messages.size(); ++i) {
    if ((in.messages[i].role == "user") != ((i - first) % 2 == 0)) {
      refuse_chat("message " + std::to_string(i) + " has the role \"" + in.messages[i].role +
                  "\": " + sentence);
    }
  }
}

inline constexpr char roles_alternate[] =
    "Conversation roles must alternate user/assistant/user/assistant/...";
inline constexpr char roles_alternate_after_system[] =
    "After the optional system message, conversation roles must alternate "
    "user/assistant/user/assistant/...";

// ChatML; default_system stands in front of a chat without a system message, null: nothing does.
inline void write_chatml(const ChatInput& in, ChatText& out, const char* default_system) {
  if (default_system != nullptr && !in.begins_with_system()) {
    out.add({"<|im_start|>system\n", default_system, "<|im_end|>\n"});
  }
  for (const ChatMessage& message : in.messages) {
    out.add({"<|im_start|>", message.role, "\n"});
    out.add_turn(message, {message.content, "<|im_end|>"});
    out.add({"\n"});
  }
  out.add({in.add_generation_prompt ? "<|im_start|>assistant\n" : ""});
}

inline void chatml(const ChatInput& in, ChatText& out) {
  write_chatml(in, out, nullptr);
}
inline void qwen1_5(const ChatInput& in, ChatText& out) {
  write_chatml(in, out, "You are a helpful assistant");
}
inline void qwen2(const ChatInput& in, ChatText& out) {
  write_chatml(in, out, "You are a helpful assistant.");
}
inline void qwen2_5(const ChatInput& in, ChatText& out) {
  write_chatml(in, out, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
}

// The first of Qwen 1.5: the last message stays open unless a prompt is added.
inline void qwen1_5_open(const ChatInput& in, ChatText& out) {
  if (!in.begins_with_system()) {
    out.add({"<|im_start|>system\nYou are a helpful assistant<|im_end|>\n"});
  }
  for (std::size_t i = 0; i < in.messages.size(); ++i) {
    const ChatMessage& message = in.messages[i];
    const bool closed = in.add_generation_prompt || i + 1 < in.messages.size();
    out.add({"<|im_start|>", message.role, "\n"});
    out.add_turn(message, {message.content, closed ? "<|im_end|>" : ""});
    out.add({closed ? "\n" : ""});
  }
  if (in.add_generation_prompt && in.messages.back().role != "assistant") {
    out.add({"<|im_start|>assistant\n"});
  }
}

// Qwen 3: thoughts stay in answers behind the last question alone, where the last has some always.
inline void write_qwen3(const ChatInput& in, ChatText& out) {
  std::size_t last_query = in.messages.size() - 1;
  for (std::size_t i = in.messages.size(); i-- > 0;) {
    const std::string_view content = in.messages[i].content;
    if (in.messages[i].role == "user" &&
        !(content.starts_with("<tool_response>") && content.ends_with("</tool_response>"))) {
      last_query = i;
      break;
    }
  }
  constexpr std::string_view close = "</think>";
  constexpr std::string_view open = "<think>";
  for (std::size_t i = 0; i < in.messages.size(); ++i) {
    const ChatMessage& message = in.messages[i];
    out.add({"<|im_start|>", message.role, "\n"});
    if (message.role != "assistant") {
      out.add({message.content, "<|im_end|>\n"});
      continue;
    }
    std::string_view content = message.content;
    std::string_view thoughts;
    if (const std::size_t end = content.find(close); end != std::string_view::npos) {
      thoughts = content.substr(0, end);
      thoughts = thoughts.substr(0, thoughts.find_last_not_of('\n') + 1);
      if (const std::size_t begin = thoughts.rfind(open); begin != std::string_view::npos) {
        thoughts.remove_prefix(begin + open.size());
      }
      thoughts = without_first_newlines(thoughts);
      content = without_first_newlines(content.substr(content.rfind(close) + close.size()));
    }
    if (i > last_query && (i + 1 == in.messages.size() || !thoughts.empty())) {
      out.add_answer({"<think>\n", without_newlines(thoughts), "\n</think>\n\n",
                      without_first_newlines(content), "<|im_end|>"});
    } else {
      out.add_answer({content, "<|im_end|>"});
    }
    out.add({"\n"});
  }
}

inline void qwen3(const ChatInput& in, ChatText& out) {
  write_qwen3(in, out);
  if (in.add_generation_prompt) {
    out.add({"<|im_start|>assistant\n", in.enable_thinking ? "" : "<think>\n\n</think>\n\n"});
  }
}

// Qwen 3 2507 Thinking.
inline void qwen3_thinking(const ChatInput& in, ChatText& out) {
  write_qwen3(in, out);
  out.add({in.add_generation_prompt ? "<|im_start|>assistant\n<think>\n" : ""});
}

inline void llama2(const ChatInput& in, ChatText& out) {
  const std::size_t first = in.begins_with_system() ? 1 : 0;
  expect_turns(in, first, roles_alternate);
  for (std::size_t i = first; i < in.messages.size(); ++i) {
    std::string content = in.messages[i].content;
    if (i == 1 && first == 1) {
      content = "<<SYS>>\n" + in.messages[0].content + "\n<</SYS>>\n\n" + content;
    }
    if (in.messages[i].role == "user") {
      out.add({in.bos, "[INST] ", stripped(content), " [/INST]"});
    } else if (in.messages[i].role == "assistant") {
      out.add_answer({" ", stripped(content), " ", in.eos});
    }
  }
}

inline void write_llama3(const ChatInput& in, ChatText& out, std::size_t first) {
  for (std::size_t i = first; i < in.messages.size(); ++i) {
    const ChatMessage& message = in.messages[i];
    out.add({"<|start_header_id|>", message.role, "<|end_header_id|>\n\n"});
    out.add_turn(message, {stripped(message.content), "<|eot_id|>"});
  }
}

inline constexpr std::string_view llama3_prompt =
    "<|start_header_id|>assistant<|end_header_id|>\n\n";

inline void llama3(const ChatInput& in, ChatText& out) {
  out.add({in.bos});
  write_llama3(in, out, 0);
  out.add({in.add_generation_prompt ? llama3_prompt : ""});
}

// The first of Llama 3, which always adds the prompt.
inline void llama3_first(const ChatInput& in, ChatText& out) {
  out.add({in.bos});
  write_llama3(in, out, 0);
  out.add({llama3_prompt});
}

inline void write_llama3_1(const ChatInput& in, ChatText& out, std::string_view date) {
  const bool system = in.begins_with_system();
  out.add({in.bos, "<|start_header_id|>system<|end_header_id|>\n\n",
           "Cutting Knowledge Date: December 2023\nToday Date: ", date, "\n\n",
           system ? stripped(in.messages[0].content) : "", "<|eot_id|>"});
  write_llama3(in, out, system ? 1 : 0);
  out.add({in.add_generation_prompt ? llama3_prompt : ""});
}

inline void llama3_1(const ChatInput& in, ChatText& out) {
  write_llama3_1(in, out, in.date.empty() ? "26 Jul 2024" : in.date);
}

// "26 Jul 2024", in English whatever the locale is.
inline std::string today() {
  constexpr std::array months{"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                              "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  const std::string day = std::to_string(parts.tm_mday);
  return (day.size() == 1 ? "0" : "") + day + ' ' + months[static_cast<std::size_t>(parts.tm_mon)] +
         ' ' + std::to_string(1900 + parts.tm_year);
}

inline void llama3_2(const ChatInput& in, ChatText& out) {
  write_llama3_1(in, out, in.date.empty() ? today() : std::string(in.date));
}

// Mistral's before there was a system message.
inline void write_first_mistral(const ChatInput& in, ChatText& out, const char* behind) {
  expect_turns(in, 0, roles_alternate);
  out.add({in.bos});
  for (const ChatMessage& message : in.messages) {
    if (message.role == "user") {
      out.add({"[INST] ", message.content, " [/INST]"});
    } else if (message.role == "assistant") {
      out.add_answer({message.content, in.eos});
      out.add({behind});
    } else {
      refuse_chat("Only user and assistant roles are supported!");
    }
  }
}

inline void mistral_v0_1(const ChatInput& in, ChatText& out) {
  write_first_mistral(in, out, " ");
}
inline void mixtral(const ChatInput& in, ChatText& out) {
  write_first_mistral(in, out, "");
}

// How a Mistral with a system message writes.
struct MistralStyle {
  const char* open;
  const char* close;
  bool system_is_last;  // it stands in the last question, if that ends the chat; else in the first
  const char* before_answer;
  bool strips_answers;
};

inline void write_mistral(const ChatInput& in, ChatText& out, const MistralStyle& style) {
  const std::size_t first = in.begins_with_system() ? 1 : 0;
  expect_turns(in, first, roles_alternate_after_system);
  out.add({in.bos});
  for (std::size_t i = first; i < in.messages.size(); ++i) {
    const ChatMessage& message = in.messages[i];
    const bool here = style.system_is_last ? i + 1 == in.messages.size() : i == first;
    if (message.role == "user") {
      const bool system = first == 1 && here;
      out.add({style.open, system ? in.messages[0].content : std::string(), system ? "\n\n" : "",
               message.content, style.close});
    } else if (message.role == "assistant") {
      out.add_answer(
          {style.before_answer,
           style.strips_answers ? stripped(message.content) : std::string_view(message.content),
           in.eos});
    } else {
      refuse_chat(
          "Only user and assistant roles are supported, with the exception of an initial optional "
          "system message!");
    }
  }
}

inline void mistral_v1(const ChatInput& in, ChatText& out) {
  write_mistral(in, out, {" [INST] ", " [/INST]", false, " ", false});
}
inline void mistral_v3(const ChatInput& in, ChatText& out) {
  write_mistral(in, out, {"[INST] ", "[/INST]", true, " ", true});
}
inline void mistral_nemo(const ChatInput& in, ChatText& out) {
  write_mistral(in, out, {"[INST]", "[/INST]", true, "", false});
}

inline void mistral_v7(const ChatInput& in, ChatText& out) {
  out.add({in.bos});
  for (const ChatMessage& message : in.messages) {
    if (message.role == "assistant") {
      out.add_answer({" ", message.content, in.eos});
    } else if (message.role == "user") {
      out.add({"[INST] ", message.content, "[/INST]"});
    } else {
      out.add({"[SYSTEM_PROMPT] ", message.content, "[/SYSTEM_PROMPT]"});
    }
  }
}

inline void zephyr(const ChatInput& in, ChatText& out) {
  for (const ChatMessage& message : in.messages) {
    out.add({"<|", message.role, "|>\n"});
    out.add_turn(message, {message.content, in.eos});
    out.add({"\n"});
  }
  out.add({in.add_generation_prompt ? "<|assistant|>\n" : ""});
}

inline void write_gemma(const ChatInput& in, ChatText& out, std::string_view bos) {
  if (in.begins_with_system()) {
    refuse_chat("System role not supported");
  }
  expect_turns(in, 0, roles_alternate);
  out.add({bos});
  for (const ChatMessage& message : in.messages) {
    out.add({"<start_of_turn>", message.role == "assistant" ? "model" : message.role, "\n"});
    out.add_turn(message, {stripped(message.content), "<end_of_turn>"});
    out.add({"\n"});
  }
  out.add({in.add_generation_prompt ? "<start_of_turn>model\n" : ""});
}

inline void gemma(const ChatInput& in, ChatText& out) {
  write_gemma(in, out, in.bos);
}
inline void gemma_first(const ChatInput& in, ChatText& out) {
  write_gemma(in, out, {});
}

/// A template that is known, by the hash of its text.
struct KnownChatTemplate {
  std::uint64_t hash;
  const char* name;
  ChatFormat format;
};

inline constexpr KnownChatTemplate known_chat_templates[] = {
    {0x88bf4138d5c826f0, "ChatML", chatml},
    {0x773d13e188afc917, "ChatML", chatml},  // sets add_generation_prompt where it is not
    {0x893e758f2b86d461, "Qwen 1.5", qwen1_5_open},
    {0xc867da37c989d41f, "Qwen 1.5", qwen1_5},
    {0x8a87094e0e1e24c5, "Qwen 2", qwen2},
    {0x11d394755cef9355, "Qwen 2.5 Instruct", qwen2_5},
    {0xe0bbdfcf26a7725d, "Qwen 2.5", qwen2},
    {0xabb815b933a4981a, "Qwen 3", qwen3},
    {0xf12683db822f0edd, "Qwen 3 2507 Thinking", qwen3_thinking},
    {0x4d1512049817743d, "Llama 2", llama2},
    {0x77f52e8441e4e7e7, "Llama 2", llama2},  // one space less
    {0x0e60067a5537498e, "Llama 3", llama3},
    {0x74891e390e614ae2, "Llama 3", llama3_first},
    {0x4fd30286bc0da17c, "Llama 3.1", llama3_1},
    {0x1a6da26e3aef1b34, "Llama 3.2", llama3_2},
    {0xc730acc029ce6ee0, "Mistral 7B Instruct v0.1", mistral_v0_1},
    {0x8c734b90b4f8d84d, "Mixtral 8x7B Instruct v0.1", mixtral},
    {0xd99e5b4469be13b3, "Mistral v1", mistral_v1},
    {0x09eb1999b1fcf65f, "Mistral v3", mistral_v3},
    {0x8845320dfda63756, "Mistral Nemo", mistral_nemo},
    {0xf1784176fabceb43, "Mistral Nemo", mistral_nemo},
    {0xe4a9cc594604808a, "Mistral v7", mistral_v7},
    {0xcd8b49000db02c2c, "Zephyr", zephyr},
    {0xe588cc2356832fab, "Gemma", gemma_first},
    {0x5c10ee65212d93b3, "Gemma", gemma},
};

/// The text of a template with line ends as "\n", those that a string spells included, and without
/// one at the end: what a template writes does not depend on them.
inline std::string normalized_template(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view two = text.substr(i, 2);
    if (two == "\r\n" || two == "\\n") {
      out += '\n';
      ++i;
    } else {
      out += text[i];
    }
  }
  if (out.ends_with('\n')) {
    out.pop_back();
  }
  return out;
}

/// FNV-1a of 64 bits of the normalized text.
inline std::uint64_t hash_of_template(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : normalized_template(text)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

/// Null: it is not known.
inline const KnownChatTemplate* known_chat_template(std::uint64_t hash) {
  for (const KnownChatTemplate& known : known_chat_templates) {
    if (known.hash == hash) {
      return &known;
    }
  }
  return nullptr;
}

}  // namespace tutti::text::detail
