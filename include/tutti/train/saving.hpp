// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
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

/// Writes the jobs of savers, on rank 0 or on all, at once or in the background, where one is under
/// way at a time. Members but failed() and abandon() are collectives.
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

namespace tutti::train {

TUTTI_INLINE void Saving::write(dist::Communicator& world, checkpoint::Saver& saver,
                                checkpoint::SnapshotFiles files,
                                const std::function<void()>& first) {
  wait(world);
  auto job = std::make_shared<checkpoint::SaveJob>(
      checkpoint::SaveJob{saver.target(), std::move(files), mirrors_});
  path_ = job->target.path;
  const auto error = on_rank_zero(world, [&] {
    first();
    if (!in_background_) {
      (*job)();
      return;
    }
    copies_.take({&job->files.model, &job->files.state});
    background_.run([job] { (*job)(); });
  });
  if (error || !in_background_) {
    ended(world, saver, error);
  } else {
    under_way_ = &saver;
  }
}

TUTTI_INLINE void Saving::write(dist::Communicator& world, checkpoint::Saver& saver,
                                checkpoint::ShardedSnapshot snapshot,
                                const std::function<void()>& first) {
  wait(world);
  const checkpoint::Saver::Target target = saver.target();
  path_ = target.path;
  if (const auto error = on_rank_zero(world, first)) {
    ended(world, saver, error);
    return;
  }
  auto job = std::make_shared<ShardedJob>(target, std::move(snapshot), mirrors_);
  if (!in_background_) {
    ended(world, saver, error_of_any(world, [&] { (*job)(world); }));
    return;
  }
  if (group_ == nullptr) {  // their messages are apart from those of training
    std::vector<int> all(static_cast<std::size_t>(world.size()));
    std::iota(all.begin(), all.end(), 0);
    group_ = world.subgroup(all);
  }
  if (const auto error = error_of_any(world, [&] { job->copy(copies_); })) {
    ended(world, saver, error);
    return;
  }
  background_.run([job, group = group_] { (*job)(*group); });
  under_way_ = &saver;
  all_write_ = true;
}

TUTTI_INLINE void Saving::wait(dist::Communicator& world) {
  if (under_way_ == nullptr) {
    return;
  }
  checkpoint::Saver& saver = *std::exchange(under_way_, nullptr);
  const auto finish = [&] {
    if (const auto error = background_.finish()) {
      std::rethrow_exception(error);
    }
  };
  ended(
      world, saver,
      std::exchange(all_write_, false) ? error_of_any(world, finish) : on_rank_zero(world, finish));
}

TUTTI_INLINE void Saving::abandon() {
  under_way_ = nullptr;
  try {
    if (const auto error = background_.finish()) {
      std::rethrow_exception(error);
    }
  } catch (const std::exception& error) {
    TORCH_WARN("the last checkpoint could not be written: ", text_of(error));
  }
}

TUTTI_INLINE void Saving::ended(dist::Communicator& world, checkpoint::Saver& saver,
                                std::exception_ptr error) const {
  bool there = true;
  if (error) {  // it may have been written and not pointed to
    there = world.rank() == 0 && checkpoint::carries(path_, saver.id());
    there = world.all_reduce_value(std::int64_t{there}, dist::ReduceOp::maximum) != 0;
  }
  saver.ended(!error, there);
  if (error && on_error_ == OnSaveError::stop) {
    std::rethrow_exception(error);
  }
  if (error && world.rank() == 0) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& caught) {
      TORCH_WARN("a checkpoint could not be written, training goes on without it: ",
                 text_of(caught));
    }
  }
}

}  // namespace tutti::train

#endif
