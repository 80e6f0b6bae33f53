// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/backend.hpp>
#include <tutti/dist/data_parallel.hpp>
#include <tutti/dist/detail/module_state.hpp>
#include <tutti/dist/detail/reducer.hpp>
#include <tutti/dist/gradients.hpp>
#include <tutti/dist/process_group.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

/// Data-parallel training through c10d::Reducer, the core of PyTorch's DistributedDataParallel:
/// gradients are averaged in buckets while the backward pass still runs.

namespace tutti::dist {

/// A module whose replicas, one per rank, are kept equal. The module itself is used as usual: this
/// object only watches its parameters' gradients.
class DistributedDataParallel final : public DataParallel {
 public:
  ~DistributedDataParallel() override;
  /// Checks that all ranks have the same parameters and buffers, and sends rank 0's to all.
  ///
  /// module: with at least one parameter that requires a gradient, all on one kind of device.
  /// Its set of trainable parameters must not change afterwards; wrap it again when it does.
  /// group: a dist::Group; any Communicator will do for SyncStrategy::forced_sync.
  /// Throws c10::Error on all ranks, saying which rank's model differs and where.
  DistributedDataParallel(const torch::nn::Module& module, std::shared_ptr<Communicator> group,
                          const DataParallelOptions& options = {})
      : group_(std::move(group)), options_(options), state_(detail::state_of(module)) {
    detail::check_has_memory(module, "DistributedDataParallel");
    detail::check_trainable(state_);
    TUTTI_CHECK(options.bucket_cap_mb > 0 && options.bucket_cap_mb <= 1e12,
                "DistributedDataParallel: bucket_cap_mb is ", options.bucket_cap_mb,
                ", expected more than 0 and at most 1e12");
    detail::check_compression(options);
    detail::check_same_model(state_, *group_);
    group_->broadcast(state_.everything(), 0);
    if (options_.strategy() == SyncStrategy::forced_sync) {
      return;
    }
    const auto* with_c10d = dynamic_cast<const Group*>(group_.get());
    TUTTI_CHECK(with_c10d != nullptr, "DistributedDataParallel: the group's backend is ",
                group_->backend(),
                ", expected a tutti::dist::Group; make it by "
                "tutti::dist::initialize, or use SyncStrategy::forced_sync");
    timeout_ = with_c10d->timeout();
    reducer_ = explained("DistributedDataParallel", [&] {
      return detail::make_reducer(state_, with_c10d->handle(), options_);
    });
  }

  void before_forward(bool last) override {
    const bool recording = c10::GradMode::is_enabled();
    averaging_ = recording && requires_sync() &&
                 (last || options_.strategy() == SyncStrategy::multi_auto_sync);
    TUTTI_CHECK(!recording || averaging_ || !options_.static_graph,
                "DistributedDataParallel: a pass without averaging (NoSync) was begun, which "
                "static_graph would count as another use of each parameter; leave one of them out");
    if (reducer_.reducer) {
      explained("before_forward", [&] {
        if (averaging_) {
          reducer_.reducer->prepare_for_forward();
        }
        if (recording) {
          reducer_.reducer->rebuild_buckets();
        }
      });
    }
    if (options_.broadcast_buffers && buffers_are_old_) {
      broadcast_buffers();
    }
    buffers_are_old_ = averaging_;
  }

  void before_backward(const at::Tensor& loss) override {
    if (reducer_.reducer && averaging_) {
      explained("before_backward", [&] {
        const bool looks = options_.find_unused_parameters && !options_.static_graph;
        reducer_.reducer->prepare_for_backward(looks ? std::vector<at::Tensor>{loss}
                                                     : std::vector<at::Tensor>{});
      });
      recorded_ = flight_recorder().begin("DistributedDataParallel::backward");
    }
  }

  void after_backward() override {
    if (!reducer_.reducer && averaging_) {
      all_reduce_gradients(state_.trainable, *group_, options_.bucket_cap_mb);
    }
    if (averaging_ && options_.static_graph && !graph_is_known_) {
      // In the first pass it only counted how often each parameter is reached.
      explained("after_backward", [&] { reducer_.reducer->delay_all_reduce(); });
      graph_is_known_ = true;
    } else if (averaging_ && reducer_.reducer) {
      explained("backward", [&] { reducer_.reducer->check_finalized(); });
    }
    flight_recorder().end(std::exchange(recorded_, 0));
    averaging_ = false;
  }

  void broadcast_buffers() override { group_->broadcast(state_.buffers, 0); }

  void reset() override {
    averaging_ = false;
    buffers_are_old_ = true;
    if (reducer_.reducer) {
      reducer_.reducer->reset_state();
    }
  }

  bool meets_in_every_pass() const override {
    return options_.strategy() == SyncStrategy::multi_auto_sync;
  }

  void explain(const std::exception& error) const override { refuse("backward", error); }

 private:
  void refuse(const std::string& call, const std::exception& error) const {
    if (detail::of_another_rank(error)) {
      flight_recorder().end(recorded_, true);
    }
    TUTTI_CHECK(!detail::of_another_rank(error),
                detail::explain("DistributedDataParallel::" + call, group_->environment(), timeout_,
                                error));
    const std::string missing = detail::missing_gradients(state_, error.what());
    if (!missing.empty()) {
      flight_recorder().end(recorded_, true);
    }
    TUTTI_CHECK(missing.empty(), "DistributedDataParallel: ", missing,
                options_.static_graph
                    ? "leave out static_graph, which expects the same gradients in every pass"
                    : "or set find_unused_parameters");
  }

  template <class Body>
  auto explained(const char* call, Body&& body) const -> decltype(body()) {
    try {
      return body();
    } catch (const std::exception& error) {
      refuse(call, error);
      throw;
    }
  }

  std::shared_ptr<Communicator> group_;
  DataParallelOptions options_;
  detail::ModuleState state_;
  std::chrono::milliseconds timeout_{};
  detail::LoggedReducer reducer_;  // empty under forced_sync
  std::uint64_t recorded_ = 0;     // the pass in the flight recorder; 0: none
  bool averaging_ = false;
  bool graph_is_known_ = false;  // of static_graph
  bool buffers_are_old_ = true;
};

/// Makes `module` data-parallel over `group`.
///
/// Returns null, and nothing is to be done, in a run of one process and for a module without
/// trainable parameters. Arguments and errors otherwise as in DistributedDataParallel.
inline std::unique_ptr<DataParallel> wrap(const torch::nn::Module& module,
                                          std::shared_ptr<Communicator> group,
                                          const DataParallelOptions& options = {}) {
  if (group->size() == 1 || detail::state_of(module).trainable.empty()) {
    return nullptr;
  }
  return std::make_unique<DistributedDataParallel>(module, std::move(group), options);
}

namespace detail {

/// Gives the program this backend: a Trainer anywhere in it can then join several processes.
#if TUTTI_BODIES  // else the separate source does it
inline const bool backend_is_set = [] {
  backend() = {.initialize = [](at::DeviceType device, std::chrono::milliseconds timeout)
                   -> std::shared_ptr<Communicator> { return initialize(device, timeout); },
               .wrap = &wrap};
  return true;
}();
#endif

}  // namespace detail

}  // namespace tutti::dist

#if TUTTI_BODIES

namespace tutti::dist {

TUTTI_INLINE DistributedDataParallel::~DistributedDataParallel() = default;

}  // namespace tutti::dist

#endif
