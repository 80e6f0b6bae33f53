// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/dist/local_rank_zero.hpp>

namespace tutti::dist::detail {

TUTTI_INLINE std::string wait_for_file(const std::string& path) {
  while (access(path.c_str(), R_OK) != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  std::string problem;
  const std::string text = tutti::detail::read_regular_file(path, problem).value_or("");
  return text.substr(0, text.find('\n'));
}

TUTTI_INLINE bool signal_by_file(const std::string& path, const std::string& text) {
  const std::string unfinished = path + ".tmp";
  bool good = false;
  {
    std::ofstream file(unfinished);
    file << text << std::endl;
    good = file.good();
  }
  return good && std::rename(unfinished.c_str(), path.c_str()) == 0;
}

TUTTI_INLINE std::string signal_file(Communicator& group, const std::string& folder) {
  constexpr char letters[] = "abcdefghijklmnopqrstuvwxyz";
  std::random_device random;
  std::string name;
  for (int i = 0; i < 6; ++i) {
    name += letters[random() % 26];
  }
  return folder + "/._signal_file_node" + std::to_string(group.environment().node_rank) + "_" +
         group.broadcast_bytes(name, 0);
}

}  // namespace tutti::dist::detail

namespace tutti::dist {

TUTTI_INLINE void run_local_rank_zero_first(Communicator& group,
                                            const std::function<void()>& body) {
  const bool first = group.environment().local_rank == 0;
  std::exception_ptr error;
  if (first) {
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
  }
  const bool failed = group.all_reduce_value(error != nullptr, ReduceOp::maximum);
  if (error) {
    std::rethrow_exception(error);
  }
  TUTTI_CHECK(first || !failed,
              "tutti::dist::run_local_rank_zero_first: local rank 0 of some node ", "failed, so ",
              group.environment().describe(), " did not start; see its own error");
  if (!first) {
    body();
  }
}

TUTTI_INLINE void run_local_rank_zero_first_patiently(Communicator& group,
                                                      const std::function<void()>& body,
                                                      const std::string& folder) {
  const bool first = group.environment().local_rank == 0;
  const std::string path = detail::signal_file(group, folder);
  const bool writable = !first || (detail::signal_by_file(path + "_probe", "") &&
                                   std::remove((path + "_probe").c_str()) == 0);
  TUTTI_CHECK(group.all_reduce_value(writable, ReduceOp::minimum),
              "tutti::dist::run_local_rank_zero_first_patiently: a file in ", folder,
              " could not be written by local rank 0; give a folder that exists and is writable");
  std::exception_ptr error;
  bool failed = false;
  try {
    if (first) {
      body();
    } else if (failed = detail::wait_for_file(path) == "failed"; !failed) {
      body();
    }
  } catch (...) {
    error = std::current_exception();
  }
  if (first) {
    detail::signal_by_file(path, error ? "failed" : "done");
  }
  group.barrier();
  if (first) {
    std::remove(path.c_str());
  }
  if (error) {
    std::rethrow_exception(error);
  }
  TUTTI_CHECK(!failed, "tutti::dist::run_local_rank_zero_first_patiently: local rank 0 of this ",
              "node failed, so ", group.environment().describe(),
              " did not start; see its own error");
}

}  // namespace tutti::dist
