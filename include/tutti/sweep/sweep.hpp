// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <list>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/regular_file.hpp>
#include <tutti/core/detail/shell_text.hpp>
#include <tutti/core/detail/utf8.hpp>
#include <tutti/dist/detail/child.hpp>
#include <tutti/dist/detail/guard.hpp>
#include <tutti/sweep/detail/folder.hpp>
#include <tutti/sweep/metric.hpp>
#include <tutti/sweep/settings.hpp>
#include <tutti/sweep/space.hpp>
#include <tutti/sweep/trials.hpp>

namespace tutti::sweep {

/// The command of one run of a trial: the program's words with {folder}, {trial}, {slot} and the
/// names of flags filled in, and then `--name=value` for each flag that was not among them; a
/// program that is not told {folder} gets --run-folder.
///
/// folder: the run's. slot: 0 to jobs - 1, of none that runs at the same time. resource: of
/// halving; empty: none.
inline std::vector<std::string> command_of(const Settings& settings, const Trial& trial,
                                           const std::string& folder, std::int64_t slot,
                                           const std::string& resource) {
  std::vector<std::pair<std::string, std::string>> values{
      {"folder", folder}, {"trial", std::to_string(trial.number)}, {"slot", std::to_string(slot)}};
  const std::size_t own = values.size();
  for (const auto& [name, value] : trial.flags) {
    values.emplace_back(name, flag_text(value));
  }
  if (!resource.empty()) {
    values.emplace_back(settings.resource, resource);
  }
  std::set<std::size_t> used;
  std::vector<std::string> words;
  for (const std::string& pattern : settings.command) {
    std::string word;
    for (std::size_t at = 0; at < pattern.size();) {
      std::size_t i = 0;
      while (i < values.size() &&
             pattern.compare(at, values[i].first.size() + 2, '{' + values[i].first + '}') != 0) {
        ++i;
      }
      if (i < values.size()) {
        word += values[i].second;
        at += values[i].first.size() + 2;
        used.insert(i);
      } else {
        word += pattern[at++];
      }
    }
    words.push_back(std::move(word));
  }
  for (std::size_t i = own; i < values.size(); ++i) {
    if (!used.contains(i)) {
      words.push_back("--" + values[i].first + "=" + values[i].second);
    }
  }
  if (!used.contains(0)) {
    words.push_back("--run-folder=" + folder);
  }
  return words;
}

/// Runs the trials of a sweep and keeps the tables `trials.csv` and `trials.jsonl` in its folder,
/// which are whole after every trial. Called once more it goes on: what has ended is not run again.
///
/// Halving is synchronous: a rung's trials have all ended before the best of them go on, so what
/// goes on does not depend on `jobs`. Trials fail without ending the sweep, but for a program that
/// cannot be started, and for a first trial that ends well without the metric, as all would.
/// Source of halving: Jamieson, Talwalkar, "Non-stochastic best arm identification and
/// hyperparameter optimization", AISTATS 2016; its names are those of Li et al., "Hyperband",
/// JMLR 2018, of which this is one bracket.
class Sweep {
 public:
  /// settings: as parse_sweep() gives them.
  explicit Sweep(Settings settings) : settings_(std::move(settings)) {}

  /// Until all have ended. SIGINT, SIGTERM and SIGHUP go on to the trials that run, and the sweep
  /// ends when they have; a second one kills them. Call it in a program with one thread.
  /// Returns 0; 1 when no trial has ended well; 128 + the signal that ended it.
  /// Throws std::invalid_argument for a folder that has another sweep, std::runtime_error when the
  /// program cannot be started or files cannot be written.
  int operator()();

 private:
  using Clock = std::chrono::steady_clock;

  struct Job {
    dist::detail::Child child;
    Trial* trial = nullptr;
    std::int64_t rung = 0;
    std::int64_t slot = 0;
    Clock::time_point start{};
    bool timed_out = false;
    std::optional<Clock::time_point> kill_at{};
  };

  void make_trials();
  void show_commands() const;
  [[nodiscard]] tutti::detail::Json identity() const;
  void check_identity() const;
  void load();
  [[nodiscard]] std::string run_folder(const Trial& trial, std::int64_t rung) const;
  void judge(Trial& trial);
  [[nodiscard]] std::vector<Trial*> due(std::int64_t rung);
  void run(std::int64_t rung);
  void start(Trial& trial, std::int64_t rung);
  void wait();
  void reap();
  void ended(Job& job);
  [[nodiscard]] std::string failure_of(const Job& job) const;
  void end(int signal);
  void write_tables() const;
  void tell(const Trial& trial, double seconds) const;
  [[nodiscard]] bool maximizes() const { return settings_.goal == "maximize"; }
  [[nodiscard]] std::chrono::milliseconds grace() const {
    return std::chrono::milliseconds(std::llround(settings_.cleanup_timeout * 1000));
  }

