// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/checkpoint/detail/staging.hpp>
#include <tutti/checkpoint/filename.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/interval.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/time_or_function.hpp>

namespace tutti::checkpoint {

struct SnapshotFiles;

/// When and where a Saver writes, and what it keeps.
struct SaverOptions {
  std::string folder{};  ///< a pattern, see format_name()
  std::string filename = "ep{epoch}-ba{batch}";
  std::string latest_filename = "latest";  ///< points to the newest, or best; empty: no pointer
  TimeOrFunction interval = "1ep";         ///< ignored when monitor is set
  bool overwrite = false;     ///< go on in a folder that holds checkpoints of others, from later
                              ///< in a run or of the same name
  bool weights_only = false;  ///< the model alone
  std::int64_t keep = -1;     ///< newest ones, or best ones with a monitor; -1: all
  std::vector<std::string> ignore_keys{};  ///< what is left out, see IgnoreKeys
  std::string monitor{};           ///< an evaluation metric's name: save its best values only
  std::string dataloader_label{};  ///< the evaluation set that the metric is of
  bool maximize = false;           ///< whether more of it is better
  /// Fills what is written in place of the run's checkpoint; empty: the checkpoint. Called on every
  /// rank when one is due.
  std::function<void(SnapshotFiles&)> fill_files{};
};

/// Decides when a checkpoint is due and which ones stay; the trainer asks it and writes.
///
/// The trainer's own and those of policies are of this one class. A policy brings one with a member
/// `checkpoint::Saver& checkpoint_saver()`, valid from Init. All ranks call the same members in the
/// same order; only rank 0 touches files.
///
/// Every checkpoint carries the saver's id, which a run that goes on in the same folder takes over.
/// Only what has that id is ever removed.
class Saver {
 public:
  /// state: gives the names their run name and ranks; {rank} in a file's name is the writer's, 0.
  /// Throws c10::ValueError when a name has an unknown placeholder or is no name in a folder, and
  /// when a number is out of range.
  Saver(SaverOptions options, const State& state);

  [[nodiscard]] const SaverOptions& options() const { return options_; }

  /// Where its checkpoints are.
  [[nodiscard]] const std::string& folder() const { return folder_; }

  /// The pointer's name there; empty: none.
  [[nodiscard]] const std::string& latest() const { return latest_; }

  /// What its checkpoints carry.
  [[nodiscard]] const std::string& id() const { return id_; }

  /// What it has written and not removed: oldest first.
  [[nodiscard]] std::vector<std::string> saved() const;

  /// The metric's value for each of saved().
  [[nodiscard]] std::vector<double> values() const;

  /// The one of saved() with the best value of the monitor, the newest of several; empty: there is
  /// none, or no monitor.
  [[nodiscard]] std::string best() const;

  /// Tells of an evaluation that has just ended.
  /// Throws c10::Error when the set has no such metric.
  void evaluated(const State& state);

  /// Whether the monitor's set has been evaluated in this process.
  [[nodiscard]] bool has_evaluated() const { return has_evaluated_; }

  /// Whether one is to be written right after event `E`; remembers it until then.
  /// at_once: the run is about to stop.
  template <Event E>
  bool due(E event, const State& state, bool at_once = false) {
    const bool by_interval = interval_due(event, state) || at_once;
    const std::int64_t batch = state.timestamp.batch;
    const bool wanted = options_.monitor.empty()
                            ? by_interval
                            : candidate_ && candidate_batch_ == batch && ranks(*candidate_);
    due_ = wanted && last_batch_ != batch;
    return due_;
  }
  [[nodiscard]] bool is_due() const { return due_; }

  /// Enters a new checkpoint, before anything is collected, so that it lists itself.
  /// Returns its name in the folder.
  std::string begin(const State& state);

