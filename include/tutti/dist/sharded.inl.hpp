// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/dist/sharded.hpp>

namespace tutti::dist {

// A unit of the model, and where it stands in a step. It says when it runs, or is seen by what
// reads its parameters.
class ShardedDataParallel::Bracket final : public ::tutti::detail::UnitHolder,
                                           public ::tutti::detail::Pager {
 public:
  Bracket(ShardedDataParallel& all, detail::UnitModule in_model, FlatUnit::How how)
      : owner(all), model(std::move(in_model)), unit(model.name, paged(std::move(how))) {}

  at::Tensor enter(const at::Tensor& x) override { return owner.enter(*this, x); }
  at::Tensor leave(const at::Tensor& y) override { return owner.leave(*this, y); }
  void expect_gradients() override { ++open; }
  void gradients_came() override { owner.gradients_complete(*this); }
  void bring(std::string_view reader, std::size_t together) override {
    if (is_paged()) {
      owner.bring(*this, together);
      return;
    }
    TUTTI_CHECK(unit.here(), "sharding: ", reader, " reads a parameter of the unit '", model.name,
                "', which does not run, so that the parameter has no memory; read it within "
                "summon(), which all ranks call");
  }

  [[nodiscard]] bool is_paged() const { return model.slot == nullptr; }

  ShardedDataParallel& owner;
  detail::UnitModule model;
  detail::ShardedUnit unit;
  Bracket* next = nullptr;   // which ran after it last time
  std::int64_t open = 0;     // so many runs of this pass have their gradients still to come
  bool ready = false;        // its gradients are complete, in this backward pass
  std::int64_t awaited = 0;  // so many parameters have no gradient yet, when it is paged
  bool read_again = false;   // a backward pass has read it: an embedding's does not

 private:
  FlatUnit::How paged(FlatUnit::How how) {
    how.pager = how.stays ? nullptr : this;
    return how;
  }
};

// Behind the gradient of a parameter of a unit that is paged.
class ShardedDataParallel::AfterGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AfterGradient(Bracket& bracket) : bracket_(bracket) {}
  void operator()(const at::Tensor&) override { bracket_.owner.gradient_added(bracket_); }

 private:
  Bracket& bracket_;
};

// Behind the input of a unit: all of its gradients are complete when this one's is. In what is
// computed again they go to the graph around it, and are not there before that is.
class ShardedDataParallel::AfterUnit final : public torch::autograd::Node {
 public:
  AfterUnit(Bracket& bracket, const at::Tensor& x, bool again) : bracket_(bracket), again_(again) {
    add_next_edge(torch::autograd::impl::gradient_edge(x));
  }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    bracket_.unit.drop();
    if (!again_) {
      bracket_.owner.gradients_complete(bracket_);
    }
    return std::move(gradients);
  }
  Bracket& bracket_;
  bool again_;
};

// Behind the output of a unit: its parameters are wanted when a gradient gets here.
class ShardedDataParallel::BeforeUnit final : public torch::autograd::Node {
 public:
  BeforeUnit(Bracket& bracket, const at::Tensor& y) : bracket_(bracket) {
    add_next_edge(torch::autograd::impl::gradient_edge(y));
  }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    bracket_.owner.pass_by();
    bracket_.owner.gradients_arrive(bracket_);
    return std::move(gradients);
  }
  Bracket& bracket_;
};

// From so many states of the generator values are drawn.
TUTTI_INLINE std::size_t deferred_draws(const std::vector<at::Tensor>& deferred) {
  return deferred.empty()
             ? 0
             : ::tutti::detail::InitTape::of(deferred.front())->generator_states().size();
}

TUTTI_INLINE ShardedDataParallel::ShardedDataParallel(std::shared_ptr<Communicator> group,
                                                      const ShardingOptions& options)
    : group_(std::move(group)), options_(options), root_("", {}) {}

