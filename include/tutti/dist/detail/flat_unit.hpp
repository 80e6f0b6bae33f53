// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/detail/give_back.hpp>
#include <tutti/dist/sharding.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

// Parameters that travel together.

namespace tutti::dist::detail {

/// How a parameter lies in its unit. A row is a slice of dimension 0, a chunk the rows of a rank.
struct FlatParameter {
  FlatParameter(std::string its_name, const at::Tensor& parameter, int ranks, int rank);

  [[nodiscard]] bool trains() const { return whole.requires_grad(); }
  [[nodiscard]] std::int64_t chunk_numel() const { return chunk * row; }
  [[nodiscard]] std::int64_t numel() const { return rows * row; }

  /// Rows as they lie in `memory`, flat, from element `at` on. some: how many; all in the
  /// parameter's own shape.
  [[nodiscard]] at::Tensor view(const at::Tensor& memory, std::int64_t at,
                                std::optional<std::int64_t> some = std::nullopt) const;

  /// The elements of `tensor`, shaped as the parameter, in the order in which they lie in memory.
  [[nodiscard]] at::Tensor flat(const at::Tensor& tensor) const;

  std::string name;
  at::Tensor whole;  ///< the module's
  at::Tensor shard;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t rows = 1;
  std::int64_t row = 1;       ///< elements of one
  std::int64_t chunk = 0;     ///< rows of a rank, of the last ones fewer
  std::int64_t first = 0;     ///< of this rank's rows
  std::int64_t mine = 0;      ///< how many these are
  std::int64_t in_whole = 0;  ///< its first element in the memory of all parameters
  std::int64_t in_shard = 0;  ///< the same in a rank's part of it
  bool tentative = false;     ///< the shard has a gradient that may be of nobody
};

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
/// padded to the first rank's, one behind the other. Messages are [ranks, S].
///
/// Source: PyTorch 2.11, `torch/distributed/fsdp/_fully_shard`.
class FlatUnit {
 public:
  struct How {
    std::shared_ptr<Communicator> group;     ///< who have one copy together
    std::shared_ptr<Communicator> replicas;  ///< who have the same part of other copies
    std::optional<at::ScalarType> param_dtype;
    std::optional<at::ScalarType> reduce_dtype;
    bool stays = true;  ///< the whole is always there
  };

  explicit FlatUnit(How how) : how_(std::move(how)) {}

  /// parameter: of the type and on the device of those before it.
  void add(const std::string& name, const at::Tensor& parameter) {
    parameters_.emplace_back(name, parameter, how_.group->size(), how_.group->rank());
  }

  /// Moves the parameters into the flat memory; nothing can be added from now on.
  void seal();

  [[nodiscard]] bool here() const { return here_; }
  /// The model always has the parameters whole and in their own type.
  [[nodiscard]] bool always_whole() const { return how_.stays && !how_.param_dtype; }
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
  /// Waits for a gather that nobody needs any more.
  void cancel();

  /// Takes the gradients of the whole away and adds their mean over all ranks to those of the
  /// shards. A parameter without gradient on any rank gets none, once settle() has been called.
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
  [[nodiscard]] bool shares() const { return !own_shards_.defined(); }

  void allocate();
  at::Tensor packed(at::ScalarType type) const;
  void unpack(const at::Tensor& parts, const at::Tensor& whole) const;
  static void each_piece(const FlatParameter& one, const at::Tensor& parts, std::int64_t at,
                         const at::Tensor& whole,
                         const std::function<void(const at::Tensor&, const at::Tensor&)>& copy);
  static void copy_gradient(const FlatParameter& one, const at::Tensor& message, std::int64_t place,
                            std::int64_t flag);
  static void add_gradient(FlatParameter& one, const at::Tensor& gradient);
  void set_views(const at::Tensor& memory);

