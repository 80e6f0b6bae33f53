// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/dist/detail/child.hpp>
#include <tutti/dist/detail/guard.hpp>
#include <tutti/dist/detail/health.hpp>
#include <tutti/dist/detail/run_page.hpp>
#include <tutti/dist/flight_recorder.hpp>

// Waits for the ranks of this machine in one attempt, and ends them when one fails.

namespace tutti::dist::detail {

/// What comes from other machines.
struct Order {
  std::string why{};  ///< the attempt ends for that; "": it does not
  int signal = 0;     ///< goes on to the ranks; 0: none
};

/// What an attempt is watched by.
struct WatchOptions {
  int base_rank = 0;
  int world_size = 1;
  std::chrono::milliseconds cleanup_timeout{30'000};
  std::chrono::milliseconds monitor_interval{100};
  HealthOptions health{};
  std::string flight_folder{};  ///< where ranks write their last collectives
  /// Called at least every monitor_interval.
  std::function<Order()> outside{};
  /// Called once, when a signal asks the launcher to end.
  std::function<void(int)> told{};
  /// Called once, when a rank of this machine has failed: its status and the sentence.
  std::function<void(int, const std::string&)> failed{};
};

/// How an attempt ended.
struct Outcome {
  int status = 0;       ///< 0: well; else of the first rank that failed, 128 + signal
  bool told = false;    ///< the launcher got a signal to end
  std::string cause{};  ///< which rank failed first, and where; "" when none did by itself
  std::chrono::steady_clock::time_point ended{};  ///< at the first failure; else of the last rank
};

/// Says what a rank that failed by itself has left.
void report(const Child& child, int rank);

/// Waits for all children. Signals of the launcher are blocked and taken here.
class Watch {
 public:
  using Clock = std::chrono::steady_clock;

  /// page: of these children. mark: of all that they start, see marked_processes().
  Watch(WatchOptions options, std::vector<Child>& children, const RunPage& page, std::string mark)
      : options_(std::move(options)),
        children_(children),
        page_(page),
        health_(options_.health, page),
        mark_(std::move(mark)) {}

  /// Those that are taken here; not a SIGHUP that is ignored, as under nohup.
  static sigset_t signals() {
    sigset_t all;
    sigemptyset(&all);
    for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGCHLD}) {
      sigaddset(&all, signal);
    }
    struct sigaction hangup{};
    ::sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) {
      sigaddset(&all, SIGHUP);
    }
    return all;
  }

  /// Whether one of them asks the launcher to end.
  static bool asks_to_end(int signal) {
    return signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
  }

  /// Until all have ended.
  Outcome operator()();

 private:
  [[nodiscard]] int rank_of(std::size_t child) const {
    return options_.base_rank + static_cast<int>(child);
  }

  bool anybody_runs();

  // It has ended badly by itself: not since another failed, nor of the signal that went on to it.
  [[nodiscard]] bool failed(const Child& child) const;

  void kill_all();

  // The first one goes to the ranks, SIGHUP as SIGTERM, by which programs save; then it takes as
  // long as it takes. A further SIGINT or SIGTERM kills.
  void forward(int signal);

  void look_for_failures();

  // A rank that is there but does not run, or does not go on. The latter still has a thread that
  // writes down its last collectives: it is killed when that is done, or dump_patience later.
  void look_for_silence();

  // Why that child is to be killed now; empty: it is well, or has time to write.
  [[nodiscard]] std::string why_struck(std::size_t child);

  // All ranks write down their last collectives.
  void ask_for_dumps();

  // "rank 1 of 4 on gpu01 (pid 17)"
  [[nodiscard]] std::string name(std::size_t child) const;

  // What ended that child and where it was.
  [[nodiscard]] std::string sentence(std::size_t child) const;

  // A rank that has ended with status 0 ahead of the others: in a batch or a callback, or before it
  // met them.
  [[nodiscard]] bool left(std::size_t child) const;

  // Of those that have left, the first; its sentence is told to the ranks, and said when others
  // still run a second later.
  void look_for_leavers();

  // The attempt ends: the ranks get to know why, and a moment to say so themselves.
  void end(const std::string& why);

  void end_others();

  void say(const char* what);

  WatchOptions options_;
  std::vector<Child>& children_;
  const RunPage& page_;
  Health health_;
  std::string mark_;
  int first_failure_ = 0;
  Clock::time_point failed_at_;  // the first
  std::string cause_;
  int forwarded_ = 0;                          // a signal
  std::map<std::size_t, std::string> struck_;  // children that were killed here, and why
  // One that hangs: until when it may write, and how many files it had written before.
  struct Dump {
    Clock::time_point limit;
    std::uint32_t before;
  };
  std::map<std::size_t, Dump> dumps_;
  std::optional<std::size_t> leaver_;  // the child that has left first
  Clock::time_point left_at_;
  bool leaver_is_said_ = false;
  std::optional<Clock::time_point> told_at_;
  std::optional<Clock::time_point> killed_at_;
};

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE void report(const Child& child, int rank) {
  std::fprintf(stderr, "tutti-run: rank %d (pid %d) ended with status %d%s\n", rank, child.pid(),
               child.code(), child.code() > 128 ? ", a signal + 128" : "");
  for (const auto& [output, name] :
       {std::pair(&child.out(), "stdout"), std::pair(&child.error(), "stderr")}) {
    const std::string text = output->captured() ? output->tail() : std::string();
    if (!text.empty()) {
      std::fprintf(stderr, "---------- begin of rank %d's %s ----------\n%s\n", rank, name,
                   text.c_str());
      std::fprintf(stderr, "---------- end of rank %d's %s ----------\n", rank, name);
    }
  }
}

