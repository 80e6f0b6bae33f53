// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/callbacks/remote_uploader.hpp>

#include <thread>

#include <unistd.h>

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

TUTTI_INLINE bool RemoteUploader::download_file(std::string_view remote_file_name,
                                                std::string_view path) {
  if (!run.uploads || run.dry) {
    return false;
  }
  const std::string remote(remote_file_name);
  const std::string target(path);
  std::string problem;
  std::chrono::milliseconds wait = retry_wait;
  for (int attempt = 1; attempt <= num_attempts; ++attempt, wait *= 2) {
    try {
      object_store.download_object(remote, target);
      return true;
    } catch (const ObjectNotFound&) {
      return false;
    } catch (const std::exception&) {
      problem = detail::thrown();
      ::unlink(target.c_str());  // a part, perhaps
    }
    if (attempt < num_attempts) {
      std::this_thread::sleep_for(wait);
    }
  }
  TUTTI_CHECK(on_error == OnUploadError::warn, "RemoteUploader: cannot bring back '", remote,
              "' of the run that is resumed, and the next upload would replace it: ", problem);
  TORCH_WARN("RemoteUploader: cannot bring back '", remote,
             "' of the run that is resumed, and the next upload will replace it: ", problem);
  return false;
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