  How how_;
  std::vector<FlatParameter> parameters_;
  at::TensorOptions shard_options_;
  std::int64_t numel_ = 0;  // of the whole
  std::int64_t part_ = 0;   // S
  at::Tensor whole_;        // [numel], of the type of computation; without memory when not here
  std::size_t bytes_ = 0;   // of the whole
  at::Tensor own_shards_;   // [S], where the shards lie; undefined when they lie in the whole
  at::Tensor summoned_;     // [numel], in place of the whole
  at::Tensor parts_;        // [ranks, S], of a gather that has begun
  std::function<void()> wait_;
  at::Tensor flags_;  // [n], how many ranks had a gradient at the last reduction
  bool here_ = true;
};

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE FlatParameter::FlatParameter(std::string its_name, const at::Tensor& parameter,
                                          int ranks, int rank)
    : name(std::move(its_name)), whole(parameter), sizes(parameter.sizes().vec()) {
  rows = sizes.empty() ? 1 : sizes.front();
  row = rows == 0 ? 0 : parameter.numel() / rows;
  chunk = (rows + ranks - 1) / ranks;
  first = std::min(rows, rank * chunk);
  mine = std::min(rows, first + chunk) - first;
  const bool keeps =
      parameter.is_non_overlapping_and_dense() && (rows <= 1 || parameter.stride(0) == row);
  if (keeps) {
    strides = parameter.strides().vec();
  } else {
    std::int64_t stride = 1;
    strides.resize(sizes.size());
    for (std::size_t d = sizes.size(); d-- > 0; stride *= std::max<std::int64_t>(sizes[d], 1)) {
      strides[d] = stride;
    }
  }
}

TUTTI_INLINE at::Tensor FlatParameter::view(const at::Tensor& memory, std::int64_t at,
                                            std::optional<std::int64_t> some) const {
  std::vector<std::int64_t> shape = sizes;
  std::vector<std::int64_t> steps = strides;
  if (some) {
    if (shape.empty()) {
      shape = {1};
      steps = {1};
    }
    shape[0] = *some;
  }
  return memory.as_strided(shape, steps, memory.storage_offset() + at).detach();
}

TUTTI_INLINE at::Tensor FlatParameter::flat(const at::Tensor& tensor) const {
  at::Tensor laid_out = tensor.detach();
  if (laid_out.strides() != at::IntArrayRef(strides)) {
    laid_out = at::empty_strided(sizes, strides, laid_out.options()).copy_(laid_out);
  }
  return laid_out.as_strided({numel()}, {1});
}

// Calls `copy(part, piece)` for the places in `parts` [ranks, ...] and in `whole`, flat, that hold
// the same elements: those of all ranks with a full chunk at once, then those of the next.
TUTTI_INLINE void FlatUnit::each_piece(
    const FlatParameter& one, const at::Tensor& parts, std::int64_t at, const at::Tensor& whole,
    const std::function<void(const at::Tensor&, const at::Tensor&)>& copy) {
  if (one.numel() == 0) {
    return;
  }
  const std::int64_t full = one.rows / one.chunk;
  const std::int64_t rest = one.rows - full * one.chunk;
  const std::int64_t chunk = one.chunk_numel();
  copy(parts.narrow(0, 0, full).narrow(1, at, chunk),
       whole.narrow(0, 0, full * chunk).view({full, chunk}));
  if (rest > 0) {
    copy(parts.select(0, full).narrow(0, at, rest * one.row),
         whole.narrow(0, full * chunk, rest * one.row));
  }
}

TUTTI_INLINE void FlatUnit::seal() {
  const c10::NoGradGuard no_grad;
  const at::Tensor& model = parameters_.front().whole;
  for (FlatParameter& one : parameters_) {
    one.in_whole = numel_;
    one.in_shard = part_;
    numel_ += one.numel();
    part_ += one.chunk_numel();
  }
  shard_options_ = model.options().requires_grad(false);
  whole_ = at::empty({numel_}, options().dtype(compute_type()));
  bytes_ = whole_.nbytes();
  if (!how_.stays || how_.param_dtype) {
    own_shards_ = at::zeros({part_}, options());
  }
  for (FlatParameter& one : parameters_) {
    one.view(whole_, one.in_whole).copy_(one.whole);
    if (shares()) {
      one.shard = one.view(whole_, one.in_whole + one.first * one.row, one.mine);
    } else {
      one.shard = one.view(own_shards_, one.in_shard, one.mine);
      const at::Tensor whole =
          one.sizes.empty() ? one.whole.detach().view({1}) : one.whole.detach();
      one.shard.copy_(whole.narrow(0, one.first, one.mine));
    }
    one.shard.set_requires_grad(one.trains());
  }
  set_views(whole_);
  drop();
}

// The parameters are these places from now on; who holds one sees them.
TUTTI_INLINE void FlatUnit::set_views(const at::Tensor& memory) {
  for (FlatParameter& one : parameters_) {
    one.whole.set_data(one.view(memory, one.in_whole));
  }
}

// The memory itself is given back and taken anew: what the graph has saved are views of it.
TUTTI_INLINE void FlatUnit::drop() {
  if (how_.stays || !here_) {
    return;
  }
  give_back(whole_);
  here_ = false;
}

TUTTI_INLINE void FlatUnit::allocate() {
  if (!here_) {
    c10::StorageImpl* const storage = whole_.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes_));
    storage->set_nbytes(bytes_);
    here_ = true;
  }
}