  /// What is to be done on disk for the checkpoint that begin() entered.
  struct Target {
    std::string path{};                  ///< where it goes
    std::string link{};                  ///< to be pointed at it then; empty: none
    bool links_here = true;              ///< else only copies elsewhere have the link
    std::vector<std::string> surplus{};  ///< to be removed then, where they carry the id
    std::string id{};                    ///< what it is to carry
    bool overwrite = false;              ///< it may replace one that does not
  };

  /// The target of that checkpoint. Those beyond the number to keep leave saved().
  Target target();

  /// The writing ended. A checkpoint that failed is forgotten unless it is there, whole, and those
  /// that it would have replaced stay.
  void ended(bool well, bool there = true);

  /// The last one that was to be written was not.
  [[nodiscard]] bool failed() const { return failed_; }

  /// Forgets at which batch it saved last; the files stay.
  void restart() { last_batch_ = -1; }

  /// Keeps the list of what it wrote, the newest, which is being written, included.
  void save(Archive& archive) const;

  /// A list that load() has taken.
  struct Loaded {
    std::string id{};  ///< of the saver that it is from
    Place place{};     ///< of the folder that it is about
    std::vector<std::string> names{};
    std::vector<double> values{};
    std::int64_t last_batch = -1;
  };

  /// Takes such a list. It says what can be kept and removed only once adopt() is called.
  void load(const Archive& archive);

  [[nodiscard]] const Loaded& loaded() const { return loaded_; }

  /// Names of that list whose checkpoints a monitor compares further ones with: all where few are
  /// kept, else the best.
  [[nodiscard]] std::vector<std::string> compared() const;

  /// Goes on with the loaded list, as the saver that it is from. batch: where the run is; what was
  /// saved there is not saved again.
  /// own: see claim(), which says it on rank 0; empty: the list is another's, and is dropped.
  void adopt(const std::string& own, std::int64_t batch);

 private:
  struct Entry {
    std::string name;  // in the folder
    double value = 0;
  };

  [[nodiscard]] std::string path_of(const Entry& entry) const { return folder_ + "/" + entry.name; }

  // A function is asked at the events of saving, where alone a time can be due.
  template <Event E>
  bool interval_due(E event, const State& state) {
    const TimeOrFunction::Function* const function = options_.interval.function();
    return function == nullptr ? interval_(event, state.progress())
                               : !std::is_same_v<E, FitEnd> && (*function)(state, E::name);
  }

  static NameFields fields(const State& state);
  void check_options() const;
  // A file's name, in which {rank} is the writer's.
  [[nodiscard]] static std::string file_name(const std::string& pattern, const State& state);

  [[nodiscard]] std::int64_t keep() const { return options_.keep; }

  [[nodiscard]] bool better(double a, double b) const { return options_.maximize ? a > b : a < b; }

  // The oldest of the worst.
  [[nodiscard]] std::vector<Entry>::iterator worst() {
    return std::max_element(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) {
      return better(a.value, b.value);
    });
  }

  [[nodiscard]] bool ranks(double value) {
    const bool room = keep() < 0 || static_cast<std::int64_t>(entries_.size()) < keep();
    return !std::isnan(value) && (room || (keep() > 0 && better(value, worst()->value)));
  }

  [[nodiscard]] bool is_best(const Entry& newest) const {
    return std::none_of(entries_.begin(), entries_.end(),
                        [&](const Entry& entry) { return better(entry.value, newest.value); });
  }

  SaverOptions options_;
  std::string folder_;
  std::string latest_;
  std::string id_ = detail::random_suffix().substr(1) + detail::random_suffix();
  Interval interval_;
  Loaded loaded_;
  std::vector<Entry> entries_;
  std::vector<Entry> leaving_;  // removed once what is being written has ended well
  std::optional<double> candidate_;
  std::int64_t candidate_batch_ = -1;  // whose weights it is the value of
  std::int64_t last_batch_ = -1;
  bool due_ = false;
  bool has_evaluated_ = false;
  bool failed_ = false;
};

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/saver.inl.hpp>
#endif
