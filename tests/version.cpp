#include <tutti/version.hpp>

#include <array>
#include <fstream>
#include <string>
#include <string_view>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// Of use to the preprocessor, as a program that supports several versions needs it.
#if TUTTI_VERSION_MAJOR * 10000 + TUTTI_VERSION_MINOR * 100 + TUTTI_VERSION_PATCH < 100
#error "the first version is 0.1.0"
#endif

static_assert(std::string_view(TUTTI_VERSION "!").ends_with("!"));  // a literal

TEST_CASE("the version as text is its three numbers", "[version]") {
  CHECK(TUTTI_VERSION == std::to_string(TUTTI_VERSION_MAJOR) + "." +
                             std::to_string(TUTTI_VERSION_MINOR) + "." +
                             std::to_string(TUTTI_VERSION_PATCH));
}

// CMakeLists.txt takes the digits at the end of the only line that defines each part.
TEST_CASE("each part of the version stands on one line, at its end", "[version]") {
  const std::array<std::pair<std::string, int>, 3> parts{{{"MAJOR", TUTTI_VERSION_MAJOR},
                                                          {"MINOR", TUTTI_VERSION_MINOR},
                                                          {"PATCH", TUTTI_VERSION_PATCH}}};
  for (const auto& [part, number] : parts) {
    std::ifstream header(TUTTI_SOURCE_DIR "/include/tutti/version.hpp");
    int lines = 0;
    for (std::string line; std::getline(header, line);) {
      if (line.find("define TUTTI_VERSION_" + part + " ") != std::string::npos) {
        ++lines;
        CHECK(line == "#define TUTTI_VERSION_" + part + " " + std::to_string(number));
      }
    }
    CHECK(lines == 1);
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
