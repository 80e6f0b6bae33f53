// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include <tutti/checkpoint/background.hpp>
#include <tutti/checkpoint/host_copies.hpp>
#include <tutti/checkpoint/save_job.hpp>
#include <tutti/checkpoint/saver.hpp>
#include <tutti/config.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/train/sharded_job.hpp>
#include <tutti/train/together.hpp>

namespace tutti {

/// How a checkpoint of several ranks lies on disk.
enum class CheckpointLayout : std::uint8_t {
  whole,    ///< rank 0 writes all of it, after it has collected the parts
  sharded,  ///< every rank writes its own part into one folder, see checkpoint::ShardedSnapshot
};

/// "whole", "sharded".
constexpr std::string_view to_string(CheckpointLayout layout) {
  return layout == CheckpointLayout::whole     ? "whole"
         : layout == CheckpointLayout::sharded ? "sharded"
                                               : "unknown";
}

/// What happens when a checkpoint of the run cannot be written.
enum class OnSaveError : std::uint8_t {
  stop,  ///< fit() throws
  warn,  ///< a warning, and training goes on; the next one is tried as usual
};

/// "stop", "warn".
constexpr std::string_view to_string(OnSaveError choice) {
  return choice == OnSaveError::stop ? "stop" : choice == OnSaveError::warn ? "warn" : "unknown";
}

namespace train {

/// Waits until what has been asked of the devices of these tensors is done, so that another thread
/// may read them.
void wait_for_devices(std::initializer_list<const std::vector<checkpoint::NamedTensor>*> lists);

/// Writes the jobs of savers, on rank 0 or on all, at once or in the background, where one is under
/// way at a time. Members but failed() and abandon() are collectives, in which ranks wait for each
/// other for as long as writing takes.
class Saving {
 public:
  /// background: a save keeps training waiting only for a copy of the state to host memory.
  void configure(bool background, OnSaveError on_error) {
    in_background_ = background;
    on_error_ = on_error;
  }

  /// Those who are told of every checkpoint that was written.
  void set_mirrors(std::vector<checkpoint::Mirror*> mirrors) { mirrors_ = std::move(mirrors); }

  /// Writes what `saver` is to write, after what is under way. Throws c10::Error on every rank when
  /// that or this fails, unless errors only warn; what fails in the background is thrown by the
  /// next call of any member. first: is called on rank 0, before.
  void write(
      dist::Communicator& world, checkpoint::Saver& saver, checkpoint::SnapshotFiles files,
      const std::function<void()>& first = [] {});

  /// The same for a sharded checkpoint, of which this is the rank's part: every rank writes.
  void write(
      dist::Communicator& world, checkpoint::Saver& saver, checkpoint::ShardedSnapshot snapshot,
      const std::function<void()>& first = [] {});

  /// Waits for what is under way. Throws as write() does.
  void wait(dist::Communicator& world);

  /// What was under way has failed, which wait() would throw; known on rank 0, or on those that
  /// wrote.
  [[nodiscard]] bool failed() const noexcept { return background_.failed(); }

  /// Waits for what is under way; a failure is a warning. For a run that is failing already.
  void abandon();

 private:
  void ended(dist::Communicator& world, checkpoint::Saver& saver, std::exception_ptr error) const;

  bool in_background_ = false;
  OnSaveError on_error_ = OnSaveError::stop;
  std::vector<checkpoint::Mirror*> mirrors_;
  checkpoint::Saver* under_way_ = nullptr;
  bool all_write_ = false;                     // what is under way, not rank 0 alone
  std::string path_;                           // of what is under way
  std::shared_ptr<dist::Communicator> group_;  // of all ranks, for the threads that write
  checkpoint::HostCopies copies_;              // outlives the thread that reads them
  checkpoint::Background background_;
};

}  // namespace train

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/train/saving.inl.hpp>
#endif
