#include <tutti/config.hpp>

#include <fstream>
#include <iterator>
#include <string>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// That older compilers are refused is seen in compile_fail/build/compiler_too_old.cpp and
// compile_fail/build/standard_too_old.cpp.

namespace {

std::string read(const std::string& path) {
  std::ifstream file(TUTTI_SOURCE_DIR + ("/" + path));
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string number_after(const std::string& text, const std::string& what) {
  const std::size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  const std::size_t from = at + what.size();
  return text.substr(from, text.find_first_not_of("0123456789", from) - from);
}

}  // namespace

TEST_CASE("the compilers that are accepted are those that messages and pages name", "[config]") {
  const std::string header = read("include/tutti/config.hpp");
  const std::string gcc = "GCC " + number_after(header, "__GNUC__ < ");
  const std::string clang = "Clang " + number_after(header, "__clang_major__ < ");
  CHECK(header.find("use " + clang + " or newer, or " + gcc + " or newer.") != std::string::npos);
  CHECK(header.find("use " + gcc + " or newer, or " + clang + " or newer.") != std::string::npos);
  for (const char* page : {"README.md", "docs/dependencies.md"}) {
    INFO(page);
    CHECK(read(page).find(gcc + " or " + clang) != std::string::npos);
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
