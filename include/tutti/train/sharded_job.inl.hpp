// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/sharded_job.hpp>

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
  const dist::CallPurpose saving("saving");
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
