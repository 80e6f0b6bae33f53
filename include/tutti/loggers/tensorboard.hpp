// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/detail/latest.hpp>
#include <tutti/loggers/detail/log_file.hpp>
#include <tutti/loggers/detail/picture_grid.hpp>
#include <tutti/loggers/detail/tensorboard_events.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti {

/// Writes event files for TensorBoard: `tensorboard --logdir tensorboard_logs`, or the folder that
/// the runs' folders are in.
///
/// Metrics are scalars, tables are text, pictures are tiled into one image per name and step. The
/// hyperparameters are on the pages Text and HParams; there at the end of every evaluation with
/// the latest losses and metrics as `hparams/<name>`. A resumed run adds a file in which
/// TensorBoard sees that the steps since the checkpoint are repeated.
/// Source: MosaicML Composer, `composer.loggers.TensorboardLogger`.
struct TensorBoardLogger final {
  static constexpr std::string_view name = "TensorBoardLogger";
  static constexpr About about{.reads_gradients = false};
  using events = types<Init, AfterLoad, FitStart, BatchEnd, EpochEnd, EvalEnd, FitEnd>;

  std::string log_dir{};  ///< files are in `<log_dir>/<run_name>`; empty: in `tensorboard` of the
                          ///< trainer's run_folder, in tensorboard_logs/<run_name> without one
  std::int64_t metrics_interval = 1;  ///< batches of which one has its metrics kept; >= 1
  std::int64_t flush_interval = 100;  ///< batches that may wait to be written; >= 1
  bool rank_zero_only = true;         ///< false: rank r > 0 writes into `rank<r>` in that folder

  /// What it holds while it runs; not an option.
  struct Run {
    detail::LogFile file{};
    detail::Message summary{};  // of `step`
    std::int64_t step = 0;
    detail::Config config{};
    detail::LatestValues results{};  // losses and metrics, for the page HParams
    bool config_written = false;
    bool image_refused = false;
    bool speaks = true;
  } run{};

  void validate() const {
    expect(metrics_interval >= 1, "TensorBoardLogger: metrics_interval", metrics_interval,
           "1 or more");
    expect(flush_interval >= 1, "TensorBoardLogger: flush_interval", flush_interval, "1 or more");
  }

  void apply(Init, const State& state);
  void apply(AfterLoad, const State& state);
  void apply(FitStart, const State& state) { write_config(state.timestamp.batch); }
  void apply(BatchEnd, const State& state);
  void apply(EpochEnd, const State& state);
  void apply(EvalEnd, const State& state);
  void apply(FitEnd, const State& state);

  /// Writes how the run ended and closes the file.
  void close(const State& state);

  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step);
  void log_hyperparameters(std::span<const Hyperparameter> values) {
    detail::remember(run.config, values);
  }
  /// Pictures in [0, 1], or integers in [0, 255]; what is outside is clamped.
  void log_images(const LoggedImages& images, std::int64_t step);
  void log_table(const LoggedTable& table, std::int64_t step);

 private:
  static double now();

  // TensorBoard reads a folder's files in the order of their names.
  [[nodiscard]] std::string free_file(const State& state) const;

  // Under a fixed folder, so that what is brought back from a store can be shown as it is.
  void upload(const State& state) const;

  void write(const detail::Message& event) {
    run.file.add(detail::tensorboard::record(event.bytes()));
  }
  void add(const detail::Message& value) { run.summary.message(1, value); }

  // What is added next belongs to this step.
  void at_step(std::int64_t step);
  void write_summary();
  void flush();

  void write_config(std::int64_t step);
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/loggers/tensorboard.inl.hpp>
#endif
