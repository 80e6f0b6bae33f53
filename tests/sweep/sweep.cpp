#include <tutti/sweep/sweep.hpp>

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "sweep/fake_program.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using namespace tutti::sweep;
using Words = std::vector<std::string>;

namespace {

// Whether a process runs, and is no zombie.
bool lives(const std::string& pid) {
  const std::string path = "/proc/" + pid + "/stat";
  if (!std::filesystem::exists(path)) {
    return false;
  }
  std::ifstream file(path);
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  return !stat.empty() && stat.find(") Z") == std::string::npos;
}

std::string pid_in(const std::filesystem::path& path) {
  std::string text = read_bytes(path);
  text.erase(std::remove(text.begin(), text.end(), '\n'), text.end());
  return text;
}

// The child of a process that has this name; empty without.
std::string child_of(pid_t parent, const std::string& name) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename();
    std::string stat;  // "17 (a name) S 1 ...": state, parent
    if (pid.find_first_not_of("0123456789") == std::string::npos) {
      std::ifstream file(entry.path() / "stat");
      std::getline(file, stat);
    }
    const auto at = stat.find("(" + name + ") ");
    if (at != std::string::npos && std::stoi(stat.substr(at + name.size() + 5)) == parent) {
      return pid;
    }
  }
  return {};
}

const std::string csv_head = "trial,status,loss,step,seconds,lr,reason\n";

// Without the seconds, which vary, and with them as x.
std::string without_seconds(std::string csv, std::size_t column = 4) {
  std::string out;
  std::size_t at = 0;
  for (std::size_t line = 0; at < csv.size(); ++line) {
    const auto end = csv.find('\n', at);
    std::string text = csv.substr(at, end - at);
    at = end + 1;
    std::size_t from = 0;
    for (std::size_t i = 0; i < column && line > 0; ++i) {
      from = text.find(',', from) + 1;
    }
    if (line > 0) {
      text.replace(from, text.find(',', from) - from, "x");
    }
    out += text + '\n';
  }
  return out;
}

}  // namespace

TEST_CASE("a command has what is filled in, and the other flags behind", "[sweep]") {
  Settings settings;
  const Trial trial{.number = 3, .flags = {{"lr", 0.5}, {"batch-size", 8}, {"on", true}}};
  settings.command = {"./a", "--x"};
  CHECK(command_of(settings, trial, "s/t", 1, "") ==
        Words{"./a", "--x", "--lr=0.5", "--batch-size=8", "--on=true", "--run-folder=s/t"});
  settings.command = {"env",        "CUDA_VISIBLE_DEVICES={slot}",
                      "./a",        "-b{batch-size}",
                      "{folder}/x", "{trial}{lr}",
                      "{run_name}{"};
  settings.resource = "epochs";
  CHECK(command_of(settings, trial, "s/t", 1, "3ep") ==
        Words{"env", "CUDA_VISIBLE_DEVICES=1", "./a", "-b8", "s/t/x", "30.5", "{run_name}{",
              "--on=true", "--epochs=3ep"});
}

TEST_CASE("a grid is run, and its table has the best first", "[sweep]") {
  const FakeProgram program;
  program.ranges("method = 'grid'\n[flags]\nlr = [0.3, 0.1, 0.2]\n");
  const auto ended = program.run();
  CHECK_THAT(ended.error,
             StartsWith("1/3 trial-0000, ") && ContainsSubstring(" s, --lr=0.3: 0.3\n"));
  CHECK(ended.status == 0);
  CHECK_THAT(ended.out, StartsWith("trial  status    loss  step  seconds  "));
  CHECK(without_seconds(program.csv()) == csv_head +
                                              "1,finished,0.1,1,x,0.1,\n"
                                              "2,finished,0.2,1,x,0.2,\n"
                                              "0,finished,0.3,1,x,0.3,\n");
  CHECK(sorted_names(program.folder / "s") == Words{"lock", "sweep.json", "trial-0000",
                                                    "trial-0001", "trial-0002", "trials.csv",
                                                    "trials.jsonl"});
  CHECK(sorted_names(program.folder / "s/trial-0000") == Words{"metrics.jsonl", "output.txt"});
  // Once more: nothing is left to run.
  CHECK(program.run().status == 0);
  CHECK(program.begun() == 3);
  CHECK(program.run({"--goal=maximize"}).status == 0);
  CHECK_THAT(program.csv(), StartsWith(csv_head + "0,finished,0.3"));
  CHECK(program.begun() == 3);
}

