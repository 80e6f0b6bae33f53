#include <tutti/config.hpp>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "support/catch.hpp"
#include "support/headers.hpp"

// That the functions link is seen in the test programs, most of which use tutti::separate, and what
// separate.hpp refuses in compile_fail/build/separate_*.cpp.

static_assert(TUTTI_BODIES == 1);  // this file's program has headers alone

TEST_CASE("bodies that are compiled apart are in separate.hpp, and nowhere else", "[separate]") {
  std::set<std::string> reached;
  headers::reach("tutti/separate.hpp", reached);
  int count = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(headers::root + "tutti")) {
    const std::string name = std::filesystem::relative(file.path(), headers::root).generic_string();
    INFO(name);
    std::ifstream text(file.path());
    int within = 0;  // so many #if deep, from #if TUTTI_BODIES on
    bool has_config = false;
    bool has_bodies = false;
    for (std::string line; std::getline(text, line);) {
      has_config = has_config || line == "#include <tutti/config.hpp>";
      if (line == "#if TUTTI_BODIES" || (within > 0 && line.starts_with("#if"))) {
        ++within;
      } else if (within > 0 && line == "#endif") {
        --within;
      }
      if (line.starts_with("TUTTI_INLINE ")) {
        has_bodies = true;
        CHECK(within > 0);
      }
      CHECK_FALSE((within > 0 && line.starts_with("inline ")));
    }
    CHECK(within == 0);
    if (has_bodies) {
      ++count;
      CHECK(has_config);
      CHECK(reached.contains(name));
    }
  }
  CHECK(count > 50);
}
