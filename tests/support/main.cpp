// The one main of all test programs, for Catch2 2.13 and 3 alike.
#define CATCH_CONFIG_RUNNER
#include "support/catch.hpp"

int main(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}
