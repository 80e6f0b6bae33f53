// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/error_file.hpp>
#include <tutti/core/detail/json_quoted.hpp>
#include <tutti/core/event.hpp>
#include <tutti/dist/detail/run_page.hpp>
#include <tutti/dist/environment.hpp>

/// What this rank did last with the others: the last 256 collectives, written to a file when a run
/// fails. LibTorch-free.
namespace tutti::dist {

namespace detail {

/// The name of this machine.
std::string host_name();

/// "in all_reduce (clipping), call 812, in batch 17"; "behind" instead of the first "in" when the
/// call was over. purpose "": it says none. call 0: there was none. batch -1: there was none.
std::string where_it_was(std::uint64_t call, std::string_view name, std::string_view purpose,
                         bool inside, std::int64_t batch);

/// The same of a slot of the launcher's page.
std::string where_it_was(const RankSlot& slot);

}  // namespace detail

/// While it lives, the collectives that this thread makes are for `what`, which messages and
/// records then say: "in all_reduce (clipping)". The innermost one counts.
class CallPurpose {
 public:
  /// what: a few words, which outlive this; as "clipping", or the name of a unit.
  explicit CallPurpose(std::string_view what) : before_(std::exchange(now(), what)) {}
  CallPurpose(const CallPurpose&) = delete;
  CallPurpose& operator=(const CallPurpose&) = delete;
  ~CallPurpose() { now() = before_; }

  /// Of this thread; empty: nobody has said.
  static std::string_view current() { return now(); }

 private:
  static std::string_view& now() {
    thread_local std::string_view what;
    return what;
  }
  std::string_view before_;
};

/// One collective of this rank.
struct RecordedCall {
  static constexpr std::size_t most_sizes = 6;
  static constexpr std::size_t most_letters = 64;

  std::uint64_t number = 0;  ///< 1 for the first of the process; the same on all ranks of a run
  const char* name = "";     ///< "all_reduce"
  std::array<char, most_letters> purpose{};      ///< what it was for, cut where it does not fit
  std::array<std::int64_t, most_sizes> sizes{};  ///< of the tensor; further ones are left out
  std::size_t dimensions = 0;
  const char* type = "";        ///< of its elements; "" where there is no tensor
  std::int64_t batch = -1;      ///< in which it was made; -1: before the first
  std::int64_t started_ns = 0;  ///< of the clock on the wall
  std::int64_t ended_ns = 0;    ///< 0: it has not ended
  bool failed = false;
};

/// What a rank does between batches of training.
enum class Phase : std::uint32_t {
  load,       ///< waits for the next batch of a loader
  evaluate,   ///< a batch of evaluation
  unwatched,  ///< what may take as long as it takes, inside of a batch or an event, too
  event = 16  ///< the callbacks of an event: this one and its place among all_events
};

/// The phase of a rank that runs the callbacks of `E`.
template <Event E>
inline constexpr Phase phase_of = []<class... Es>(types<Es...>) {
  auto place = static_cast<std::uint32_t>(Phase::event);
  static_cast<void>(((!std::is_same_v<E, Es> && (++place, true)) && ...));
  return static_cast<Phase>(place);
}(all_events{});

/// The last collectives of this process. May be used by several threads.
class FlightRecorder {
 public:
  static constexpr std::size_t capacity = 256;

  /// Notes that a collective begins. name and type: texts that stay, such as literals.
  /// Returns its number, for end().
  std::uint64_t begin(const char* name, std::span<const std::int64_t> sizes = {},
                      const char* type = "");

  /// Notes that it is over. A number that is older than the last 256 is ignored.
  void end(std::uint64_t number, bool failed = false);

  /// Notes that a batch begins, and that it is over. The Trainer does both; a loop of your own may,
  /// so that messages name the batch and tutti-run notices one that never ends.
  void begin_batch(std::int64_t batch);
  void end_batch();

  /// Notes that something between batches of training begins, and that it is over; tutti-run
  /// notices where it never is. begin_phase() returns what was begun and not over before, and
  /// end_phase(that) goes back to it. See PhaseScope.
  std::optional<Phase> begin_phase(Phase phase);
  void end_phase(std::optional<Phase> before = std::nullopt);

  /// The last collective; number 0 when there was none.
  [[nodiscard]] RecordedCall last() const;

  /// The last ones, oldest first; at most `capacity`.
  [[nodiscard]] std::vector<RecordedCall> entries() const;

  /// The same as JSON, with the rank, the machine and the batch.
  [[nodiscard]] std::string json() const;

  /// Writes json() to attempt<restarts>_rank<rank>.json in the folder TUTTI_FLIGHT_FOLDER, which
  /// tutti-run sets; makes the folder. Returns the file's path; empty where no folder is set or it
  /// cannot be written.
  std::string dump() noexcept;

  /// "in all_reduce (clipping), call 812, in batch 17": where this rank is now.
  [[nodiscard]] std::string where() const;

  /// Notes that this rank fails since another one is gone.
  void follow();

  /// Whose records these are, and the slot of the launcher's page to keep; null: none.
  void belongs_to(const Environment& environment, detail::RankSlot* slot);

  /// The launcher's slot of this rank; null: there is none.
  [[nodiscard]] detail::RankSlot* slot() const noexcept {
    return slot_.load(std::memory_order_acquire);
  }

 private:
  [[nodiscard]] RecordedCall& entry(std::uint64_t number) { return ring_[number % capacity]; }
  [[nodiscard]] const RecordedCall& entry(std::uint64_t number) const {
    return ring_[number % capacity];
  }

  mutable std::mutex mutex_;
  std::array<RecordedCall, capacity> ring_{};
  std::uint64_t count_ = 0;
  std::atomic<std::int64_t> batch_{-1};
  std::atomic<detail::RankSlot*> slot_{nullptr};
  Environment place_{};
};

/// That of this process. It is never destroyed.
FlightRecorder& flight_recorder();

/// While it lives, this rank is in that phase; then in the one before, whose time begins anew. Your
/// own callback that may take longer than `--hang_timeout` says so:
///
///     const tutti::dist::PhaseScope measuring(tutti::dist::Phase::unwatched);
class PhaseScope {
 public:
  explicit PhaseScope(Phase phase) : before_(flight_recorder().begin_phase(phase)) {}
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;
  ~PhaseScope() { flight_recorder().end_phase(before_); }

 private:
  std::optional<Phase> before_;
};

namespace detail {

/// A collective, from its making to the end of the scope; failed when an exception ends the scope.
class Recorded {
 public:
  explicit Recorded(const char* name, std::span<const std::int64_t> sizes = {},
                    const char* type = "")
      : number_(flight_recorder().begin(name, sizes, type)) {}
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  ~Recorded() { flight_recorder().end(number_, std::uncaught_exceptions() > before_); }

 private:
  std::uint64_t number_;
  int before_ = std::uncaught_exceptions();
};

}  // namespace detail

}  // namespace tutti::dist

#if TUTTI_BODIES
#include <tutti/dist/flight_recorder.inl.hpp>
#endif
