#include <tutti/train/load_report.hpp>

#include <string>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::RunLoadReport;

TEST_CASE("a report of nothing is complete and says nothing", "[train][load_report]") {
  const RunLoadReport none;
  CHECK(none.complete());
  CHECK(none.text().empty());
  RunLoadReport never;  // whatever else it has
  never.afresh = {"optimizers"};
  CHECK(never.text().empty());
}

TEST_CASE("a report says in one line what a full load took", "[train][load_report]") {
  RunLoadReport report;
  report.path = "run/latest";
  report.model.loaded = {"a", "b"};
  CHECK(report.complete());
  CHECK(report.text() == "loaded 'run/latest': 2 of 2 weights");
  report.weights_only = true;
  CHECK(report.complete());
  CHECK(report.text() == "loaded 'run/latest': 2 of 2 weights and nothing else, as asked");
}

TEST_CASE("a report has a line for every kind of difference", "[train][load_report]") {
  RunLoadReport report;
  report.path = "run/latest";
  report.model.loaded = {"a", "b"};
  report.model.missing = {"c"};
  report.model.mismatched = {"d: [2] there, [3] here"};
  report.model.unexpected = {"e"};  // not one of this model's weights
  report.restored = {"optimizers", "timestamp"};
  report.afresh = {"policies/EMA"};
  report.unused = {"policies/SWA", "policies/SAM"};
  report.ignored = {"state/model/fc.weight"};
  report.notes = {"the batches differ.", "so does the rest."};
  CHECK(report.text() ==
        "loaded 'run/latest': 2 of 4 weights"
        "\n  restored: optimizers, timestamp"
        "\n  starting afresh: policies/EMA"
        "\n  not used, since this run has no place for it: policies/SWA, policies/SAM"
        "\n  left out by load_ignore_keys: state/model/fc.weight" +
            report.model.text() + "\n  the batches differ.\n  so does the rest.");
}

TEST_CASE("a long list of a report is cut after twelve", "[train][load_report]") {
  RunLoadReport report;
  report.path = "a";
  const auto names = [&](int count) {
    report.unused.clear();
    for (int i = 1; i <= count; ++i) {
      report.unused.push_back(std::to_string(i));
    }
    const std::string text = report.text();
    return text.substr(text.rfind(": ") + 2);
  };
  CHECK(names(12) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12");
  CHECK(names(13) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 1 more");
  CHECK(names(40) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 28 more");
}

TEST_CASE("whatever was left out or starts afresh makes a load incomplete",
          "[train][load_report]") {
  const auto complete = [](auto change) {
    RunLoadReport report;
    report.path = "a";
    report.restored = {"optimizers"};
    report.model.loaded = {"a"};
    change(report);
    return report.complete();
  };
  CHECK(complete([](RunLoadReport&) {}));
  CHECK_FALSE(complete([](RunLoadReport& report) { report.afresh = {"x"}; }));
  CHECK_FALSE(complete([](RunLoadReport& report) { report.unused = {"x"}; }));
  CHECK_FALSE(complete([](RunLoadReport& report) { report.ignored = {"x"}; }));
  CHECK_FALSE(complete([](RunLoadReport& report) { report.notes = {"x"}; }));
  CHECK_FALSE(complete([](RunLoadReport& report) { report.model.missing = {"x"}; }));
  CHECK_FALSE(complete([](RunLoadReport& report) { report.model.unexpected = {"x"}; }));
  CHECK_FALSE(complete([](RunLoadReport& report) { report.model.mismatched = {"x"}; }));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