TEST_CASE("the reason of a refused flag is what comes before the advice to ask for help",
          "[sweep]") {
  using tutti::sweep::detail::last_line;
  CHECK(last_line("a\nno such flag: --lr\nRun with --help for more information.\n") ==
        "no such flag: --lr");
  CHECK(last_line("Run with --help for more information.") ==
        "Run with --help for more information.");
  CHECK(last_line("a\nb\n\n") == "b");
}

TEST_CASE("trials that fail are kept with their reason, and the others go on", "[sweep]") {
  const FakeProgram program;
  program.ranges(
      "method = 'grid'\n[flags]\nlr = [0.5]\ndo = ['echo oh no >&2; exit 3', 'kill -9 $$', 'true', "
      "'printf \"a\\xff\\rb\" ; exit 4', 'lr=\\\"NaN\\\"']\n");
  const auto ended = program.run({"--jobs=2"});
  CHECK(ended.status == 0);
  const std::string csv = program.csv();
  CHECK_THAT(csv, ContainsSubstring("it ended with status 3: oh no\n"));
  CHECK_THAT(csv, ContainsSubstring("it was ended by signal 9 (Killed)\n"));
  CHECK_THAT(csv, ContainsSubstring("it ended with status 4: b\n"));
  CHECK_THAT(csv, ContainsSubstring("loss is no finite number at step 1\n"));
  CHECK_THAT(csv, ContainsSubstring("\n2,finished,0.5,"));
  CHECK(program.begun() == 5);
  CHECK(program.run().status == 0);
  CHECK(program.begun() == 5);
  CHECK(program.run({"--retry_failed"}).status == 0);
  CHECK(program.begun() == 9);
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 6);
}

TEST_CASE("a sweep in which all trials fail fails", "[sweep]") {
  const FakeProgram program;
  program.ranges("trials = 2\n[flags]\nlr = {uniform = [0, 1]}\ndo = 'exit 1'\n");
  const auto ended = program.run();
  CHECK(ended.status == 1);
  CHECK_THAT(ended.error, ContainsSubstring("no trial has ended well; see output.txt"));
  CHECK(program.begun() == 2);
}

TEST_CASE("a metric that no trial writes ends the sweep at once, and can be mended", "[sweep]") {
  const FakeProgram program;
  program.ranges("trials = 5\n[flags]\nlr = {uniform = [0, 1]}\n");
  auto ended = program.run({"--metric=accuracy"});
  CHECK(ended.status == 1);
  CHECK_THAT(ended.error,
             ContainsSubstring("trial-0000 ended well, but it wrote no metric \"accuracy\"; it "
                               "wrote loss; the sweep is ended"));
  CHECK(program.begun() == 1);
  ended = program.run();
  CHECK(ended.status == 0);
  CHECK(program.begun() == 5);  // the first is judged anew, not run again
  CHECK_THAT(program.csv(), !ContainsSubstring("failed"));
}

TEST_CASE("metrics are read from another file where there is one", "[sweep]") {
  const FakeProgram program;
  const std::string flags =
      "[flags]\nlr = 0.5\ndo = 'echo \"{\\\"type\\\": \\\"metrics\\\", \\\"step\\\": 4, "
      "\\\"values\\\": {\\\"loss\\\": 8}}\" > $folder/NAME; trap \"rm $folder/metrics.jsonl\" 0'\n";
  const auto named = [&](const std::string& name) {
    std::string text = "method = 'grid'\n" + flags;
    return text.replace(text.find("NAME"), 4, name);
  };
  program.ranges(named("dashboard.jsonl"));
  CHECK(program.run().status == 0);
  CHECK_THAT(program.csv(), ContainsSubstring("0,finished,8,4,"));
  program.ranges(named("log.jsonl"));
  CHECK(program.run({"--folder=" + (program.folder / "t").string(), "--metrics_file=log.jsonl"})
            .status == 0);
  CHECK_THAT(read_bytes(program.folder / "t/trials.csv"), ContainsSubstring("0,finished,8,4,"));
}

