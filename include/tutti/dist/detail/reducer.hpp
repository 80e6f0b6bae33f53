// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/data_parallel.hpp>
#include <tutti/dist/detail/module_state.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/default_comm_hooks.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

// What a c10d::Reducer sends instead of its buckets.

namespace tutti::dist::detail {

using GroupPointer = c10::intrusive_ptr<c10d::ProcessGroup>;
using FuturePointer = c10::intrusive_ptr<c10::ivalue::Future>;

/// The bucket's mean in bfloat16: `torch.distributed`'s bf16_compress_hook.
class BF16Hook final : public c10d::CppCommHookInterface<GroupPointer> {
 public:
  explicit BF16Hook(const GroupPointer& group) : CppCommHookInterface(group) {}

  FuturePointer runHook(c10d::GradBucket& bucket) override {
    const at::Tensor buffer = bucket.getBufferRef();
    std::vector<at::Tensor> sent{buffer.to(at::kBFloat16).div_(state_->getSize())};
    const at::Tensor result = sent[0];
    return state_->allreduce(sent)->getFuture()->then(
        [buffer, result](c10::ivalue::Future&) {
          buffer.copy_(result);
          return c10::IValue(buffer);
        },
        c10::TensorType::get());
  }
};

/// An orthonormal basis of the columns of a matrix, [n, k], k <= n.
inline at::Tensor orthonormal(const at::Tensor& matrix) {
  const bool narrow = matrix.scalar_type() == at::kHalf || matrix.scalar_type() == at::kBFloat16;
  const at::Tensor wide = narrow ? matrix.to(at::kFloat) : matrix;
  return std::get<0>(at::linalg_qr(wide)).to(matrix.scalar_type());
}

/// Low-rank factors of the bucket's matrices with error feedback: `torch.distributed`'s
/// powerSGD_hook. Its two all-reduces are waited for in the backward pass: they are in the same
/// order on every rank, and no thread of the backend's waits for another.
/// Source: Vogels et al., "PowerSGD", NeurIPS 2019, algorithm 1.
class PowerSGDHook final : public c10d::CppCommHookInterface<GroupPointer> {
 public:
  PowerSGDHook(const GroupPointer& group, const PowerSGDOptions& options)
      : CppCommHookInterface(group), options_(options) {}

  FuturePointer runHook(c10d::GradBucket& bucket) override {
    const at::Tensor buffer = bucket.getBufferRef();
    if (iteration_ < options_.start_iteration) {
      mean(buffer);
    } else {
      compress(bucket, buffer);
    }
    iteration_ += bucket.isLast() ? 1 : 0;
    auto done = c10::make_intrusive<c10::ivalue::Future>(
        c10::TensorType::get(),
        std::vector<c10::Device>(buffer.is_cuda() ? 1 : 0, buffer.device()));
    done->markCompleted(c10::IValue(buffer));
    return done;
  }

 private:
  // One matrix of a bucket: a view of the buffer, and its factors.
  struct Factors {
    at::Tensor matrix;  // [n, m]
    at::Tensor p;       // [n, k]
    at::Tensor q;       // [m, k]
  };

  // Replaces a tensor by its mean over the ranks; `work` of the sum is returned by start().
  c10::intrusive_ptr<c10d::Work> start(const at::Tensor& tensor) {
    std::vector<at::Tensor> tensors{tensor};
    return state_->allreduce(tensors);
  }
  void mean(const at::Tensor& tensor) {
    tensor.div_(state_->getSize());
    start(tensor)->wait();
  }

  // The factors of several matrices as one message.
  template <class Member>
  void mean_of(std::vector<Factors>& all, Member member) {
    std::vector<at::Tensor> flat;
    for (Factors& one : all) {
      flat.push_back((one.*member).reshape({-1}));
    }
    const at::Tensor message = at::cat(flat);
    mean(message);
    std::int64_t at = 0;
    for (Factors& one : all) {
      const at::Tensor& shape = one.*member;
      const std::int64_t size = shape.numel();
      one.*member = message.narrow(0, std::exchange(at, at + size), size).view_as(shape);
    }
  }

