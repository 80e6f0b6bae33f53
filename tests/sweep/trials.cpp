#include <tutti/sweep/trials.hpp>

#include <string>
#include <vector>

#include <sys/stat.h>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::sweep;

namespace {

Trial trial(std::int64_t number, double lr, std::vector<TrialRun> runs, Trial::Status status,
            std::string reason = {}) {
  return {.number = number,
          .flags = {{"lr", lr}, {"name", "a,b"}},
          .runs = std::move(runs),
          .status = status,
          .reason = std::move(reason)};
}

std::vector<Trial> some() {
  using Status = Trial::Status;
  return {trial(0, 0.1, {{.seconds = 1.5, .value = 0.25, .step = 10}}, Status::finished),
          trial(1, 0.2, {{.seconds = 2, .failure = "status 3: \"x\""}}, Status::failed,
                "status 3: \"x\""),
          trial(2, 0.3, {}, Status::waiting),
          trial(3, 0.4, {{.seconds = 2, .value = 0.123456789, .step = 12}}, Status::finished),
          trial(4, 0.5, {}, Status::interrupted, "later"),
          trial(5, 0.6, {{.seconds = 2, .value = 0.25, .step = 9}}, Status::finished)};
}

std::vector<std::int64_t> numbers(const std::vector<const Trial*>& trials) {
  std::vector<std::int64_t> out;
  for (const Trial* one : trials) {
    out.push_back(one->number);
  }
  return out;
}

using Numbers = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("the best stands first: finished, of the last rung, by value, by number", "[sweep]") {
  std::vector<Trial> trials = some();
  CHECK(numbers(ranked(trials, false)) == Numbers{3, 0, 5, 1, 4});
  CHECK(numbers(ranked(trials, true)) == Numbers{0, 5, 3, 1, 4});
  trials[5].runs.push_back({.rung = 1, .resource = "3ep", .value = 0.9});
  CHECK(numbers(ranked(trials, false)) == Numbers{5, 3, 0, 1, 4});
}

TEST_CASE("a table is for people, CSV has every digit", "[sweep]") {
  const std::vector<Trial> trials = some();
  const auto all = ranked(trials, false);
  CHECK(console_table(all, "loss", 2) ==
        "trial  status    loss      step  seconds  lr   name\n"
        "3      finished  0.123457  12    2        0.4  a,b\n"
        "0      finished  0.25      10    1.5      0.1  a,b\n"
        "... and 3 more\n");
  CHECK(csv_table(all, "loss,total") ==
        "trial,status,\"loss,total\",step,seconds,lr,name,reason\n"
        "3,finished,0.123456789,12,2,0.4,\"a,b\",\n"
        "0,finished,0.25,10,1.5,0.1,\"a,b\",\n"
        "5,finished,0.25,9,2,0.6,\"a,b\",\n"
        "1,failed,,,2,0.2,\"a,b\",\"status 3: \"\"x\"\"\"\n"
        "4,interrupted,,,0,0.5,\"a,b\",later\n");
  CHECK(csv_table({}, "loss") == "trial,status,loss,step,seconds,reason\n");
}

TEST_CASE("halving's tables say with which resource", "[sweep]") {
  std::vector<Trial> trials{some()[0]};
  trials[0].runs[0].resource = "1ep";
  trials[0].runs.push_back({.rung = 1, .resource = "3ep", .seconds = 4, .value = 0.5, .step = 30});
  CHECK(csv_table(ranked(trials, false), "loss") ==
        "trial,status,loss,step,seconds,resource,lr,name,reason\n"
        "0,finished,0.5,30,5.5,3ep,0.1,\"a,b\",\n");
}

TEST_CASE("JSON lines bring back the trials and their runs", "[sweep]") {
  const TemporaryFolder folder;
  std::vector<Trial> trials = some();
  trials[3].runs.push_back({.rung = 1, .resource = "3ep", .seconds = 0.5, .failure = "killed"});
  write_bytes(folder / "t", json_table(ranked(trials, false), "loss"));
  const std::vector<Trial> read = read_trials(folder / "t");
  REQUIRE(read.size() == 5);  // without the one that has not begun
  for (const Trial& one : read) {
    const Trial& old = trials.at(static_cast<std::size_t>(one.number));
    CHECK(one.flags == old.flags);
    REQUIRE(one.runs.size() == old.runs.size());
    for (std::size_t i = 0; i < one.runs.size(); ++i) {
      CHECK(one.runs[i].rung == old.runs[i].rung);
      CHECK(one.runs[i].resource == old.runs[i].resource);
      CHECK(one.runs[i].seconds == old.runs[i].seconds);
      CHECK(one.runs[i].failure == old.runs[i].failure);
      CHECK(one.runs[i].value == old.runs[i].value);
      CHECK(one.runs[i].step == old.runs[i].step);
    }
  }
  CHECK(read[1].number == 1);
  CHECK(read_trials(folder / "none").empty());
}

TEST_CASE("a file that is no table of trials is refused with its line", "[sweep]") {
  const TemporaryFolder folder;
  const std::string good = json_table(ranked(some(), false), "loss");
  write_bytes(folder / "t", good + "{}\n");
  CHECK_THROWS_WITH(read_trials(folder / "t"),
                    ContainsSubstring("line 6: JSON: no member 'trial'") &&
                        ContainsSubstring("it is no table of tutti-sweep's"));
  write_bytes(folder / "t", good.substr(0, good.size() / 2));
  CHECK_THROWS_WITH(read_trials(folder / "t"), ContainsSubstring("it is no table"));
  write_bytes(folder / "t", R"({"trial": -1, "flags": {}, "runs": []})");
  CHECK_THROWS_WITH(read_trials(folder / "t"),
                    ContainsSubstring("number of a trial is not 0 to 99999"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(read_trials(folder / "pipe"), ContainsSubstring("is no regular file"));
  CHECK(read_trials(folder / "none").empty());
  CHECK(trial_name(7) == "trial-0007");
  CHECK(trial_name(12345) == "trial-12345");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
