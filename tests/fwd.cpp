#include <tutti/fwd.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

// All that a policy's declaration needs, before anything else is included.
struct Declared final {
  using events = tutti::types<tutti::BlurPool, tutti::nn::Conv2d>;
  template <class Event>
  void apply(Event, tutti::State& state) const;
  void save(tutti::Archive& archive) const;
};

}  // namespace

static_assert(tutti::types<>::size == 0);
static_assert(Declared::events::size == 2);
static_assert(tutti::types<int, int, void>::size == 3);  // a list, not a set

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/catch.hpp"

namespace {

const std::string root = TUTTI_SOURCE_DIR "/include/tutti";

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
  }
  return lines;
}

// "struct Name" or "class Name" at the beginning of a line, which no nested class has, and how the
// line goes on. TORCH_MODULE defines a class.
struct Naming {
  std::string key, name, rest;
};
Naming naming_of(const std::string& line) {
  constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
  for (const std::string start : {"struct ", "class ", "TORCH_MODULE("}) {
    if (line.starts_with(start)) {
      const std::size_t end = std::min(line.find_first_not_of(letters, start.size()), line.size());
      return {start == "struct " ? "struct" : "class",
              line.substr(start.size(), end - start.size()),
              start == "TORCH_MODULE(" ? " {" : line.substr(end)};
    }
  }
  return {};
}

}  // namespace

// A rule about a policy that was renamed would otherwise go on to compile and never apply.
TEST_CASE("everything that is declared ahead is defined, in its own family and with its own key",
          "[fwd]") {
  std::map<std::pair<std::string, std::string>, std::string> declared;  // name, folder: key
  std::string space;
  for (const std::string& line : lines_of(root + "/fwd.hpp")) {
    if (line.starts_with("namespace ")) {
      space = line.substr(10, line.find(' ', 10) - 10);
      space = space == "tutti" ? "" : space;
    } else if (line.starts_with('}')) {
      space.clear();
    } else if (const Naming found = naming_of(line); found.rest == ";") {
      if (!space.starts_with("torch")) {
        declared.insert({{found.name, space}, found.key});
      }
    }
  }
  CHECK(declared.size() > 40);
  CHECK(declared.contains({"Trainer", ""}));
  CHECK(declared.contains({"Conv2d", "nn"}));

  std::set<std::string> spaces;
  for (const auto& [what, key] : declared) {
    spaces.insert(what.second);
  }
  auto missing = declared;
  for (const auto& file : std::filesystem::recursive_directory_iterator(root)) {
    const std::string folder = file.path().parent_path().filename().string();
    if (file.path().extension() != ".hpp" || file.path().filename() == "fwd.hpp" ||
        folder == "detail") {
      continue;
    }
    for (const std::string& line : lines_of(file.path())) {
      const Naming found = naming_of(line);
      if (found.name.empty() || found.rest.find(';') != std::string::npos) {
        continue;
      }
      const auto it = missing.find({found.name, spaces.contains(folder) ? folder : ""});
      if (it != missing.end()) {
        INFO(file.path().string() << ": " << line);
        CHECK(found.key == it->second);
        missing.erase(it);
      }
    }
  }
  for (const auto& [what, key] : missing) {
    FAIL_CHECK("fwd.hpp declares " << key << " " << what.second << (what.second.empty() ? "" : "::")
                                   << what.first << ", which is defined nowhere");
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
