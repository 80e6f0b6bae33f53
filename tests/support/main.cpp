// The one main of all test programs, for Catch2 2.13 and 3 alike.
#define CATCH_CONFIG_RUNNER
#include "support/catch.hpp"
#include "support/rank_server.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>

#include <sys/statvfs.h>
#include <unistd.h>

namespace {

// What tests write goes to memory where there is room: of the time of those that save, half is the
// disk's. TMPDIR names another place.
void write_to_memory() {
  struct statvfs place{};
  if (::statvfs("/dev/shm", &place) == 0 && ::access("/dev/shm", W_OK) == 0 &&
      std::uint64_t{place.f_bavail} * place.f_frsize >= std::uint64_t{2} << 30) {
    ::setenv("TMPDIR", "/dev/shm", 0);
  }
}

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

namespace {

int run_cases(int argc, char** argv) {
  if (Catch::Session().run(argc, argv) != 0) {
    return 1;  // not the number of failures, which Catch2 2 gives: it may be 77
  }
  return skipped().empty() ? 0 : 77;
}

}  // namespace

int main(int argc, char** argv) {
  write_to_memory();
  tutti_test::serve_ranks(run_cases);
  return run_cases(argc, argv);
}
