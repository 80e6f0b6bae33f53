// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <new>
#include <string>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tutti_test {

namespace detail {

/// What `work` says: the message of what it throws, else "nothing".
inline std::string words_of(const std::function<void()>& work) {
  try {
    work();
    return "nothing";
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find("\nException raised from"));  // LibTorch's stack frames
  }
}

}  // namespace detail

/// What `work` says in a process of its own that may take `bytes` of memory beyond what this one
/// has, and half a minute: the message of what it throws, "nothing" when it throws nothing, "killed
/// by signal 14" when it hangs.
inline std::string in_bounds(std::uint64_t bytes, const std::function<void()>& work) {
  int ends[2];
  if (::pipe(ends) != 0) {
    return "no pipe";
  }
  const ::pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto most = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + bytes;
    const ::rlimit limit{most, most};
    ::setrlimit(RLIMIT_AS, &limit);
    const std::string words = detail::words_of(work);
    const bool said = ::write(ends[1], words.data(), words.size()) >= 0;
    ::_exit(said ? 0 : 1);
  }
  ::close(ends[1]);
  std::string words;
  char room[512];
  for (::ssize_t got = 0; (got = ::read(ends[0], room, sizeof room)) > 0;) {
    words.append(room, static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? "killed by signal " + std::to_string(WTERMSIG(status)) : words;
}

}  // namespace tutti_test
