// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <sys/ioctl.h>
#include <unistd.h>

namespace tutti::detail {

// Somebody watches: the stream is a terminal that understands carriage returns.
inline bool is_terminal(std::FILE* stream) {
  const char* kind = std::getenv("TERM");
  return isatty(fileno(stream)) == 1 && !(kind != nullptr && std::string_view(kind) == "dumb");
}

// Columns of the terminal: the environment's COLUMNS, else what the system says, else 80.
inline int terminal_width(std::FILE* stream) {
  if (const char* columns = std::getenv("COLUMNS")) {
    const int given = std::atoi(columns);
    if (given > 0) {
      return given;
    }
  }
  winsize size{};
  return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// Nobody has asked for texts without colours. Source: no-color.org.
inline bool allows_colours() {
  const char* refused = std::getenv("NO_COLOR");
  return refused == nullptr || *refused == '\0';
}

// How text for a reader looks.
struct Look {
  int width = 0;         // columns; 0: no limit, and no bar is drawn
  bool unicode = false;  // bars may have blocks
  bool colours = false;

  // The text in one of the terminal's styles: "1" is bold, "2" dim, "32" green, "36" cyan.
  [[nodiscard]] std::string in(std::string_view style, std::string_view text) const {
    std::string out(text);
    if (colours && !style.empty() && !text.empty()) {
      out.insert(0, "\033[" + std::string(style) + "m").append("\033[0m");
    }
    return out;
  }
};

// Writes the text, to be seen at once.
inline void print(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

// The locale says UTF-8, so blocks can be drawn.
inline bool draws_unicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') {
      std::string text(value);
      for (char& c : text) {
        c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
      }
      return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
    }
  }
  return false;
}

}  // namespace tutti::detail
