// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/detail/c10d.hpp>
#include <tutti/dist/detail/give_back.hpp>
#include <tutti/dist/flight_recorder.hpp>
#include <tutti/dist/heartbeat.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>

/// Communicator over LibTorch's own c10d: Gloo for host tensors and, in builds with CUDA, NCCL for
/// tensors on the GPU. Ranks meet in a TCPStore at MASTER_ADDR:MASTER_PORT, served by rank 0 or,
/// under torchrun, by the launcher.

namespace tutti::dist {

/// How long a rank waits for the others, at the start and in every collective.
inline constexpr std::chrono::milliseconds default_timeout = std::chrono::minutes(5);

/// A c10d process group of all ranks. Made by every rank at the same time; the connections are
/// closed when it is destroyed.
class Group final : public Communicator {
 public:
  /// device: at::kCPU for Gloo alone; at::kCUDA for NCCL, and Gloo for tensors on the host.
  /// timeout: > 0.
  /// Throws c10::Error when the ranks do not find each other in time, saying where they looked.
  Group(const Environment& environment, c10::DeviceType device, std::chrono::milliseconds timeout)
      : Communicator(environment), timeout_(timeout), device_(device), machine_(environment) {
    TUTTI_CHECK(timeout.count() > 0, "tutti::dist: timeout is ", timeout.count(),
                " ms, expected more than 0");
    environment.validate();
    detail::check_device(device);
    store_ = guarded("initialize", [&] { return detail::connect_store(environment, timeout); });
    group_ = guarded("initialize", [&] {
      return detail::make_group(store_, environment, device, timeout, environment);
    });
    backend_ = device == c10::DeviceType::CUDA ? "nccl" : "gloo";
  }
  ~Group() override;

  std::string backend() const override { return backend_; }
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }

  /// The group itself, for c10d's own functions.
  const c10::intrusive_ptr<c10d::ProcessGroup>& handle() const noexcept { return group_; }

