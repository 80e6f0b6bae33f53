#include "support/catch.hpp"

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>

#include <sys/wait.h>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

// This program once more with these test cases: how it ended, and what it printed.
std::pair<int, std::string> run(const std::string& cases) {
  std::string said;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  FILE* const out = ::popen(("'" + self + "' '" + cases + "' 2>&1").c_str(), "r");
  REQUIRE(out != nullptr);
  std::array<char, 512> part{};
  while (std::fgets(part.data(), static_cast<int>(part.size()), out) != nullptr) {
    said += part.data();
  }
  const int status = ::pclose(out);
  REQUIRE(WIFEXITED(status));
  return {WEXITSTATUS(status), said};
}

}  // namespace

TEST_CASE("skip: skips", "[.][skip]") {
  for (int i = 0; i < 2; ++i) {
    tutti_test::skip("the machine has no wings");
  }
}
TEST_CASE("skip: passes", "[.][skip]") {
  CHECK(true);
}
TEST_CASE("skip: fails", "[.][skip]") {
  for (int i = 0; i < 77; ++i) {
    CHECK(false);
  }
}

TEST_CASE("a program that skips a case ends with 77 and says which and why, once", "[support]") {
  for (const char* cases : {"skip: skips", "skip: skips,skip: passes"}) {
    const auto [status, said] = run(cases);
    CHECK(status == 77);
    const std::string line = "skipped: skip: skips: the machine has no wings\n";
    CHECK(said.find(line) != std::string::npos);
    CHECK(said.find(line) == said.rfind(line));
  }
  CHECK(run("skip: passes").first == 0);
}

TEST_CASE("a program in which a case fails ends with 1, whatever else it skips", "[support]") {
  CHECK(run("skip: fails").first == 1);
  const auto [status, said] = run("skip: skips,skip: fails");
  CHECK(status == 1);
  CHECK(said.find("the machine has no wings") != std::string::npos);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
