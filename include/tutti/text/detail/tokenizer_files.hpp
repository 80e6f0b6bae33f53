// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef TUTTI_WITH_UTF8PROC

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <sys/stat.h>

#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/regular_file.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/whole_file.hpp>

// The files that a tokenizer is saved as.

namespace tutti::text::detail {

using tutti::detail::Json;

inline bool is_tokenizer_folder(const std::string& path) {
  struct stat facts{};
  return ::stat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode);
}

/// Writes the text of a tokenizer.json; in a folder under that name.
inline void write_tokenizer(const std::string& path, const std::string& text) {
  const std::string name = is_tokenizer_folder(path) ? path + "/tokenizer.json" : path;
  std::ofstream file(name, std::ios::binary);
  file << text;
  file.close();
  TUTTI_CHECK(file, "tokenizer: '", name, "' cannot be written: ", std::strerror(errno));
}

/// The members of a tokenizer_config.json, none where there is no such file.
/// Throws c10::ValueError when it cannot be read or is no JSON object.
inline Json::Object tokenizer_config_of(const std::string& path) {
  struct stat facts{};
  if (::stat(path.c_str(), &facts) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
    return {};
  }
  std::string problem;
  const auto text = tutti::detail::read_regular_file(path, problem, std::uint64_t{1} << 26);
  TUTTI_CHECK_VALUE(text, "tokenizer: '", path, "' cannot be read: ", problem);
  try {
    const Json file = tutti::detail::parse_json(*text, {.values = 10'000'000});
    return file.object();
  } catch (const std::invalid_argument& error) {
    ::tutti::detail::raise<c10::ValueError>(
        {__func__, __FILE__, __LINE__},
        "tokenizer: '" + path + "' stands in the folder, and its members that are not given anew " +
            "stay, but it is refused: " + error.what() + "; mend or remove it");
  }
}

/// Writes a tokenizer.json and the tokenizer_config.json of Transformers into a folder, which is
/// made where it is not there.
///
/// given: members of tokenizer_config.json. A file that is there keeps its other ones.
inline void write_pretrained_tokenizer(const std::string& folder, const std::string& tokenizer,
                                       const Json::Object& given, bool token_types) {
  const std::string path = folder + "/tokenizer_config.json";
  Json::Object config = tokenizer_config_of(path);
  const auto set = [&](const std::string& key, const Json& value, bool anew) {
    const auto found = std::find_if(config.begin(), config.end(),
                                    [&](const Json::Member& one) { return one.first == key; });
    if (found == config.end()) {
      config.emplace_back(key, value);
    } else if (anew) {
      found->second = value;
    }
  };
  set("tokenizer_class", "PreTrainedTokenizerFast", false);
  set("clean_up_tokenization_spaces", false, false);
  set("model_input_names",
      token_types ? Json::Array{"input_ids", "token_type_ids", "attention_mask"}
                  : Json::Array{"input_ids", "attention_mask"},
      false);
  for (const Json::Member& one : given) {
    set(one.first, one.second, true);
  }
  for (std::size_t at = 0; at < folder.size();) {  // the folder, and those above it
    at = folder.find('/', at + 1);
    at = at == std::string::npos ? folder.size() : at;
    const std::string part = folder.substr(0, at);
    TUTTI_CHECK(::mkdir(part.c_str(), 0777) == 0 || is_tokenizer_folder(part),
                "tokenizer: the folder '", part, "' cannot be made: ", std::strerror(errno));
  }
  const auto write = [](const std::string& name, const std::string& text) {
    const std::string problem = tutti::detail::write_whole_file(name, text);
    TUTTI_CHECK(problem.empty(), "tokenizer: '", name, "' cannot be written: ", problem);
  };
  write(folder + "/tokenizer.json", tokenizer);
  write(path, tutti::detail::to_text(Json(std::move(config)), 2) + "\n");
  // Where there is such a file, it is read in place of the member.
  const std::string jinja = folder + "/chat_template.jinja";
  struct stat facts{};
  for (const Json::Member& one : given) {
    if (one.first == "chat_template" && ::stat(jinja.c_str(), &facts) == 0) {
      write(jinja, one.second.string());
    }
  }
}

}  // namespace tutti::text::detail

#endif