TUTTI_INLINE ShardedDataParallel::ShardedDataParallel(torch::nn::Module& module,
                                                      std::shared_ptr<Communicator> group,
                                                      const ShardingOptions& options)
    : ShardedDataParallel(std::move(group), options) {
  const detail::ModuleState state = detail::state_of(module);
  const std::vector<at::Tensor> deferred = ::tutti::detail::tensors_without_memory(module);
  check_ranks(state.description + c10::str(deferred.size(), " tensors of deferred_init(), ",
                                           deferred_draws(deferred), " random streams\n"));
  detail::check_options(options_, group_->size());
  TUTTI_CHECK(!state.trainable.empty(),
              "sharding: no parameter of the module requires a gradient, so there is nothing to "
              "train; use the module as it is");
  buffers_ = state.buffers;
  groups_ = detail::rank_groups(group_, options_);
  kept_among_ = detail::kept_among(options_, groups_.copy->size());
  root_ = detail::ShardedUnit("", how(/*stays=*/true));
  const std::vector<detail::UnitModule> modules = detail::unit_modules(module, options_.units);
  find_units(modules);
  std::vector<at::Tensor> before;  // which parameters are not once they have memory
  for (const at::Tensor& one : deferred) {
    before.push_back(one.variable_data());
  }
  shard(module, modules, state);
  take_values(deferred, before);
  watch_parameters();
  if (options_.stage == ShardStage::parameters && brackets_.empty() && group_->rank() == 0) {
    TORCH_WARN(
        "sharding: stage is parameters and the model has no units, so that every rank has all "
        "parameters all the time; name its blocks in sharding.units, as \"layers.*\", or make "
        "them tutti::nn::Unit");
  }
}

// Has the gradients of units that are paged counted.
TUTTI_INLINE void ShardedDataParallel::watch_parameters() {
  for (const auto& bracket : brackets_) {
    if (bracket->is_paged()) {
      bracket->unit.each_parameter([&](const detail::FlatParameter& one) {
        torch::autograd::impl::set_post_acc_grad_hooks(one.whole,
                                                       std::make_unique<AfterGradient>(*bracket));
      });
    }
  }
}

TUTTI_INLINE ShardedDataParallel::~ShardedDataParallel() {
  for (const auto& bracket : brackets_) {
    bracket->unit.forget_pager();
    if (bracket->is_paged()) {
      bracket->unit.each_parameter([](const detail::FlatParameter& one) {
        torch::autograd::impl::set_post_acc_grad_hooks(one.whole, nullptr);
      });
    } else if (bracket->model.slot->holder() == bracket.get()) {
      bracket->model.slot->hold(nullptr);
    }
  }
}

// All that has to be the same on every rank.
TUTTI_INLINE void ShardedDataParallel::check_ranks(const std::string& model) const {
  const std::string mine = detail::text_of(options_) + "\n" + model;
  const std::string reference = group_->broadcast_bytes(mine, 0);
  const auto differences = group_->all_gather_bytes(detail::first_difference(mine, reference));
  for (std::size_t rank = 0; rank < differences.size(); ++rank) {
    TUTTI_CHECK(differences[rank].empty(), "sharding: rank ", rank, " ", differences[rank],
                "; build the same model, with the same options, on every rank");
  }
}

TUTTI_INLINE detail::FlatUnit::How ShardedDataParallel::how(bool stays) const {
  return {.group = groups_.copy,
          .replicas = groups_.same_part,
          .near = groups_.near,
          .param_dtype = options_.param_dtype,
          .reduce_dtype = options_.reduce_dtype,
          .stays = stays || options_.stage != ShardStage::parameters,
          .offloads = options_.cpu_offload};
}

// A sharding that lives has it.
TUTTI_INLINE bool is_brought(const at::Tensor& parameter) {
  const auto* const pager = ::tutti::detail::Pager::of(parameter);
  return pager != nullptr && pager != &::tutti::detail::Pager::gone();
}

TUTTI_INLINE void ShardedDataParallel::find_units(const std::vector<detail::UnitModule>& modules) {
  for (const detail::UnitModule& one : modules) {
    const bool taken = one.slot != nullptr ? one.slot->holder() != nullptr
                                           : is_brought(one.module->parameters().front());
    TUTTI_CHECK(!taken, "sharding: the unit '", one.name,
                "' is part of a model that is sharded already; let go of that first");
    brackets_.push_back(std::make_unique<Bracket>(*this, one, how(/*stays=*/false)));
  }
}

