// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/regular_file.hpp>
#include <tutti/sweep/detail/toml.hpp>
#include <tutti/sweep/space.hpp>

namespace tutti::sweep {

/// How much a trial of successive halving may use: a number and what is behind it, as in "3ep".
struct Resource {
  double count = 0;    ///< > 0
  std::string unit{};  ///< "ep", or nothing

  /// As the program's flag takes it.
  [[nodiscard]] std::string text() const {
    return flag_text(count == std::floor(count) && count < 0x1p53
                         ? tutti::detail::Json(static_cast<std::int64_t>(count))
                         : tutti::detail::Json(count)) +
           unit;
  }
};

/// What a sweep does. Members are the names in its file and, with dashes, on the command line,
/// which has the last word.
struct Settings {
  std::string method = "random";  ///< "grid", "random" or "halving"
  std::string metric{};           ///< that trials are compared by, as the program logs it
  std::string goal{};             ///< "minimize" or "maximize"
  std::string value = "last";     ///< of a trial's values of the metric: "last" or "best"
  std::int64_t trials = 0;        ///< how many; of random and halving
  std::int64_t seed = 0;          ///< of what is drawn; 0 or more
  std::int64_t jobs = 1;          ///< trials at a time
  std::string folder{};           ///< of the sweep; empty: sweeps/<name of the file>
  std::string metrics_file{};     ///< in a trial's folder; empty: metrics.jsonl, dashboard.jsonl
  double time_limit = 0;          ///< seconds of one call, then it ends as on SIGTERM; 0: none
  double trial_time_limit = 0;    ///< seconds after which a trial has failed; 0: none
  double cleanup_timeout = 30;    ///< seconds from SIGTERM to SIGKILL
  std::string resource{};         ///< of halving: the flag that says how long a trial may train
  Resource min_resource{};        ///< of halving, at least for the first rung
  Resource max_resource{};        ///< of halving, for the last rung
  std::int64_t eta = 3;           ///< of halving: of so many trials one goes on; >= 2
  bool resume = false;            ///< a program that is started again goes on in its folder
  bool retry_failed = false;      ///< runs those once more that failed; not in the file
  bool dry_run = false;           ///< prints commands and runs none; not in the file
  tutti::detail::Json flags{};    ///< the table [flags]
  Space space{};                  ///< what it means
  std::vector<std::string> command{};  ///< the program and its arguments; not in the file

  /// The resources of halving, one a rung: the last is max_resource, each before it the eta-th part
  /// of the next, rounded down where max_resource is whole.
  [[nodiscard]] std::vector<Resource> rungs() const;