TUTTI_INLINE Outcome Watch::operator()() {
  const sigset_t taken = signals();
  const timespec moment{options_.monitor_interval.count() / 1000,
                        options_.monitor_interval.count() % 1000 * 1'000'000};
  while (anybody_runs()) {
    const int signal = ::sigtimedwait(&taken, nullptr, &moment);
    if (asks_to_end(signal)) {
      if (options_.told && forwarded_ == 0) {
        options_.told(signal);
      }
      forward(signal);
    } else if (signal == SIGQUIT) {
      std::fprintf(stderr,
                   "tutti-run: the ranks of this machine write their last collectives to %s\n",
                   options_.flight_folder.c_str());
      ask_for_dumps();
    }
    look_for_leavers();
    look_for_failures();
    look_for_silence();
    const Order elsewhere = options_.outside ? options_.outside() : Order();
    if (elsewhere.signal != 0 && forwarded_ == 0) {
      forward(elsewhere.signal);
    }
    if (!elsewhere.why.empty() && first_failure_ == 0) {
      first_failure_ = 128 + SIGTERM;
      failed_at_ = Clock::now();
      cause_ = elsewhere.why;
      end(elsewhere.why);
    }
    if (told_at_ && Clock::now() >= *told_at_) {
      told_at_.reset();
      end_others();
    }
    if (killed_at_ && Clock::now() >= *killed_at_) {
      say("is killed");
      kill_all();
      killed_at_ = Clock::now() + std::chrono::hours(1);
    }
  }
  look_for_leavers();
  look_for_failures();
  int status = first_failure_;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (failed(children_[i])) {
      report(children_[i], rank_of(i));
    }
    status = status == 0 ? children_[i].code() : status;
  }
  if (status != 0) {
    kill_marked(mark_);  // what is left of a run that failed
  }
  return {.status = status,
          .told = forwarded_ != 0,
          .cause = cause_,
          .ended = first_failure_ != 0 ? failed_at_ : Clock::now()};
}

TUTTI_INLINE bool Watch::anybody_runs() {
  bool any = false;
  for (Child& child : children_) {
    any = child.running() || any;
  }
  return any;
}

TUTTI_INLINE bool Watch::failed(const Child& child) const {
  const bool of_signal = child.code() == 128 + forwarded_ || child.code() == 128 + SIGKILL;
  return child.failed() || (forwarded_ != 0 && child.ended_badly() && !of_signal);
}

TUTTI_INLINE void Watch::kill_all() {
  for (Child& child : children_) {
    child.kill(SIGKILL);
  }
  signal_marked(mark_, SIGKILL);
}

TUTTI_INLINE void Watch::forward(int signal) {
  if (forwarded_ != 0) {
    if (signal != SIGHUP) {  // a shell and the kernel may both say that a terminal is closed
      kill_all();
    }
    return;
  }
  forwarded_ = signal == SIGHUP ? SIGTERM : signal;
  for (Child& child : children_) {
    child.kill(forwarded_);
  }
}

TUTTI_INLINE void Watch::look_for_failures() {
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < children_.size() && first_failure_ == 0; ++i) {
    const bool follows = page_.slot(static_cast<int>(i)).follows.load() != 0;
    if (failed(children_[i]) && (!first || !follows)) {
      first = i;
      if (!follows) {
        break;
      }
    }
  }
  if (first) {
    first_failure_ = children_[*first].code();
    failed_at_ = Clock::now();
    cause_ = sentence(*first);
    if (leaver_ && page_.slot(static_cast<int>(*first)).follows.load() != 0) {
      const auto before =
          std::chrono::duration_cast<std::chrono::milliseconds>(failed_at_ - left_at_);
      cause_ = sentence(*leaver_) + ", " + Restarts::seconds(before) + " before the others failed";
      std::fprintf(stderr, "tutti-run: %s\n", cause_.c_str());
    }
    if (options_.failed) {
      options_.failed(first_failure_, cause_);
    }
    end(cause_);
  }
}

