// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// A chat as texts, and as tokens.
namespace tutti {

/// One message of a chat.
struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;

  bool operator==(const ChatMessage&) const = default;
};

/// A chat as tokens. Both lists are equally long.
struct EncodedChat {
  std::vector<std::int64_t> ids;
  /// 1: the assistant writes this token, the one that ends its turn included; what a loss on
  /// answers counts.
  std::vector<std::int64_t> assistant_mask;
};

}  // namespace tutti
