// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/saving.hpp>

#include <algorithm>

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace tutti::train {

TUTTI_INLINE void wait_for_devices(
    std::initializer_list<const std::vector<checkpoint::NamedTensor>*> lists) {
  std::vector<c10::Device> done;
  for (const auto* list : lists) {
    for (const auto& [name, tensor] : *list) {
      if (tensor.is_cuda() && std::find(done.begin(), done.end(), tensor.device()) == done.end()) {
        done.push_back(tensor.device());
        c10::impl::VirtualGuardImpl(tensor.device().type())
            .getStream(tensor.device())
            .synchronize();
      }
    }
  }
}

TUTTI_INLINE void Saving::write(dist::Communicator& world, checkpoint::Saver& saver,
                                checkpoint::SnapshotFiles files,
                                const std::function<void()>& first) {
  wait(world);
  auto job = std::make_shared<checkpoint::SaveJob>(
      checkpoint::SaveJob{saver.target(), std::move(files), mirrors_});
  path_ = job->target.path;
  if (!in_background_) {
    if (world.size() > 1 && world.rank() == 0) {
      wait_for_devices({&job->files.model, &job->files.state});
    }
    ended(world, saver, error_while_others_wait(world, world.rank() == 0, [&] {
            first();
            (*job)();
          }));
    return;
  }
  const auto error = on_rank_zero(world, [&] {
    first();
    copies_.take({&job->files.model, &job->files.state});
    background_.run([job] { (*job)(); });
  });
  if (error) {
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
  const bool here = std::exchange(all_write_, false) || world.rank() == 0;
  ended(world, saver, error_while_others_wait(world, here, finish));
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
