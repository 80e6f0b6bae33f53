// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <glob.h>
#include <unistd.h>

#include <tutti/core/detail/throw.hpp>

namespace tutti::data::detail {

class Braces {
 public:
  explicit Braces(const std::string& whole) : whole_(whole) {}

  // All that `text` stands for.
  std::vector<std::string> expand(std::string_view text, int depth = 0) const;

 private:
  std::size_t closing(std::string_view text, std::size_t open) const;
  std::vector<std::string> choices(std::string_view inside, int depth) const;
  std::optional<std::vector<std::string>> range(std::string_view inside) const;
  static std::vector<std::string_view> split(std::string_view inside);
  void limit(std::size_t count) const {
    constexpr std::size_t most = 10'000'000;
    TUTTI_CHECK_VALUE(count <= most, "the list of shards \"", whole_.substr(0, 100),
                      "\" stands for more than ", most, " files");
  }

  const std::string& whole_;
};

inline std::size_t Braces::closing(std::string_view text, std::size_t open) const {
  std::size_t level = 0;
  for (std::size_t at = open; at < text.size(); ++at) {
    level += text[at] == '{' ? 1U : 0U;
    level -= text[at] == '}' ? 1U : 0U;
    if (level == 0) {
      return at;
    }
  }
  TUTTI_CHECK_VALUE(false, "the list of shards \"", whole_.substr(0, 100),
                    "\" has a '{' without its '}'");
}

// The parts between commas that are in no braces of their own.
inline std::vector<std::string_view> Braces::split(std::string_view inside) {
  std::vector<std::string_view> out;
  std::size_t level = 0;
  std::size_t start = 0;
  for (std::size_t at = 0; at < inside.size(); ++at) {
    level += inside[at] == '{' ? 1U : 0U;
    level -= inside[at] == '}' ? 1U : 0U;
    if (inside[at] == ',' && level == 0) {
      out.push_back(inside.substr(start, at - start));
      start = at + 1;
    }
  }
  out.push_back(inside.substr(start));
  return out;
}

// "000..010", "0..10..2" or "a..e"; nothing for another text.
inline std::optional<std::vector<std::string>> Braces::range(std::string_view inside) const {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0;;) {
    const std::size_t dots = inside.find("..", at);
    parts.push_back(inside.substr(at, dots == std::string_view::npos ? dots : dots - at));
    if (dots == std::string_view::npos) {
      break;
    }
    at = dots + 2;
  }
  if (parts.size() < 2 || parts.size() > 3) {
    return std::nullopt;
  }
  const auto number = [](std::string_view text, std::int64_t& out) {
    constexpr std::size_t most_digits = 18;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size() && text.size() <= most_digits;
  };
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t step = 1;
  const auto is_letter = [](std::string_view text) {
    return text.size() == 1 &&
           ((text[0] >= 'a' && text[0] <= 'z') || (text[0] >= 'A' && text[0] <= 'Z'));
  };
  const bool letters = is_letter(parts[0]) && is_letter(parts[1]);
  constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  if (letters) {  // with nothing between Z and a, as Python's braceexpand has it
    from = static_cast<std::int64_t>(alphabet.find(parts[0]));
    to = static_cast<std::int64_t>(alphabet.find(parts[1]));
  } else if (!number(parts[0], from) || !number(parts[1], to)) {
    return std::nullopt;
  }
  if (parts.size() == 3 && !number(parts[2], step)) {
    return std::nullopt;
  }
  step = std::max<std::int64_t>(std::abs(step), 1) * (from <= to ? 1 : -1);
  const auto padded = [](std::string_view text) {
    text.remove_prefix(text.starts_with('-') ? 1 : 0);
    return text.size() > 1 && text.starts_with('0');
  };
  const std::size_t width =
      padded(parts[0]) || padded(parts[1]) ? std::max(parts[0].size(), parts[1].size()) : 0;
  limit(static_cast<std::size_t>((to - from) / step));
  std::vector<std::string> out;
  for (std::int64_t i = from; step > 0 ? i <= to : i >= to; i += step) {
    std::string digits = letters ? std::string(1, alphabet[static_cast<std::size_t>(i)])
                                 : std::to_string(std::abs(i));
    const std::size_t sign = !letters && i < 0 ? 1 : 0;
    if (digits.size() + sign < width) {
      digits.insert(0, width - sign - digits.size(), '0');
    }
    out.push_back((sign > 0 ? "-" : "") + digits);
  }
  return out;
}