// This rank's part, in the order of messages.
TUTTI_INLINE at::Tensor FlatUnit::packed(at::ScalarType type) const {
  if (!shares()) {
    return own_shards_.to(type);
  }
  const at::Tensor part = at::empty({part_}, options().dtype(type));
  for (const FlatParameter& one : parameters_) {
    if (one.mine > 0) {
      one.view(part, one.in_shard, one.mine).copy_(one.shard.detach());
    }
  }
  return part;
}

TUTTI_INLINE void FlatUnit::unpack(const at::Tensor& parts, const at::Tensor& whole) const {
  for (const FlatParameter& one : parameters_) {
    each_piece(one, parts, one.in_shard, whole.narrow(0, one.in_whole, one.numel()),
               [](const at::Tensor& part, const at::Tensor& piece) { piece.copy_(part); });
  }
}

TUTTI_INLINE void FlatUnit::start_gather() {
  if (here_ || wait_) {
    return;
  }
  const c10::NoGradGuard no_grad;
  parts_ = at::empty({ranks(), part_}, whole_.options());
  wait_ = how_.group->start_all_gather_into(parts_, packed(compute_type()));
}

TUTTI_INLINE void FlatUnit::gather() {
  if (here_) {
    return;
  }
  const c10::NoGradGuard no_grad;
  start_gather();
  std::exchange(wait_, nullptr)();
  allocate();
  unpack(parts_, whole_);
  give_back(std::exchange(parts_, {}));
}

TUTTI_INLINE void FlatUnit::refresh() {
  if (!here_ || (shares() && ranks() == 1)) {
    return;
  }
  const c10::NoGradGuard no_grad;
  const at::Tensor parts = at::empty({ranks(), part_}, whole_.options());
  how_.group->all_gather_into(parts, packed(compute_type()));
  unpack(parts, whole_);
  give_back(parts);
}

TUTTI_INLINE void FlatUnit::cancel() {
  if (wait_) {
    std::exchange(wait_, nullptr)();
    parts_.reset();
  }
}

TUTTI_INLINE void FlatUnit::reduce() {
  settle();
  const c10::NoGradGuard no_grad;
  const at::ScalarType type = how_.reduce_dtype.value_or(compute_type());
  double ranks_in_mean = static_cast<double>(ranks());
  if (how_.replicas) {
    ranks_in_mean *= how_.replicas->size();
  }
  const double ahead = type == at::kHalf ? divided_ahead(static_cast<int>(ranks_in_mean)) : 1;
  std::int64_t part = 0;
  std::int64_t count = 0;
  for (const FlatParameter& one : parameters_) {
    part += one.trains() ? one.chunk_numel() : 0;
    count += one.trains() ? 1 : 0;
  }
  const at::Tensor out = at::empty({part + count}, options().dtype(type));
  {
    const at::Tensor in = at::zeros({ranks(), part + count}, out.options());
    std::int64_t place = 0;
    std::int64_t flag = part;
    for (FlatParameter& one : parameters_) {
      if (one.trains()) {
        copy_gradient(one, in, place, flag++);
        place += one.chunk_numel();
      }
    }
    if (ahead > 1) {
      in.narrow(1, 0, part).div_(ahead);
    }
    how_.group->reduce_scatter_into(out, in);
    give_back(in);
  }
  if (how_.replicas) {
    how_.replicas->all_reduce(out);
  }
  at::Tensor mean = out.narrow(0, 0, part);
  if (ranks_in_mean > 1) {
    mean.div_(ranks_in_mean / ahead);
  }
  mean = mean.to(shard_options_.dtype());
  flags_ = out.narrow(0, part, count);
  std::int64_t place = 0;
  for (FlatParameter& one : parameters_) {
    if (one.trains()) {
      add_gradient(one, one.view(mean, place, one.mine));
      place += one.chunk_numel();
    }
  }
}

