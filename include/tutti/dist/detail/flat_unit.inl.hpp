// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/dist/detail/flat_unit.hpp>

namespace tutti::dist::detail {

// Calls `copy(part, piece)` for the places that hold the same elements: those of all ranks with a
// full chunk at once, then those of the next.
TUTTI_INLINE void FlatUnit::each_piece(
    const FlatParameter& one, const Places& places,
    const std::function<void(const at::Tensor&, const at::Tensor&)>& copy) {
  if (one.numel() == 0) {
    return;
  }
  const std::int64_t full = one.rows / one.chunk;
  const std::int64_t rest = one.rows - full * one.chunk;
  const std::int64_t chunk = one.chunk_numel();
  copy(places.parts.narrow(0, 0, full).narrow(1, places.at, chunk),
       places.whole.narrow(0, places.begin, full * chunk).view({full, chunk}));
  if (rest > 0) {
    copy(places.parts.select(0, full).narrow(0, places.at, rest * one.row),
         places.whole.narrow(0, places.begin + full * chunk, rest * one.row));
  }
}

// On the CPU operators on small pieces cost more than their bytes.
TUTTI_INLINE bool FlatUnit::are_bytes(const Places& places) {
  return places.parts.is_cpu() && places.whole.is_cpu() &&
         places.parts.dtype() == places.whole.dtype() && !places.whole.is_neg() &&
         !places.whole._is_zerotensor();
}

// The same as each_piece() with the places of each rank as bytes.
template <class F>
void FlatUnit::each_rank(const FlatParameter& one, const Places& places, F&& copy) {
  const auto size = static_cast<std::int64_t>(places.whole.itemsize());
  const std::int64_t message = places.parts.size(1) * size;
  auto* const parts = static_cast<char*>(places.parts.mutable_data_ptr()) + places.at * size;
  auto* const whole = static_cast<char*>(places.whole.mutable_data_ptr()) + places.begin * size;
  const std::int64_t bytes = one.numel() * size;
  const std::int64_t chunk = one.chunk_numel() * size;
  for (std::int64_t rank = 0; rank * chunk < bytes; ++rank) {
    copy(parts + rank * message, whole + rank * chunk,
         static_cast<std::size_t>(std::min(chunk, bytes - rank * chunk)));
  }
}

TUTTI_INLINE void FlatUnit::copy_parts_to_whole(const FlatParameter& one, const Places& places) {
  if (are_bytes(places)) {
    each_rank(one, places, [](const char* part, char* piece, std::size_t bytes) {
      std::memcpy(piece, part, bytes);
    });
    return;
  }
  each_piece(one, places,
             [](const at::Tensor& part, const at::Tensor& piece) { piece.copy_(part); });
}

TUTTI_INLINE void FlatUnit::copy_whole_to_parts(const FlatParameter& one, const Places& places) {
  if (are_bytes(places)) {
    each_rank(one, places, [](char* part, const char* piece, std::size_t bytes) {
      std::memcpy(part, piece, bytes);
    });
    return;
  }
  each_piece(one, places,
             [](const at::Tensor& part, const at::Tensor& piece) { part.copy_(piece); });
}

TUTTI_INLINE void FlatUnit::seal() {
  const c10::NoGradGuard no_grad;
  const at::Tensor& model = parameters_.front().whole;
  for (FlatParameter& one : parameters_) {
    one.alone_here = one.alone() && how_.group->exchanges();
    one.in_whole = numel_;
    numel_ += one.numel();
    one.in_shard = alone_;
    alone_ += one.alone_here ? one.chunk_numel() : 0;
  }
  part_ = alone_;
  for (FlatParameter& one : parameters_) {
    if (!one.alone_here) {
      one.in_shard = part_;
      part_ += one.chunk_numel();
    }
  }
  shard_options_ = model.options().requires_grad(false);
  whole_ = at::empty({numel_}, options().dtype(compute_type()));
  bytes_ = whole_.nbytes();
  if (!always_whole()) {
    const auto host = options().device(at::kCPU).pinned_memory(options().device().is_cuda());
    own_shards_ = at::zeros({part_}, how_.offloads ? host : options());
  }
  for (FlatParameter& one : parameters_) {
    one.shard = shares() ? one.view(whole_, one.in_whole + one.first * one.row, one.mine)
                         : one.view(own_shards_, one.in_shard, one.mine);
    if (::tutti::detail::InitTape::of(one.whole) == nullptr) {
      put_whole(one, one.whole.detach());
    }
    one.shard.set_requires_grad(one.trains());
  }
  set_views();
  drop();
}

TUTTI_INLINE void FlatUnit::put_whole(const FlatParameter& one, const at::Tensor& whole) {
  if (here_) {
    one.view(whole_, one.in_whole).copy_(whole);
  }
  if (!shares()) {
    const at::Tensor rows = one.sizes.empty() ? whole.view({1}) : whole;
    one.shard.detach().copy_(rows.narrow(0, one.first, one.mine));
  }
}

TUTTI_INLINE void FlatUnit::take(FlatParameter& one,
                                 const ::tutti::detail::InitTape::Values& values) {
  const c10::NoGradGuard no_grad;
  if (here_ || one.sizes.empty()) {
    put_whole(one, values.whole());
  } else if (one.mine > 0) {
    values.rows(one.first, one.shard.detach());
  }
}

// The parameters are these places from now on; who holds one sees them.
TUTTI_INLINE void FlatUnit::set_views(const at::Tensor& memory) {
  const ::tutti::detail::Pager::Aside aside;
  for (FlatParameter& one : parameters_) {
    one.whole.set_data(one.view(memory, one.in_whole));
  }
}

TUTTI_INLINE void FlatUnit::set_views() {
  if (how_.pager == nullptr) {
    set_views(whole_);
    return;
  }
  ::tutti::detail::install_calls();
  set_views(::tutti::detail::watched(whole_));
}

// The memory itself is given back and taken anew: what the graph has saved are views of it.
TUTTI_INLINE void FlatUnit::drop() {
  kept_.reset();
  if (how_.stays || !here_) {
    return;
  }
  put_memory({nullptr, whole_.device()}, 0);
  here_ = false;
}

TUTTI_INLINE void FlatUnit::keep() {
  at::Tensor piece;
  if (how_.near && !how_.stays && here_) {
    const c10::NoGradGuard no_grad;
    const ::tutti::detail::Pager::Aside aside;
    const std::int64_t most = (numel_ + how_.near->size() - 1) / how_.near->size();
    const std::int64_t from = std::min(numel_, how_.near->rank() * most);
    const std::int64_t some = std::min(numel_ - from, most);
    piece = at::empty({most}, whole_.options());
    piece.narrow(0, 0, some).copy_(whole_.narrow(0, from, some));
    piece.narrow(0, some, most - some).zero_();
  }
  drop();
  kept_ = std::move(piece);
}

TUTTI_INLINE void FlatUnit::put_memory(c10::DataPtr memory, std::size_t bytes) {
  c10::StorageImpl* const storage = whole_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(how_.pager == nullptr ? std::move(memory)
                                                     : how_.pager->page(std::move(memory)));
  storage->set_nbytes(bytes);
}

TUTTI_INLINE void FlatUnit::forget_pager() {
  if (how_.pager == nullptr || !whole_.defined()) {
    return;
  }
  how_.pager = &::tutti::detail::Pager::gone();
  if (here_) {
    ::tutti::detail::Pager::release(*whole_.storage().unsafeGetStorageImpl());
  } else {
    put_memory({nullptr, whole_.device()}, 0);
  }
}

TUTTI_INLINE void FlatUnit::allocate() {
  c10::StorageImpl* const storage = whole_.storage().unsafeGetStorageImpl();
  if (storage->nbytes() < bytes_) {
    put_memory(storage->allocator()->allocate(bytes_), bytes_);
  }
}

// This rank's part, in the order of messages; without what is alone where it lies in the whole.
TUTTI_INLINE at::Tensor FlatUnit::packed(at::ScalarType type) const {
  if (!shares()) {
    return own_shards_.to(options().dtype(type));
  }
  const at::Tensor part = at::empty({part_ - alone_}, options().dtype(type));
  for (const FlatParameter& one : parameters_) {
    if (one.mine > 0 && !one.alone_here) {
      one.view(part, one.in_shard - alone_, one.mine).copy_(one.shard.detach());
    }
  }
  return part;
}

// Begins to bring the whole to `whole`; what it returns waits for it.
TUTTI_INLINE std::function<void()> FlatUnit::start_gather_to(const at::Tensor& whole) const {
  const c10::NoGradGuard no_grad;
  const std::int64_t message = part_ - alone_;
  const at::Tensor part = packed(c10::typeMetaToScalarType(whole.dtype()));
  Exchange exchange(*how_.group);
  for (const FlatParameter& one : parameters_) {
    if (one.alone_here) {
      const at::Tensor place = whole.narrow(0, one.in_whole, one.numel());
      const at::Tensor mine =
          shares() ? one.part_of(how_.group->rank(), whole_.narrow(0, one.in_whole, one.numel()))
                   : part.narrow(0, one.in_shard, one.mine * one.row);
      for (std::int64_t rank = 0; rank < ranks(); ++rank) {
        exchange.add(rank, mine, one.part_of(rank, place));
      }
    }
  }
  const auto arrive = alone_ > 0 ? exchange.start("all_gather_into") : nullptr;
  std::function<void()> unite;
  at::Tensor parts;
  if (message > 0) {
    parts = at::empty({ranks(), message}, whole.options());
    unite =
        how_.group->start_all_gather_into(parts, part.narrow(0, part.numel() - message, message));
  }
  return [this, whole, parts, arrive, unite] {
    if (arrive) {
      arrive();
    }
    if (unite) {
      unite();
      unpack(parts, whole);
      give_back(parts);
    }
  };
}

// As start_gather_to(), from what those who are near have kept.
TUTTI_INLINE std::function<void()> FlatUnit::start_gather_kept() {
  const c10::NoGradGuard no_grad;
  const at::Tensor piece = std::exchange(kept_, {});
  const std::int64_t all = how_.near->size() * piece.numel();
  if (all == numel_) {
    allocate();
    const auto arrive = how_.near->start_all_gather_into(whole_, piece);
    return [piece, arrive] { arrive(); };
  }
  const at::Tensor pieces = at::empty({all}, whole_.options());
  return [this, piece, pieces, arrive = how_.near->start_all_gather_into(pieces, piece)] {
    arrive();
    whole_.copy_(pieces.narrow(0, 0, numel_));
    give_back(pieces);
  };
}

TUTTI_INLINE void FlatUnit::unpack(const at::Tensor& parts, const at::Tensor& whole) const {
  for (const FlatParameter& one : parameters_) {
    if (!one.alone_here) {
      copy_parts_to_whole(one, {parts, one.in_shard - alone_, whole, one.in_whole});
    }
  }
}

TUTTI_INLINE void FlatUnit::start_gather() {
  if (here_ || wait_) {
    return;
  }
  const ::tutti::detail::Pager::Aside aside;
  if (kept_.defined()) {
    wait_ = start_gather_kept();
    return;
  }
  if (alone_ > 0) {
    allocate();
  }
  wait_ = start_gather_to(whole_);
}

TUTTI_INLINE void FlatUnit::gather() {
  if (here_) {
    return;
  }
  const c10::NoGradGuard no_grad;
  const ::tutti::detail::Pager::Aside aside;
  start_gather();
  allocate();
  std::exchange(wait_, nullptr)();
  here_ = true;
}

TUTTI_INLINE void FlatUnit::refresh() {
  kept_.reset();
  if (!here_ || (shares() && ranks() == 1)) {
    return;
  }
  const c10::NoGradGuard no_grad;
  const ::tutti::detail::Pager::Aside aside;
  start_gather_to(whole_)();
}

TUTTI_INLINE void FlatUnit::cancel() {
  if (wait_) {
    gather();
  }
}

TUTTI_INLINE void FlatUnit::keep_gradients() {
  if (reduce_type() == compute_type()) {
    return;  // they add up where they are
  }
  const c10::NoGradGuard no_grad;
  for (FlatParameter& one : parameters_) {
    if (const at::Tensor gradient = taken_gradient(one); gradient.defined()) {
      one.kept = gradient.to(reduce_type());
    }
  }
}

// A rank's part of gradients, and behind it how many ranks had one of each parameter. What goes
// alone is first, if it needs no other type.
TUTTI_INLINE void FlatUnit::start_reduce() {
  settle();
  const c10::NoGradGuard no_grad;
  const at::ScalarType type = reduce_type();
  const bool exchanges = alone_ > 0 && type == compute_type();
  std::vector<FlatParameter*> alone;
  std::vector<FlatParameter*> others;
  for (FlatParameter& one : parameters_) {
    if (one.trains()) {
      (exchanges && one.alone_here ? alone : others).push_back(&one);
    }
  }
  std::int64_t part = 0;
  for (FlatParameter* one : alone) {
    one->in_mean = part;
    part += one->chunk_numel();
  }
  const std::int64_t before = part;
  for (FlatParameter* one : others) {
    one->in_mean = part;
    part += one->chunk_numel();
  }
  const auto count = static_cast<std::int64_t>(alone.size() + others.size());
  sum_ = at::empty({part + count}, options().dtype(type));
  const at::Tensor message = at::zeros({ranks(), part - before + count}, sum_.options());
  message.narrow(1, part - before, count).fill_(1);
  std::int64_t flag = part - before;
  std::vector<at::Tensor> whole;
  for (FlatParameter& one : parameters_) {
    if (one.trains()) {
      const at::Tensor gradient = taken_gradient(one);
      if (!gradient.defined()) {
        message.select(1, flag).zero_();
      }
      ++flag;
      if (exchanges && one.alone_here) {
        whole.push_back(gradient.defined() ? gradient : at::zeros({one.numel()}, sum_.options()));
      } else if (gradient.defined()) {
        copy_whole_to_parts(one, {message, one.in_mean - before, gradient, 0});
      }
    }
  }
  if (before > 0) {
    const at::Tensor in = at::empty({ranks(), part + count}, sum_.options());
    wait_for_sum_ = [this, in, part, arrive = start_exchange(alone, whole, message, in)] {
      arrive();
      if (ahead(in) > 1) {
        in.narrow(1, 0, part).div_(ahead(in));
      }
      at::sum_out(sum_, in, 0);
      give_back(in);
    };
    return;
  }
  if (ahead(message) > 1) {
    message.narrow(1, 0, part).div_(ahead(message));
  }
  wait_for_sum_ = [message, arrive = how_.group->start_reduce_scatter_into(sum_, message)] {
    arrive();
    give_back(message);
  };
}

TUTTI_INLINE void FlatUnit::reduce() {
  if (!wait_for_sum_) {
    start_reduce();
  }
  const c10::NoGradGuard no_grad;
  std::exchange(wait_for_sum_, nullptr)();
  const at::Tensor sum = std::exchange(sum_, {});
  if (how_.replicas) {
    how_.replicas->all_reduce(sum);
  }
  const auto count = std::count_if(parameters_.begin(), parameters_.end(),
                                   [](const FlatParameter& one) { return one.trains(); });
  const std::int64_t part = sum.numel() - count;
  at::Tensor mean = sum.narrow(0, 0, part);
  if (ranks_in_mean() > 1) {
    mean.div_(ranks_in_mean() / ahead(sum));
  }
  mean = mean.to(how_.offloads ? options().device(at::kCPU) : options());
  flags_ = sum.narrow(0, part, count);
  for (FlatParameter& one : parameters_) {
    if (one.trains()) {
      add_gradient(one, one.view(mean, one.in_mean, one.mine));
    }
  }
}

// Begins to fill row r of `in` with what rank r has for this one: chunks of gradients, then its
// message.
TUTTI_INLINE std::function<void()> FlatUnit::start_exchange(
    const std::vector<FlatParameter*>& alone, const std::vector<at::Tensor>& gradients,
    const at::Tensor& message, const at::Tensor& in) const {
  Exchange exchange(*how_.group);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    const FlatParameter& one = *alone[i];
    const std::int64_t count = one.mine * one.row;
    in.narrow(1, one.in_mean + count, one.chunk_numel() - count).zero_();
    for (std::int64_t rank = 0; rank < ranks(); ++rank) {
      exchange.add(rank, one.part_of(rank, gradients[i]),
                   in.select(0, rank).narrow(0, one.in_mean, count));
    }
  }
  const std::int64_t size = message.size(1);
  for (std::int64_t rank = 0; rank < ranks(); ++rank) {
    exchange.add(rank, message.select(0, rank),
                 in.select(0, rank).narrow(0, in.size(1) - size, size));
  }
  return exchange.start("reduce_scatter_into");
}

