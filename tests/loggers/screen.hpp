// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <tutti/loggers/detail/columns.hpp>

/// A pseudo terminal of so many columns. What a program writes to its file is what a terminal's
/// reader gets.
class PseudoTerminal {
 public:
  static bool available() {
    const int own = ::posix_openpt(O_RDWR | O_NOCTTY);
    return own >= 0 && ::close(own) == 0;
  }

  explicit PseudoTerminal(int columns) : own_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    if (own_ < 0 || ::grantpt(own_) != 0 || ::unlockpt(own_) != 0) {
      throw std::runtime_error("this machine has no pseudo terminals");
    }
    const int other = ::open(::ptsname(own_), O_RDWR | O_NOCTTY);
    termios plain{};
    ::tcgetattr(other, &plain);
    ::cfmakeraw(&plain);
    ::tcsetattr(other, TCSANOW, &plain);
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    ::ioctl(other, TIOCSWINSZ, &size);
    file = ::fdopen(other, "w");
    reader_ = std::thread([this] {
      char piece[4096];
      for (ssize_t got; (got = ::read(own_, piece, sizeof piece)) > 0;) {
        text_.append(piece, static_cast<std::size_t>(got));
      }
    });
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;
  ~PseudoTerminal() { text(); }

  /// All that was written; nothing can be written any more.
  std::string text() {
    if (file != nullptr) {
      std::fclose(file);
      file = nullptr;
      reader_.join();
      ::close(own_);
    }
    return text_;
  }

  std::FILE* file = nullptr;

 private:
  int own_;
  std::string text_;
  std::thread reader_;
};

/// The lines that a reader sees when all of a text has been written: "\r" goes back to the line's
/// beginning, "\033[K" clears what is behind the cursor, colours are not seen.
/// width: of the terminal; a line that reaches beyond it, also one that is drawn over later, is an
/// error. 0: none.
inline std::vector<std::string> seen(const std::string& text, int width = 0) {
  std::vector<std::string> lines(1);
  std::string line;  // drawn since the last "\r"
  const auto check = [&] {
    if (width > 0 && tutti::detail::columns(line) > width) {
      throw std::runtime_error("a line is too wide: " + line);
    }
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      const std::size_t end = text.find_first_of("mK", i);
      i = end == std::string::npos ? text.size() : end;
    } else if (text[i] == '\r') {
      check();
      line.clear();
    } else if (text[i] == '\n') {
      check();
      lines.back() = line;
      lines.emplace_back();
      line.clear();
    } else {
      line += text[i];
      lines.back() = line;
    }
  }
  check();
  if (lines.back().empty()) {
    lines.pop_back();
  }
  return lines;
}
