#include "golden_interop/runner.hpp"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>
#include <utility>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace golden_interop {

namespace {

namespace fs = std::filesystem;

std::map<std::string, Handler>& handlers() {
  static std::map<std::string, Handler> all;
  return all;
}

bool has_files(const fs::path& folder) {
  const auto entries = fs::directory_iterator(folder);
  return std::any_of(begin(entries), end(entries),
                     [](const auto& entry) { return entry.is_regular_file(); });
}

void find_cases(const fs::path& root, const fs::path& folder, std::vector<Case>& out) {
  if (folder != root && has_files(folder)) {
    const fs::path name = folder.lexically_relative(root);  // links by their own names
    Case c(name.begin()->string(), name.string(), folder);
    if (c.json.contains("kind")) {
      c.kind = c.json["kind"].string();
    }
    out.push_back(std::move(c));
    return;  // what is inside belongs to the case
  }
  std::vector<fs::path> below;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && entry.path() != root / "gen") {  // the scripts that made them
      below.push_back(entry.path());
    }
  }
  std::sort(below.begin(), below.end());
  for (const fs::path& next : below) {
    find_cases(root, next, out);
  }
}

std::vector<Case> cases_of(const fs::path& root) {
  std::vector<Case> out;
  find_cases(root, root, out);
  return out;
}

// TUTTI_GOLDEN_INTEROP; else the cases of this folder, and what the whole reference has beside them
// when it lies beside the sources.
std::vector<Case> all_cases() {
  if (const char* given = std::getenv("TUTTI_GOLDEN_INTEROP"); given != nullptr && *given != 0) {
    return cases_of(given);
  }
  std::vector<Case> out = cases_of(TUTTI_SOURCE_DIR "/tests/golden_interop/cases");
  std::set<std::string> names;
  for (const Case& c : out) {
    names.insert(c.name);
  }
  const fs::path whole = TUTTI_SOURCE_DIR "/../shared/golden_interop";
  if (fs::is_directory(whole)) {
    for (Case& c : cases_of(whole)) {
      if (names.count(c.name) == 0) {
        out.push_back(std::move(c));
      }
    }
  }
  return out;
}

tutti_test::CaseTable run_all(const std::vector<Case>& cases) {
  tutti_test::CaseTable table;
  for (const Case& c : cases) {
    table.run(c.kind, c.name, c, [&] {
      const auto handler = handlers().find(c.kind);
      if (handler == handlers().end()) {
        throw Unmapped("nothing runs the kind '" + c.kind +
                       "'; register it in tests/golden_interop");
      }
      handler->second(c);
    });
  }
  return table;
}

}  // namespace

std::vector<std::int64_t> integers(const Json& list) {
  std::vector<std::int64_t> out;
  for (const Json& value : list.array()) {
    out.push_back(value.integer());
  }
  return out;
}

bool register_kind(const std::string& kind, Handler handler) {
  return handlers().emplace(kind, std::move(handler)).second;
}

}  // namespace golden_interop

using namespace golden_interop;

TEST_CASE("every case of the interop reference agrees", "[golden_interop]") {
  const tutti_test::CaseTally sum = run_all(all_cases()).print(std::cout);
  for (const std::string& complaint : sum.complaints) {
    FAIL_CHECK(complaint);
  }
  CHECK(sum.cases > 0);
}

TEST_CASE("the formula gives the reference's numbers", "[golden_interop]") {
  const at::Tensor a = fill_by_formula("a", 1, 0, 1, {2});
  CHECK(a[0].item<float>() == 0.9962445497512817F);
  CHECK(a[1].item<float>() == 0.9842129945755005F);
}

TEST_CASE(
    "a case of a kind that nothing runs fails, and so does one that its handler does not know",
    "[golden_interop]") {
  const TemporaryFolder root;
  for (const char* kind : {"unheard_of", "runner_test"}) {
    std::filesystem::create_directories(root / "models" / kind);
    write_bytes(root / "models" / kind / "case.json", R"({"kind":")" + std::string(kind) + "\"}");
  }
  register_kind("runner_test", [](const Case& c) {
    c.close("x", at::ones({2}), at::zeros({2}));
    throw Unmapped("another layout");
  });
  const tutti_test::CaseTable table = run_all(cases_of(root.path()));
  CHECK(table.kinds().at("unheard_of").complaints.size() == 1);
  CHECK(table.kinds().at("runner_test").complaints.size() == 2);
  CHECK(table.kinds().at("runner_test").passed == 0);
}

TEST_CASE("a difference beyond the tolerance is noted", "[golden_interop]") {
  const TemporaryFolder folder;
  const Case c("kind", "name", folder.path());
  const at::Tensor want = at::full({2}, 100.0);
  c.close("x", want + 4e-3, want);
  CHECK(c.complaints().empty());
  c.close("x", want + 6e-3, want);
  c.close("x", want * NAN, want);
  c.close("x", at::ones({3}), want);
  c.number("n", 1.1, 1.0, 1e-5);
  CHECK(c.complaints().size() == 4);
  const at::Tensor mask = at::tensor({1, 0});
  c.close_where("x", mask, at::tensor({100.0, 7.0}), want);
  CHECK(c.complaints().size() == 4);
}