TUTTI_INLINE void Watch::look_for_silence() {
  std::vector<std::int64_t> started;
  for (const Child& child : children_) {
    started.push_back(child.pid());
  }
  health_.look(started);
  for (std::size_t i = 0; i < children_.size() && first_failure_ == 0; ++i) {
    const std::string why =
        children_[i].running() && !struck_.contains(i) ? why_struck(i) : std::string();
    if (!why.empty()) {
      struck_[i] = why;
      std::fprintf(stderr, "tutti-run: %s %s; it is killed\n", name(i).c_str(), why.c_str());
      children_[i].strike();
    }
  }
}

TUTTI_INLINE std::string Watch::why_struck(std::size_t child) {
  constexpr std::chrono::seconds dump_patience{2};
  const int local_rank = static_cast<int>(child);
  std::string why = health_.silent(local_rank);
  if (!why.empty()) {
    return why;
  }
  why = health_.hangs(local_rank);
  if (why.empty()) {
    dumps_.erase(child);
    return {};
  }
  const std::uint32_t written = page_.slot(local_rank).dumps.load();
  const auto [asked, is_new] =
      dumps_.try_emplace(child, Dump{Clock::now() + dump_patience, written});
  if (is_new) {
    ask_for_dumps();
  }
  const bool waits = written == asked->second.before && Clock::now() < asked->second.limit;
  return waits ? std::string() : why;
}

TUTTI_INLINE void Watch::ask_for_dumps() {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    page_.slot(static_cast<int>(i)).wants_dump.store(1);
  }
}

TUTTI_INLINE std::string Watch::name(std::size_t child) const {
  return "rank " + std::to_string(rank_of(child)) + " of " + std::to_string(options_.world_size) +
         " on " + host_name() + " (pid " + std::to_string(children_[child].pid()) + ")";
}

TUTTI_INLINE std::string Watch::sentence(std::size_t child) const {
  const int code = children_[child].code();
  const auto struck = struck_.find(child);
  std::string text = name(child);
  if (struck != struck_.end()) {
    text += " " + struck->second + " and was killed";
  } else if (code > 128 && ::strsignal(code - 128) != nullptr) {
    text +=
        " was ended by signal " + std::to_string(code - 128) + " (" + ::strsignal(code - 128) + ")";
  } else {
    text += " ended with status " + std::to_string(code);
    text += code == 0 ? " while the others went on" : "";
  }
  const RankSlot& slot = page_.slot(static_cast<int>(child));
  if (slot.pid.load() != 0) {
    text += ", " + where_it_was(slot);
  }
  return text;
}

TUTTI_INLINE bool Watch::left(std::size_t child) const {
  const RankSlot& slot = page_.slot(static_cast<int>(child));
  if (slot.follows.load() != 0) {
    return false;
  }
  if (slot.pid.load() != 0) {
    return slot.batch_since.load() != 0 || slot.phase_since.load() != 0 ||
           slot.call_since.load() != 0;
  }
  bool others_meet = false;
  for (int i = 0; i < page_.ranks(); ++i) {
    others_meet = others_meet || page_.slot(i).tick.load() != 0;
  }
  return others_meet;
}

TUTTI_INLINE void Watch::look_for_leavers() {
  bool others_are_left = false;
  for (Child& child : children_) {
    others_are_left = child.running() || child.ended_badly() || others_are_left;
  }
  if (forwarded_ != 0 || first_failure_ != 0 || !others_are_left) {
    return;
  }
  for (std::size_t i = 0; i < children_.size() && !leaver_; ++i) {
    if (children_[i].ended_well() && left(i)) {
      leaver_ = i;
      left_at_ = Clock::now();
      page_.tell(sentence(i));
    }
  }
  if (leaver_ && !leaver_is_said_ && Clock::now() - left_at_ > std::chrono::seconds(1)) {
    leaver_is_said_ = true;
    std::fprintf(stderr, "tutti-run: %s; they wait for it\n", sentence(*leaver_).c_str());
  }
}

TUTTI_INLINE void Watch::end(const std::string& why) {
  page_.tell(why);
  bool anybody_listens = false;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    const RankSlot& slot = page_.slot(static_cast<int>(i));
    anybody_listens = anybody_listens || (children_[i].running() && slot.tick.load() != 0);
  }
  ask_for_dumps();
  told_at_ = Clock::now() + std::chrono::milliseconds(anybody_listens ? 250 : 0);
}

TUTTI_INLINE void Watch::end_others() {
  killed_at_ = Clock::now() + options_.cleanup_timeout;
  if (forwarded_ != 0) {  // they have been told, and wait for one that is gone, perhaps
    say("is killed unless it ends in time, since another rank failed after the signal");
    return;
  }
  say("is told to end, since another rank failed");
  for (Child& child : children_) {
    child.kill(SIGTERM);
  }
}

TUTTI_INLINE void Watch::say(const char* what) {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (children_[i].running()) {
      std::fprintf(stderr, "tutti-run: rank %d (pid %d) %s\n", rank_of(i), children_[i].pid(),
                   what);
    }
  }
}

}  // namespace tutti::dist::detail

#endif
