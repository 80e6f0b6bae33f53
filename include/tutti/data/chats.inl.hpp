// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/chats.hpp>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/thrown.hpp>

namespace tutti::data {

namespace detail {

// The messages of a line.
TUTTI_INLINE std::vector<ChatMessage> messages_of(const Json& line, const std::string& name) {
  TUTTI_CHECK(line.is_object(), "it is ", line.kind(), ", expected an object with \"", name, "\"");
  const Json* list = line.find(name);
  TUTTI_CHECK(list != nullptr && list->is_array(), "\"", name, "\" is ",
              list != nullptr ? list->kind() : "not there", ", expected a list of messages");
  std::vector<ChatMessage> out;
  for (const Json& one : list->array()) {
    const auto text = [&](const char* key) -> const std::string& {
      const Json* found = one.is_object() ? one.find(key) : nullptr;
      TUTTI_CHECK(found != nullptr && found->is_string(), "\"", key, "\" of message ", out.size(),
                  " is ", found != nullptr ? found->kind() : "not there", ", expected a text");
      return found->string();
    };
    TUTTI_CHECK(!one.is_object() || !one.contains("tool_calls"), "message ", out.size(),
                " calls tools, which are not supported; write what it says into \"content\"");
    out.push_back({text("role"), text("content")});
  }
  const bool answers = std::any_of(out.begin(), out.end(), [](const ChatMessage& message) {
    return message.role == "assistant";
  });
  TUTTI_CHECK(answers, "no message has the role \"assistant\", so that there is nothing to learn");
  return out;
}

}  // namespace detail

TUTTI_INLINE std::vector<EncodedChat> read_chats(const std::string& path,
                                                 const ChatsOptions& options) {
  TUTTI_CHECK_VALUE(options.encode_chat,
                    "chats: set encode_chat, a function that makes tokens of "
                    "a chat, such as text::ChatTemplate::encode_chat()");
  TUTTI_CHECK_VALUE(options.max_length >= 2, "chats: max_length is ", options.max_length,
                    ", expected 2 or more");
  const auto most = static_cast<std::size_t>(options.max_length);
  const JsonLines lines(path, {.empty_lines = EmptyLines::skip});
  std::vector<EncodedChat> out;
  out.reserve(static_cast<std::size_t>(lines.size()));
  std::vector<std::string> left_out;
  for (std::int64_t i = 0; i < lines.size(); ++i) {
    const Json line = lines.value(i);
    EncodedChat chat;
    try {
      chat = options.encode_chat(detail::messages_of(line, options.messages));
      TUTTI_CHECK(chat.ids.size() == chat.assistant_mask.size(), "encode_chat gave ",
                  chat.ids.size(), " ids and a mask of ", chat.assistant_mask.size());
    } catch (...) {
      detail::throw_over(lines.place(i) + ": ");
    }
    chat.ids.resize(std::min(chat.ids.size(), most));
    chat.assistant_mask.resize(chat.ids.size());
    // The first token is never told by what stands before it.
    if (std::find(chat.assistant_mask.begin() + (chat.ids.empty() ? 0 : 1),
                  chat.assistant_mask.end(), 1) == chat.assistant_mask.end()) {
      left_out.push_back(lines.place(i));
    } else {
      out.push_back(std::move(chat));
    }
  }
  if (!left_out.empty()) {
    TORCH_WARN("chats: ", left_out.size(), " of ", lines.size(), " are left out, the first in ",
               left_out.front(), ": the assistant writes nothing in their first ",
               options.max_length, " tokens; set max_length higher to learn from them");
  }
  TUTTI_CHECK(!out.empty(), "'", path, "' has no chat whose first ", options.max_length,
              " tokens have an answer");
  return out;
}

TUTTI_INLINE bool has_chats(const std::string& path, const std::string& messages) {
  const Json line = JsonLines(path, {.empty_lines = EmptyLines::skip}).value(0);
  return line.is_object() && line.contains(messages);
}

}  // namespace tutti::data
