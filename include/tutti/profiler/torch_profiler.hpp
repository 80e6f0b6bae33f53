// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/cuda.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/loggers/run_path.hpp>
#include <tutti/profiler/detail/recording.hpp>
#include <tutti/profiler/schedule.hpp>
#include <tutti/profiler/torch_trace.hpp>

namespace tutti {

/// Runs LibTorch's own profiler (Kineto) over the batches that the schedule picks and writes what
/// it finds as Chrome traces: every operator, and on a GPU every kernel.
///
/// Its header is not part of `<tutti/tutti.hpp>`. Only one such profiler can run in a process.
/// Source: MosaicML Composer, `composer.profiler.TorchProfiler`.
struct TorchProfiler final {
  static constexpr std::string_view name = "TorchProfiler";
  static constexpr About about{.reads_batch = false};
  using events = types<AfterLoad, BeforeDataloader, BatchEnd, FitEnd>;

  CyclicSchedule schedule{};
  std::string folder = "{run_folder}/torch_traces";  ///< placeholders as in checkpoint names
  std::string filename = "rank{rank}.{batch}.pt.trace.json";  ///< likewise
  /// Where it goes in a RemoteUploader's store; empty: nowhere.
  std::string remote_file_name = "{run_name}/torch_traces/rank{rank}.{batch}.pt.trace.json";
  bool overwrite = false;                ///< a run that begins at 0 may use a folder that has files
  bool record_shapes = false;            ///< of the operators' inputs
  bool profile_memory = true;            ///< allocations
  bool with_stack = false;               ///< where operators were called
  bool with_flops = true;                ///< estimates for matrix products and convolutions
  std::int64_t num_traces_to_keep = -1;  ///< newest files of each rank; -1: all
  /// A trace into which those of a node's ranks go as well, a Profiler's for instance:
  /// "{run_folder}/traces/merged_trace.json". Then all ranks must have the same schedule. Empty:
  /// none.
  std::string merged_trace{};

  /// What it holds while it runs; not an option.
  struct Run {
    std::vector<std::string> saved{};
    Timestamp resumed{};
    ProfilerAction action = ProfilerAction::skip;
    bool prepared = false;
    bool runs = false;
    bool warned = false;
  } run{};

  void validate() const {
    schedule.validate();
    expect(!folder.empty() && !filename.empty(),
           "TorchProfiler: folder or filename is empty; name them.");
    expect(num_traces_to_keep >= -1, "TorchProfiler: num_traces_to_keep", num_traces_to_keep,
           "-1 (all) or more");
  }

  void apply(AfterLoad, const State& state) {
    run.resumed = state.timestamp;
    detail::check_one_file_per_rank("TorchProfiler: filename", filename, state);
    const std::string path = state.output_path(run_path(folder, state));
    std::error_code error;
    TUTTI_CHECK(overwrite || state.autoresume || state.timestamp.batch > 0 ||
                    !std::filesystem::exists(path, error) || std::filesystem::is_empty(path, error),
                "TorchProfiler: the folder '", path,
                "' has files from an earlier run; give this one another run_name or folder, or set "
                "overwrite");
  }

  void apply(BeforeDataloader, const State& state) {
    const Timestamp& now = state.timestamp;
    if (state.dataloader_len >= 0 && now.batch_in_epoch >= state.dataloader_len) {
      return;  // only finds out that the epoch is over
    }
    run.action = schedule.at(now.batch_in_epoch, state.dataloader_len,
                             now.epoch == run.resumed.epoch ? run.resumed.batch_in_epoch : 0);
    if (run.action == ProfilerAction::skip || run.runs) {
      return;
    }
    if (!std::exchange(run.prepared, true)) {
      torch::autograd::profiler::prepareProfiler(config(), activities(state));
    }
    if (run.action != ProfilerAction::warmup) {
      finish_work(state);  // of batches before
      torch::autograd::profiler::enableProfiler(config(), activities(state));
      run.runs = true;
    }
  }
  void apply(BatchEnd, const State& state) {
    if (run.action == ProfilerAction::active_and_save) {
      save(state, /*together=*/true);
    }
  }
  void apply(FitEnd, const State& state) { save(state, /*together=*/true); }

  /// Stops the profiler and keeps what it has; not merged.
  void close(const State& state) { save(state, /*together=*/false); }

 private:
  [[nodiscard]] torch::profiler::impl::ProfilerConfig config() const {
    return torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::KINETO,
                                                 record_shapes, profile_memory, with_stack,
                                                 with_flops);
  }
  static std::set<torch::profiler::impl::ActivityType> activities(const State& state) {
    using torch::profiler::impl::ActivityType;
    std::set<ActivityType> out{ActivityType::CPU};
    if (state.device.is_cuda()) {
      out.insert(ActivityType::CUDA);
    }
    return out;
  }

  static void finish_work(const State& state) {
    if (state.device.is_cuda()) {
      torch::cuda::synchronize(state.device.index());
    }
  }

  // together: all ranks are here.
  void save(const State& state, bool together) {
    run.prepared = false;
    run.action = ProfilerAction::skip;
    if (!std::exchange(run.runs, false)) {
      return;
    }
    finish_work(state);  // Kineto drops kernels that end after it
    const auto result = torch::autograd::profiler::disableProfiler();
    const std::string path =
        state.output_path(run_path(folder, state)) + "/" + run_path(filename, state);
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
    result->save(path);
    if (std::filesystem::exists(path, error)) {
      detail::upload_file(remote_file_name, path, state);
    } else if (!std::exchange(run.warned, true)) {
      TORCH_WARN("TorchProfiler: cannot write '", path, "'; training goes on without traces");
    }
    run.saved.push_back(path);
    if (together && !merged_trace.empty()) {
      merge(state, path);
    }
    while (num_traces_to_keep >= 0 && std::cmp_greater(run.saved.size(), num_traces_to_keep)) {
      std::remove(run.saved.front().c_str());
      run.saved.erase(run.saved.begin());
    }
  }

  // Puts the files of this node's ranks, which are all here, into one.
  void merge(const State& state, const std::string& path) const {
    const dist::Environment& here = state.communicator->environment();
    const std::string node = std::to_string(here.node_rank) + ":";
    const auto all = state.communicator->all_gather_bytes(
        node + std::to_string(detail::Recording::thread()) + ":" + path);
    std::map<int, TorchTrace> files;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].starts_with(node)) {
        const auto colon = all[rank].find(':', node.size());
        files[static_cast<int>(rank)] = {all[rank].substr(colon + 1),
                                         std::stoll(all[rank].substr(node.size()))};
      }
    }
    if (here.local_rank == 0) {
      try {
        merge_torch_traces(files, state.output_path(run_path(merged_trace, state)));
      } catch (const std::exception& error) {
        TORCH_WARN("TorchProfiler: the traces of this node's ranks are not merged: ", error.what());
      }
    }
    if (num_traces_to_keep >= 0) {
      state.communicator->barrier();  // before anybody removes a file
    }
  }
};

}  // namespace tutti
