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

  /// Brings back a file that an earlier run has uploaded; Logger::download_file() calls this.
  /// Returns whether the store has it. Throws c10::Error when the store fails num_attempts times; a
  /// warning, and false, where on_error wants that.
  bool download_file(std::string_view remote_file_name, std::string_view path);

  /// What the trainer tells of checkpoints.
  [[nodiscard]] checkpoint::Mirror& checkpoint_mirror() { return *run.uploads; }

 private:
  void finish();
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/callbacks/remote_uploader.inl.hpp>
#endif