TEST_CASE("as many trials run at a time as there are jobs, in slots of their own", "[sweep]") {
  const FakeProgram program;
  // Each waits until three have begun: with fewer at a time it would fail.
  program.ranges("method = 'grid'\njobs = 3\n[flags]\nlr = [0.1, 0.2, 0.3]\n");
  const std::string waits =
      "touch $1/slot$0; n=0; until [ -e $1/slot0 -a -e $1/slot1 -a -e $1/slot2 ]; do sleep 0.02; "
      "n=$((n+1)); [ $n -lt 500 ] || exit 1; done; sh $1/program $@";
  const auto ended = program.run({}, {"sh", "-c", waits, "{slot}", program.folder.path().string()});
  CHECK(ended.status == 0);
  CHECK(program.begun() == 3);
}

TEST_CASE("successive halving gives the best more, whatever the number of jobs", "[sweep]") {
  const std::string halving =
      "method = 'halving'\ntrials = 9\nseed = 1\nresource = 'epochs'\nmin_resource = '1ep'\n"
      "max_resource = '9ep'\n[flags]\nlr = {uniform = [0, 1]}\n";
  std::string first;
  for (const char* jobs : {"--jobs=1", "--jobs=4"}) {
    const FakeProgram program;
    program.ranges(halving);
    CHECK(program.run({jobs}).status == 0);
    CHECK(program.begun() == 9 + 3 + 1);
    const std::string csv = without_seconds(program.csv());
    CHECK((first.empty() || first == csv));
    first = csv;
    // The one with the smallest lr has come to the end, two more to the second rung.
    std::vector<double> rates;
    for (const Trial& trial : read_trials(program.folder / "s/trials.jsonl")) {
      rates.push_back(trial.flags[0].second.number());
    }
    std::sort(rates.begin(), rates.end());
    const auto text = [](double rate) { return flag_text(tutti::detail::Json(rate)); };
    CHECK_THAT(csv, ContainsSubstring("finished," + text(rates[0]) + ",9,x,9ep,"));
    CHECK_THAT(csv, ContainsSubstring("finished," + text(rates[1]) + ",3,x,3ep,"));
    CHECK_THAT(csv, ContainsSubstring("finished," + text(rates[2]) + ",3,x,3ep,"));
    CHECK_THAT(csv, ContainsSubstring("finished," + text(rates[3]) + ",1,x,1ep,"));
    CHECK(program.run({jobs}).status == 0);
    CHECK(program.begun() == 9 + 3 + 1);
  }
}

TEST_CASE("halving starts a rung in a new folder, or goes on in the same one", "[sweep]") {
  const std::string halving =
      "method = 'halving'\ntrials = 3\nresource = 'epochs'\nmin_resource = 1\nmax_resource = 3\n"
      "[flags]\nlr = [0.1, 0.2, 0.3]\n";
  const FakeProgram apart;
  apart.ranges(halving);
  CHECK(apart.run().status == 0);
  const FakeProgram same;
  same.ranges(halving);
  CHECK(same.run({"--resume"}).status == 0);
  for (const FakeProgram* program : {&apart, &same}) {
    const auto trials = read_trials(program->folder / "s/trials.jsonl");
    const auto best = std::find_if(trials.begin(), trials.end(), [](const Trial& trial) {
      return trial.flags[0].second.number() == 0.1;
    });
    const auto folder = program->folder / ("s/" + trial_name(best->number));
    CHECK(best->runs.size() == 2);
    CHECK(sorted_names(folder) ==
          (program == &apart ? Words{"rung-0", "rung-1"} : Words{"metrics.jsonl", "output.txt"}));
  }
}

TEST_CASE("SIGINT ends what runs, leaves whole tables, and the sweep goes on later", "[sweep]") {
  const FakeProgram program;
  program.ranges(
      "method = 'grid'\njobs = 2\n[flags]\nlr = [0.1, 0.2, 0.3, 0.4]\n"
      "do = 'if [ $lr = 0.2 -a ! -e " +
      (program.folder / "go").string() + " ]; then echo $$ > " + (program.folder / "pid").string() +
      "; while true; do sleep 0.05; done; fi'\n");
  const pid_t sweep = program.start();
  FakeProgram::wait_for(program.folder / "pid");
  FakeProgram::wait_for(program.folder / "s/trial-0003/metrics.jsonl");
  ::kill(sweep, SIGINT);
  const auto ended = program.wait(sweep);
  CHECK(ended.status == 128 + SIGINT);
  CHECK_FALSE(lives(pid_in(program.folder / "pid")));
  CHECK_THAT(ended.out, ContainsSubstring("interrupted"));
  CHECK_THAT(program.csv(), ContainsSubstring("\n1,interrupted,,,0,0.2,"));
  CHECK(read_trials(program.folder / "s/trials.jsonl").size() == 4);
  const auto before = program.begun();
  write_bytes(program.folder / "s/trial-0001/old", "of the run that was interrupted");
  write_bytes(program.folder / "go", "");
  CHECK(program.run().status == 0);
  CHECK(program.begun() >= before + 1);
  CHECK(program.begun() <= before + 2);  // the last one may have been interrupted, too
  CHECK_FALSE(std::filesystem::exists(program.folder / "s/trial-0001/old"));
  CHECK_THAT(program.csv(), !ContainsSubstring("interrupted"));
  CHECK_THAT(program.csv(), ContainsSubstring("\n1,finished,0.2,1,"));
}