  void all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    const bool mean = op == ReduceOp::mean;
    TUTTI_CHECK(!mean || tensor.is_floating_point() || tensor.is_complex(),
                "tutti::dist::all_reduce: the mean of a ", tensor.dtype().name(),
                " tensor was asked for; convert it to a floating type or reduce by sum");
    const at::Tensor flat = tensor.detach().contiguous();
    guarded("all_reduce", flat, [&] {
      std::vector<at::Tensor> tensors{flat};
      c10d::AllreduceOptions options;
      options.reduceOp = detail::c10d_op(op);
      group_->allreduce(tensors, options)->wait();
    });
    if (mean) {
      flat.div_(size());
    }
    copy_back(tensor, flat);
  }

  void all_reduce(std::span<double> values, ReduceOp op) override { reduce_values(values, op); }
  void all_reduce(std::span<std::int64_t> values, ReduceOp op) override {
    reduce_values(values, op);
  }

  void broadcast(const at::Tensor& tensor, int source) override {
    check_source(source);
    const at::Tensor flat = tensor.detach().contiguous();
    guarded("broadcast", flat, [&] {
      std::vector<at::Tensor> tensors{flat};
      c10d::BroadcastOptions options;
      options.rootRank = source;
      group_->broadcast(tensors, options)->wait();
    });
    copy_back(tensor, flat);
  }

  void broadcast(const std::vector<at::Tensor>& tensors, int source) override {
    check_source(source);
    std::vector<at::Tensor> detached;
    for (const at::Tensor& tensor : tensors) {
      detached.push_back(tensor.detach());
    }
    constexpr std::size_t buffer = 250U * 1024U * 1024U;
    if (!detached.empty()) {
      guarded("broadcast", detached.front(),
              [&] { c10d::broadcast_coalesced(group_, detached, buffer, source); });
    }
  }

  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) override {
    std::vector<at::Tensor> input{tensor.detach().contiguous()};
    std::vector<std::vector<at::Tensor>> output(1);
    for (int i = 0; i < size(); ++i) {
      output[0].push_back(input[0].new_empty(input[0].sizes()));
    }
    guarded("all_gather", input[0], [&] { group_->allgather(output, input)->wait(); });
    return output[0];
  }

  std::function<void()> start_all_gather_into(const at::Tensor& output,
                                              const at::Tensor& input) override;

  /// On Gloo every rank sends each part to its rank, who adds them up, at once: half of the bytes
  /// of Gloo's own reduce-scatter, which is an all-reduce inside.
  std::function<void()> start_reduce_scatter_into(const at::Tensor& output,
                                                  const at::Tensor& input) override;

  void all_to_all_into(const at::Tensor& output, const at::Tensor& input) override;

  bool exchanges() const override { return backend_ == "gloo"; }
  std::function<void()> start_exchange(const char* call, std::vector<Piece> sent,
                                       std::vector<Piece> received) override;

  std::shared_ptr<Communicator> subgroup(const std::vector<int>& ranks) override;

  std::string broadcast_bytes(const std::string& bytes, int source) override {
    std::int64_t length = static_cast<std::int64_t>(bytes.size());
    broadcast(detail::view_of(std::span<std::int64_t>(&length, 1)), source);
    std::string result = bytes;
    result.resize(static_cast<std::size_t>(length));
    if (length > 0) {
      broadcast(detail::view_of(std::span<char>(result)), source);
    }
    return result;
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(size()), 0);
    lengths[static_cast<std::size_t>(rank())] = static_cast<std::int64_t>(bytes.size());
    all_reduce(std::span<std::int64_t>(lengths), ReduceOp::sum);
    std::int64_t longest = 0;
    for (const std::int64_t length : lengths) {
      longest = std::max(longest, length);
    }
    std::string padded = bytes;
    padded.resize(static_cast<std::size_t>(std::max<std::int64_t>(longest, 1)));
    const auto parts = all_gather(detail::view_of(std::span<char>(padded)));
    std::vector<std::string> result;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      result.emplace_back(static_cast<const char*>(parts[i].const_data_ptr()),
                          static_cast<std::size_t>(lengths[i]));
    }
    return result;
  }

  void barrier() override {
    std::int64_t token = 0;
    std::vector<at::Tensor> tensors{detail::view_of(std::span<std::int64_t>(&token, 1))};
    guarded("barrier", tensors[0], [&] { group_->allreduce(tensors)->wait(); });
  }

 private:
  // The ranks of `whole` that `ranks` lists, by its store.
  Group(const Group& whole, const std::vector<int>& ranks, const std::string& key);

  template <class T>
  void reduce_values(std::span<T> values, ReduceOp op) {
    if (!values.empty()) {
      all_reduce(detail::view_of(values), op);
    }
  }

  static void copy_back(const at::Tensor& tensor, const at::Tensor& result) {
    if (!tensor.is_contiguous()) {
      tensor.detach().copy_(result);
    }
  }

  void check_source(int source) const {
    TUTTI_CHECK(source >= 0 && source < size(), "tutti::dist::broadcast: source is rank ", source,
                ", expected 0 to ", size() - 1);
  }

  /// Runs `body` and says, when it throws, who called what and what that usually means.
  template <class Body>
  auto guarded(const char* call, Body&& body) -> decltype(body()) {
    try {
      return body();
    } catch (const std::exception& error) {
      TUTTI_CHECK(false, detail::explain(call, environment(), timeout_, error));
    }
  }

  /// The same of a collective with that tensor, which the flight recorder notes.
  template <class Body>
  auto guarded(const char* call, const at::Tensor& tensor, Body&& body) -> decltype(body()) {
    return guarded(call, [&] {
      const detail::Recorded recorded(call, tensor.sizes(), c10::toString(tensor.scalar_type()));
      return body();
    });
  }

  std::chrono::milliseconds timeout_;
  std::string backend_;
  c10::DeviceType device_ = c10::DeviceType::CPU;
  Environment machine_;                   // for the network, also of a group of some of the ranks
  std::map<std::string, int> subgroups_;  // how many there were of the same ranks
  std::map<int, int> sent_;               // how many pieces to each rank, by which their tags count
  std::map<int, int> received_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

/// Closes the default group. Done at the end of the process by itself; needed before only to
/// start another group. Not a collective.
inline void shutdown() {
  detail::default_slot().reset();
}

/// Starts the default group, once: a second call returns the group that exists.
///
/// device: what the model is on, at::kCPU or at::kCUDA. timeout: > 0.
/// environment: the place of this process; by default as its launcher says.
/// Returns the group of all ranks; in a run of one process a SingleProcess.
/// Throws c10::Error when the ranks do not meet within `timeout`, when the group that exists
/// cannot serve `device` or has another rank or size than `environment`, and
/// std::invalid_argument when the environment makes no sense.
inline std::shared_ptr<Communicator> initialize(
    c10::DeviceType device = c10::DeviceType::CPU,
    std::chrono::milliseconds timeout = default_timeout,
    const Environment& environment = Environment::read()) {
  std::shared_ptr<Communicator>& slot = detail::default_slot();
  if (slot) {
    detail::check_same(*slot, environment, device);
    return slot;
  }
  start_heartbeat(environment);
  if (environment.world_size == 1) {
    slot = std::make_shared<SingleProcess>();
    return slot;
  }
  slot = std::make_shared<Group>(environment, device, timeout);
  static const int registered = std::atexit([] { shutdown(); });
  static_cast<void>(registered);
  return slot;
}

}  // namespace tutti::dist

#if TUTTI_BODIES
#include <tutti/dist/process_group.inl.hpp>
#endif
