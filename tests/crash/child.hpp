// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <utility>

#include <ATen/Parallel.h>

// Runs of their own process. This program itself never trains: after a backward pass LibTorch
// refuses to do another one in a forked process.

namespace crash {

/// Runs `body` in a process of its own and returns its id. An exception ends that with status 1.
template <class F>
pid_t start(F&& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    at::set_num_threads(1);
    try {
      std::forward<F>(body)();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  return child;
}

/// Waits for a process and returns how it ended, as waitpid() says it.
inline int wait_for(pid_t child) {
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

/// It returned from its body.
inline bool went_well(int status) {
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace crash
