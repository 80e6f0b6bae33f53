#include <tutti/sweep/settings.hpp>

#include <string>
#include <vector>

#include <tutti/core/detail/json_parse.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::sweep::parse_sweep;
using tutti::sweep::Settings;
using Words = std::vector<std::string>;

namespace {

const std::string least = "metric = 'loss'\ngoal = 'minimize'\n";
const std::string halving =
    least +
    "method = 'halving'\ntrials = 9\nresource = 'max-duration'\nmin_resource = '1ep'\n"
    "max_resource = '9ep'\n";
const std::string flags = "[flags]\nlr = [0.1, 0.2]\n";

Settings parsed(const std::string& toml, Words options = {}) {
  const TemporaryFolder folder;
  write_bytes(folder / "r.toml", toml);
  options.push_back((folder / "r.toml").string());
  options.push_back("./a");
  return parse_sweep(options);
}

std::vector<std::string> rungs(const std::string& toml, Words options = {}) {
  std::vector<std::string> out;
  for (const auto& resource : parsed(toml, std::move(options)).rungs()) {
    out.push_back(resource.text());
  }
  return out;
}

}  // namespace

TEST_CASE("settings stand in the file, and the command line has the last word", "[sweep]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "my.toml").string();
  write_bytes(
      path, least + "trials = 5\nseed = 2\njobs = 3\nfolder = 'runs'\ntime-limit = '2h'\n" + flags);
  Settings settings = parse_sweep({path, "./a", "--b", "-j", "9"});
  CHECK(settings.method == "random");
  CHECK(settings.trials == 5);
  CHECK(settings.seed == 2);
  CHECK(settings.jobs == 3);
  CHECK(settings.folder == "runs");
  CHECK(settings.time_limit == 7200);
  CHECK(settings.value == "last");
  CHECK(settings.command == Words{"./a", "--b", "-j", "9"});
  settings = parse_sweep({"--trials", "7", path, "-j", "2", "--dry-run", "--time-limit=90s",
                          "--value=best", "--retry_failed=false", "--", "--a"});
  CHECK(settings.trials == 7);
  CHECK(settings.jobs == 2);
  CHECK(settings.dry_run);
  CHECK(settings.time_limit == 90);
  CHECK(settings.value == "best");
  CHECK_FALSE(settings.retry_failed);
  CHECK(settings.command == Words{"--a"});
  write_bytes(path, least + flags);
  settings = parse_sweep({path, "--method", "grid", "./a"});
  CHECK(settings.folder == "sweeps/my");
}

TEST_CASE("a rung has the eta-th part of the next one's resource", "[sweep]") {
  using Texts = std::vector<std::string>;
  CHECK(rungs(halving + flags) == Texts{"1ep", "3ep", "9ep"});
  CHECK(rungs(halving + flags, {"--max_resource=10ep"}) == Texts{"1ep", "3ep", "10ep"});
  CHECK(rungs(halving + flags, {"--eta=2"}) == Texts{"1ep", "2ep", "4ep", "9ep"});
  CHECK(rungs(halving + flags, {"--min_resource", "2ep"}) == Texts{"3ep", "9ep"});
  CHECK(rungs(halving + flags, {"--min-resource=100", "--max-resource=900"}) ==
        Texts{"100", "300", "900"});
  CHECK(rungs(halving + flags, {"--min_resource=0.1", "--max_resource=2.5", "--eta=5"}) ==
        Texts{"0.1", "0.5", "2.5"});
}