  /// Throws std::invalid_argument naming what does not fit.
  void validate() const;
};

namespace detail {

inline bool number_in(std::string_view text, double& number, std::string_view& rest) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  rest = text.substr(static_cast<std::size_t>(end - text.data()));
  return error == std::errc() && std::isfinite(number);
}

// 90, "90", "90s", "15m", "2h" or "1d".
inline double seconds_from(const std::string& name, const Json& value) {
  const std::string text = flag_text(value);
  double number = 0;
  std::string_view unit;
  const bool good = number_in(text, number, unit);
  const double factor = unit.empty() || unit == "s" ? 1
                        : unit == "m"               ? 60
                        : unit == "h"               ? 3600
                        : unit == "d"               ? 86400
                                                    : 0;
  refuse_unless(good && number >= 0 && factor > 0 && number * factor <= 1e9,
                name + " is " + text + ", expected seconds, or a time as \"90s\", \"15m\", \"2h\"");
  return number * factor;
}

inline Resource resource_from(const std::string& name, const Json& value) {
  const std::string text = flag_text(value);
  Resource resource;
  std::string_view unit;
  const bool good = number_in(text, resource.count, unit) && resource.count > 0;
  refuse_unless(good, name + " is " + text + ", expected more than 0, as 3 or \"3ep\"");
  resource.unit = unit;
  return resource;
}

// One setting: reads it, of the file or of the command line's text.
struct Setting {
  std::string_view name;
  bool is_switch = false;
  bool in_file = true;
  std::function<void(Settings&, const std::string&, const Json&)> read{};
};

inline Setting text_setting(std::string_view name, std::string Settings::* member) {
  return {.name = name, .read = [member](Settings& s, const std::string& as, const Json& value) {
            refuse_unless(value.is_string() && !value.string().empty(),
                          as + " is " + tutti::detail::to_text(value) + ", expected a text");
            s.*member = value.string();
          }};
}

inline Setting whole_setting(std::string_view name, std::int64_t Settings::* member) {
  return {.name = name, .read = [member](Settings& s, const std::string& as, const Json& value) {
            const std::string text = is_scalar(value) ? flag_text(value) : std::string();
            std::int64_t number = 0;
            const char* const end = text.data() + text.size();
            const auto [read, error] = std::from_chars(text.data(), end, number);
            refuse_unless(
                error == std::errc() && read == end && !text.empty(),
                as + " is " + tutti::detail::to_text(value) + ", expected a whole number");
            s.*member = number;
          }};
}

inline Setting seconds_setting(std::string_view name, double Settings::* member) {
  return {.name = name, .read = [member](Settings& s, const std::string& as, const Json& value) {
            s.*member = seconds_from(as, value);
          }};
}

inline Setting resource_setting(std::string_view name, Resource Settings::* member) {
  return {.name = name, .read = [member](Settings& s, const std::string& as, const Json& value) {
            s.*member = resource_from(as, value);
          }};
}

inline Setting switch_setting(std::string_view name, bool Settings::* member, bool in_file) {
  return {.name = name,
          .is_switch = true,
          .in_file = in_file,
          .read = [member](Settings& s, const std::string& as, const Json& value) {
            const std::string text = is_scalar(value) ? flag_text(value) : std::string();
            refuse_unless(text == "true" || text == "false",
                          as + " is " + tutti::detail::to_text(value) + ", expected true or false");
            s.*member = text == "true";
          }};
}

inline const std::vector<Setting>& all_settings() {
  static const std::vector<Setting> all{
      text_setting("method", &Settings::method),
      text_setting("metric", &Settings::metric),
      text_setting("goal", &Settings::goal),
      text_setting("value", &Settings::value),
      whole_setting("trials", &Settings::trials),
      whole_setting("seed", &Settings::seed),
      whole_setting("jobs", &Settings::jobs),
      text_setting("folder", &Settings::folder),
      text_setting("metrics_file", &Settings::metrics_file),
      seconds_setting("time_limit", &Settings::time_limit),
      seconds_setting("trial_time_limit", &Settings::trial_time_limit),
      seconds_setting("cleanup_timeout", &Settings::cleanup_timeout),
      text_setting("resource", &Settings::resource),
      resource_setting("min_resource", &Settings::min_resource),
      resource_setting("max_resource", &Settings::max_resource),
      whole_setting("eta", &Settings::eta),
      switch_setting("resume", &Settings::resume, true),
      switch_setting("retry_failed", &Settings::retry_failed, false),
      switch_setting("dry_run", &Settings::dry_run, false)};
  return all;
}

// "--max-resource" and "max-resource" as "max_resource"; null: there is no such setting.
inline const Setting* setting_of(std::string name) {
  name.erase(0, name.starts_with("--") ? 2 : 0);
  std::replace(name.begin(), name.end(), '-', '_');
  const auto& all = all_settings();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Setting& one) { return one.name == name; });
  return found == all.end() ? nullptr : &*found;
}

inline std::string names_of_settings() {
  std::string names;
  for (const Setting& one : all_settings()) {
    names += one.in_file ? std::string(one.name) + ", " : std::string();
  }
  return names;
}

// Puts into `settings` what the file says.
inline void read_file(const std::string& path, Settings& settings) {
  std::string problem;
  const auto text = tutti::detail::read_regular_file(path, problem, 1 << 20);
  refuse_unless(text.has_value(), "'" + path + "' cannot be read: " + problem);
  Json root;
  try {
    root = parse_toml(*text);
  } catch (const std::invalid_argument& error) {
    refuse_unless(false, "'" + path + "', " + error.what());
  }
  try {
    for (const auto& [name, value] : root.object()) {
      if (name == "flags") {
        refuse_unless(value.is_object(),
                      "flags is " + std::string(value.kind()) + ", expected a table [flags]");
        settings.flags = value;
        continue;
      }
      const Setting* setting = setting_of(name);
      refuse_unless(setting != nullptr && setting->in_file,
                    name + " is no setting; there are: " + names_of_settings() +
                        "and the table "
                        "[flags]");
      setting->read(settings, name, value);
    }
    settings.space = Space(settings.flags.is_object() ? settings.flags : Json(Json::Object{}));
  } catch (const std::invalid_argument& error) {
    constexpr std::string_view who = "tutti-sweep: ";
    refuse_unless(false, "'" + path + "': " + std::string(error.what()).substr(who.size()));
  }
}

}  // namespace detail

inline std::vector<Resource> Settings::rungs() const {
  if (method != "halving") {
    return {Resource{}};
  }
  const bool whole = max_resource.count == std::floor(max_resource.count);
  std::vector<Resource> out{max_resource};
  for (double part = static_cast<double>(eta);; part *= static_cast<double>(eta)) {
    const double count = max_resource.count / part;
    if (count < min_resource.count * (1 - 1e-9)) {
      break;
    }
    out.insert(out.begin(), {whole ? std::floor(count + 1e-9) : count, max_resource.unit});
  }
  return out;
}

