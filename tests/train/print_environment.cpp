#include <tutti/train/print_environment.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

#include <tutti/version.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("the environment is told in lines", "[train]") {
  ::setenv("NCCL_DEBUG", "INFO", 1);
  const std::string report = tutti::environment_report();
  CHECK(report.starts_with("tutti              " TUTTI_VERSION "\nLibTorch           "));
  CHECK_THAT(report, ContainsSubstring("\nNCCL_DEBUG         INFO\n") &&
                         ContainsSubstring("\nthreads ") && ContainsSubstring("\nmemory "));
  CHECK(report.ends_with('\n'));
  std::FILE* file = std::tmpfile();
  tutti::print_environment(file);
  CHECK(std::ftell(file) == static_cast<long>(report.size()));
  std::fclose(file);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