TUTTI_INLINE void ShardedDataParallel::shard(const torch::nn::Module& module,
                                             const std::vector<detail::UnitModule>& modules,
                                             const detail::ModuleState& state) {
  std::unordered_map<const torch::nn::Module*, detail::ShardedUnit*> units;
  for (const auto& bracket : brackets_) {
    units[bracket->model.module] = &bracket->unit;
  }
  std::vector<detail::UnitParameter> uses = detail::unit_parameters(module, modules);
  std::unordered_set<const torch::nn::Module*> left_alone;  // units of ignored parameters
  for (const detail::UnitParameter& one : detail::take_ignored(uses, options_.ignored)) {
    left_alone.insert(one.unit);
  }
  std::map<std::pair<const void*, std::int64_t>, std::string> memory;
  for (const detail::UnitParameter& use : uses) {
    if (use.parameter.numel() > 0) {
      const bool deferred = ::tutti::detail::InitTape::of(use.parameter) != nullptr;
      TUTTI_CHECK(deferred || use.parameter.storage().nbytes() > 0, "sharding: '", use.name,
                  "' has no memory, since what had sharded the model is gone; build the model "
                  "anew, and load a checkpoint");
      const void* const storage = use.parameter.storage().unsafeGetStorageImpl();
      const auto [other, is_new] =
          memory.try_emplace({deferred ? storage : use.parameter.const_data_ptr(),
                              deferred ? use.parameter.storage_offset() : 0},
                             use.name);
      TUTTI_CHECK(is_new, "sharding: '", other->second, "' and '", use.name,
                  "' are different tensors in one memory, which would be sharded twice; make them "
                  "one tensor, or give each its own memory");
    }
    (use.unit == nullptr ? root_ : *units.at(use.unit)).add(use.name, use.parameter);
  }
  std::erase_if(brackets_, [&](const auto& bracket) {  // globs match also what others have all of
    return bracket->unit.empty() &&
           (bracket->is_paged() || left_alone.contains(bracket->model.module));
  });
  for (const auto& bracket : brackets_) {
    TUTTI_CHECK(!bracket->unit.empty(), "sharding: the unit '", bracket->unit.name(),
                "' has no parameters of its own (others may share them); remove its nn::Unit");
  }
  std::vector<at::Tensor> of_rank_zero = state.everything();
  std::erase_if(of_rank_zero, [](const at::Tensor& one) {
    return ::tutti::detail::InitTape::of(one) != nullptr;
  });
  group_->broadcast(of_rank_zero, 0);
  for (FlatUnit* part : parts()) {
    part->seal();
    for (std::size_t i = 0; i < part->parameters().size(); ++i) {
      places_[part->parameters()[i].whole.unsafeGetTensorImpl()] = {part, i};
    }
  }
  for (const detail::UnitParameter& use : uses) {
    const Place& place = places_.at(use.parameter.unsafeGetTensorImpl());
    const detail::FlatParameter& one = place.part->parameters()[place.index];
    parameters_.push_back({use.name, one.whole, one.shard, one.first});
  }
  overlaps_ = options_.overlap_reduce.value_or(!uses.empty() && !uses.front().parameter.is_cpu());
  const bool in_backward = options_.stage == ShardStage::gradients && !options_.reduce_at_end;
  if (options_.stage == ShardStage::parameters || in_backward || options_.param_dtype) {
    for (const auto& bracket : brackets_) {
      if (!bracket->is_paged()) {
        bracket->model.slot->hold(bracket.get());
      }
    }
  }
}

