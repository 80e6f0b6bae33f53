// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/crc.hpp>
#include <tutti/core/detail/utf8.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/logger.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/detail/latest.hpp>
#include <tutti/loggers/detail/log_file.hpp>
#include <tutti/loggers/detail/picture_grid.hpp>
#include <tutti/loggers/detail/png.hpp>
#include <tutti/loggers/detail/step_metrics.hpp>
#include <tutti/loggers/detail/text.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti::detail {

// A protocol buffer message while it is written: the wire format's three kinds of fields that
// TensorBoard's messages have. Fields of proto3 with their default value may be left out.
// Source: protobuf.dev/programming-guides/encoding
class Message {
 public:
  // int32, int64, uint64, bool and enums.
  Message& number(unsigned field, std::int64_t value) {
    varint(field << 3);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& real(unsigned field, double value) {
    varint(field << 3 | 1);
    fixed(std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  Message& real(unsigned field, float value) {
    varint(field << 3 | 5);
    fixed(std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  // string (which must be UTF-8), bytes, and the bytes of a message.
  Message& bytes(unsigned field, std::string_view value) {
    varint(field << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(unsigned field, const Message& value) { return bytes(field, value.bytes_); }

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  void clear() { bytes_.clear(); }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
      bytes_ += static_cast<char>(value | 0x80);
    }
    bytes_ += static_cast<char>(value);
  }
  template <std::unsigned_integral U>
  void fixed(U value) {  // little-endian
    for (std::size_t i = 0; i < sizeof value; ++i) {
      bytes_ += static_cast<char>(value >> (8 * i));
    }
  }

  std::string bytes_;
};

}  // namespace tutti::detail

// TensorBoard's event files: records that each hold an Event message. The numbers of the fields
// are those of tensorboard/compat/proto: event, summary, tensor, types; plugins/hparams.
namespace tutti::detail::tensorboard {

// A record of an event file: length, its CRC, the data, its CRC.
std::string record(std::string_view data);

// An event without its content. time: seconds since 1970.
Message event(double time, std::int64_t step);

// The first event of a file.
inline Message version(double time) {
  return event(time, 0).bytes(3, "brain.Event:2");
}

// Tells that what other files have from this step on is from a run that crashed.
inline Message restart(double time, std::int64_t step) {
  return event(time, step).message(7, Message().number(1, /*START*/ 1));
}

// Values of a Summary, of which an event holds any number.
Message scalar(std::string_view tag, double value);
Message image(std::string_view tag, const Picture& picture);

// A value that belongs to a plugin, which finds `content` in the metadata.
Message of_plugin(std::string_view tag, std::string_view plugin, std::string_view content);

// Markdown, shown under "Text".
Message text(std::string_view tag, std::string_view markdown);

// What the HParams page needs: what a session began with, and how it ended.
Message session_start(const Config& config, double time);
Message session_end(bool failed, double time);

// A table as Markdown.
std::string markdown(const LoggedTable& table);

}  // namespace tutti::detail::tensorboard

namespace tutti {

/// Writes event files for TensorBoard: `tensorboard --logdir tensorboard_logs`, or the folder that
/// the runs' folders are in.
///
/// Metrics are scalars, tables are text, pictures are tiled into one image per name and step. The
/// hyperparameters are on the pages Text and HParams; there at the end of every evaluation with
/// the latest losses and metrics as `hparams/<name>`. A resumed run adds a file in which
/// TensorBoard sees that the steps since the checkpoint are repeated; metrics of the checkpoint's
/// own step are in both, its tables and pictures in the first, where TensorBoard passes over them.
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
    detail::StepMetrics latest{};  // which a checkpoint keeps
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

  /// Saves the metrics of the checkpoint's step, which a resumed run writes again.
  void save(Archive& archive) const { run.latest.save(archive); }
  void load(const Archive& archive) { run.latest.load(archive); }

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