  Settings settings_;
  std::vector<Resource> rungs_{};
  std::vector<Trial> trials_{};
  std::int64_t asked_ = 0;  // of them; the others are of a call that asked for more
  std::list<Job> jobs_{};
  // In the environment of all that runs: of the folder, by which the next call finds what is left
  // of this one, and of this call, whose guard must not end what the next one has started.
  std::string mark_{};
  std::string call_ = "TUTTI_SWEEP_CALL=" + dist::detail::launch_mark();
  std::optional<Clock::time_point> ends_at_{};
  std::size_t due_ = 0;  // in this rung, in this call
  std::size_t ended_ = 0;
  bool ending_ = false;
  int signal_ = 0;          // that ended it
  std::string hopeless_{};  // why no further trial is worth its time
};

namespace detail {

// The last line of what a program has said, as one that can be shown and written as UTF-8; not the
// advice with which programs of CLI11 end their reason.
inline std::string last_line(std::string_view text) {
  const auto trim = [&text] {
    const auto last = text.find_last_not_of(" \t\r\n");
    text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
  };
  trim();
  if (constexpr std::string_view advice = "\nRun with --help for more information.";
      text.ends_with(advice)) {
    text.remove_suffix(advice.size());
    trim();
  }
  const auto before = text.find_last_of("\r\n");
  text.remove_prefix(before == std::string_view::npos ? 0 : before + 1);
  std::string out;
  while (!text.empty() && out.size() < 300) {
    const tutti::detail::Utf8Character next = tutti::detail::decode_utf8(text);
    const bool shown = next.ok && next.code >= 0x20 && !(next.code >= 0x7F && next.code < 0xA0);
    out += shown ? text.substr(0, next.bytes) : std::string_view("?");
    text.remove_prefix(next.bytes);
  }
  return out;
}

// Those that the sweep waits for; not one that is ignored, as SIGHUP is under nohup.
inline sigset_t taken_signals() {
  sigset_t all;
  sigemptyset(&all);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    struct sigaction now{};
    ::sigaction(signal, nullptr, &now);
    if (signal == SIGCHLD || now.sa_handler != SIG_IGN) {
      sigaddset(&all, signal);
    }
  }
  return all;
}

}  // namespace detail

inline void Sweep::make_trials() {
  asked_ = settings_.trials;
  std::vector<Trial> known = read_trials(settings_.folder + "/trials.jsonl");
  std::vector<Flags> flags;
  if (settings_.method == "grid") {
    flags = settings_.space.grid();
    asked_ = static_cast<std::int64_t>(flags.size());
  } else {
    const std::int64_t there = known.empty() ? 0 : known.back().number + 1;
    flags = settings_.space.draw(static_cast<std::uint64_t>(settings_.seed),
                                 std::max(settings_.trials, there));
  }
  for (Flags& values : flags) {
    trials_.push_back(
        {.number = static_cast<std::int64_t>(trials_.size()), .flags = std::move(values)});
  }
  for (Trial& old : known) {
    const auto place = static_cast<std::size_t>(old.number);
    detail::refuse_unless(place < trials_.size() && trials_[place].flags == old.flags,
                          "trial " + std::to_string(old.number) + " of the folder '" +
                              settings_.folder +
                              "' has other flags than this sweep gives it; take another --folder");
    trials_[place].runs = std::move(old.runs);
  }
}

inline void Sweep::show_commands() const {
  for (std::int64_t number = 0; number < asked_; ++number) {
    const Trial& trial = trials_[static_cast<std::size_t>(number)];
    const bool halves = rungs_.size() > 1;
    std::printf("%s\n",
                tutti::detail::shell_text(
                    command_of(settings_, trial, run_folder(trial, 0), number % settings_.jobs,
                               halves ? rungs_.front().text() : std::string()))
                    .c_str());
  }
  std::int64_t count = asked_;
  for (std::size_t rung = 1; rung < rungs_.size(); ++rung) {
    count = std::max<std::int64_t>(1, count / settings_.eta);
    std::printf("# then the best %lld with --%s=%s\n", static_cast<long long>(count),
                settings_.resource.c_str(), rungs_[rung].text().c_str());
  }
}

