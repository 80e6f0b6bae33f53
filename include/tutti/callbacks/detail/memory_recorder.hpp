// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <unistd.h>

#if TUTTI_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/cuda/memory_snapshot.h>
#endif

#include <tutti/checkpoint/filename.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/communicator.hpp>

namespace tutti {

/// How the history of an allocator is recorded; tests put one of their own in the CUDA one's place.
struct MemoryRecorder {
  void (*start)(std::int64_t max_entries);  ///< remembers that many allocations and frees
  void (*stop)();                           ///< forgets them and remembers no more
  std::string (*snapshot)();  ///< what it remembers, as a pickle for PyTorch's memory_viz
  void (*on_out_of_memory)(std::function<void()>);  ///< calls this ever after when memory runs out
};

namespace detail {

/// LibTorch's CUDA allocator. Throws c10::ValueError naming `policy` when the program was built
/// without CUDA or the model is elsewhere.
inline const MemoryRecorder& cuda_memory_recorder(std::string_view policy, const State& state) {
  TUTTI_CHECK_VALUE(state.device.is_cuda(), policy, " records CUDA's memory and the model is on ",
                    state.device.str(), "; train on a CUDA device or take ", policy,
                    " out of the recipe");
#if TUTTI_WITH_CUDA
  static const MemoryRecorder recorder{
      [](std::int64_t max_entries) {
        torch::cuda::_record_memory_history(std::optional<std::string>("all"),
                                            std::optional<std::string>("all"), "all",
                                            static_cast<std::size_t>(max_entries));
      },
      [] { torch::cuda::_record_memory_history(std::optional<std::string>()); },
      [] { return torch::cuda::_memory_snapshot_pickled(); },
      [](std::function<void()> observer) {
        c10::cuda::CUDACachingAllocator::attachOutOfMemoryObserver(
            [observer = std::move(observer)](std::int64_t, std::size_t, std::size_t, std::size_t) {
              observer();
            });
      }};
  return recorder;
#else
  TUTTI_CHECK_VALUE(false, policy,
                    " needs the CUDA parts of LibTorch and this program was built without them; "
                    "configure with -DTUTTI_WITH_CUDA=ON or take ",
                    policy, " out of the recipe");
#endif
}

/// The path that two patterns stand for now, see checkpoint::format_name. Makes the folder.
/// Throws c10::Error when the file is there and overwrite is not set.
inline std::string trace_path(const State& state, std::string_view folder,
                              std::string_view filename, bool overwrite) {
  const dist::Environment& here = state.communicator->environment();
  const checkpoint::NameFields fields{.run_name = state.run_name,
                                      .run_folder = state.run_folder,
                                      .rank = state.rank,
                                      .local_rank = here.local_rank,
                                      .world_size = state.world_size,
                                      .local_world_size = here.local_world_size,
                                      .node_rank = here.node_rank,
                                      .timestamp = state.timestamp};
  const std::string in = state.output_path(checkpoint::format_name(folder, fields));
  checkpoint::make_folder(in);
  const std::string path = in + "/" + checkpoint::format_name(filename, fields);
  TUTTI_CHECK(overwrite || ::access(path.c_str(), F_OK) != 0, path,
              " exists; set overwrite to replace it, or choose another folder");
  return path;
}

/// Writes a file. Throws c10::Error when it cannot.
inline void write_trace(const std::string& path, const std::string& bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wbe");
  const bool written =
      file != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  TUTTI_CHECK(written && closed, "cannot write ", path, "; is there room and permission?");
}

}  // namespace detail

}  // namespace tutti