// Moves a parameter's gradient to its place in a message, with a flag that there was one.
TUTTI_INLINE void FlatUnit::copy_gradient(const FlatParameter& one, const at::Tensor& message,
                                          std::int64_t place, std::int64_t flag) {
  at::Tensor& gradient = one.whole.mutable_grad();
  if (!gradient.defined()) {
    return;
  }
  TUTTI_CHECK(gradient.layout() == at::kStrided, "sharding: the gradient of '", one.name,
              "' is sparse, which cannot be cut into parts; use a dense embedding");
  each_piece(one, message, place, one.flat(gradient),
             [](const at::Tensor& part, const at::Tensor& piece) { part.copy_(piece); });
  message.select(1, flag).fill_(1);
  gradient.reset();
}

TUTTI_INLINE void FlatUnit::add_gradient(FlatParameter& one, const at::Tensor& gradient) {
  at::Tensor& sum = one.shard.mutable_grad();
  if (sum.defined()) {
    sum.add_(gradient);
  } else {
    sum = gradient;
    one.tentative = true;
  }
}

TUTTI_INLINE void FlatUnit::settle() {
  if (!flags_.defined()) {
    return;
  }
  const at::Tensor flags = std::exchange(flags_, {}).to(at::kCPU, at::kFloat).contiguous();
  const float* had = flags.const_data_ptr<float>();
  for (FlatParameter& one : parameters_) {
    if (one.trains() && *had++ == 0 && one.tentative) {
      one.shard.mutable_grad().reset();
    }
    one.tentative = false;
  }
}

TUTTI_INLINE void FlatUnit::forget_gradients() {
  flags_.reset();
  for (FlatParameter& one : parameters_) {
    one.whole.mutable_grad().reset();
    one.tentative = false;
  }
}

TUTTI_INLINE void FlatUnit::summon() {
  const c10::NoGradGuard no_grad;
  const at::Tensor parts = at::empty({ranks(), part_}, options());
  how_.group->all_gather_into(parts, packed(c10::typeMetaToScalarType(options().dtype())));
  summoned_ = at::empty({numel_}, options());
  unpack(parts, summoned_);
  set_views(summoned_);
}

TUTTI_INLINE void FlatUnit::release(bool write_back) {
  const c10::NoGradGuard no_grad;
  const bool here = here_;
  allocate();  // views cannot be made of no memory
  if (write_back) {
    for (FlatParameter& one : parameters_) {
      one.shard.detach().copy_(one.view(summoned_, one.in_whole + one.first * one.row, one.mine));
    }
  }
  set_views(whole_);
  summoned_.reset();
  if (!here) {
    drop();
  } else if (write_back) {
    refresh();
  }
}

TUTTI_INLINE at::Tensor FlatUnit::whole_of(const FlatParameter& one, const at::Tensor& part) const {
  const c10::NoGradGuard no_grad;
  const at::Tensor mine = at::zeros({one.chunk_numel()}, part.options());
  if (one.mine > 0) {
    one.view(mine, 0, one.mine).copy_(part);
  }
  const at::Tensor parts = at::empty({ranks(), one.chunk_numel()}, part.options());
  how_.group->all_gather_into(parts, mine);
  const at::Tensor memory = at::empty({one.numel()}, part.options());
  each_piece(one, parts, 0, memory,
             [](const at::Tensor& from, const at::Tensor& piece) { piece.copy_(from); });
  return one.view(memory, 0);
}

}  // namespace tutti::dist::detail

#endif
