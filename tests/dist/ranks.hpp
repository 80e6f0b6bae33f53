// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tutti/dist/launch.hpp>

#include "support/device.hpp"
#include "support/rank_server.hpp"

// Runs a hidden test case of this very program, a name without commas, in several processes:
//   TEST_CASE("rank body: adds up", "[.rank]") { ... collectives, CHECK, REQUIRE ... }
//   TEST_CASE("ranks add up", "[dist]") { CHECK(run_ranks("rank body: adds up") == all_passed); }

namespace tutti_test {

inline const std::string all_passed = "all ranks passed";

using tutti::dist::detail::free_port;

/// One process of a run and what it prints.
class RankProcess {
 public:
  RankProcess(const std::string& test_case, const std::map<std::string, std::string>& variables)
      : output_(std::tmpfile()), process_(test_case, environment(variables), output_) {}
  ~RankProcess() {
    kill_now();
    std::fclose(output_);
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  bool is_done() { return process_.is_done(); }

  void kill_now() { process_.kill_now(); }

  /// Exit code 0, and the test case was found and run.
  bool passed() {
    const std::string text = output();
    return is_done() && process_.status() == 0 &&
           text.find("in 1 test case") != std::string::npos &&
           text.find("No test cases matched") == std::string::npos;
  }

  /// What it printed, without the frames of stack traces.
  std::string output() {
    std::string text;
    std::string line;
    std::rewind(output_);
    for (int letter = std::fgetc(output_); letter != EOF; letter = std::fgetc(output_)) {
      line += static_cast<char>(letter);
      if (letter == '\n') {
        text += line.find("frame #") == std::string::npos ? line : "";
        line.clear();
      }
    }
    return text + line;
  }

 private:
  /// This process's, with `variables`.
  static std::vector<std::string> environment(const std::map<std::string, std::string>& variables) {
    std::vector<std::string> result;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (variables.count(text.substr(0, text.find('='))) == 0) {
        result.push_back(text);
      }
    }
    for (const auto& [name, value] : variables) {
      result.push_back(name + "=" + value);
    }
    return result;
  }

  std::FILE* output_;
  ForkedRank process_;
};

/// Runs `test_case` as ranks 0 .. ranks-1 and returns `all_passed` or every rank's output. Ranks
/// that still run after `limit` are killed, so that a deadlock is a failure and not a hang.
inline std::string run_ranks(const std::string& test_case, int ranks = 2,
                             std::chrono::seconds limit = std::chrono::seconds(60)) {
  const std::string port = std::to_string(free_port());
  // NCCL takes ranks for those of other machines, so that they can share the first GPU.
  const bool share = device_name() == "cuda";
  std::vector<std::unique_ptr<RankProcess>> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string number = std::to_string(rank);
    std::map<std::string, std::string> variables{{"RANK", number},
                                                 {"WORLD_SIZE", std::to_string(ranks)},
                                                 {"LOCAL_RANK", number},
                                                 {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
                                                 {"MASTER_ADDR", "127.0.0.1"},
                                                 {"MASTER_PORT", port},
                                                 {"OMP_NUM_THREADS", "1"}};
    if (share) {
      variables["LOCAL_RANK"] = "0";
      variables["LOCAL_WORLD_SIZE"] = "1";
      variables["NCCL_HOSTID"] = "rank" + number;
      variables["TUTTI_STORE_ADDRESS"] = "127.0.0.1";
    }
    processes.push_back(std::make_unique<RankProcess>(test_case, variables));
  }
  const auto end = std::chrono::steady_clock::now() + limit;
  bool all_done = false;
  while (!all_done && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    all_done = true;
    for (const auto& process : processes) {
      all_done = process->is_done() && all_done;
    }
  }
  std::string report;
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    const bool late = !processes[rank]->is_done();
    processes[rank]->kill_now();
    if (!processes[rank]->passed()) {
      report += "--- rank " + std::to_string(rank) +
                (late ? " was killed at the limit" : " failed") + "\n" + processes[rank]->output();
    }
  }
  return report.empty() ? all_passed : report;
}

}  // namespace tutti_test
