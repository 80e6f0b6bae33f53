// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/detail/log_file.hpp>
#include <tutti/loggers/detail/step_metrics.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti::detail {

// The program tutti-dashboard, started by a run and told by a pipe how long that lives.
//
// A process of its own: it is there when the run has crashed, its work is not the run's, and a
// program that trains needs no HTTP library.
class ViewerProcess {
 public:
  ViewerProcess() = default;
  ViewerProcess(ViewerProcess&& other) noexcept { *this = std::move(other); }
  ViewerProcess& operator=(ViewerProcess&& other) noexcept {
    stop();
    child_ = std::exchange(other.child_, -1);
    life_ = std::exchange(other.life_, -1);
    return *this;
  }
  ~ViewerProcess() { stop(); }

  // Where the program is: TUTTI_DASHBOARD of the environment, beside this program, in the folder
  // above or its bin, on the PATH; empty: nowhere.
  static std::string find();

  // Starts it and waits for its first line, for five seconds at most.
  // Returns that line; when nothing came an empty one, and `problem` says why.
  std::string start(const std::string& program, const std::vector<std::string>& arguments,
                    std::string& problem);

  // Lets it go; it ends by itself once nobody looks.
  void stop();

 private:
  pid_t child_ = -1;
  int life_ = -1;  // its stdin
};

}  // namespace tutti::detail

namespace tutti {

/// A page that shows the run while it goes on, in a browser: its curves, with smoothing and zoom,
/// images and tables, the recipe's plan, hyperparameters, events and checkpoints, and those of
/// other runs in the same folder side by side.
///
///     dashboard  http://127.0.0.1:6070/3f6c.../
///
/// The run writes files; the program `tutti-dashboard`, which it starts, serves them on this
/// machine, to whoever has the address. At the end, and after an exception, the page is written as
/// one file, `report.html`, that needs neither. What goes wrong with files or the page is warned of
/// once, and training goes on. docs/dashboard.md tells more.
struct Dashboard final {
  static constexpr std::string_view name = "Dashboard";
  static constexpr About about{.reads_gradients = false};
  using events = types<Init, AfterLoad, BatchEnd, EpochEnd, EvalEnd, FitEnd>;

  /// The run's file, with placeholders as in checkpoint names; its name begins with "dashboard" and
  /// ends in ".jsonl". Images are numbered files in the folder `dashboard` beside it.
  std::string filename = "{run_folder}/dashboard.jsonl";
  std::string report = "{run_folder}/report.html";  ///< the page at the end; empty: none
  /// Where that goes in a RemoteUploader's store; empty: nowhere.
  std::string remote_file_name = "{run_name}/report.html";
  bool serve = true;               ///< start the program that serves the page
  std::string host = "127.0.0.1";  ///< the interface of this machine that it listens on
  std::int64_t port = 0;           ///< 0: the first free one from 6070 on
  bool overwrite = false;          ///< a run that begins at 0 may replace the file
  bool rank_zero_only = true;      ///< false: every rank writes; filename needs {rank}
  double flush_seconds = 0.5;      ///< what has happened reaches the page so late, at most; >= 0
  std::FILE* stream = stderr;      ///< where the address is printed; stays open

  /// What it holds while it runs; not an option.
  struct Run {
    detail::LogFile file{};
    detail::ViewerProcess viewer{};
    std::string plan{};
    std::string values{};  // of `step`, as the inside of a JSON object
    std::int64_t step = 0;
    detail::StepMetrics latest{};  // which a checkpoint keeps
    std::int64_t images = 0;       // number of the next one
    std::chrono::steady_clock::time_point next_flush{};
    std::string address{};
    int rank = 0;
    bool speaks = true;
    bool stopped = false;  // by a signal
    bool warned = false;   // of an image
  } run{};

  void validate() const;

  void apply(Init, const State& state);
  /// Begins the file and starts the program.
  void apply(AfterLoad, const State& state);
  void apply(BatchEnd, const State& state);
  void apply(EpochEnd, const State&) { write_all(); }
  void apply(EvalEnd, const State&) { write_all(); }
  void apply(FitEnd, const State&) { write_all(); }

  /// Ends the file with a line that tells how the run ended, and writes the report.
  void close(const State& state);

  /// Saves the metrics of the checkpoint's step, which a resumed run writes again.
  void save(Archive& archive) const { run.latest.save(archive); }
  void load(const Archive& archive) { run.latest.load(archive); }

  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step);
  void log_hyperparameters(std::span<const Hyperparameter> values);
  void log_images(const LoggedImages& images, std::int64_t step);
  void log_table(const LoggedTable& table, std::int64_t step);
  void log_result(const LoggedResult& result);

  /// What the page shows as the recipe; the trainer gives its plan before Init.
  void show_plan(std::string_view plan) { run.plan = plan; }

  /// Shows a sentence among the page's events.
  void log_event(std::string_view text, std::int64_t step);

  /// The address of the page, with its token; empty: nothing serves it.
  [[nodiscard]] const std::string& address() const { return run.address; }

 private:
  [[nodiscard]] std::string folder() const;  // with the run's file
  void start_viewer(const std::string& at_end);
  void write_values();
  void write_all();
  void write_report(const State& state);
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/loggers/dashboard.inl.hpp>
#endif
