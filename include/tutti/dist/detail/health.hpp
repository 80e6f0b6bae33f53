// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/dist/detail/guard.hpp>
#include <tutti/dist/detail/restarts.hpp>
#include <tutti/dist/detail/run_page.hpp>
#include <tutti/dist/flight_recorder.hpp>

// Which ranks of this machine are there but do not go on.

namespace tutti::dist::detail {

struct HealthOptions {
  /// A stopped rank may be silent for so long, one that is not stopped (it swaps, or gets no
  /// processor) ten times as long; 0: for ever.
  std::chrono::milliseconds health_timeout{1000};
  /// A batch, or the callbacks of an event between batches, may take so long, and ten times the
  /// median of the batches before; 0: for ever.
  std::chrono::milliseconds hang_timeout{300'000};
};

/// The letter of a process's state in /proc ('T' stopped, 'Z' dead); 't' also where a debugger
/// holds it; 0 when there is no such process.
char process_state(std::int64_t pid);

/// "the callbacks of BatchEnd of batch 30", "the callbacks of EpochEnd after batch 30": a phase of
/// an event. batch: the last; -1: there was none.
std::string callbacks_of(Phase phase, std::int64_t batch);

/// Looks at the launcher's page.
class Health {
 public:
  using Clock = std::chrono::steady_clock;

  Health(HealthOptions options, const RunPage& page)
      : options_(options), page_(page), seen_(static_cast<std::size_t>(page.ranks())) {}

  /// To be called all the time. started: the processes, one for each rank.
  void look(const std::vector<std::int64_t>& started);

  /// Why that rank is given up: "does not run (stopped)"; empty when it is well.
  [[nodiscard]] std::string silent(int local_rank) const;

  /// Why one that is not silent is given up: "has not ended its batch for 300.1 s"; empty when it
  /// goes on.
  [[nodiscard]] std::string hangs(int local_rank) const;

 private:
  struct Seen {
    std::int64_t process = 0;
    std::uint64_t tick = 0;
    Clock::time_point ticked = Clock::now();
    std::int64_t batches = 0;
    std::int64_t batch_since = 0;
    std::vector<std::int64_t> times{};  // of the last batches, in nanoseconds
  };

  // The rank that the others wait for: that with the fewest collectives.
  [[nodiscard]] int slowest() const;
  [[nodiscard]] bool others_wait() const;

