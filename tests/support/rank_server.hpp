// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

// A process of this program that has loaded LibTorch and has no threads. Ranks are forks of it: a
// program that starts with LibTorch takes half a second of processor time before its first line.

namespace tutti_test {

/// Runs the test cases that the arguments name; what `main` returns.
using RunCases = int (*)(int argc, char** argv);

/// In `main`, before all else: in a process that is such a server it serves until its starter has
/// ended, and does not return; elsewhere it returns at once.
void serve_ranks(RunCases run);

/// A fork of the server, which the first one starts. Its program's load-time settings, as of
/// OpenMP, are the server's: one thread.
class ForkedRank {
 public:
  /// Runs `test_case` with `environment` (NAME=VALUE) in the current folder, and prints to
  /// `output`.
  ForkedRank(const std::string& test_case, const std::vector<std::string>& environment,
             std::FILE* output);
  ~ForkedRank();
  ForkedRank(const ForkedRank&) = delete;
  ForkedRank& operator=(const ForkedRank&) = delete;

  bool is_done();
  void kill_now();

  /// As waitpid() has it; once it is done.
  int status() const { return status_; }

 private:
  void wait();

  int reports_ = -1;  // the server's: the process number, then the status
  pid_t process_ = -1;
  int status_ = -1;
  bool done_ = false;
};

}  // namespace tutti_test
