// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <tutti/checkpoint/host_copies.hpp>
#include <tutti/checkpoint/mirror.hpp>
#include <tutti/checkpoint/save_job.hpp>
#include <tutti/checkpoint/saver.hpp>
#include <tutti/checkpoint/sharded_checkpoint.hpp>
#include <tutti/config.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/flight_recorder.hpp>
#include <tutti/train/together.hpp>

namespace tutti::train {

/// One sharded checkpoint on its way to the disk, as checkpoint::SaveJob is for a whole one. Every
/// rank has a job with its own part and runs it; it may do so in a thread.
class ShardedJob {
 public:
  /// target: of a Saver; without an id, a path to which a checkpoint is written that is no saver's.
  /// mirrors: those of rank 0 are told.
  ShardedJob(checkpoint::Saver::Target target, checkpoint::ShardedSnapshot snapshot,
             std::vector<checkpoint::Mirror*> mirrors = {});

  /// Replaces the tensors by copies in host memory, so that training may go on.
  void copy(checkpoint::HostCopies& copies);

  /// Writes this rank's files; when all ranks have, commits, points, tells the mirrors, removes. A
  /// collective of `group`, in which no rank waits longer for another than one message takes,
  /// however long it writes. Throws c10::Error on every rank when a rank cannot; older checkpoints
  /// are then intact.
  void operator()(dist::Communicator& group);

 private:
  checkpoint::Saver::Target target_;
  checkpoint::ShardedSnapshot snapshot_;
  std::vector<checkpoint::Mirror*> mirrors_;
};

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/sharded_job.inl.hpp>
#endif
