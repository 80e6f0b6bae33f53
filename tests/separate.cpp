#include <tutti/config.hpp>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "support/catch.hpp"
#include "support/headers.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// That the functions link is seen in the test programs, most of which use tutti::separate, and what
// separate.hpp refuses in compile_fail/build/separate_*.cpp.

static_assert(TUTTI_BODIES == 1);  // this file's program has headers alone

namespace {

/// What a header has of bodies, itself and in its .inl.hpp.
struct Bodies {
  bool has_config = false;
  bool functions = false;  // begins one with TUTTI_INLINE
  int lines = 0;           // between #if TUTTI_BODIES and its #endif
  bool all_behind = true;  // TUTTI_INLINE stands there alone, and inline does not
  bool closed = true;
};

Bodies bodies_of(const std::filesystem::path& path) {
  Bodies bodies;
  const bool apart = path.string().ends_with(".inl.hpp");
  int within = apart ? 1 : 0;  // so many #if deep, from #if TUTTI_BODIES on
  std::ifstream text(path);
  for (std::string line; std::getline(text, line);) {
    bodies.has_config = bodies.has_config || line == "#include <tutti/config.hpp>";
    if (line == "#if TUTTI_BODIES" || (within > 0 && line.starts_with("#if"))) {
      ++within;
    } else if (within > 0 && line == "#endif") {
      --within;
    } else if (within > 0) {
      ++bodies.lines;
    }
    if (line.starts_with("TUTTI_INLINE ")) {
      bodies.functions = true;
      bodies.all_behind = bodies.all_behind && within > 0;
    }
    bodies.all_behind = bodies.all_behind && !(within > 0 && line.starts_with("inline "));
  }
  bodies.closed = within == (apart ? 1 : 0);
  return bodies;
}

}  // namespace

TEST_CASE("bodies that are compiled apart are in separate.hpp, and nowhere else", "[separate]") {
  std::set<std::string> reached;
  headers::reach("tutti/separate.hpp", reached);
  int count = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(headers::root + "tutti")) {
    const std::string name = std::filesystem::relative(file.path(), headers::root).generic_string();
    INFO(name);
    const Bodies bodies = bodies_of(file.path());
    CHECK(bodies.closed);
    CHECK(bodies.all_behind);
    if (bodies.functions) {
      ++count;
      std::string header = file.path().string();
      if (const auto at = header.rfind(".inl.hpp"); at != std::string::npos) {
        header.replace(at, 8, ".hpp");
      }
      CHECK(bodies_of(header).has_config);
      CHECK(reached.contains(name));
    }
  }
  CHECK(count > 50);
}

// The second part includes first, without bodies, what the first part compiles. A header that the
// first part finds in bodies alone would be compiled by both.
TEST_CASE("what is compiled apart is compiled by one part of two", "[separate]") {
  std::set<std::string> first;
  std::set<std::string> declared;
  std::ifstream text(headers::root + "tutti/separate.hpp");
  bool listed = false;
  for (std::string line; std::getline(text, line);) {
    listed = (listed || line == "#if defined(TUTTI_SEPARATE_PART)") && !line.ends_with("PART == 2");
    if (listed && line.starts_with("#include <")) {
      const std::string header = line.substr(10, line.find('>') - 10);
      headers::reach(header, first);
      headers::reach(header, declared, false);
    }
  }
  int compiled = 0;
  for (const std::string& name : first) {
    if (!name.ends_with(".inl.hpp") && bodies_of(headers::root + name).lines > 0) {
      ++compiled;
      INFO(name << " is to be included by separate.hpp, with those of the first part");
      CHECK(declared.contains(name));
    }
  }
  CHECK(compiled > 50);
}

TEST_CASE("a public header shows what it offers, and has long bodies beside it", "[separate]") {
  int apart = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(headers::root + "tutti")) {
    const std::string name = file.path().string();
    INFO(name);
    const int lines = file.is_regular_file() ? bodies_of(file.path()).lines : 0;
    if (name.ends_with(".inl.hpp")) {
      ++apart;
      std::set<std::string> reached;  // by the header, which includes it
      std::string header = std::filesystem::relative(file.path(), headers::root).generic_string();
      const std::string bodies = header;
      headers::reach(header.replace(header.size() - 8, 8, ".hpp"), reached);
      CHECK(reached.contains(bodies));
    } else if (name.find("/detail/") == std::string::npos) {
      CHECK(lines < 40);
    }
  }
  CHECK(apart > 50);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