TEST_CASE("a trial that does not end when it is told to is killed", "[sweep]") {
  const FakeProgram program;
  program.ranges(
      "method = 'grid'\ntrial_time_limit = 1\ncleanup_timeout = 0.2\n[flags]\n"
      "lr = [0.1, 0.2]\ndo = 'if [ $lr = 0.1 ]; then trap \"\" TERM; while true; do "
      "sleep 0.05; done; fi'\n");
  const auto ended = program.run();
  CHECK(ended.status == 0);
  CHECK_THAT(program.csv(), ContainsSubstring("0.1,") &&
                                ContainsSubstring("\"it took longer than trial_time_limit, 1 s\""));
  CHECK_THAT(program.csv(), ContainsSubstring("1,finished,0.2,"));
}

TEST_CASE("a sweep ends at its time limit and goes on with the next call", "[sweep]") {
  const FakeProgram program;
  program.ranges("method = 'grid'\n[flags]\nlr = [0.1, 0.2, 0.3]\ndo = '[ $lr = 0.1 -o -e " +
                 (program.folder / "go").string() + " ] || sleep 60'\n");
  auto ended = program.run({"--time_limit=2s"});
  CHECK(ended.status == 0);
  CHECK_THAT(ended.error, ContainsSubstring("tutti-sweep: time_limit is over"));
  CHECK_THAT(program.csv(), ContainsSubstring("0,finished,0.1,"));
  CHECK_THAT(program.csv(), ContainsSubstring("1,interrupted,"));
  CHECK(program.begun() == 2);
  write_bytes(program.folder / "go", "");
  CHECK(program.run().status == 0);
  CHECK(program.begun() == 4);
}

TEST_CASE("when tutti-sweep is killed its trials end, and the next call goes on", "[sweep]") {
  const FakeProgram program;
  program.ranges("method = 'grid'\n[flags]\nlr = [0.1, 0.2]\ndo = 'if [ $lr = 0.2 -a ! -e " +
                 (program.folder / "go").string() + " ]; then trap \"\" TERM; echo $$ > " +
                 (program.folder / "pid").string() + "; while true; do sleep 0.05; done; fi'\n");
  const pid_t sweep = program.start();
  FakeProgram::wait_for(program.folder / "pid");
  ::kill(sweep, SIGKILL);
  CHECK(program.wait(sweep).status == -SIGKILL);
  CHECK_THAT(program.csv(), ContainsSubstring("0,finished,0.1,"));  // written before the next one
  write_bytes(program.folder / "go", "");
  // What the killed one has left would write into the same folder: it is ended first.
  CHECK(program.run().status == 0);
  CHECK_FALSE(lives(pid_in(program.folder / "pid")));
  CHECK(program.begun() == 3);
  CHECK_THAT(program.csv(), ContainsSubstring("1,finished,0.2,"));
}

