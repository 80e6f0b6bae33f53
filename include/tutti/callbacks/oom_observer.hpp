// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include <tutti/callbacks/detail/memory_recorder.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti {

namespace detail {

// Outlives the policy, since an allocator's observers cannot be taken off.
struct OutOfMemoryReport {
  std::string path;
  bool on = true;
  bool written = false;
};

}  // namespace detail

/// Records allocations on the GPU and writes them into a file when memory runs out.
///
/// From Init on the last max_entries allocations and frees are remembered, which costs some time
/// each. When an allocation fails for good, `<folder>/<filename>_snapshot.pickle` is written before
/// the exception goes on; see MemorySnapshot for what reads it. Writing that fails is only warned
/// of.
///
/// Difference from the reference: the plots made of the snapshot (trace, segments, flame graphs)
/// are left to Python's `torch.cuda._memory_viz`. Source: MosaicML Composer,
/// `composer.callbacks.OOMObserver`.
struct OOMObserver final {
  std::int64_t max_entries = 100000;         ///< events remembered; >= 1
  Key folder = "{run_folder}/torch_traces";  ///< see checkpoint::format_name
  Key filename = "rank{rank}_oom";           ///< likewise
  /// Where it goes in a RemoteUploader's store; empty: nowhere.
  Key remote_file_name = "{run_name}/oom_traces/rank{rank}_oom_snapshot.pickle";
  bool overwrite = false;                    ///< replace a file of that name
  const MemoryRecorder* recorder = nullptr;  ///< null: LibTorch's CUDA allocator

  /// What it holds while it runs; not an option.
  struct Run {
    Lazy<std::shared_ptr<detail::OutOfMemoryReport>> report{};  ///< from Init
  } run{};

  static constexpr std::string_view name = "OOMObserver";
  using events = types<Init>;

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(max_entries >= 1, "OOMObserver: max_entries", max_entries, "at least 1");
  }

  /// Throws c10::ValueError when the model is not on a CUDA device, c10::Error when the file is
  /// there and overwrite is not set.
  void apply(Init, const State& state) {
    recorder = recorder != nullptr ? recorder : &detail::cuda_memory_recorder(name, state);
    const auto facts = std::make_shared<detail::OutOfMemoryReport>();
    facts->path = detail::trace_path(
        state, folder, std::string(std::string_view(filename)) + "_snapshot.pickle", overwrite);
    *run.report = facts;
    recorder->start(max_entries);
    recorder->on_out_of_memory([facts, snapshot = recorder->snapshot] {
      if (!facts->on) {
        return;
      }
      try {
        detail::write_trace(facts->path, snapshot());
        facts->written = true;
      } catch (const std::exception& error) {
        TORCH_WARN("OOMObserver: ", error.what());
      }
    });
  }

  /// Recording ends with the run.
  void close(const State& state) {
    if (run.report && (*run.report)->on) {
      (*run.report)->on = false;
      recorder->stop();
      if ((*run.report)->written) {
        detail::upload_file(remote_file_name, (*run.report)->path, state);
      }
    }
  }
};

}  // namespace tutti
