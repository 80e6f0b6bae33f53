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

namespace tutti::checkpoint {

struct SnapshotFiles;

/// When and where a Saver writes, and what it keeps.
struct SaverOptions {
  std::string folder{};  ///< a pattern, see format_name()
  std::string filename = "ep{epoch}-ba{batch}";
  std::string latest_filename = "latest";  ///< points to the newest, or best; empty: no pointer
  Time interval = "1ep";                   ///< ignored when monitor is set
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
    const bool by_interval = interval_(event, state.progress()) || at_once;
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

namespace tutti::checkpoint {

TUTTI_INLINE Saver::Saver(SaverOptions options, const State& state)
    : options_(std::move(options)), interval_{.every = options_.interval} {
  check_options();
  check_run_name(state.run_name);
  folder_ = state.output_path(format_name(options_.folder, fields(state)));
  latest_ = file_name(options_.latest_filename, state);
  const std::string first = file_name(options_.filename, state);
  const auto check = [](const std::string& pattern, const std::string& name) {
    TUTTI_CHECK_VALUE(is_plain_name(name), "checkpoint: the filename \"", pattern, "\" is \"", name,
                      "\" in this run, expected a name without slashes and without a dot at its "
                      "start; put folders into the folder");
  };
  check(options_.filename, first);
  if (!latest_.empty()) {
    check(options_.latest_filename, latest_);
  }
  TUTTI_CHECK_VALUE(first != latest_, "checkpoint: the filename is \"", options_.filename,
                    "\", expected another one than the pointer's, \"", options_.latest_filename,
                    "\"");
}

TUTTI_INLINE void Saver::check_options() const {
  check_constant_placeholders("folder", options_.folder);
  check_constant_placeholders("pointer's filename", options_.latest_filename);
  check_placeholders(options_.filename);
  TUTTI_CHECK_VALUE(!options_.filename.empty(),
                    "checkpoint: the filename is \"\", expected a name such as "
                    "\"ep{epoch}-ba{batch}\"");
  TUTTI_CHECK_VALUE(!options_.monitor.empty() || options_.interval.value() > 0,
                    "checkpoint: the save interval is ", to_string(options_.interval),
                    ", at which nothing would ever be saved; expected more than 0, \"1dur\" for "
                    "the end alone");
  TUTTI_CHECK_VALUE(options_.keep >= -1, "checkpoint: the number of checkpoints to keep is ",
                    options_.keep,
                    ", expected -1 to keep all, 0 to keep none once they are uploaded, or how many "
                    "of the newest stay");
}

TUTTI_INLINE std::vector<std::string> Saver::saved() const {
  std::vector<std::string> out;
  for (const Entry& entry : entries_) {
    out.push_back(path_of(entry));
  }
  return out;
}

TUTTI_INLINE std::vector<double> Saver::values() const {
  std::vector<double> out;
  for (const Entry& entry : entries_) {
    out.push_back(entry.value);
  }
  return out;
}

TUTTI_INLINE std::string Saver::best() const {
  const Entry* best = nullptr;
  for (const Entry& entry : entries_) {
    if (!options_.monitor.empty() && (best == nullptr || !better(best->value, entry.value))) {
      best = &entry;
    }
  }
  return best != nullptr ? path_of(*best) : std::string();
}

TUTTI_INLINE void Saver::evaluated(const State& state) {
  if (options_.monitor.empty() || state.dataloader_label != options_.dataloader_label) {
    return;
  }
  const MetricValues& values = state.eval_metric_values.at(state.dataloader_label);
  const auto found = values.find(options_.monitor);
  if (found == values.end()) {
    std::string names;
    for (const auto& [name, value] : values) {
      names += (names.empty() ? "" : ", ") + name;
    }
    TUTTI_CHECK(false, "CheckpointSaver: monitor is \"", options_.monitor, "\", but the set \"",
                options_.dataloader_label, "\" has ", names.empty() ? "no metrics" : names);
  }
  candidate_ = found->second;
  candidate_batch_ = state.timestamp.batch;
  has_evaluated_ = true;
}

TUTTI_INLINE std::string Saver::begin(const State& state) {
  const std::string name = file_name(options_.filename, state);
  std::erase_if(entries_, [&](const Entry& entry) { return entry.name == name; });
  entries_.push_back({name, candidate_.value_or(0)});
  candidate_.reset();
  due_ = false;
  last_batch_ = state.timestamp.batch;
  return name;
}

TUTTI_INLINE Saver::Target Saver::target() {
  const Entry newest = entries_.back();
  const bool points =
      !latest_.empty() && keep() != 0 && (options_.monitor.empty() || is_best(newest));
  while (keep() >= 0 && static_cast<std::int64_t>(entries_.size()) > keep()) {
    const auto out = options_.monitor.empty() ? entries_.begin() : worst();
    leaving_.push_back(*out);
    entries_.erase(out);
  }
  Target out{.path = path_of(newest), .id = id_, .overwrite = options_.overwrite};
  if (points) {
    out.link = folder_ + "/" + latest_;
  }
  for (const Entry& entry : leaving_) {
    out.surplus.push_back(path_of(entry));
  }
  return out;
}

TUTTI_INLINE void Saver::ended(bool well, bool there) {
  failed_ = !well;
  if (!well) {
    last_batch_ = -1;
    if (!entries_.empty() && !there) {
      entries_.pop_back();
    }
    entries_.insert(entries_.begin(), leaving_.begin(), leaving_.end());
  }
  leaving_.clear();
}

TUTTI_INLINE void Saver::save(Archive& archive) const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) {
    names.push_back(entry.name);
  }
  const Place place = place_of(folder_);
  archive.put("names", names);
  archive.put("values", values());
  archive.put("id", id_);
  archive.put("folder", place.path);
  archive.put("inode", place.inode);
  archive.put("last_batch", last_batch_);
}

TUTTI_INLINE void Saver::load(const Archive& archive) {
  const auto names = archive.get<std::vector<std::string>>("names");
  const auto values = archive.get<std::vector<double>>("values");
  TUTTI_CHECK(names.size() == values.size(), "checkpoint: '", archive.path(), "' lists ",
              names.size(), " checkpoints and ", values.size(), " values");
  loaded_ = {.id = archive.get_or("id", std::string()),
             .place = {.path = archive.get_or("folder", std::string()),
                       .inode = archive.get_or("inode", std::string())},
             .last_batch = archive.get_or("last_batch", std::int64_t{-1})};
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (is_plain_name(names[i]) && parse_name(options_.filename, names[i])) {
      loaded_.names.push_back(names[i]);
      loaded_.values.push_back(values[i]);
    } else {
      loaded_.last_batch = -1;
    }
  }
}

TUTTI_INLINE void Saver::adopt(const std::string& own, std::int64_t batch) {
  const Loaded list = std::exchange(loaded_, {});
  if (own.empty()) {
    return;
  }
  TUTTI_CHECK(own.size() == list.names.size() + 1, "checkpoint: rank 0 has loaded a list of ",
              own.size() - 1, " checkpoints, this one of ", list.names.size());
  id_ = list.id;
  entries_.clear();
  for (std::size_t i = 0; i < list.names.size(); ++i) {
    if (own[i + 1] == '1') {
      entries_.push_back({list.names[i], list.values[i]});
    }
  }
  if (!list.names.empty() && own.back() == '1' && list.last_batch == batch) {
    last_batch_ = batch;
  }
}

TUTTI_INLINE NameFields Saver::fields(const State& state) {
  return {.run_name = state.run_name,
          .run_folder = state.run_folder,
          .rank = state.rank,
          .world_size = state.world_size,
          .timestamp = state.timestamp};
}

TUTTI_INLINE std::string Saver::file_name(const std::string& pattern, const State& state) {
  NameFields writer = fields(state);
  writer.rank = 0;
  return format_name(pattern, writer);
}

}  // namespace tutti::checkpoint

#endif
