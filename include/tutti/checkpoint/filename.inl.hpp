// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/filename.hpp>

namespace tutti::checkpoint::detail {

TUTTI_INLINE std::string seconds_text(Timestamp::Duration time) {
  std::array<char, 32> text{};
  const double seconds = std::chrono::duration<double>(time).count();
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), seconds).ptr};
}

TUTTI_INLINE std::map<std::string, std::int64_t, std::less<>> counters(const Timestamp& t) {
  return {{"epoch", t.epoch},
          {"batch", t.batch},
          {"batch_in_epoch", t.batch_in_epoch},
          {"sample", t.sample},
          {"sample_in_epoch", t.sample_in_epoch},
          {"token", t.token},
          {"token_in_epoch", t.token_in_epoch}};
}

TUTTI_INLINE std::optional<std::string> field_text(std::string_view name,
                                                   const NameFields& fields) {
  const std::pair<std::string_view, std::int64_t> numbers[] = {
      {"rank", fields.rank},
      {"local_rank", fields.local_rank},
      {"world_size", fields.world_size},
      {"local_world_size", fields.local_world_size},
      {"node_rank", fields.node_rank},
  };
  const std::pair<std::string_view, Timestamp::Duration> clocks[] = {
      {"total_wct", fields.timestamp.total_wct},
      {"epoch_wct", fields.timestamp.epoch_wct},
      {"batch_wct", fields.timestamp.batch_wct},
  };
  if (name == "run_name" || (name == "run_folder" && fields.run_folder.empty())) {
    return fields.run_name;
  }
  if (name == "run_folder") {
    return fields.run_folder;
  }
  for (const auto& [known, value] : numbers) {
    if (known == name) {
      return std::to_string(value);
    }
  }
  for (const auto& [known, value] : clocks) {
    if (known == name) {
      return seconds_text(value);
    }
  }
  const auto counted = counters(fields.timestamp);
  const auto found = counted.find(name);
  return found == counted.end() ? std::nullopt : std::optional(std::to_string(found->second));
}

TUTTI_INLINE std::string_view placeholder(std::string_view text) {
  const auto end = text.find('}');
  const bool braces = text.starts_with('{') && end != std::string_view::npos;
  const auto name = braces ? text.substr(1, end - 1) : std::string_view();
  return name.find('{') == std::string_view::npos ? name : std::string_view();
}

}  // namespace tutti::checkpoint::detail

namespace tutti::checkpoint {

TUTTI_INLINE std::string format_name(std::string_view pattern, const NameFields& fields) {
  std::string out;
  while (!pattern.empty()) {
    const std::string_view name = detail::placeholder(pattern);
    const auto text = name.empty() ? std::nullopt : detail::field_text(name, fields);
    const std::size_t taken = text.has_value() ? name.size() + 2 : 1;
    out += text.has_value() ? *text : std::string(1, pattern.front());
    pattern.remove_prefix(taken);
  }
  return out;
}

TUTTI_INLINE void check_placeholders(std::string_view pattern) {
  for (std::string_view rest = pattern; !rest.empty(); rest.remove_prefix(1)) {
    const std::string_view name = detail::placeholder(rest);
    TUTTI_CHECK_VALUE(name.empty() || detail::field_text(name, {}).has_value(), "checkpoint: \"{",
                      name, "}\" in \"", pattern,
                      "\" is no placeholder; there are {run_name}, {epoch}, {batch}, "
                      "{batch_in_epoch}, {sample}, {sample_in_epoch}, {token}, {token_in_epoch}, "
                      "{total_wct}, {epoch_wct}, {batch_wct}, {rank}, {local_rank}, {world_size}, "
                      "{local_world_size}, {node_rank} and {run_folder}");
  }
}

TUTTI_INLINE void check_constant_placeholders(std::string_view what, std::string_view pattern) {
  check_placeholders(pattern);
  const auto counted = detail::counters({});
  for (std::string_view rest = pattern; !rest.empty(); rest.remove_prefix(1)) {
    const std::string_view name = detail::placeholder(rest);
    TUTTI_CHECK_VALUE(!counted.contains(name) && !name.ends_with("_wct"), "checkpoint: the ", what,
                      " is \"", pattern, "\", but {", name,
                      "} changes during a run, which has one ", what,
                      "; expected {run_name}, {rank} and the like alone");
  }
}

TUTTI_INLINE bool is_plain_name(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

TUTTI_INLINE void check_run_name(std::string_view name) {
  for (std::string_view rest = name; !name.empty();) {
    const std::size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    const bool control = std::any_of(part.begin(), part.end(),
                                     [](char c) { return static_cast<unsigned char>(c) < ' '; });
    TUTTI_CHECK_VALUE(name.front() != '/' && part != "." && part != ".." && !control,
                      "run_name is \"", name,
                      "\", expected a name that stays in the folders that "
                      "{run_name} is put into: without a slash at its start, without \".\" and "
                      "\"..\" between slashes, without control characters");
    if (slash == std::string_view::npos) {
      return;
    }
    rest.remove_prefix(slash + 1);
  }
}

TUTTI_INLINE std::optional<std::map<std::string, std::int64_t>> parse_name(std::string_view pattern,
                                                                           std::string_view name) {
  if (pattern.empty()) {
    return name.empty() ? std::optional(std::map<std::string, std::int64_t>()) : std::nullopt;
  }
  const std::string_view field = detail::placeholder(pattern);
  if (field.empty() || !detail::field_text(field, {}).has_value()) {
    return name.starts_with(pattern.front()) ? parse_name(pattern.substr(1), name.substr(1))
                                             : std::nullopt;
  }
  const bool text = field == "run_name" || field == "run_folder" || field.ends_with("_wct");
  const auto digits = name.find_first_not_of("0123456789");
  for (std::size_t length = text ? name.size() : std::min(digits, name.size()); length > 0;
       --length) {
    auto rest = parse_name(pattern.substr(field.size() + 2), name.substr(length));
    std::int64_t number = 0;
    const bool read = std::from_chars(name.data(), name.data() + length, number).ec == std::errc();
    if (rest.has_value() && (text || read)) {
      if (!text) {
        (*rest)[std::string(field)] = number;
      }
      return rest;
    }
  }
  return std::nullopt;
}

TUTTI_INLINE void check_no_newer(const std::filesystem::path& folder, std::string_view pattern,
                                 const Timestamp& now,
                                 const std::function<bool(const std::filesystem::path&)>& is_own) {
  const auto own = detail::counters(now);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const auto found = parse_name(pattern, name);
    if (!found.has_value()) {
      continue;
    }
    const auto epoch = found->find("epoch");
    const bool same_epoch = epoch == found->end() || epoch->second == now.epoch;
    for (const auto& [field, number] : *found) {
      const auto counter = own.find(field);
      const bool counts = counter != own.end() && (same_epoch || !field.ends_with("_in_epoch"));
      if (!counts || number <= counter->second || (is_own && is_own(entry.path()))) {
        continue;
      }
      TUTTI_CHECK(false, "checkpoint: '", entry.path().string(), "' is from ", field, ' ', number,
                  ", later than this run's ", field, ' ', counter->second,
                  "; resume from it, choose another save folder or run name, ",
                  "or allow overwriting (save_overwrite)");
    }
  }
}

}  // namespace tutti::checkpoint
