#include <tutti/core/detail/cpu.hpp>

#include <fstream>
#include <string>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

#if defined(__x86_64__)  // elsewhere the list may be that of the machine that plays this one
TEST_CASE("the processor's vector instructions are those that the system lists", "[core][cpu]") {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("flags")) {
  }
  line += ' ';
  const bool listed =
      line.find(" avx2 ") != std::string::npos && line.find(" fma ") != std::string::npos;
  CHECK(tutti::detail::has_avx2() == listed);
}
#else
TEST_CASE("a processor of another kind has none of AVX's instructions", "[core][cpu]") {
  CHECK_FALSE(tutti::detail::has_avx2());
}
#endif

}  // namespace UNITY_BUILD_UNIQUE_ID