// What deferred_init() has put off: each rank makes all of it, one tensor after the other, from the
// random numbers of rank 0, and keeps its part.
TUTTI_INLINE void ShardedDataParallel::take_values(const std::vector<at::Tensor>& deferred,
                                                   const std::vector<at::Tensor>& before) {
  if (deferred.empty()) {
    return;
  }
  const auto tape = ::tutti::detail::InitTape::of(before.front());
  for (const at::Tensor& state : tape->generator_states()) {
    auto* const bytes = static_cast<char*>(state.mutable_data_ptr());
    const std::string own(bytes, state.nbytes());
    const std::string first = group_->broadcast_bytes(own, 0);
    TUTTI_CHECK(first.size() == own.size(), "sharding: rank 0's generator has a state of ",
                first.size(), " bytes, here ", own.size(), "; use one LibTorch on all ranks");
    std::copy(first.begin(), first.end(), bytes);
  }
  tape->make(before, [&](std::size_t i, const ::tutti::detail::InitTape::Values& values) {
    const auto place = places_.find(deferred[i].unsafeGetTensorImpl());
    if (place == places_.end()) {  // a buffer
      at::Tensor buffer = deferred[i];
      buffer.set_data(values.whole());
    } else {
      place->second.part->take(place->second.part->parameters()[place->second.index], values);
    }
  });
}

// Of all units, the root's first.
TUTTI_INLINE std::vector<detail::FlatUnit*> ShardedDataParallel::parts() const {
  std::vector<FlatUnit*> out;
  const auto take = [&](const detail::ShardedUnit& unit) {
    for (const auto& part : unit.parts()) {
      out.push_back(part.get());
    }
  };
  take(root_);
  for (const auto& bracket : brackets_) {
    take(bracket->unit);
  }
  return out;
}

TUTTI_INLINE void ShardedDataParallel::before_forward(bool last) {
  const bool recording = c10::GradMode::is_enabled();
  averaging_ = recording && requires_sync() &&
               (last || (options_.stage >= ShardStage::gradients && !options_.reduce_at_end));
  in_pass_ = recording;
  in_backward_ = false;
  last_entered_ = nullptr;
  order_.clear();
  for (const auto& bracket : brackets_) {
    bracket->open = bracket->is_paged() ? 1 : 0;
    bracket->ready = false;
    bracket->awaited = 0;
    bracket->unit.each_parameter(
        [&](const detail::FlatParameter& one) { bracket->awaited += one.trains() ? 1 : 0; });
  }
  to_reduce_ = brackets_.size();
  came_again_ = false;
  if (buffers_are_old_) {
    broadcast_buffers();
  }
  buffers_are_old_ = averaging_;
}

TUTTI_INLINE void ShardedDataParallel::before_backward(const at::Tensor&) {
  in_backward_ = true;
}

TUTTI_INLINE void ShardedDataParallel::after_backward() {
  in_pass_ = in_backward_ = false;
  order_.clear();
  for (const auto& bracket : brackets_) {
    bracket->unit.cancel();
    bracket->unit.drop();
  }
  recent_.clear();
  if (std::exchange(averaging_, false)) {
    reduce_in_order(/*all=*/true);
    if (std::exchange(came_again_, false)) {
      to_reduce_ = brackets_.size();
      reduce_in_order(/*all=*/true);
    }
    finish_reducing();
    root_.reduce();
    for (const auto& bracket : brackets_) {
      bracket->unit.settle();
    }
    root_.settle();
  } else {
    root_.keep_gradients();
    for (const auto& bracket : brackets_) {
      bracket->unit.keep_gradients();
    }
  }
}

TUTTI_INLINE void ShardedDataParallel::after_step() {
  root_.refresh();
  for (const auto& bracket : brackets_) {
    bracket->unit.refresh();
  }
}

TUTTI_INLINE void ShardedDataParallel::reset() {
  averaging_ = in_pass_ = in_backward_ = false;
  buffers_are_old_ = true;
  order_.clear();
  reducing_ = nullptr;
  root_.forget_gradients();
  for (const auto& bracket : brackets_) {
    bracket->unit.cancel();
    bracket->unit.drop();
    bracket->unit.forget_gradients();
  }
  recent_.clear();
}