TEST_CASE("the guard of a killed tutti-sweep ends none of the next call's trials", "[sweep]") {
  const FakeProgram program;
  program.ranges("method = 'grid'\n[flags]\nlr = [0.1]\ndo = 'echo $$ > " +
                 (program.folder / "pid").string() + "; while [ ! -e " +
                 (program.folder / "go").string() + " ]; do sleep 0.05; done'\n");
  const pid_t killed = program.start();
  FakeProgram::wait_for(program.folder / "pid");
  const std::string guard = child_of(killed, "tutti-guard");
  REQUIRE(!guard.empty());
  ::kill(std::stoi(guard), SIGSTOP);  // it is slow
  ::kill(killed, SIGKILL);
  CHECK(program.wait(killed).status == -SIGKILL);
  const std::string left = pid_in(program.folder / "pid");
  std::filesystem::remove(program.folder / "pid");
  const pid_t next = program.start();
  FakeProgram::wait_for(program.folder / "pid");
  CHECK_FALSE(lives(left));
  ::kill(std::stoi(guard), SIGCONT);
  for (int i = 0; i < 2000 && lives(guard); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK_FALSE(lives(guard));
  write_bytes(program.folder / "go", "");
  CHECK(program.wait(next).status == 0);
  CHECK_THAT(program.csv(), ContainsSubstring("0,finished,0.1,"));
}

TEST_CASE("more trials begin with those that are there, and fewer keep them", "[sweep]") {
  const FakeProgram program;
  program.ranges("[flags]\nlr = {log_uniform = [1e-4, 1]}\n");
  CHECK(program.run({"--trials=3"}).status == 0);
  CHECK(program.run({"--trials=5"}).status == 0);
  CHECK(program.begun() == 5);
  CHECK(program.run({"--trials=2"}).status == 0);
  CHECK(program.begun() == 5);
  CHECK(read_trials(program.folder / "s/trials.jsonl").size() == 5);
}

TEST_CASE("a folder with another sweep, or with something else, is refused", "[sweep]") {
  const FakeProgram program;
  program.ranges("trials = 1\nseed = 1\n[flags]\nlr = {uniform = [0, 1]}\n");
  CHECK(program.run({}, {"/no/such/program"}).status == 127);  // a mistake, mended
  CHECK(program.run().status == 0);
  auto ended = program.run({"--seed=2"});
  CHECK(ended.status == 2);
  CHECK_THAT(ended.error, ContainsSubstring("has another sweep: its seed is 1, here 2; take "
                                            "another --folder"));
  ended = program.run({}, {"sh", (program.folder / "program").string(), "--more"});
  CHECK_THAT(ended.error, ContainsSubstring("its command is [\"sh\","));
  program.ranges("trials = 1\nseed = 1\n[flags]\nlr = {uniform = [0, 2]}\n");
  CHECK_THAT(program.run().error, ContainsSubstring("its flags is {\"lr\":{\"uniform\":[0,1]}}"));
  std::filesystem::create_directories(program.folder / "other");
  write_bytes(program.folder / "other/thesis.txt", "");
  ended = program.run({"--folder=" + (program.folder / "other").string()});
  CHECK(ended.status == 2);
  CHECK_THAT(ended.error, ContainsSubstring("is not empty and has no sweep"));
  CHECK(program.begun() == 1);
}

TEST_CASE("two sweeps cannot have one folder at the same time", "[sweep]") {
  const FakeProgram program;
  program.ranges("method = 'grid'\n[flags]\nlr = 0.1\ndo = 'touch " +
                 (program.folder / "here").string() + "; until [ -e " +
                 (program.folder / "go").string() + " ]; do sleep 0.05; done'\n");
  const pid_t first = program.start();
  FakeProgram::wait_for(program.folder / "here");
  const auto second = program.run();
  CHECK(second.status == 127);
  CHECK_THAT(second.error, ContainsSubstring("another tutti-sweep runs there"));
  write_bytes(program.folder / "go", "");
  CHECK(program.wait(first).status == 0);
}

TEST_CASE("a dry run prints commands for a shell and makes nothing", "[sweep]") {
  const FakeProgram program;
  program.ranges(
      "method = 'halving'\ntrials = 3\nresource = 'epochs'\nmin_resource = '1ep'\n"
      "max_resource = '3ep'\n[flags]\nlr = [0.1, 0.2, 0.3]\nname = 'a b'\n");
  const auto ended = program.run({"--dry_run"}, {"./a"});
  CHECK(ended.status == 0);
  CHECK(std::count(ended.out.begin(), ended.out.end(), '\n') == 4);
  CHECK_THAT(ended.out, ContainsSubstring("'--name=a b' --epochs=1ep --run-folder=") &&
                            ContainsSubstring("/s/trial-0002/rung-0\n"));
  CHECK_THAT(ended.out, ContainsSubstring("# then the best 1 with --epochs=3ep\n"));
  CHECK_FALSE(std::filesystem::exists(program.folder / "s"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
