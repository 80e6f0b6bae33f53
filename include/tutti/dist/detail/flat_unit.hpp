// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/init_tape.hpp>
#include <tutti/core/detail/paged_calls.hpp>
#include <tutti/core/detail/paged_memory.hpp>
#include <tutti/core/detail/recorded_init.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/detail/exchange.hpp>
#include <tutti/dist/detail/flat_parameter.hpp>
#include <tutti/dist/detail/give_back.hpp>
#include <tutti/dist/sharding.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

// Parameters that travel together.

namespace tutti::dist::detail {

/// What fp16 gradients of so many ranks are divided by before their sum, which could overflow; the
/// rest of the division comes after it. A power of two, near the root.
///
/// Source: PyTorch 2.11, `_get_gradient_divide_factors`.
inline int divided_ahead(int ranks) {
  int out = 1;
  while (ranks % out == 0 && ranks > out * out) {
    out *= 2;
  }
  return out;
}

/// Parameters of one type: one flat memory [whole], of which rank j's part is [S]: its chunks, each
/// padded to the first rank's, one behind the other. A message has the parts of all ranks, [ranks,
/// S], without those of parameters that travel alone.
///
/// Source: PyTorch 2.11, `torch/distributed/fsdp/_fully_shard`.
class FlatUnit {
 public:
  struct How {
    std::shared_ptr<Communicator> group;     ///< who have one copy together
    std::shared_ptr<Communicator> replicas;  ///< who have the same part of other copies
    std::shared_ptr<Communicator> near;      ///< who keep() it together; null: nobody does
    std::optional<at::ScalarType> param_dtype;
    std::optional<at::ScalarType> reduce_dtype;
    bool stays = true;                        ///< the whole is always there
    bool offloads = false;                    ///< shards are on the host
    ::tutti::detail::Pager* pager = nullptr;  ///< who brings the whole where it is read
  };

  explicit FlatUnit(How how) : how_(std::move(how)) {}

  /// parameter: of the type and on the device of those before it.
  void add(const std::string& name, const at::Tensor& parameter) {
    parameters_.emplace_back(name, parameter, how_.group->size(), how_.group->rank());
  }

  /// Moves the parameters into the flat memory; nothing can be added from now on. Those without
  /// memory get some here, and values by take().
  void seal();
  /// This rank's part of a parameter's values; all of them where the whole stays.
  void take(FlatParameter& one, const ::tutti::detail::InitTape::Values& values);

  [[nodiscard]] bool here() const { return here_; }
  /// The model always has the parameters whole and in their own type.
  [[nodiscard]] bool always_whole() const {
    return how_.stays && !how_.param_dtype && !how_.offloads;
  }
  [[nodiscard]] bool trains() const {
    return std::any_of(parameters_.begin(), parameters_.end(),
                       [](const FlatParameter& one) { return one.trains(); });
  }
  [[nodiscard]] std::vector<FlatParameter>& parameters() { return parameters_; }

  /// Asks the other ranks for their parts, and does not wait.
  void start_gather();
  /// Brings the whole; nothing when it is there.
  void gather();
  /// Brings it also when it is there, since shards have changed.
  void refresh();
  /// Gives the memory of the whole back, unless it stays.
  void drop();
  /// Likewise, but for a part from which those who are near bring the whole next time, unless
  /// shards change before.
  void keep();
  /// Nobody brings the whole any more.
  void forget_pager();
  /// Waits for a gather that nobody needs any more.
  void cancel();

  /// Keeps the gradients of a pass that is not averaged, in the type of the reduction: a sum over
  /// microbatches in the type of computation would lose digits.
  ///
  /// Source: PyTorch 2.11, `FSDPParam.to_accumulated_grad_if_needed`.
  void keep_gradients();
  /// Takes the gradients of the whole away, and does not wait for the other ranks'.
  void start_reduce();
  /// Waits for them, after start_reduce() if that has not been called, and adds the mean over all
  /// ranks to the gradients of the shards. A parameter without gradient on any rank gets none, once
  /// settle() has been called.
  void reduce();
  void settle();
  /// Forgets gradients of the whole.
  void forget_gradients();

  /// Puts another memory with the whole in its own type under the parameters, and takes it away.
  void summon();
  void release(bool write_back);
  [[nodiscard]] bool summoned() const { return summoned_.defined(); }

