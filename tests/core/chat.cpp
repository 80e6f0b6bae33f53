#include <tutti/core/chat.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

TEST_CASE("messages are equal when role and content are", "[core][chat]") {
  const tutti::ChatMessage one{"user", "Hello"};
  CHECK(one == tutti::ChatMessage{"user", "Hello"});
  CHECK_FALSE(one == tutti::ChatMessage{"assistant", "Hello"});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