TUTTI_INLINE at::Tensor ShardedDataParallel::enter(Bracket& bracket, const at::Tensor& given) {
  const bool recording = c10::GradMode::is_enabled();
  if (bracket.unit.summoned()) {
    TUTTI_CHECK(!recording, "sharding: the unit '", bracket.unit.name(),
                "' is to be trained while its parameters are summoned; end that first");
    return given;
  }
  pass_by();
  bracket.unit.gather();
  if (recording && !in_backward_) {
    ++bracket.open;
    note_run(bracket);
  }
  at::Tensor x = given;
  if (const auto type = bracket.unit.param_dtype(); type && x.is_floating_point()) {
    x = x.to(*type);
  }
  if (recording && x.requires_grad()) {
    const at::Tensor same = x.detach();
    ::tutti::detail::set_gradient(same, new AfterUnit(bracket, x, in_backward_));
    return same;
  }
  return x;
}

// The gather of the unit that ran after this one last time goes on while this one computes.
TUTTI_INLINE void ShardedDataParallel::note_run(Bracket& bracket) {
  if (last_entered_ != nullptr) {
    last_entered_->next = &bracket;
  }
  last_entered_ = &bracket;
  if (bracket.next != nullptr) {
    bracket.next->unit.start_gather();
  }
}

// Of units that operators bring so many stay, one of which is about to run, and as many as an
// operator reads at once.
TUTTI_INLINE void ShardedDataParallel::make_room(std::size_t together) {
  while (!keeps_until_gradients() && recent_.size() >= std::max<std::size_t>(2, together)) {
    if (recent_.front() != nullptr) {
      go(recent_.front()->unit);
    }
    recent_.erase(recent_.begin());
  }
}

// Who runs has what it wants of this one. In a forward pass gradients will want it again.
TUTTI_INLINE void ShardedDataParallel::go(detail::ShardedUnit& unit) const {
  if (in_pass_ && !in_backward_) {
    unit.keep();
  } else {
    unit.drop();
  }
}

// A unit that says when it runs is about to: those before it that do not say so may go.
TUTTI_INLINE void ShardedDataParallel::pass_by() {
  if (!recent_.empty()) {
    make_room(1);
    recent_.push_back(nullptr);
  }
}

// An operator reads parameters of a unit that is paged, and those of as many others in all.
TUTTI_INLINE void ShardedDataParallel::bring(Bracket& bracket, std::size_t together) {
  if (!recent_.empty() && recent_.back() == &bracket && bracket.unit.here()) {
    return;
  }
  const ::tutti::detail::Pager::Aside aside;
  std::erase(recent_, &bracket);
  make_room(together);
  recent_.push_back(&bracket);
  if (in_backward_) {
    bracket.read_again = true;
    gradients_arrive(bracket);
    return;
  }
  bracket.unit.gather();
  if (in_pass_) {
    order_.push_back(&bracket);
    note_run(bracket);
  }
}

// Of a parameter of a unit that is paged; the last one's is there when all are.
TUTTI_INLINE void ShardedDataParallel::gradient_added(Bracket& bracket) {
  if (--bracket.awaited == 0) {
    const ::tutti::detail::Pager::Aside aside;
    bracket.unit.drop();
    std::erase(recent_, &bracket);
  }
  if (bracket.awaited <= 0) {
    gradients_complete(bracket);
  }
}

TUTTI_INLINE at::Tensor ShardedDataParallel::leave(Bracket& bracket, const at::Tensor& y) {
  if (bracket.unit.stays() || bracket.unit.summoned()) {
    return y;
  }
  if (!in_backward_ && !keeps_until_gradients()) {
    go(bracket.unit);
  }
  if (!c10::GradMode::is_enabled() || !y.requires_grad()) {
    return y;
  }
  order_.push_back(&bracket);
  const at::Tensor same = y.detach();
  ::tutti::detail::set_gradient(same, new BeforeUnit(bracket, y));
  return same;
}

