// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/switched.hpp>
#include <tutti/core/hyperparameter.hpp>
#include <tutti/core/policy.hpp>

namespace at {
class Tensor;
}

/// Where policies and the loop send what should be seen, and how destinations receive it.
namespace tutti {

/// One number of one step. Made of any number, `{"batches", std::int64_t{3}}`; integers beyond 2^53
/// are rounded. A tensor is none: what waits for a device is written out, `x.item<double>()`.
struct LoggedMetric {
  std::string_view name;  ///< "loss/train/total"; valid during the call only
  double value = 0;

  constexpr LoggedMetric() = default;
  template <class T>
    requires std::is_arithmetic_v<T>
  constexpr LoggedMetric(std::string_view metric, T number)
      : name(metric), value(static_cast<double>(number)) {}
};

/// One constant of the run.
struct Hyperparameter {
  std::string_view name;  ///< valid during the call only
  HyperparameterValue value;
};

/// Classes of every pixel of a batch of pictures.
struct LoggedMask {
  std::string_view name;    ///< "prediction"
  const at::Tensor& masks;  ///< [N, H, W], integers
};

/// A batch of pictures for destinations that can show them.
struct LoggedImages {
  std::string_view name;       ///< "Images/Train"
  const at::Tensor& images;    ///< [N, C, H, W], [N, H, W, C] or one image less a dimension
  bool channels_last = false;  ///< the second form above
  std::span<const LoggedMask> masks{};  ///< to lay over the images, for those who can
};

/// A table for destinations that can show it.
struct LoggedTable {
  std::string_view name;                           ///< "generations"
  std::span<const std::string> columns;            ///< their names
  std::span<const std::vector<std::string>> rows;  ///< one text per column each
};

/// How a fit() ended, for destinations that tell a reader.
struct LoggedResult {
  const State& state;                    ///< as it is now; valid during the call only
  bool complete = true;                  ///< false: a signal ended the run before its time
  std::string_view latest_checkpoint{};  ///< the newest of the trainer's own; empty: none
  std::string_view best_checkpoint{};    ///< the best by a CheckpointSaver's monitor; empty: none
  std::string_view resume{};             ///< the command, or the option, that goes on; empty: none
};

/// Fans out what is logged to the destinations of the recipe.
///
/// A destination is a policy with any of these members (step: in batches trained):
///
///     void log_metrics(std::span<const LoggedMetric>, std::int64_t step)
///     void log_hyperparameters(std::span<const Hyperparameter>)
///     void log_images(const LoggedImages&, std::int64_t step)
///     void log_table(const LoggedTable&, std::int64_t step)
///     void upload_file(std::string_view remote_file_name, std::string_view path)
///     void log_result(const LoggedResult&)
///
/// Who has upload_file() may have `bool download_file(std::string_view remote_file_name,
/// std::string_view path)`, too, which brings back what an earlier run has uploaded; false: it has
/// not.
/// With a member `std::int64_t metrics_interval` it gets the metrics of training batches only every
/// so many batches; those of evaluations and epochs always.
class Logger {
 public:
  /// While it lives, metrics are those of a training batch.
  class WithinBatch {
   public:
    explicit WithinBatch(Logger& logger) : logger_(logger) { logger_.within_batch_ = true; }
    ~WithinBatch() { logger_.within_batch_ = false; }
    WithinBatch(const WithinBatch&) = delete;
    WithinBatch& operator=(const WithinBatch&) = delete;

   private:
    Logger& logger_;
  };