  at::Tensor first_q(std::size_t bucket, std::int64_t m, std::int64_t k, const at::Tensor& like) {
    auto [found, isnew] =
        generators_.try_emplace(bucket, at::detail::createCPUGenerator(options_.seed + bucket));
    static_cast<void>(isnew);
    return at::randn({m, k}, found->second, at::TensorOptions(like.scalar_type()))
        .to(like.device());
  }

  void compress(c10d::GradBucket& bucket, const at::Tensor& buffer) {
    const std::size_t index = bucket.getIndex();
    at::Tensor& error = errors_[index];
    at::Tensor wanted;
    if (options_.error_feedback) {
      if (error.defined()) {
        buffer.add_(error);
      }
      wanted = buffer.clone();
    }
    std::vector<Factors> factors;
    std::vector<at::Tensor> plain;
    std::vector<at::Tensor>& kept = q_[index];
    const bool warm = options_.warm_start && !kept.empty();
    for (const at::Tensor& gradient : bucket.getGradients()) {
      const std::int64_t n = gradient.dim() > 0 ? gradient.size(0) : 1;
      const at::Tensor matrix = gradient.view({n, -1});
      const std::int64_t m = matrix.size(1);
      const std::int64_t k = std::min({n, m, options_.rank});
      if (static_cast<double>((n + m) * k) * options_.min_compression_rate <
          static_cast<double>(n * m)) {
        const at::Tensor q = warm ? kept[factors.size()] : first_q(index, m, k, matrix);
        factors.push_back({.matrix = matrix, .p = {}, .q = orthonormal(q)});
      } else {
        plain.push_back(gradient);
      }
    }
    c10::intrusive_ptr<c10d::Work> sent;
    at::Tensor message;
    if (!plain.empty()) {
      std::vector<at::Tensor> flat;
      for (const at::Tensor& gradient : plain) {
        flat.push_back(gradient.reshape({-1}));
      }
      message = at::cat(flat).div_(state_->getSize());
      sent = start(message);
    }
    if (!factors.empty()) {
      for (Factors& one : factors) {
        one.p = one.matrix.mm(one.q);
      }
      mean_of(factors, &Factors::p);
      for (Factors& one : factors) {
        one.p = orthonormal(one.p);
        one.q = one.matrix.t().mm(one.p);
      }
      mean_of(factors, &Factors::q);
      kept.clear();
      for (Factors& one : factors) {
        one.matrix.copy_(one.p.mm(one.q.t()));
        kept.push_back(one.q);
      }
    }
    if (sent) {
      sent->wait();
      std::int64_t at = 0;
      for (const at::Tensor& gradient : plain) {
        gradient.copy_(message.narrow(0, std::exchange(at, at + gradient.numel()), gradient.numel())
                           .view_as(gradient));
      }
    }
    if (options_.error_feedback) {
      error = wanted.sub_(buffer);
    }
  }

  PowerSGDOptions options_;
  std::int64_t iteration_ = 0;
  // By bucket, whose matrices are always the same once it is rebuilt after the first pass.
  std::map<std::size_t, at::Tensor> errors_;
  std::map<std::size_t, std::vector<at::Tensor>> q_;
  std::map<std::size_t, at::Generator> generators_;
};

/// Options that fit neither each other nor any reducer are refused.
inline void check_compression(const DataParallelOptions& options) {
  const bool compresses = options.compression != GradientCompression::none;
  const bool forced = options.strategy() == SyncStrategy::forced_sync;
  TUTTI_CHECK(!compresses || !forced,
              "DistributedDataParallel: gradients are to be compressed, which SyncStrategy::"
              "forced_sync does not do; choose another strategy, and microbatches of a fixed size");
  TUTTI_CHECK(!options.static_graph || options.strategy() == SyncStrategy::multi_auto_sync,
              "DistributedDataParallel: static_graph averages in every backward pass; leave "
              "sync_strategy out or make it multi_auto_sync, and microbatches of a fixed size");
  if (options.compression != GradientCompression::power_sgd) {
    return;
  }
  const PowerSGDOptions& power = options.power_sgd;
  TUTTI_CHECK(power.rank >= 1, "DistributedDataParallel: power_sgd.rank is ", power.rank,
              ", expected at least 1");
  TUTTI_CHECK(power.min_compression_rate > 0,
              "DistributedDataParallel: power_sgd.min_compression_rate is ",
              power.min_compression_rate, ", expected more than 0");
  TUTTI_CHECK(power.start_iteration >= 2, "DistributedDataParallel: power_sgd.start_iteration is ",
              power.start_iteration,
              ", expected at least 2: the buckets change after the first backward pass");
}

/// Lets a new reducer send what the options say.
inline void add_compression(c10d::Reducer& reducer, const GroupPointer& group,
                            const DataParallelOptions& options) {
  switch (options.compression) {
    case GradientCompression::fp16:
      reducer.register_builtin_comm_hook(c10d::BuiltinCommHookType::FP16_COMPRESS);
      break;
    case GradientCompression::bf16:
      reducer.register_comm_hook(std::make_unique<BF16Hook>(group));
      break;
    case GradientCompression::power_sgd:
      reducer.register_comm_hook(std::make_unique<PowerSGDHook>(group, options.power_sgd));
      break;
    case GradientCompression::none:
      break;
  }
}

}  // namespace tutti::dist::detail

