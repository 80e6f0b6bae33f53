// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti::detail {

// Gives a log what the store has of it from before, where the run was resumed and the log is empty:
// on another machine, whose uploads would else replace the run's beginning by its end.
// pattern: its name in the store; empty: it is not there. path: the log, open for appending.
// Throws c10::Error when the store or the disk fails.
void bring_back(std::string_view pattern, const std::string& path, const State& state);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE void bring_back(std::string_view pattern, const std::string& path,
                             const State& state) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (pattern.empty() || state.timestamp.batch == 0 ||
      !state.logger.has_file_upload_destination() || fs::file_size(path, error) != 0 || error) {
    return;
  }
  const std::string copy = path + ".from-store";
  fs::remove(copy, error);
  if (!state.logger.download_file(run_path(pattern, state), copy)) {
    return;
  }
  if (fs::file_size(copy, error) > 0 && !error) {
    std::ofstream log(path, std::ios::binary | std::ios::app);
    log << std::ifstream(copy, std::ios::binary).rdbuf() << std::flush;
    TUTTI_CHECK(log, "'", path,
                "' cannot be written with what the store has of it; make room, or "
                "set remote_file_name to another name so that what is there is kept");
  }
  fs::remove(copy, error);
}

}  // namespace tutti::detail

#endif