TEST_CASE("a setting that does not fit is refused by its name", "[sweep]") {
  const auto refuses = [](const std::string& toml, Words options, const std::string& says) {
    INFO(toml);
    CHECK_THROWS_WITH(parsed(toml, std::move(options)),
                      ContainsSubstring("tutti-sweep: ") && ContainsSubstring(says));
  };
  const std::string good = least + "trials = 4\n";
  CHECK_NOTHROW(parsed(good + flags));
  refuses("metric = 'loss'\n" + flags, {"--trials=1"}, "there is no goal, expected goal");
  refuses("goal = 'minimize'\n" + flags, {}, "there is no metric to compare trials by");
  refuses(least + flags, {}, "trials is 0, expected 1 to 100000");
  refuses(good + flags, {"--goal", "max"}, "goal is \"max\", expected goal = \"minimize\"");
  refuses(good + flags, {"--value", "mean"}, "value is \"mean\", expected last or best");
  refuses(good + flags, {"--method", "tpe"}, "method is \"tpe\", expected grid, random or halving");
  refuses(good + flags, {"--method", "grid"}, "take trials out");
  refuses(good + flags, {"--trials", "many"}, "--trials is \"many\", expected a whole number");
  refuses(good + flags, {"--trials=1.5"}, "--trials is \"1.5\", expected a whole number");
  refuses(good + flags, {"--seed=-1"}, "seed is -1, expected 0 or more");
  refuses(good + flags, {"--jobs=0"}, "jobs is 0, expected 1 to 1024");
  refuses(good + flags, {"--time_limit=2w"}, "--time_limit is 2w, expected seconds");
  refuses(good + flags, {"--trial-time-limit="}, "--trial-time-limit is , expected seconds");
  refuses(good + flags, {"--folder="}, "--folder is \"\", expected a text");
  refuses(good + flags, {"--dry_run=perhaps"}, "expected true or false");
  refuses(good + flags, {"--resource", "epochs"}, "are for method = \"halving\"");
  refuses(good + flags, {"--trial", "3"}, "--trial is no option; see tutti-sweep --help");
  refuses(good + flags, {"-x"}, "-x is no option");
  refuses(good + "trails = 3\n" + flags, {},
          "trails is no setting; there are: method, metric, goal, value, trials, seed, jobs");
  refuses(good + "dry_run = true\n" + flags, {}, "dry_run is no setting");
  refuses(good + "[ranges]\nlr = 1\n", {}, "ranges is no setting");
  refuses(good + "flags = 3\n", {}, "flags is an integer, expected a table [flags]");
  refuses(good, {}, "there are no flags to try");
  refuses(good + "[flags]\nlr = {log_uniform = [0, 1]}\n", {}, "r.toml': the range of the flag lr");
  refuses(good + "jobs = 1ep\n" + flags, {}, "r.toml', line 4: expected a number");
  refuses(good + "jobs = [1]\n" + flags, {}, "jobs is [1], expected a whole number");
}

TEST_CASE("halving that cannot be is refused", "[sweep]") {
  const auto refuses = [](Words options, const std::string& says) {
    CHECK_THROWS_WITH(parsed(halving + flags, std::move(options)), ContainsSubstring(says));
  };
  refuses({"--min_resource=1ba"}, "min_resource is 1ba and max_resource 9ep, expected both in one");
  refuses({"--min_resource=9ep"}, "min_resource is 9ep, expected less than max_resource, 9ep");
  refuses({"--min_resource=4ep"}, "so nothing is halved");
  refuses({"--min_resource=0ep"}, "--min_resource is 0ep, expected more than 0");
  refuses({"--max_resource=ep"}, "--max_resource is ep, expected more than 0, as 3 or \"3ep\"");
  refuses({"--eta=1"}, "eta is 1, expected 2 or more");
  refuses({"--resource=lr"}, "lr is the resource of halving and one of the [flags]");
  CHECK_THROWS_WITH(parsed(least + "method = 'halving'\ntrials = 2\n" + flags),
                    ContainsSubstring("halving needs resource"));
  CHECK_THROWS_WITH(parsed(least + "method = 'halving'\ntrials = 2\nresource = 'epochs'\n" + flags),
                    ContainsSubstring("halving needs min_resource and max_resource"));
}

TEST_CASE("a file or a program that is missing is said", "[sweep]") {
  CHECK_THROWS_WITH(parse_sweep({"--jobs=2"}), ContainsSubstring("there is no file of ranges"));
  CHECK_THROWS_WITH(parse_sweep({"--jobs"}), ContainsSubstring("--jobs lacks its value"));
  CHECK_THROWS_WITH(parse_sweep({"/no/such.toml", "./a"}),
                    ContainsSubstring("'/no/such.toml' cannot be read: No such file"));
  CHECK_THROWS_WITH(parse_sweep({"/dev/zero", "./a"}),
                    ContainsSubstring("it is a device, not a regular file"));
  const TemporaryFolder folder;
  write_bytes(folder / "r.toml", least + "trials = 4\n" + flags);
  CHECK_THROWS_WITH(parse_sweep({(folder / "r.toml").string()}),
                    ContainsSubstring("there is no program to run; write tutti-sweep FILE"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