// c10d::Reducer, whose constructor grows with LibTorch's versions.

namespace tutti::dist::detail {

/// Constructs a T from `args` followed by as many of `extra`'s values as it takes: all of them if
/// it can, else one fewer, and so on. A newer LibTorch appends parameters to this constructor.
template <class T, class... Args>
std::unique_ptr<T> make_with(Args&&... args) {
  const std::vector<std::int64_t> no_list;
  if constexpr (std::is_constructible_v<T, Args..., bool, bool, std::vector<std::int64_t>>) {
    return std::make_unique<T>(std::forward<Args>(args)..., false, false, no_list);
  } else if constexpr (std::is_constructible_v<T, Args..., bool, bool>) {
    return std::make_unique<T>(std::forward<Args>(args)..., false, false);
  } else if constexpr (std::is_constructible_v<T, Args..., bool>) {
    return std::make_unique<T>(std::forward<Args>(args)..., false);
  } else if constexpr (std::is_constructible_v<T, Args...>) {
    return std::make_unique<T>(std::forward<Args>(args)...);
  } else {
    static_assert(std::is_constructible_v<T, Args...>,
                  "tutti: this LibTorch's c10d::Reducer has a constructor that is not known; use "
                  "LibTorch 2.7 to 2.15, or SyncStrategy::forced_sync without this header.");
    return nullptr;
  }
}

/// The first buckets: in the first backward pass everything travels together, because the order
/// of gradients is not known yet; it is learned there and the buckets are rebuilt. Models with
/// unused parameters are never rebuilt and start with the final sizes.
inline std::vector<std::vector<std::size_t>> first_buckets(const ModuleState& state,
                                                           const DataParallelOptions& options,
                                                           std::size_t cap) {
  std::vector<std::size_t> limits{std::numeric_limits<std::size_t>::max()};
  if (options.find_unused_parameters) {
    limits = {std::min<std::size_t>(c10d::kDefaultFirstBucketBytes, cap), cap};
  }
  auto [buckets, sizes] =
      c10d::compute_bucket_assignment_by_size(state.trainable, limits, state.sparse);
  std::reverse(buckets.begin(), buckets.end());  // the last layers' gradients are ready first
  return std::move(buckets);
}

/// A reducer and the logger it reports to and cannot do without.
struct LoggedReducer {
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
};

inline LoggedReducer make_reducer(const ModuleState& state,
                                  const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                  const DataParallelOptions& options) {
  const auto cap = static_cast<std::size_t>(options.bucket_cap_mb * 1024 * 1024);
  const auto first_cap = std::min<std::size_t>(c10d::kDefaultFirstBucketBytes, cap);
  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < state.names.size(); ++i) {
    names[i] = state.names[i];
  }
  LoggedReducer made;
  made.reducer = make_with<c10d::Reducer>(
      state.trainable, first_buckets(state, options, cap), group, state.sparse,
      static_cast<std::int64_t>(cap), options.find_unused_parameters,
      options.gradient_as_bucket_view, std::move(names), static_cast<std::int64_t>(first_cap));
  made.logger = std::make_shared<c10d::Logger>(made.reducer);
  made.reducer->set_logger(made.logger);
  add_compression(*made.reducer, group, options);
  if (options.static_graph) {
    made.reducer->set_static_graph();
  }
  return made;
}

}  // namespace tutti::dist::detail
