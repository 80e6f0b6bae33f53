// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/chat.hpp>
#include <tutti/data/lines.hpp>

/// Chats, to fine-tune a language model with.
namespace tutti::data {

/// Options of read_chats().
struct ChatsOptions {
  /// A chat to tokens, by the template of the model; obligatory.
  std::function<EncodedChat(const std::vector<ChatMessage>&)> encode_chat{};
  std::string messages = "messages";  ///< the name of the list of messages in a line
  std::int64_t max_length = 2048;  ///< tokens of a chat; >= 2. The end is left out of longer ones
};

/// The chats of a file of JSON lines, each
/// `{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}`.
/// Other names in a line are left alone, empty lines too.
///
///     const auto encode = [&](const std::vector<tutti::ChatMessage>& chat) {
///       return chat_template.encode_chat(tokenizer, chat);
///     };
///     tutti::data::InstructionSet train{
///         tutti::data::read_chats("train.jsonl", {.encode_chat = encode})};
///
/// Which tokens are learnt is what EncodedChat::assistant_mask says, in every turn. A chat whose
/// first max_length tokens have none of these is left out, with a warning that counts such chats.
/// Throws c10::Error that names the file and the line: the file cannot be read, a line is no JSON
/// object, has no list of messages, a message has no role or content that is a text, calls tools,
/// or none is the assistant's; and what encode_chat throws. c10::ValueError for options.
std::vector<EncodedChat> read_chats(const std::string& path, const ChatsOptions& options);

/// Whether the first line of a file of JSON lines has a list of that name: chats, and not prompts
/// and answers. Throws as read_chats().
bool has_chats(const std::string& path, const std::string& messages = "messages");

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/chats.inl.hpp>
#endif