  /// The whole of which every rank has such a part.
  [[nodiscard]] at::Tensor whole_of(const FlatParameter& one, const at::Tensor& part) const;

 private:
  [[nodiscard]] std::int64_t ranks() const { return how_.group->size(); }
  [[nodiscard]] at::TensorOptions options() const { return shard_options_; }
  [[nodiscard]] at::ScalarType compute_type() const {
    return how_.param_dtype.value_or(c10::typeMetaToScalarType(shard_options_.dtype()));
  }
  [[nodiscard]] at::ScalarType reduce_type() const {
    return how_.reduce_dtype.value_or(compute_type());
  }
  [[nodiscard]] bool shares() const { return !own_shards_.defined(); }

  void put_whole(const FlatParameter& one, const at::Tensor& whole);
  void allocate();
  void put_memory(c10::DataPtr memory, std::size_t bytes);
  [[nodiscard]] std::function<void()> start_gather_kept();
  [[nodiscard]] std::function<void()> start_gather_to(const at::Tensor& whole) const;
  at::Tensor packed(at::ScalarType type) const;
  void unpack(const at::Tensor& parts, const at::Tensor& whole) const;
  [[nodiscard]] double ranks_in_mean() const {
    return static_cast<double>(ranks()) * (how_.replicas ? how_.replicas->size() : 1);
  }
  // What the sum of fp16 gradients is divided by before it is made.
  [[nodiscard]] double ahead(const at::Tensor& sum) const {
    return sum.scalar_type() == at::kHalf ? divided_ahead(static_cast<int>(ranks_in_mean())) : 1;
  }
  [[nodiscard]] std::function<void()> start_exchange(const std::vector<FlatParameter*>& alone,
                                                     const std::vector<at::Tensor>& gradients,
                                                     const at::Tensor& message,
                                                     const at::Tensor& in) const;
  // Where elements of a parameter lie: in `parts` [ranks, ...], of each rank from `at` on, and in
  // `whole`, flat, from `begin` on. Both contiguous.
  struct Places {
    const at::Tensor& parts;
    std::int64_t at;
    const at::Tensor& whole;
    std::int64_t begin;
  };
  static void copy_parts_to_whole(const FlatParameter& one, const Places& places);
  static void copy_whole_to_parts(const FlatParameter& one, const Places& places);
  static bool are_bytes(const Places& places);
  template <class F>
  static void each_rank(const FlatParameter& one, const Places& places, F&& copy);
  static void each_piece(const FlatParameter& one, const Places& places,
                         const std::function<void(const at::Tensor&, const at::Tensor&)>& copy);
  static at::Tensor taken_gradient(FlatParameter& one);
  static void add_gradient(FlatParameter& one, const at::Tensor& gradient);
  void set_views(const at::Tensor& memory);
  void set_views();  // of the whole

  How how_;
  std::vector<FlatParameter> parameters_;
  at::TensorOptions shard_options_;
  std::int64_t numel_ = 0;  // of the whole
  std::int64_t part_ = 0;   // S
  std::int64_t alone_ = 0;  // of these, at the begin, what travels alone
  at::Tensor whole_;        // [numel], of the type of computation; without memory when not here
  std::size_t bytes_ = 0;   // of the whole
  at::Tensor own_shards_;   // [S], where the shards lie; undefined when they lie in the whole
  at::Tensor kept_;         // this rank's piece of the whole, of as many as there are near
  at::Tensor summoned_;     // [numel], in place of the whole
  std::function<void()> wait_;
  at::Tensor sum_;  // [of a rank's gradients, and a flag each], of a reduction that has begun
  std::function<void()> wait_for_sum_;
  at::Tensor flags_;  // [n], how many ranks had a gradient at the last reduction
  bool here_ = true;
};

/// All of these have their whole while it lives.
class SummonedUnits final : public Summoned {
 public:
  SummonedUnits(std::vector<FlatUnit*> units, bool write_back);
  ~SummonedUnits() override;

 private:
  std::vector<FlatUnit*> units_;
  bool write_back_;
};

}  // namespace tutti::dist::detail

#if TUTTI_BODIES
#include <tutti/dist/detail/flat_unit.inl.hpp>
#endif
