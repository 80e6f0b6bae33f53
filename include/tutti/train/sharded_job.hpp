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

namespace tutti::train {

TUTTI_INLINE ShardedJob::ShardedJob(checkpoint::Saver::Target target,
                                    checkpoint::ShardedSnapshot snapshot,
                                    std::vector<checkpoint::Mirror*> mirrors)
    : target_(std::move(target)), snapshot_(std::move(snapshot)), mirrors_(std::move(mirrors)) {
  if (!target_.id.empty()) {
    snapshot_.meta.put("saver_id", target_.id);
  }
}

TUTTI_INLINE void ShardedJob::copy(checkpoint::HostCopies& copies) {
  std::vector<checkpoint::NamedTensor> tensors = snapshot_.own;
  for (const auto& [folder, shards] : snapshot_.folders) {
    for (const checkpoint::TensorShard& shard : shards) {
      tensors.emplace_back(shard.name, shard.part);
    }
  }
  copies.take({&tensors});
  auto next = tensors.begin();
  for (auto& [name, tensor] : snapshot_.own) {
    tensor = (next++)->second;
  }
  for (auto& [folder, shards] : snapshot_.folders) {
    for (checkpoint::TensorShard& shard : shards) {
      shard.part = (next++)->second;
    }
  }
}

TUTTI_INLINE void ShardedJob::operator()(dist::Communicator& group) {
  using checkpoint::detail::text_or_failure;
  using checkpoint::detail::throw_failure;
  const bool of_saver = !target_.id.empty();
  checkpoint::detail::ShardedSave save(target_.path, snapshot_, group.rank(), group.size(),
                                       of_saver || target_.overwrite);
  const std::string folder = group.broadcast_bytes(text_or_failure([&] {
                                                     if (of_saver && group.rank() == 0) {
                                                       checkpoint::check_target(target_);
                                                     }
                                                     return save.open();
                                                   }),
                                                   0);
  throw_failure(folder);
  std::string report;
  run_while_others_wait(group, true,
                        [&] { report = text_or_failure([&] { return save.write(folder); }); });
  const std::vector<std::string> reports = group.all_gather_bytes(report);
  std::string outcome;
  run_while_others_wait(group, group.rank() == 0, [&] {
    outcome = text_or_failure([&] {
      save.commit(reports);
      checkpoint::after_write(target_, mirrors_);
      return std::string();
    });
  });
  throw_failure(group.broadcast_bytes(outcome, 0));
}

}  // namespace tutti::train

#endif