// What decides which trials there are, and what their results mean.
inline tutti::detail::Json Sweep::identity() const {
  using tutti::detail::Json;
  Json::Array command;
  for (const std::string& word : settings_.command) {
    command.emplace_back(word);
  }
  Json::Object out{{"method", settings_.method}, {"command", command}, {"flags", settings_.flags}};
  if (settings_.method != "grid") {
    out.emplace_back("seed", settings_.seed);
  }
  if (settings_.method == "halving") {
    out.insert(out.end(), {{"trials", settings_.trials},
                           {"metric", settings_.metric},
                           {"goal", settings_.goal},
                           {"value", settings_.value},
                           {"resource", settings_.resource},
                           {"min_resource", settings_.min_resource.text()},
                           {"max_resource", settings_.max_resource.text()},
                           {"eta", settings_.eta},
                           {"resume", settings_.resume}});
  }
  return out;
}

inline void Sweep::check_identity() const {
  using tutti::detail::Json;
  const std::string path = settings_.folder + "/sweep.json";
  const Json mine = identity();
  std::error_code error;
  const bool is_new = !std::filesystem::exists(path, error);
  if (is_new) {
    for (const auto& entry : std::filesystem::directory_iterator(settings_.folder)) {
      const std::string name = entry.path().filename().string();
      detail::refuse_unless(name == "lock" || name == "sweep.json.part",
                            "the folder '" + settings_.folder +
                                "' is not empty and has no sweep; "
                                "take another --folder");
    }
  }
  // Before anything has ended a mistake in the file or the command may be mended.
  if (is_new || read_trials(settings_.folder + "/trials.jsonl").empty()) {
    detail::write_or_throw(path, tutti::detail::to_text(mine, 2) + '\n');
    return;
  }
  std::string problem;
  const auto text = tutti::detail::read_regular_file(path, problem, 1 << 24);
  detail::refuse_unless(text.has_value(), "'" + path + "' cannot be read: " + problem);
  Json theirs;
  try {
    theirs = tutti::detail::parse_json(*text);
  } catch (const std::invalid_argument& broken) {
    detail::refuse_unless(false, "'" + path + "' is refused: " + broken.what());
  }
  for (const auto& [name, value] : mine.object()) {
    const Json* const old = theirs.find(name);
    detail::refuse_unless(old != nullptr && *old == value,
                          "the folder '" + settings_.folder + "' has another sweep: its " + name +
                              " is " + (old == nullptr ? "nothing" : tutti::detail::to_text(*old)) +
                              ", here " + tutti::detail::to_text(value) +
                              "; take another --folder");
  }
}

inline void Sweep::load() {
  for (Trial& trial : trials_) {
    judge(trial);
    if (settings_.retry_failed && trial.status == Trial::Status::failed) {
      trial.runs.pop_back();
      judge(trial);
    }
  }
}

inline std::string Sweep::run_folder(const Trial& trial, std::int64_t rung) const {
  const std::string folder = settings_.folder + '/' + trial_name(trial.number);
  const bool apart = rungs_.size() > 1 && !settings_.resume;
  return apart ? folder + "/rung-" + std::to_string(rung) : folder;
}

// What the last run of a trial makes of it.
inline void Sweep::judge(Trial& trial) {
  trial.status = Trial::Status::waiting;
  trial.reason.clear();
  if (trial.runs.empty()) {
    return;
  }
  TrialRun& run = trial.runs.back();
  const std::filesystem::path folder = run_folder(trial, run.rung);
  std::error_code error;
  std::string file = settings_.metrics_file;
  if (file.empty()) {
    file = std::filesystem::exists(folder / "metrics.jsonl", error) ||
                   !std::filesystem::exists(folder / "dashboard.jsonl", error)
               ? "metrics.jsonl"
               : "dashboard.jsonl";
  }
  const MetricReading read = read_metric(
      folder / file,
      {.metric = settings_.metric, .maximize = maximizes(), .best = settings_.value == "best"});
  run.value = read.problem.empty() ? std::optional(read.value) : std::nullopt;
  run.step = read.step;
  trial.reason = run.failure.empty() ? read.problem : run.failure;
  trial.status = trial.reason.empty() ? Trial::Status::finished : Trial::Status::failed;
  const bool anybody = std::any_of(trials_.begin(), trials_.end(), [](const Trial& one) {
    return one.status == Trial::Status::finished;
  });
  if (run.failure.empty() && !read.has_metric && !anybody && hopeless_.empty()) {
    hopeless_ = trial_name(trial.number) + " ended well, but " + read.problem;
  }
}

