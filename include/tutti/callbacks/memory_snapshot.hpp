// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/callbacks/detail/memory_recorder.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti {

/// Records every allocation on the GPU for a few batches and writes them into a file.
///
/// After skip_batches batches recording starts; at the BatchEnd where interval has passed since, it
/// writes the file and stops. https://pytorch.org/memory_viz shows it, and
/// `python -m torch.cuda._memory_viz trace_plot FILE -o trace.html` makes a page of it.
///
/// Differences from the reference: the page is not made here; the file's name ends in .pickle.
/// Source: MosaicML Composer, `composer.callbacks.MemorySnapshot`.
struct MemorySnapshot final {
  std::int64_t skip_batches = 1;             ///< before it starts; >= 0
  Time interval = "3ba";                     ///< how long it records; > 0, not dur
  std::int64_t max_entries = 100000;         ///< events remembered; >= 1
  Key folder = "{run_folder}/torch_traces";  ///< see checkpoint::format_name
  Key filename = "rank{rank}.{batch}.memory_snapshot.pickle";  ///< likewise
  /// Where it goes in a RemoteUploader's store; empty: nowhere.
  Key remote_file_name = "{run_name}/torch_memory_traces/rank{rank}.{batch}.memory_snapshot.pickle";
  bool overwrite = false;                    ///< replace a file of that name
  const MemoryRecorder* recorder = nullptr;  ///< null: LibTorch's CUDA allocator

  /// What it holds while it runs; not an option.
  struct Run {
    std::int64_t seen = 0;    ///< batches of this run
    std::int64_t since = -1;  ///< when recording started, in interval's unit
    bool done = false;        ///< the file is written
  } run{};

  static constexpr std::string_view name = "MemorySnapshot";
  static constexpr About about{.reads_batch = false};
  using events = types<Init, FitStart, BatchEnd>;

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(skip_batches >= 0, "MemorySnapshot: skip_batches", skip_batches, "0 or more");
    expect(interval.value() > 0 && !interval.is_fraction(), "MemorySnapshot: interval", interval,
           "more than 0 in any unit but dur");
    expect(max_entries >= 1, "MemorySnapshot: max_entries", max_entries, "at least 1");
  }

  /// Throws c10::ValueError when the model is not on a CUDA device.
  void apply(Init, const State& state) {
    recorder = recorder != nullptr ? recorder : &detail::cuda_memory_recorder(name, state);
  }
  void apply(FitStart, const State& state) {
    if (skip_batches == 0) {
      start(state);
    }
  }
  bool match(BatchEnd, const State&) const { return !run.done; }
  /// Throws c10::Error when the file cannot be written or is there and overwrite is not set.
  void apply(BatchEnd, const State& state) {
    ++run.seen;
    if (run.since < 0 && run.seen >= skip_batches) {
      start(state);
    } else if (run.since >= 0 &&
               state.timestamp.get(interval.unit()).count() >= run.since + interval.count()) {
      const std::string path = detail::trace_path(state, folder, filename, overwrite);
      detail::write_trace(path, recorder->snapshot());
      detail::upload_file(remote_file_name, path, state);
      stop();
    }
  }

  /// Recording ends with the run.
  void close(State&) {
    if (run.since >= 0) {
      stop();
    }
  }

 private:
  void start(const State& state) {
    if (run.since < 0 && !run.done) {
      recorder->start(max_entries);
      run.since = state.timestamp.get(interval.unit()).count();
    }
  }
  void stop() {
    recorder->stop();
    run.since = -1;
    run.done = true;
  }
};

}  // namespace tutti