// The gather of the unit that ran before goes on while this one computes.
TUTTI_INLINE void ShardedDataParallel::gradients_arrive(Bracket& bracket) {
  const c10::NoGradGuard no_grad;
  bracket.unit.gather();
  const auto run = std::find(order_.rbegin(), order_.rend(), &bracket);
  if (run != order_.rend()) {
    order_.erase(std::next(run).base(), order_.end());
  }
  if (!order_.empty() && (order_.back()->read_again || !order_.back()->is_paged())) {
    order_.back()->unit.start_gather();
  }
}

// Those of one run; a unit that ran several times has the sum of all, once the first run's are
// there. More come from a second backward pass over the same graph, perhaps when those of the first
// are averaged already: after_backward() averages again.
TUTTI_INLINE void ShardedDataParallel::gradients_complete(Bracket& bracket) {
  if (!reduces_in_backward()) {
    return;
  }
  --bracket.open;
  came_again_ = came_again_ || bracket.open < 0;
  if (bracket.open == 0) {
    bracket.ready = true;
    reduce_in_order(/*all=*/false);
  }
}

// The last unit comes first, and each only after those behind it, also where the graphs of ranks
// differ: all make the same calls in the same order.
TUTTI_INLINE void ShardedDataParallel::reduce_in_order(bool all) {
  while (to_reduce_ > 0 && (all || brackets_[to_reduce_ - 1]->ready)) {
    detail::ShardedUnit& unit = brackets_[--to_reduce_]->unit;
    finish_reducing();
    if (overlaps_) {
      unit.start_reduce();
      reducing_ = &unit;
    } else {
      unit.reduce();
    }
  }
}

TUTTI_INLINE at::Tensor ShardedDataParallel::shard_of(const at::Tensor& parameter) const {
  const auto place = places_.find(parameter.unsafeGetTensorImpl());
  return place == places_.end() ? parameter
                                : place->second.part->parameters()[place->second.index].shard;
}

TUTTI_INLINE std::unique_ptr<Summoned> ShardedDataParallel::summon(bool write_back) {
  std::vector<FlatUnit*> taken;
  for (FlatUnit* part : parts()) {
    if (!part->always_whole()) {
      TUTTI_CHECK(!part->summoned(), "sharding: the parameters are summoned already; use those");
      taken.push_back(part);
    }
  }
  return std::make_unique<detail::SummonedUnits>(std::move(taken), write_back);
}

TUTTI_INLINE const detail::FlatParameter& ShardedDataParallel::flat_of(
    const ShardedParameter& one, const FlatUnit** part) const {
  const auto place = places_.find(one.whole.unsafeGetTensorImpl());
  TUTTI_CHECK(place != places_.end(), "sharding: '", one.name, "' is not of this model");
  *part = place->second.part;
  return place->second.part->parameters()[place->second.index];
}

TUTTI_INLINE at::Tensor ShardedDataParallel::part_of(const ShardedParameter& like,
                                                     const at::Tensor& whole) const {
  const FlatUnit* unused = nullptr;
  const detail::FlatParameter& one = flat_of(like, &unused);
  TUTTI_CHECK(whole.sizes() == at::IntArrayRef(one.sizes), "sharding: a tensor ", whole.sizes(),
              " is to be cut as '", one.name, "', which is ", at::IntArrayRef(one.sizes));
  const at::Tensor part = one.view(one.flat(whole).contiguous(), one.first * one.row, one.mine);
  return part.to(one.shard.device(), /*non_blocking=*/false, /*copy=*/true);
}

TUTTI_INLINE at::Tensor ShardedDataParallel::whole_of(const ShardedParameter& like,
                                                      const at::Tensor& part) const {
  const FlatUnit* in = nullptr;
  const detail::FlatParameter& one = flat_of(like, &in);
  TUTTI_CHECK(part.sizes() == one.shard.sizes(), "sharding: a part of '", one.name, "' is ",
              part.sizes(), ", expected ", one.shard.sizes());
  return in->whole_of(one, part);
}

TUTTI_INLINE std::unique_ptr<Sharding> shard(torch::nn::Module& module,
                                             std::shared_ptr<Communicator> group,
                                             const ShardingOptions& options) {
  return std::make_unique<ShardedDataParallel>(module, std::move(group), options);
}

}  // namespace tutti::dist