// Takes a parameter's gradient away, flat, with what was kept of passes before; undefined when
// there is none.
TUTTI_INLINE at::Tensor FlatUnit::taken_gradient(FlatParameter& one) {
  at::Tensor kept = std::exchange(one.kept, {});
  at::Tensor& gradient = one.whole.mutable_grad();
  if (!gradient.defined()) {
    return kept;
  }
  TUTTI_CHECK(gradient.layout() == at::kStrided, "sharding: the gradient of '", one.name,
              "' is sparse, which cannot be cut into parts; use a dense embedding");
  at::Tensor flat = one.flat(gradient);
  gradient.reset();
  return kept.defined() ? kept.add_(flat) : flat;
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
  if (wait_for_sum_) {
    std::exchange(wait_for_sum_, nullptr)();
    sum_.reset();
  }
  flags_.reset();
  for (FlatParameter& one : parameters_) {
    one.whole.mutable_grad().reset();
    one.kept.reset();
    one.tentative = false;
  }
}

TUTTI_INLINE void FlatUnit::summon() {
  const c10::NoGradGuard no_grad;
  const ::tutti::detail::Pager::Aside aside;
  if (wait_) {
    gather();
    drop();
  }
  summoned_ = at::empty({numel_}, options());
  start_gather_to(summoned_)();
  set_views(summoned_);
}

TUTTI_INLINE void FlatUnit::release(bool write_back) {
  const c10::NoGradGuard no_grad;
  const ::tutti::detail::Pager::Aside aside;
  const bool here = std::exchange(here_, true);
  allocate();  // views cannot be made of no memory
  if (write_back) {
    for (FlatParameter& one : parameters_) {
      one.shard.detach().copy_(one.view(summoned_, one.in_whole + one.first * one.row, one.mine));
    }
  }
  set_views();
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
  copy_parts_to_whole(one, {parts, 0, memory, 0});
  return one.view(memory, 0);
}

TUTTI_INLINE SummonedUnits::SummonedUnits(std::vector<FlatUnit*> units, bool write_back)
    : units_(std::move(units)), write_back_(write_back) {
  for (FlatUnit* unit : units_) {
    unit->summon();
  }
}

TUTTI_INLINE SummonedUnits::~SummonedUnits() {
  for (FlatUnit* unit : units_) {
    unit->release(write_back_);
  }
}

}  // namespace tutti::dist::detail
