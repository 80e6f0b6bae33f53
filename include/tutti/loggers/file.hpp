// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/detail/capture.hpp>
#include <tutti/loggers/detail/log_file.hpp>
#include <tutti/loggers/detail/text.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti {

/// Writes everything as text, each rank into its file, with what the program prints between it.
///
///     [hyperparameter]: lr: 0.1
///     [metric][batch=7]: loss/train/total: 0.5000
///     [stderr]: Warning: ...
///
/// A resumed run appends. Lines are written whole.
/// Source: MosaicML Composer, `composer.loggers.FileLogger`.
struct FileLogger final {
  static constexpr std::string_view name = "FileLogger";
  static constexpr About about{.reads_gradients = false};
  using events = types<Init, AfterLoad, BatchEnd, EpochEnd, EvalEnd, FitEnd>;

  std::string filename =
      "{run_folder}/logs-rank{rank}.txt";  ///< placeholders as in checkpoint names
  /// Where it goes in a RemoteUploader's store, with every flush to the disk; empty: nowhere.
  std::string remote_file_name = "{run_name}/logs-rank{rank}.txt";
  bool capture_stdout = true;         ///< copies what is printed into the file, unless stdout is a
  bool capture_stderr = true;         ///< terminal: a progress bar could not be drawn any more
  std::int64_t metrics_interval = 1;  ///< batches of which one has its metrics kept; >= 1
  std::int64_t buffer_size = 100;     ///< lines that wait, at most to the end of a batch; >= 1
  std::int64_t flush_interval = 100;  ///< batches between flushes to the disk; >= 1
  bool overwrite = false;             ///< a run that begins at 0 may replace the file

  /// What it holds while it runs; not an option.
  struct Run {
    detail::LogFile file{};
    detail::Capture capture{};
    std::int64_t lines = 0;  // that wait
  } run{};

  void validate() const;

  void apply(Init, const State& state);
  void apply(AfterLoad, const State& state);
  void apply(BatchEnd, const State& state);
  void apply(EpochEnd, const State&) { flush(); }
  void apply(EvalEnd, const State&) { flush(); }
  void apply(FitEnd, const State& state);

  /// Gives stdout and stderr back and closes the file.
  void close(const State& state);

  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step);
  void log_hyperparameters(std::span<const Hyperparameter> values);
  void log_table(const LoggedTable& table, std::int64_t step);

 private:
  // Every line of the text with its prefix.
  static std::string prefixed(const std::string& prefix, std::string_view text);

  void add(const std::string& text, std::int64_t lines);
  void flush();
  void sync(const State& state);
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/loggers/file.inl.hpp>
#endif