// The trials that run with this rung's resource, and have not.
inline std::vector<Trial*> Sweep::due(std::int64_t rung) {
  std::vector<Trial*> out;
  std::vector<std::pair<double, Trial*>> before;  // of the rung before
  for (std::int64_t number = 0; number < asked_; ++number) {
    Trial& trial = trials_[static_cast<std::size_t>(number)];
    if (rung == 0) {
      out.push_back(&trial);
    }
    for (const TrialRun& run : trial.runs) {
      if (run.rung == rung - 1 && run.failure.empty() && run.value) {
        before.emplace_back(maximizes() ? -*run.value : *run.value, &trial);
      }
    }
  }
  if (rung > 0) {
    std::int64_t keep = asked_;
    for (std::int64_t i = 0; i < rung; ++i) {
      keep = std::max<std::int64_t>(1, keep / settings_.eta);
    }
    std::stable_sort(before.begin(), before.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    before.resize(std::min(before.size(), static_cast<std::size_t>(keep)));
    for (const auto& [value, trial] : before) {
      out.push_back(trial);
    }
  }
  std::erase_if(out, [rung](const Trial* trial) {
    return std::any_of(trial->runs.begin(), trial->runs.end(),
                       [rung](const TrialRun& run) { return run.rung == rung; });
  });
  return out;
}

inline void Sweep::run(std::int64_t rung) {
  const std::vector<Trial*> all = due(rung);
  due_ = all.size();
  ended_ = 0;
  auto next = all.begin();
  while (!jobs_.empty() || (next != all.end() && !ending_)) {
    while (next != all.end() && !ending_ && std::ssize(jobs_) < settings_.jobs) {
      start(**next++, rung);
    }
    wait();
  }
}

inline void Sweep::start(Trial& trial, std::int64_t rung) {
  const std::string folder = run_folder(trial, rung);
  if (!settings_.resume) {
    detail::remove_folder(folder);  // of a run that did not come to its end
  }
  std::filesystem::create_directories(folder);
  std::int64_t slot = 0;
  while (std::any_of(jobs_.begin(), jobs_.end(),
                     [slot](const Job& job) { return job.slot == slot; })) {
    ++slot;
  }
  const bool halves = rungs_.size() > 1;
  dist::detail::ChildOptions child{
      .words = command_of(settings_, trial, folder, slot,
                          halves ? rungs_[static_cast<std::size_t>(rung)].text() : std::string()),
      .variables = {mark_, call_}};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view inherited = *entry;  // of a sweep that runs this one
    if (!inherited.starts_with("TUTTI_SWEEP=") && !inherited.starts_with("TUTTI_SWEEP_CALL=")) {
      child.variables.emplace_back(*entry);
    }
  }
  const std::string said = folder + "/output.txt";
  jobs_.push_back({.child = {child, dist::detail::Output(said), dist::detail::Output(said)},
                   .trial = &trial,
                   .rung = rung,
                   .slot = slot,
                   .start = Clock::now()});
}

// Until something happens, or for a tenth of a second.
inline void Sweep::wait() {
  const sigset_t taken = detail::taken_signals();
  const timespec moment{0, 100'000'000};
  const int signal = ::sigtimedwait(&taken, nullptr, &moment);
  reap();
  if (signal > 0 && signal != SIGCHLD) {
    signal_ = signal;
    end(signal);
  } else if (!ending_ && !hopeless_.empty()) {
    end(SIGTERM);
  } else if (!ending_ && ends_at_ && Clock::now() >= *ends_at_) {
    std::fprintf(stderr, "tutti-sweep: time_limit is over\n");
    end(SIGTERM);
  }
  const auto now = Clock::now();
  for (Job& job : jobs_) {
    const double seconds = std::chrono::duration<double>(now - job.start).count();
    if (settings_.trial_time_limit > 0 && seconds > settings_.trial_time_limit && !job.kill_at) {
      job.timed_out = true;
      job.child.kill(SIGTERM);
      job.kill_at = now + grace();
    } else if (job.kill_at && now >= *job.kill_at) {
      job.child.kill(SIGKILL);
    }
  }
}

inline void Sweep::reap() {
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    if (job->child.running()) {
      ++job;
    } else {
      ended(*job);
      job = jobs_.erase(job);
    }
  }
}