inline std::vector<std::string> Braces::choices(std::string_view inside, int depth) const {
  const std::vector<std::string_view> parts = split(inside);
  if (parts.size() == 1) {
    if (auto found = range(inside)) {
      return *found;
    }
  }
  std::vector<std::string> out;
  for (const std::string_view part : parts) {
    for (std::string& one : expand(part, depth + 1)) {
      out.push_back(parts.size() == 1 ? "{" + one + "}" : std::move(one));
    }
    limit(out.size());
  }
  return out;
}

inline std::vector<std::string> Braces::expand(std::string_view text, int depth) const {
  constexpr int most = 32;
  TUTTI_CHECK_VALUE(depth <= most, "the list of shards \"", whole_.substr(0, 100),
                    "\" has more than ", most, " braces inside one another");
  std::vector<std::string> out{""};
  while (!text.empty()) {
    const std::size_t open = text.find('{');
    const std::string_view plain = text.substr(0, open);
    TUTTI_CHECK_VALUE(plain.find('}') == std::string_view::npos, "the list of shards \"",
                      whole_.substr(0, 100), "\" has a '}' without its '{'");
    std::vector<std::string> next{""};
    std::size_t end = text.size();
    if (open != std::string_view::npos) {
      end = closing(text, open) + 1;
      next = choices(text.substr(open + 1, end - open - 2), depth);
    }
    std::vector<std::string> product;
    limit(out.size() * next.size());
    product.reserve(out.size() * next.size());
    for (const std::string& before : out) {
      for (const std::string& choice : next) {
        product.push_back(before + std::string(plain) + choice);
      }
    }
    out = std::move(product);
    text.remove_prefix(end);
  }
  return out;
}

// The files that a name with *, ? or [...] stands for, in the order of their bytes, which is the
// same on every rank; a file of that very name comes first.
inline std::vector<std::string> matching_files(std::string name) {
  if (name.find_first_of("*?[") == std::string::npos || ::access(name.c_str(), F_OK) == 0) {
    return {std::move(name)};
  }
  ::glob_t found{};
  const int failed = ::glob(name.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> out(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  TUTTI_CHECK(failed == 0, "no file is called '", name,
              "'; *, ? and [...] stand for the names of files that are there, {000..003} for those "
              "four");
  std::sort(out.begin(), out.end());
  return out;
}

// The paths that a list of shards stands for: "a-{000..010}.tar::b-{x,y}.tar::c-*.tar". Braces
// expand as in bash, also inside one another; {x} without a comma or ".." stays as it is.
inline std::vector<std::string> expand_shards(const std::string& urls) {
  std::vector<std::string> out;
  const Braces braces(urls);
  std::string_view rest = urls;
  for (bool more = true; more;) {
    const std::size_t end = rest.find("::");
    for (std::string& one : braces.expand(rest.substr(0, end))) {
      TUTTI_CHECK_VALUE(!one.empty(), "the list of shards \"", urls, "\" has an empty name");
      if (one.starts_with("file:")) {
        one.erase(0, 5);
      }
      TUTTI_CHECK_VALUE(!one.starts_with("pipe:") && one.find("://") == std::string::npos,
                        "the shard '", one,
                        "' is no file; shards are read from a disk: copy them there first");
      for (std::string& file : matching_files(std::move(one))) {
        out.push_back(std::move(file));
      }
    }
    more = end != std::string_view::npos;
    rest.remove_prefix(more ? end + 2 : 0);
  }
  return out;
}

}  // namespace tutti::data::detail
