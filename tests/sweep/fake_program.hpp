// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tutti/sweep/sweep_command.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

/// A folder with a program of sh that writes metrics.jsonl, and tutti-sweep that runs it in a
/// process of its own.
///
/// The program logs `loss`, its --lr, at step --epochs (1 without), and adds a line to the file
/// `begun`. With `sh` as --do it does that first, in its folder ($folder).
class FakeProgram {
 public:
  struct Ended {
    int status = -1;
    std::string out{};
    std::string error{};
  };

  FakeProgram() {
    write_bytes(folder / "program", R"(
epochs=1
for word in "$@"; do
  case $word in
    --run-folder=*) folder=${word#*=} ;;
    --lr=*) lr=${word#*=} ;;
    --epochs=*) epochs=${word#*=} ;;
    --do=*) what=${word#*=} ;;
  esac
done
echo "$@" >> )" + (folder / "begun").string() +
                                        R"(
eval "$what"
values="\"values\": {\"loss\": $lr}"
echo "{\"type\": \"metrics\", \"step\": ${epochs%ep}, $values}" >> $folder/metrics.jsonl
)");
  }

  /// The file of ranges; `metric`, `goal` and `folder` are there already.
  void ranges(const std::string& toml) const {
    write_bytes(folder / "r.toml", "metric = 'loss'\ngoal = 'minimize'\nfolder = '" +
                                       (folder / "s").string() + "'\n" + toml);
  }

  /// Starts tutti-sweep with options for it. Returns its process.
  [[nodiscard]] pid_t start(const std::vector<std::string>& options = {},
                            const std::vector<std::string>& program = {}) const {
    std::vector<std::string> words{"tutti-sweep"};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back((folder / "r.toml").string());
    if (program.empty()) {
      words.insert(words.end(), {"sh", (folder / "program").string()});
    }
    words.insert(words.end(), program.begin(), program.end());
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      for (const int stream : {1, 2}) {
        const std::string path = (folder / (stream == 1 ? "out" : "error")).string();
        ::dup2(::open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_APPEND, 0600), stream);
      }
      std::vector<char*> arguments;
      for (std::string& word : words) {
        arguments.push_back(word.data());
      }
      const int status =
          tutti::sweep::sweep_main(static_cast<int>(arguments.size()), arguments.data());
      std::fflush(nullptr);
      ::_exit(status);
    }
    return child;
  }

  [[nodiscard]] Ended wait(pid_t process) const {
    int status = 0;
    ::waitpid(process, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), read_bytes(folder / "out"),
            read_bytes(folder / "error")};
  }

  [[nodiscard]] Ended run(const std::vector<std::string>& options = {},
                          const std::vector<std::string>& program = {}) const {
    return wait(start(options, program));
  }

  /// Waits, up to 20 s, until a file is there.
  static void wait_for(const std::filesystem::path& path) {
    for (int i = 0; i < 2000 && !std::filesystem::exists(path); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    REQUIRE(std::filesystem::exists(path));
  }

  /// How often the program was begun.
  [[nodiscard]] std::ptrdiff_t begun() const {
    const std::string lines =
        std::filesystem::exists(folder / "begun") ? read_bytes(folder / "begun") : std::string();
    return std::count(lines.begin(), lines.end(), '\n');
  }

  [[nodiscard]] std::string csv() const { return read_bytes(folder / "s/trials.csv"); }

  const TemporaryFolder folder{};
};