inline void Sweep::ended(Job& job) {
  Trial& trial = *job.trial;
  const double seconds = std::chrono::duration<double>(Clock::now() - job.start).count();
  if (ending_ && !job.timed_out) {
    trial.status = Trial::Status::interrupted;
    trial.reason = "the sweep ended before it; it is run again when the sweep goes on";
  } else {
    const bool halves = rungs_.size() > 1;
    trial.runs.push_back(
        {.rung = job.rung,
         .resource = halves ? rungs_[static_cast<std::size_t>(job.rung)].text() : std::string(),
         .seconds = std::round(seconds * 1000) / 1000,
         .failure = failure_of(job)});
    judge(trial);
  }
  ++ended_;
  write_tables();
  tell(trial, seconds);
}

inline std::string Sweep::failure_of(const Job& job) const {
  if (job.timed_out) {
    return "it took longer than trial_time_limit, " +
           detail::short_number(settings_.trial_time_limit) + " s";
  }
  const int code = job.child.code();
  if (code == 0) {
    return {};
  }
  const char* const name = code > 128 ? ::strsignal(code - 128) : nullptr;
  const std::string line = detail::last_line(job.child.out().tail());
  return (name != nullptr
              ? "it was ended by signal " + std::to_string(code - 128) + " (" + name + ")"
              : "it ended with status " + std::to_string(code)) +
         (line.empty() ? "" : ": " + line);
}

// No trial is begun any more; those that run are told to end, the second time killed.
inline void Sweep::end(int signal) {
  for (Job& job : jobs_) {
    job.child.kill(ending_ ? SIGKILL : signal);
    job.kill_at = job.kill_at ? job.kill_at : Clock::now() + grace();
  }
  ending_ = true;
}

inline void Sweep::write_tables() const {
  const std::vector<const Trial*> all = ranked(trials_, maximizes());
  detail::write_or_throw(settings_.folder + "/trials.jsonl", json_table(all, settings_.metric));
  detail::write_or_throw(settings_.folder + "/trials.csv", csv_table(all, settings_.metric));
}

inline void Sweep::tell(const Trial& trial, double seconds) const {
  std::string flags;
  for (const auto& [name, value] : trial.flags) {
    flags += " --" + name + "=" + flag_text(value);
  }
  if (!trial.runs.empty() && !trial.runs.back().resource.empty()) {
    flags += " --" + settings_.resource + "=" + trial.runs.back().resource;
  }
  const std::string how = trial.status == Trial::Status::finished
                              ? detail::short_number(*trial.value())
                              : std::string(to_string(trial.status)) + ", " + trial.reason;
  std::fprintf(stderr, "%zu/%zu %s, %s s,%s: %s\n", ended_, due_, trial_name(trial.number).c_str(),
               detail::short_number(std::round(seconds * 10) / 10).c_str(), flags.c_str(),
               how.c_str());
}

inline int Sweep::operator()() {
  rungs_ = settings_.rungs();
  if (settings_.dry_run) {
    make_trials();
    show_commands();
    return 0;
  }
  std::filesystem::create_directories(settings_.folder);
  const detail::FolderLock lock(settings_.folder);
  check_identity();
  make_trials();
  load();
  hopeless_.clear();  // of another metric
  mark_ = "TUTTI_SWEEP=" + std::filesystem::canonical(settings_.folder).string();
  dist::detail::kill_marked(mark_);  // of a sweep here that was killed
  const dist::detail::BlockedSignals blocked(detail::taken_signals());
  const dist::detail::Guard guard(call_, grace(), "tutti-sweep");
  if (settings_.time_limit > 0) {
    ends_at_ = Clock::now() + std::chrono::milliseconds(std::llround(settings_.time_limit * 1000));
  }
  for (std::size_t rung = 0; rung < rungs_.size() && !ending_; ++rung) {
    run(static_cast<std::int64_t>(rung));
  }
  if (ending_) {
    dist::detail::kill_marked(mark_);  // what those have left that were told to end
  }
  write_tables();
  const std::vector<const Trial*> all = ranked(trials_, maximizes());
  std::printf("%s", console_table(all, settings_.metric, 20).c_str());
  std::fflush(stdout);
  const bool any = !all.empty() && all.front()->status == Trial::Status::finished;
  if (!hopeless_.empty()) {
    std::fprintf(stderr, "tutti-sweep: %s; the sweep is ended, as no trial would have a value\n",
                 hopeless_.c_str());
  } else if (!any && signal_ == 0) {
    std::fprintf(stderr, "tutti-sweep: no trial has ended well; see output.txt in their folders\n");
  }
  return signal_ != 0 ? 128 + signal_ : any ? 0 : 1;
}

}  // namespace tutti::sweep
