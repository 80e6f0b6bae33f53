#include <tutti/core/detail/command.hpp>

#include <chrono>
#include <string>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using tutti::detail::run_command;
using tutti::detail::words_of;
using Words = std::vector<std::string>;

TEST_CASE("a command line is words, with a shell's quotes and nothing else of it",
          "[checkpoint][command]") {
  CHECK(words_of("") == Words{});
  CHECK(words_of("  cp\t-v \n a ") == Words{"cp", "-v", "a"});
  CHECK(words_of("a'b c'd \"e 'f'\" ''") == Words{"ab cd", "e 'f'", ""});
  CHECK(words_of("a\\ b \"c\\\"d\" 'e\\f'") == Words{"a b", "c\"d", "e\\f"});
  CHECK(words_of("$(touch x); * | > &") == Words{"$(touch", "x);", "*", "|", ">", "&"});
  CHECK_THROWS_WITH(words_of("a 'b"), ContainsSubstring("a quote that is not closed"));
}

TEST_CASE("a program leaves its status and what it wrote", "[checkpoint][command]") {
  const auto done = run_command({"sh", "-c", "echo one; echo two >&2; cat; exit 3"}, 20s);
  CHECK(done.status == 3);
  CHECK(done.out == "one\n");  // there is nothing to read
  CHECK(done.error == "two\n");
  CHECK(run_command({"sh", "-c", "kill -9 $$"}, 20s).status == -1);
  // More than a pipe holds.
  CHECK(run_command({"head", "-c", "300000", "/dev/zero"}, 20s).out.size() == 300'000);
}

TEST_CASE("a program that cannot be started or takes too long is told",
          "[checkpoint][command][native]") {
  CHECK_THROWS_WITH(run_command({"no-such-program"}, 1s),
                    ContainsSubstring("cannot start 'no-such-program'"));
  CHECK_THROWS_WITH(run_command({}, 1s), ContainsSubstring("a command is empty"));
  const auto before = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(run_command({"sh", "-c", "sleep 60; echo late"}, 50ms),
                    ContainsSubstring("'sh' was killed"));
  CHECK(std::chrono::steady_clock::now() - before < 30s);  // what it started goes with it
}

}  // namespace UNITY_BUILD_UNIQUE_ID
