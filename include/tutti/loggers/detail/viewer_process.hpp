// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tutti/config.hpp>

extern char** environ;

namespace tutti::detail {

// The program tutti-dashboard, started by a run and told by a pipe how long that lives.
//
// A process of its own: it is there when the run has crashed, its work is not the run's, and a
// program that trains needs no HTTP library.
class ViewerProcess {
 public:
  ViewerProcess() = default;
  ViewerProcess(ViewerProcess&& other) noexcept { *this = std::move(other); }
  ViewerProcess& operator=(ViewerProcess&& other) noexcept {
    stop();
    child_ = std::exchange(other.child_, -1);
    life_ = std::exchange(other.life_, -1);
    return *this;
  }
  ~ViewerProcess() { stop(); }

  // Where the program is: TUTTI_DASHBOARD of the environment, beside this program, in the folder
  // above or its bin, on the PATH; empty: nowhere.
  static std::string find();

  // Starts it and waits for its first line, for five seconds at most.
  // Returns that line; when nothing came an empty one, and `problem` says why.
  std::string start(const std::string& program, const std::vector<std::string>& arguments,
                    std::string& problem);

  // Lets it go; it ends by itself once nobody looks.
  void stop();

 private:
  pid_t child_ = -1;
  int life_ = -1;  // its stdin
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::string ViewerProcess::find() {
  const char* told = std::getenv("TUTTI_DASHBOARD");
  if (told != nullptr && *told != '\0') {
    return told;
  }
  const auto runs = [](const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
  };
  std::error_code error;
  const auto here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<std::filesystem::path> folders;
  if (!error) {
    folders = {here, here.parent_path(), here.parent_path() / "bin"};
  }
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "";
  while (!rest.empty()) {
    const auto end = std::min(rest.find(':'), rest.size());
    if (end > 0) {  // an empty entry is the working directory, which nobody means
      folders.emplace_back(rest.substr(0, end));
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  for (const auto& folder : folders) {
    if (runs(folder / "tutti-dashboard")) {
      return (folder / "tutti-dashboard").string();
    }
  }
  return {};
}

TUTTI_INLINE std::string ViewerProcess::start(const std::string& program,
                                              const std::vector<std::string>& arguments,
                                              std::string& problem) {
  stop();
  std::array<int, 2> life{-1, -1};
  std::array<int, 2> words{-1, -1};
  if (::pipe2(life.data(), O_CLOEXEC) != 0 || ::pipe2(words.data(), O_CLOEXEC) != 0) {
    problem = std::strerror(errno);
    for (const int fd : {life[0], life[1]}) {
      if (fd >= 0) {
        ::close(fd);
      }
    }
    return {};
  }
  std::vector<char*> words_of_command{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) {
    words_of_command.push_back(const_cast<char*>(argument.c_str()));
  }
  words_of_command.push_back(nullptr);

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, life[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, words[1], STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  // A session of its own: Ctrl-C is for the run.
  posix_spawnattr_setflags(
      &attributes,
      static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID));
  const int refused = ::posix_spawn(&child_, program.c_str(), &files, &attributes,
                                    words_of_command.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  ::close(life[0]);
  ::close(words[1]);
  life_ = life[1];
  std::string text;
  if (refused != 0) {
    child_ = -1;
    problem = std::strerror(refused);
  } else {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    std::array<char, 512> piece{};
    while (text.find('\n') == std::string::npos && std::chrono::steady_clock::now() < until) {
      pollfd end{words[0], POLLIN, 0};
      if (::poll(&end, 1, 100) <= 0) {
        continue;
      }
      const ssize_t got = ::read(words[0], piece.data(), piece.size());
      if (got <= 0) {
        break;
      }
      text.append(piece.data(), static_cast<std::size_t>(got));
    }
    const auto end = text.find('\n');
    problem = end == std::string::npos ? "it said nothing" : "";
    text.resize(end == std::string::npos ? 0 : end);
  }
  ::close(words[0]);
  if (text.empty()) {
    stop();
  }
  return text;
}

TUTTI_INLINE void ViewerProcess::stop() {
  if (life_ >= 0) {
    ::close(std::exchange(life_, -1));
  }
  if (child_ > 0) {
    ::waitpid(std::exchange(child_, -1), nullptr, WNOHANG);
  }
}

}  // namespace tutti::detail

#endif
