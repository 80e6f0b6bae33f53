// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/saver.hpp>

namespace tutti::checkpoint {

TUTTI_INLINE Saver::Saver(SaverOptions options, const State& state)
    : options_(std::move(options)), interval_{.every = options_.interval.time()} {
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
  TUTTI_CHECK_VALUE(!options_.monitor.empty() || options_.interval.function() != nullptr ||
                        options_.interval.time().value() > 0,
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
  const bool points = !latest_.empty() && (options_.monitor.empty() || is_best(newest));
  while (keep() >= 0 && static_cast<std::int64_t>(entries_.size()) > keep()) {
    const auto out = options_.monitor.empty() ? entries_.begin() : worst();
    leaving_.push_back(*out);
    entries_.erase(out);
  }
  Target out{.path = path_of(newest), .id = id_, .overwrite = options_.overwrite};
  if (points) {
    out.link = folder_ + "/" + latest_;
    out.links_here = keep() != 0;
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

TUTTI_INLINE std::vector<std::string> Saver::compared() const {
  if (options_.monitor.empty() || loaded_.names.empty()) {
    return {};
  }
  if (keep() >= 0) {
    return loaded_.names;
  }
  std::size_t best = 0;
  for (std::size_t i = 1; i < loaded_.names.size(); ++i) {
    best = better(loaded_.values[best], loaded_.values[i]) ? best : i;
  }
  return {loaded_.names[best]};
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
