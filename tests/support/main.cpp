// The one main of all test programs, for Catch2 2.13 and 3 alike.
#define CATCH_CONFIG_RUNNER
#include "support/catch.hpp"

#include <cstdio>
#include <set>

namespace {

std::set<std::string>& skipped() {
  static std::set<std::string> cases;
  return cases;
}

}  // namespace

void tutti_test::skip(const std::string& reason) {
  const std::string line = Catch::getResultCapture().getCurrentTestName() + ": " + reason;
  if (skipped().insert(line).second) {
    std::printf("skipped: %s\n", line.c_str());
    std::fflush(stdout);
  }
}

int main(int argc, char** argv) {
  if (Catch::Session().run(argc, argv) != 0) {
    return 1;  // not the number of failures, which Catch2 2 gives: it may be 77
  }
  return skipped().empty() ? 0 : 77;
}