inline void Settings::validate() const {
  using detail::refuse_unless;
  const bool halves = method == "halving";
  refuse_unless(halves || method == "grid" || method == "random",
                "method is \"" + method + "\", expected grid, random or halving");
  refuse_unless(!metric.empty(),
                "there is no metric to compare trials by; write metric = "
                "\"metrics/eval/MulticlassAccuracy\", as the program logs it");
  refuse_unless(goal == "minimize" || goal == "maximize",
                (goal.empty() ? "there is no goal" : "goal is \"" + goal + "\"") +
                    ", expected goal = \"minimize\" or \"maximize\"");
  refuse_unless(value == "last" || value == "best",
                "value is \"" + value + "\", expected last or best");
  refuse_unless(method != "grid" || trials == 0,
                "a grid has as many trials as combinations; take trials out, or take method = "
                "\"random\"");
  refuse_unless(method == "grid" || (trials >= 1 && trials <= 100'000),
                "trials is " + std::to_string(trials) + ", expected 1 to 100000");
  refuse_unless(seed >= 0, "seed is " + std::to_string(seed) + ", expected 0 or more");
  refuse_unless(jobs >= 1 && jobs <= 1024,
                "jobs is " + std::to_string(jobs) + ", expected 1 to 1024");
  refuse_unless(halves || (resource.empty() && min_resource.count == 0 && max_resource.count == 0),
                "resource, min_resource and max_resource are for method = \"halving\"; the method "
                "is \"" +
                    method + "\"");
  if (halves) {
    refuse_unless(!resource.empty(),
                  "halving needs resource, the flag that says how long a trial "
                  "trains; write resource = \"max-duration\"");
    refuse_unless(!space.contains(resource),
                  resource +
                      " is the resource of halving and one of the [flags], expected one of "
                      "both");
    refuse_unless(min_resource.count > 0 && max_resource.count > 0,
                  "halving needs min_resource and max_resource, as \"1ep\" and \"27ep\"");
    refuse_unless(min_resource.unit == max_resource.unit,
                  "min_resource is " + min_resource.text() + " and max_resource " +
                      max_resource.text() + ", expected both in one unit");
    refuse_unless(min_resource.count < max_resource.count,
                  "min_resource is " + min_resource.text() + ", expected less than max_resource, " +
                      max_resource.text());
    refuse_unless(eta >= 2, "eta is " + std::to_string(eta) + ", expected 2 or more");
    refuse_unless(rungs().size() > 1,
                  "max_resource is less than eta = " + std::to_string(eta) +
                      " times min_resource, "
                      "so nothing is halved; take a smaller min_resource or eta");
  }
  refuse_unless(!command.empty(), "there is no program to run; write tutti-sweep FILE ./program");
}

/// The settings that a command line means; without --help and --version, see sweep_main().
///
///     tutti-sweep [options] FILE [options] program [arguments]
///
/// arguments: without the program's own name. Reads the file.
/// Throws std::invalid_argument naming what is wrong.
inline Settings parse_sweep(const std::vector<std::string>& arguments) {
  using detail::refuse_unless;
  std::optional<std::string> file;
  std::vector<std::pair<std::string, std::string>> given;
  std::size_t at = 0;
  for (; at < arguments.size(); ++at) {
    const std::string& word = arguments[at];
    if (word == "--") {
      ++at;
      break;
    }
    if (!word.starts_with('-')) {
      if (file) {
        break;  // the program
      }
      file = word;
      continue;
    }
    const auto equals = word.find('=');
    const std::string name = word == "-j" ? "--jobs" : word.substr(0, equals);
    const detail::Setting* setting = detail::setting_of(name);
    refuse_unless(name.starts_with("--") && setting != nullptr,
                  name + " is no option; see tutti-sweep --help");
    if (equals != std::string::npos) {
      given.emplace_back(name, word.substr(equals + 1));
    } else if (setting->is_switch) {
      given.emplace_back(name, "true");
    } else {
      refuse_unless(++at < arguments.size(), name + " lacks its value");
      given.emplace_back(name, arguments[at]);
    }
  }
  refuse_unless(file.has_value(), "there is no file of ranges; write tutti-sweep FILE ./program");
  Settings settings;
  settings.folder = "sweeps/" + std::filesystem::path(*file).stem().string();
  detail::read_file(*file, settings);
  for (const auto& [name, text] : given) {
    detail::setting_of(name)->read(settings, name, text);
  }
  settings.command.assign(
      arguments.begin() + static_cast<std::ptrdiff_t>(std::min(at, arguments.size())),
      arguments.end());
  settings.validate();
  return settings;
}

}  // namespace tutti::sweep