  HealthOptions options_;
  const RunPage& page_;
  std::vector<Seen> seen_;
  Clock::time_point looked_ = Clock::now();
};

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE char process_state(std::int64_t pid) {
  const std::string process = std::to_string(pid);
  const std::string stat = proc_file(process, "stat");
  const std::size_t name_end = stat.rfind(") ");
  if (name_end == std::string::npos) {
    return 0;
  }
  const std::string status = proc_file(process, "status");
  const std::size_t tracer = status.find("\nTracerPid:");
  const bool debugged = tracer != std::string::npos && std::atoi(status.c_str() + tracer + 11) != 0;
  return debugged ? 't' : stat[name_end + 2];
}

TUTTI_INLINE std::string callbacks_of(Phase phase, std::int64_t batch) {
  const auto names = []<class... Es>(types<Es...>) {
    return std::array<std::string_view, sizeof...(Es)>{Es::name...};
  }(all_events{});
  const std::size_t place =
      static_cast<std::size_t>(phase) - static_cast<std::size_t>(Phase::event);
  std::string type;  // BatchEnd of batch_end
  bool is_first = true;
  for (const char letter : place < names.size() ? names[place] : std::string_view("event")) {
    if (letter != '_') {
      type += is_first ? static_cast<char>(letter - 'a' + 'A') : letter;
    }
    is_first = letter == '_';
  }
  const std::string number = " batch " + std::to_string(batch);
  return "the callbacks of " + type +
         (batch < 0 ? "" : (phase == phase_of<BatchEnd> ? " of" : " after") + number);
}

TUTTI_INLINE void Health::look(const std::vector<std::int64_t>& started) {
  const auto now = Clock::now();
  // Where the launcher itself did not run, silence says nothing.
  const bool was_late = now - looked_ > std::chrono::milliseconds(500);
  looked_ = now;
  for (int i = 0; i < page_.ranks(); ++i) {
    const RankSlot& slot = page_.slot(i);
    Seen& seen = seen_[static_cast<std::size_t>(i)];
    const std::int64_t itself = slot.pid.load();  // started by what was started, perhaps
    seen.process = itself != 0 ? itself : started[static_cast<std::size_t>(i)];
    const std::uint64_t tick = slot.tick.load();
    // Before its first sign of life and after the last a rank is well unless it is stopped.
    const bool is_well = tick == 0 && process_state(seen.process) != 'T';
    if (tick != seen.tick || was_late || is_well) {
      seen.tick = tick;
      seen.ticked = now;
    }
    const std::int64_t batches = slot.batches.load();
    const std::int64_t since = slot.batch_since.load();
    if (batches != seen.batches) {
      if (since != 0 && seen.batch_since != 0 && batches > seen.batches) {
        constexpr std::size_t most = 32;
        if (seen.times.size() == most) {
          seen.times.erase(seen.times.begin());
        }
        seen.times.push_back((since - seen.batch_since) / (batches - seen.batches));
      }
      seen.batches = batches;
      seen.batch_since = since;
    }
  }
}

TUTTI_INLINE std::string Health::silent(int local_rank) const {
  const Seen& seen = seen_[static_cast<std::size_t>(local_rank)];
  const auto silence = std::chrono::duration_cast<std::chrono::milliseconds>(looked_ - seen.ticked);
  if (options_.health_timeout.count() > 0 && silence > options_.health_timeout) {
    const char state = process_state(seen.process);
    const bool stopped = state == 'T';
    if (state == 0 || state == 'Z' || state == 't' || (seen.tick == 0 && !stopped)) {
      return {};
    }
    if (stopped || silence > 10 * options_.health_timeout) {
      return "did not run for " + Restarts::seconds(silence) +
             (stopped ? " (stopped)" : " (it swaps, or gets no processor)");
    }
  }
  return {};
}

TUTTI_INLINE std::string Health::hangs(int local_rank) const {
  const RankSlot& slot = page_.slot(local_rank);
  const std::int64_t batch = slot.batch_since.load();
  const std::int64_t phase_since = slot.phase_since.load();
  const std::int64_t since = batch != 0 ? batch : phase_since;
  const auto phase = static_cast<Phase>(slot.phase.load());
  if (options_.hang_timeout.count() == 0 || since == 0 ||
      (phase_since != 0 && phase == Phase::unwatched) ||
      seen_[static_cast<std::size_t>(local_rank)].tick == 0 || local_rank != slowest() ||
      (batch == 0 && phase >= Phase::event && !others_wait())) {
    return {};
  }
  std::vector<std::int64_t> times = seen_[static_cast<std::size_t>(local_rank)].times;
  std::sort(times.begin(), times.end());
  const std::int64_t median = times.empty() ? 0 : times[times.size() / 2];
  const std::int64_t limit =
      std::max(10 * median, std::int64_t{options_.hang_timeout.count()} * 1'000'000);
  const std::int64_t passed = monotonic_ns() - since;
  if (passed < limit || process_state(slot.pid.load()) == 't') {
    return {};
  }
  const std::int64_t batches = slot.batches.load();
  const std::string what =
      batch != 0             ? "has not ended its batch"
      : phase == Phase::load ? "has got no batch from its loader"
      : phase == Phase::evaluate
          ? "has not ended a batch of evaluation"
          : "has not come out of " + callbacks_of(phase, batches > 0 ? slot.batch.load() : -1);
  return what + " for " + Restarts::seconds(std::chrono::milliseconds(passed / 1'000'000));
}

TUTTI_INLINE bool Health::others_wait() const {
  for (int i = 0; i < page_.ranks(); ++i) {
    if (page_.slot(i).call_since.load() != 0) {
      return true;
    }
  }
  return false;
}

TUTTI_INLINE int Health::slowest() const {
  const auto position = [this](int rank) {
    const RankSlot& slot = page_.slot(rank);
    return std::pair(slot.call.load(), slot.call_since.load() != 0);
  };
  int found = 0;
  for (int i = 1; i < page_.ranks(); ++i) {
    found = position(i) < position(found) ? i : found;
  }
  return found;
}

}  // namespace tutti::dist::detail

#endif
