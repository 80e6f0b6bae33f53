// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/command_object_store.hpp>

namespace tutti {

TUTTI_INLINE void CommandObjectStore::validate() const {
  require("upload", upload, {"{file}", "{name}"});
  require("download", download, {"{file}", "{name}"});
  require("size", size, {"{name}"});
  require("list", list, {"{prefix}"});
  TUTTI_CHECK_VALUE(!upload.empty() && !download.empty() && !uri.empty(),
                    "CommandObjectStore: uri, upload and download are obligatory");
}

TUTTI_INLINE std::int64_t CommandObjectStore::get_object_size(const std::string& name) const {
  if (size.empty()) {
    return -1;
  }
  const std::string out = run(size, {{"{name}", name}}, name);
  std::int64_t bytes = -1;
  const auto begin = out.find_first_not_of(" \t\n\"");
  const char* first = out.data() + std::min(begin, out.size());
  TUTTI_CHECK(std::from_chars(first, out.data() + out.size(), bytes).ec == std::errc(),
              "CommandObjectStore: size printed \"", out, "\", expected a number of bytes");
  return bytes;
}

TUTTI_INLINE std::vector<std::string> CommandObjectStore::list_objects(
    const std::string& prefix) const {
  TUTTI_CHECK(!list.empty(), "CommandObjectStore: there is no command to list objects; set list");
  const std::string out = run(list, {{"{prefix}", prefix}});
  std::vector<std::string> names;
  for (std::size_t at = 0; at < out.size();) {
    const std::size_t end = std::min(out.find('\n', at), out.size());
    std::string name = out.substr(at, end - at);
    name.erase(name.find_last_not_of(" \t\r") + 1);
    if (!name.empty()) {
      names.push_back(std::move(name));
    }
    at = end + 1;
  }
  return names;
}

TUTTI_INLINE void CommandObjectStore::require(std::string_view which, const std::string& command,
                                              std::vector<std::string_view> placeholders) {
  for (const std::string_view placeholder : placeholders) {
    TUTTI_CHECK_VALUE(command.empty() || command.find(placeholder) != std::string::npos,
                      "CommandObjectStore: ", which, " is \"", command, "\", expected one with ",
                      placeholder);
  }
  detail::words_of(command);
}

TUTTI_INLINE std::string CommandObjectStore::filled(std::string_view word, const Values& values) {
  std::string out;
  while (!word.empty()) {
    std::size_t taken = 0;
    for (const auto& [placeholder, value] : values) {
      if (taken == 0 && word.starts_with(placeholder)) {
        out += value;
        taken = placeholder.size();
      }
    }
    if (taken == 0) {
      out += word.front();
      taken = 1;
    }
    word.remove_prefix(taken);
  }
  return out;
}

TUTTI_INLINE std::string CommandObjectStore::run(const std::string& command, const Values& values,
                                                 const std::string& object) const {
  std::vector<std::string> words = detail::words_of(command);
  std::vector<std::string> own;  // what the command may quote, which says nothing of an object
  for (std::string& word : words) {
    std::string full = filled(word, values);
    if (full != word) {
      own.push_back(full);
    }
    word = std::move(full);
  }
  for (const auto& [placeholder, value] : values) {
    own.emplace_back(value);
  }
  detail::CommandResult result = detail::run_command(words, timeout);
  if (result.status == 0) {
    return std::move(result.out);
  }
  constexpr std::size_t most = 2000;
  std::string said = result.error.empty() ? result.out : result.error;
  said.erase(0, said.size() - std::min(said.size(), most));
  const std::string status = "status " + std::to_string(result.status);
  std::string line;
  for (const std::string& word : words) {
    line += (line.empty() ? "" : " ") + word;
  }
  const std::string text = "CommandObjectStore: '" + line + "' ended with " +
                           (result.status < 0 ? "a signal" : status) + ": " + said;
  constexpr std::size_t least = 8;  // a name of few letters is a part of other words
  for (const std::string& quoted : own) {
    for (std::size_t at = 0;
         quoted.size() >= least && (at = said.find(quoted, at)) != std::string::npos;) {
      said.erase(at, quoted.size());
    }
  }
  // 126 and 127: a program that could not be run, as a shell and env say.
  const bool ran = result.status >= 0 && result.status != 126 && result.status != 127;
  for (const std::string& sign : not_found) {
    if (!object.empty() && ((ran && said.find(sign) != std::string::npos) || sign == status)) {
      throw ObjectNotFound(text);
    }
  }
  ::tutti::detail::raise<c10::Error>({__func__, __FILE__, __LINE__}, text);
}

}  // namespace tutti
