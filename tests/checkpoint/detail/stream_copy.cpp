#include <tutti/checkpoint/detail/stream_copy.hpp>

#include <cstddef>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::checkpoint::detail::least_streamed;
using tutti::checkpoint::detail::stream_copy;

TEST_CASE("a copy past the caches has the bytes, and touches none beside them",
          "[checkpoint][stream_copy]") {
  constexpr std::size_t margin = 160;
  std::vector<unsigned char> from(least_streamed + 4 * margin);
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<unsigned char>((i * 2654435761U) >> 13U);
  }
  constexpr auto least = least_streamed;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, least - 1, least, least + 1,
                                  least + 31, least + 127, least + 128, least + 129}) {
    for (const std::size_t to_at : {0U, 1U, 32U, 64U, 127U}) {
      for (const std::size_t from_at : {0U, 3U, 64U}) {
        std::vector<unsigned char> to(bytes + 2 * margin, 0xA5);
        stream_copy(to.data() + to_at, from.data() + from_at, bytes);
        std::vector<unsigned char> expected(to.size(), 0xA5);
        for (std::size_t i = 0; i < bytes; ++i) {
          expected[to_at + i] = from[from_at + i];
        }
        INFO(bytes << " bytes from " << from_at << " to " << to_at);
        REQUIRE(to == expected);
      }
    }
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
