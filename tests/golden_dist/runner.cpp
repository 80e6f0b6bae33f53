#include "golden_dist/runner.hpp"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>
#include <utility>
#include <vector>

#include <tutti/checkpoint/safetensors.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace golden_dist {

namespace {

namespace fs = std::filesystem;

std::map<std::string, Handler>& handlers() {
  static std::map<std::string, Handler> all;
  return all;
}

void find_cases(const fs::path& root, const fs::path& folder, std::vector<Case>& out) {
  // full.safetensors is what the folders beside it are compared with.
  const bool folders_are_cases = fs::exists(folder / "full.safetensors");
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) {
    entries.push_back(entry.path());
  }
  std::sort(entries.begin(), entries.end());
  for (const fs::path& path : entries) {
    const fs::path name = path.lexically_relative(root);  // links are followed by their own names
    if (path == root / "gen" || (folder == root && !fs::is_directory(path)) ||
        path.filename() == "full.safetensors" || path.extension() == ".md") {
      continue;  // the scripts that made them, a README
    }
    if (fs::is_directory(path) && (!folders_are_cases || fs::exists(path / "full.safetensors"))) {
      find_cases(root, path, out);
    } else {
      out.emplace_back(name.begin()->string(), name.string(), path);
    }
  }
}

std::vector<Case> cases_of(const fs::path& root) {
  std::vector<Case> out;
  find_cases(root, root, out);
  return out;
}

// TUTTI_GOLDEN_DIST; else the cases of this folder, and what the whole reference has beside them
// when it lies beside the sources.
std::vector<Case> all_cases() {
  if (const char* given = std::getenv("TUTTI_GOLDEN_DIST"); given != nullptr && *given != 0) {
    return cases_of(given);
  }
  std::vector<Case> out = cases_of(TUTTI_SOURCE_DIR "/tests/golden_dist/cases");
  std::set<std::string> names;
  for (const Case& c : out) {
    names.insert(c.name);
  }
  const fs::path whole = TUTTI_SOURCE_DIR "/../shared/golden_dist";
  if (fs::is_directory(whole)) {
    for (Case& c : cases_of(whole)) {
      if (names.count(c.name) == 0) {
        out.push_back(std::move(c));
      }
    }
  }
  return out;
}

void run(const Case& c) {
  if (const auto handler = handlers().find(c.kind); handler != handlers().end()) {
    return handler->second(c);
  }
  throw Unmapped("nothing runs the kind '" + c.kind + "'; register it in tests/golden_dist");
}

tutti_test::CaseTable run_all(const std::vector<Case>& cases) {
  tutti_test::CaseTable table;
  for (const Case& c : cases) {
    table.run(c.kind, c.name, c, [&] { run(c); });
  }
  return table;
}

}  // namespace

Tensors read_tensors(const fs::path& path) {
  const auto read = tutti::checkpoint::read_safetensors(path);
  return {read.begin(), read.end()};
}

Case::Case(std::string kind_, std::string name_, fs::path path_)
    : kind(std::move(kind_)), name(std::move(name_)), path(std::move(path_)) {}

bool register_kind(const std::string& kind, Handler handler) {
  return handlers().emplace(kind, std::move(handler)).second;
}

}  // namespace golden_dist

using namespace golden_dist;

TEST_CASE("every case of the reference for distribution agrees", "[golden_dist]") {
  const tutti_test::CaseTally sum = run_all(all_cases()).print(std::cout);
  for (const std::string& complaint : sum.complaints) {
    FAIL_CHECK(complaint);
  }
  CHECK(sum.cases > 0);
}

TEST_CASE("a case is a file, or a folder beside full.safetensors, also behind a link",
          "[golden_dist]") {
  const TemporaryFolder root;
  for (const char* folder : {"gen", "dcp/hf_w2/sharded", "dcp/more/hf_w3", "dcp/own/hf_w4"}) {
    std::filesystem::create_directories(root / folder);
  }
  for (const char* file :
       {"README.md", "gen/zero.py", "dcp/full.safetensors", "dcp/hf_w2/sharded/x",
        "dcp/more/hf_w3/x", "dcp/own/full.safetensors", "dcp/own/hf_w4/x", "dcp/README.md"}) {
    write_bytes(root / file, "");
  }
  const TemporaryFolder elsewhere;
  write_bytes(elsewhere / "a.json", "");
  std::filesystem::create_directory_symlink(elsewhere.path(), root / "zero");
  std::vector<std::string> names;
  for (const Case& c : cases_of(root.path())) {
    names.push_back(c.kind + ' ' + c.name);
  }
  CHECK(names == std::vector<std::string>{"dcp dcp/hf_w2", "dcp dcp/more", "dcp dcp/own/hf_w4",
                                          "zero zero/a.json"});
}

TEST_CASE("a case of a kind that nothing runs fails, and so does one that its handler refuses",
          "[golden_dist]") {
  const TemporaryFolder root;
  for (const char* kind : {"unheard_of", "runner_test"}) {
    std::filesystem::create_directories(root / kind);
    write_bytes(root / kind / "a.safetensors", "");
  }
  register_kind("runner_test", [](const Case& c) {
    c.check(false, "they differ");
    throw Unmapped("another layout");
  });
  const tutti_test::CaseTable table = run_all(cases_of(root.path()));
  CHECK(table.kinds().at("unheard_of").complaints.size() == 1);
  CHECK(table.kinds().at("runner_test").complaints.size() == 2);
  CHECK(table.kinds().at("runner_test").passed == 0);
}
