// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include <tutti/checkpoint/uploads.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/thrown.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/object_store.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti {

/// What happens when a checkpoint or a file cannot be uploaded.
enum class OnUploadError : std::uint8_t {
  stop,  ///< fit() throws
  warn,  ///< a warning, and training goes on
};

/// Uploads every checkpoint of the run, the trainer's and those of CheckpointSaver, and the files
/// of its loggers and profilers to an object store, and loads checkpoints from there.
///
///     tutti::RemoteUploader{.object_store = tutti::LocalObjectStore{"/mnt/archive"}}
///
/// A thread uploads, one checkpoint after the other, each whole before the pointer that names it.
/// fit() returns when all checkpoints are there, close() when all is. With it `load_path` may be an
/// address in the store, "s3://bucket/a/checkpoints/latest", and `autoresume` looks there when it
/// finds nothing in the save folder. Objects are never deleted, whatever the savers keep.
///
/// Source: MosaicML Composer, `composer.loggers.RemoteUploaderDownloader`.
struct RemoteUploader final {
  static constexpr std::string_view name = "RemoteUploader";
  static constexpr Role role = Role::callback;
  static constexpr About about{.reads_gradients = false};
  using events = types<Init>;

  AnyObjectStore object_store{};  ///< obligatory
  /// Placeholders as in save_folder; {folder} is the last part of the saver's folder.
  std::string remote_folder = "{run_name}/{folder}";
  /// Where files wait, as hard links when it is on the save folder's disk; empty: beside the
  /// checkpoint.
  std::string upload_staging_folder{};
  int num_attempts = 3;                        ///< at most, for each checkpoint or file; >= 1
  std::chrono::milliseconds retry_wait{1000};  ///< after a failure; doubled by each that follows
  std::int64_t max_queued = 8;  ///< that wait; whoever writes one more waits for room; >= 1
  OnUploadError on_error = OnUploadError::stop;

  /// What it holds while it runs; not an option.
  struct Run {
    std::unique_ptr<checkpoint::Uploads> uploads{};  ///< from Init
    bool closed = false;                             ///< by close()
    bool dry = false;                                ///< nothing leaves this machine
  } run{};

  /// Throws c10::ValueError when options are out of range.
  void validate() const;

  void apply(Init, const State& state);

  /// Waits for what is under way. Throws c10::Error when some of it failed; a warning where the
  /// run is failing already or on_error wants that.
  void close(const State&);

  /// Uploads a file of the run; Logger::upload_file() calls this. After close(), for what another
  /// policy has left until its own, it waits and throws as that does.
  void upload_file(std::string_view remote_file_name, std::string_view path);

  /// What the trainer tells of checkpoints.
  [[nodiscard]] checkpoint::Mirror& checkpoint_mirror() { return *run.uploads; }

 private:
  void finish();
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE void RemoteUploader::validate() const {
  expect(static_cast<bool>(object_store),
         "RemoteUploader: object_store is not set; give it a LocalObjectStore, a "
         "CommandObjectStore or one of your own.");
  expect(!remote_folder.empty(), "RemoteUploader: remote_folder", remote_folder, "a path");
  expect(num_attempts >= 1, "RemoteUploader: num_attempts", num_attempts, "1 or more");
  expect(max_queued >= 1, "RemoteUploader: max_queued", max_queued, "1 or more");
}

TUTTI_INLINE void RemoteUploader::apply(Init, const State& state) {
  run.dry = !state.scratch_folder.empty();
  run.uploads = std::make_unique<checkpoint::Uploads>(checkpoint::UploadOptions{
      .store = object_store,
      .remote_folder = run_path(remote_folder, state),
      .staging_folder = upload_staging_folder.empty()
                            ? std::string()
                            : state.output_path(run_path(upload_staging_folder, state)),
      .num_attempts = num_attempts,
      .first_wait = retry_wait,
      .max_queued = static_cast<std::size_t>(max_queued),
      .warn = on_error == OnUploadError::warn});
}

TUTTI_INLINE void RemoteUploader::close(const State&) {
  run.closed = true;
  if (run.uploads) {
    finish();
  }
}

TUTTI_INLINE void RemoteUploader::upload_file(std::string_view remote_file_name,
                                              std::string_view path) {
  if (run.uploads && !run.dry) {
    run.uploads->take_file(std::string(path), std::string(remote_file_name));
    if (run.closed) {
      finish();
    }
  }
}

TUTTI_INLINE void RemoteUploader::finish() {
  while (!run.uploads->wait(std::chrono::hours(1))) {
  }
  if (!detail::run_failed()) {
    run.uploads->check();
    return;
  }
  try {
    run.uploads->check();
  } catch (const std::exception&) {
    TORCH_WARN(detail::thrown());
  }
}

}  // namespace tutti

#endif
