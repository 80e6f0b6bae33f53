// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <c10/util/Exception.h>

#include <tutti/checkpoint/detail/staging.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/local_object_store.hpp>
#include <tutti/checkpoint/mirror.hpp>
#include <tutti/checkpoint/remote.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/object_store.hpp>

namespace tutti::checkpoint {

/// How Uploads works.
struct UploadOptions {
  AnyObjectStore store;
  std::string remote_folder;     ///< {folder} stands for the last part of the saver's folder
  std::string staging_folder{};  ///< empty: that of the checkpoint
  int num_attempts = 3;
  std::chrono::milliseconds first_wait{1000};  ///< after a failure; doubled by each that follows
  std::size_t max_queued = 8;  ///< checkpoints that wait; the writer of more waits for room
  bool warn = false;           ///< check() warns instead of throwing
};

/// Uploads checkpoints and other files in a thread of its own, one after the other in the order
/// written.
class Uploads final : public Mirror {
 public:
  explicit Uploads(UploadOptions options) : options_(std::move(options)) {}
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;

  /// Finishes the upload under way and drops those that wait.
  ~Uploads() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  void written(const std::string& path, const std::string& link) noexcept override;

  /// Takes a file to be uploaded as the object `name`, and what has been added to it when its turn
  /// comes. Of the files that wait under one name only the last is kept.
  void take_file(const std::string& path, const std::string& name) noexcept;

  [[nodiscard]] bool failed() const noexcept override {
    return failed_.load(std::memory_order_acquire);
  }

  void check() override;

  bool wait(std::chrono::milliseconds most) override;

  bool fetch_latest(const std::string& folder, const std::string& latest) override;

  bool fetch(const std::string& uri, const std::string& target) override;

  bool fetch_named(const std::string& folder, const std::string& name) override;

  void catch_up(const std::vector<std::string>& saved, const std::string& link) noexcept override;

  [[nodiscard]] std::string address_of(const std::string& folder) const override {
    return options_.store.get_uri(remote_of(folder));
  }

 private:
  struct Job {
    std::unique_ptr<detail::Staging> files;
    std::string remote;    // the folder there
    std::string name;      // of the checkpoint
    std::string pointer;   // to be pointed at it then; empty: none
    bool is_file = false;  // one that becomes the object `remote`
  };

  template <class F>
  void take(const std::string& path, F&& make) noexcept {
    try {
      Job job = make();
      std::unique_lock lock(mutex_);
      if (Job* waiting = job.is_file ? waiting_file(job.remote) : nullptr) {
        std::swap(*waiting, job);
        return;
      }
      changed_.wait(lock, [&] { return queue_.size() < options_.max_queued; });
      queue_.push_back(std::move(job));
      if (!thread_.joinable()) {
        thread_ = std::thread([this] { run(); });
      }
    } catch (const std::exception& error) {
      remember("'" + path + "' could not be taken: " + text_of(error));
    }
    changed_.notify_all();
  }

  // The first of the queue is being uploaded.
  Job* waiting_file(const std::string& remote) {
    for (std::size_t i = 1; i < queue_.size(); ++i) {
      if (queue_[i].is_file && queue_[i].remote == remote) {
        return &queue_[i];
      }
    }
    return nullptr;
  }

  static std::string text_of(const std::exception& error);

  // The remote folder of a saver's folder.
  [[nodiscard]] std::string remote_of(const std::filesystem::path& folder) const;

  // The store has all of a checkpoint, since it has the file that goes there last. Throws what the
  // store does.
  [[nodiscard]] bool has(const std::filesystem::path& path) const;

  // Those of `saved` that are not there, with what is to be pointed at each.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> missing(
      const std::vector<std::string>& saved, const std::string& link) const;

  // Takes the files by hard links, or copies, since the saver may remove the checkpoint soon.
  [[nodiscard]] Job staged(const std::filesystem::path& path,
                           const std::filesystem::path& link) const;

  // Takes one by a hard link, or a copy, since it may be replaced or removed soon.
  [[nodiscard]] Job staged_file(const std::filesystem::path& path, const std::string& name);

  // Of a file that may be growing, what is there now.
  void upload_file(const Job& job) const;

  void remember(const std::string& error) noexcept;

  void run();

  void upload(const Job& job);

  // Waits, and up to half a second more so that many runs do not try again at once. False: there
  // is no time.
  bool pause(std::chrono::milliseconds time);

  static constexpr const char* taken = "taken";  // the link to a file, in its folder

  UploadOptions options_;
  std::set<std::string> cleaned_;  // folders where files of dead processes are removed
  std::minstd_rand random_{std::random_device{}()};  // the thread's own
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> queue_;  // guarded by the mutex, as the next two
  std::string errors_;
  bool closing_ = false;
  std::atomic<bool> failed_{false};
  std::thread thread_;
};

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/uploads.inl.hpp>
#endif