  /// Adds a destination; it must outlive the logger or be removed by clear().
  template <class D>
  void add(D& destination) {
    Sink sink{.self = &destination};
    if constexpr (detail::ReceivesMetrics<D>) {
      sink.metrics = [](void* self, std::span<const LoggedMetric> metrics, std::int64_t step) {
        static_cast<D*>(self)->log_metrics(metrics, step);
      };
      if constexpr (requires { detail::unswitched(destination).metrics_interval; }) {
        sink.interval = &detail::unswitched(destination).metrics_interval;
      }
      wants_metrics_ = true;
    }
    if constexpr (detail::ReceivesHyperparameters<D>) {
      sink.hyperparameters = [](void* self, std::span<const Hyperparameter> values) {
        static_cast<D*>(self)->log_hyperparameters(values);
      };
    }
    if constexpr (detail::ReceivesImages<D>) {
      sink.images = [](void* self, const LoggedImages& images, std::int64_t step) {
        static_cast<D*>(self)->log_images(images, step);
      };
      wants_images_ = true;
    }
    if constexpr (detail::ReceivesTable<D>) {
      sink.table = [](void* self, const LoggedTable& table, std::int64_t step) {
        static_cast<D*>(self)->log_table(table, step);
      };
    }
    if constexpr (detail::ReceivesFiles<D>) {
      sink.file = [](void* self, std::string_view remote_file_name, std::string_view path) {
        static_cast<D*>(self)->upload_file(remote_file_name, path);
      };
      wants_files_ = true;
      if constexpr (detail::GivesFilesBack<D>) {
        sink.file_back = [](void* self, std::string_view remote_file_name, std::string_view path) {
          return static_cast<D*>(self)->download_file(remote_file_name, path);
        };
      }
    }
    if constexpr (detail::ReceivesResult<D>) {
      sink.result = [](void* self, const LoggedResult& result) {
        static_cast<D*>(self)->log_result(result);
      };
    }
    add_sink(sink);
  }

  /// Forgets all destinations.
  void clear();

  /// Somebody receives metrics: ask before computing one that costs something.
  [[nodiscard]] bool wants_metrics() const { return wants_metrics_; }

  /// Somebody receives images.
  [[nodiscard]] bool wants_images() const { return wants_images_; }

  /// Somebody keeps files elsewhere.
  [[nodiscard]] bool has_file_upload_destination() const { return wants_files_; }

  /// Sends numbers of one step. step: batches trained so far, as a rule the timestamp's batch.
  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step) const;
  void log_metrics(std::initializer_list<LoggedMetric> metrics, std::int64_t step) const {
    log_metrics(std::span(metrics.begin(), metrics.size()), step);
  }

  /// Sends constants of the run.
  void log_hyperparameters(std::span<const Hyperparameter> values) const;
  void log_hyperparameters(std::initializer_list<Hyperparameter> values) const {
    log_hyperparameters(std::span(values.begin(), values.size()));
  }

  /// Sends pictures.
  void log_images(const LoggedImages& images, std::int64_t step) const;

  /// Sends a table.
  void log_table(const LoggedTable& table, std::int64_t step) const;

  /// Sends a file of the run to where such files are kept, in place of what has that name there.
  ///
  /// remote_file_name: "calm-motet/logs-rank0.txt". path: the file, which may grow, be replaced or
  /// removed once this returns.
  void upload_file(std::string_view remote_file_name, std::string_view path) const;

  /// Brings back what upload_file() has sent under that name, as in the run that this one goes on
  /// with. path: of a file that is not there. Returns whether anybody had it; throws what a store
  /// throws that does not answer.
  [[nodiscard]] bool download_file(std::string_view remote_file_name, std::string_view path) const;

  /// Tells that a fit() has ended, with its checkpoints written.
  void log_result(const LoggedResult& result) const;

 private:
  struct Sink {
    void* self = nullptr;
    const std::int64_t* interval = nullptr;  // null: every batch
    void (*metrics)(void*, std::span<const LoggedMetric>, std::int64_t) = nullptr;
    void (*hyperparameters)(void*, std::span<const Hyperparameter>) = nullptr;
    void (*images)(void*, const LoggedImages&, std::int64_t) = nullptr;
    void (*table)(void*, const LoggedTable&, std::int64_t) = nullptr;
    void (*file)(void*, std::string_view, std::string_view) = nullptr;
    bool (*file_back)(void*, std::string_view, std::string_view) = nullptr;
    void (*result)(void*, const LoggedResult&) = nullptr;
  };

  void add_sink(const Sink& sink);

  std::vector<Sink> sinks_;
  bool wants_metrics_ = false;
  bool wants_images_ = false;
  bool wants_files_ = false;
  bool within_batch_ = false;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/core/logger.inl.hpp>
#endif
