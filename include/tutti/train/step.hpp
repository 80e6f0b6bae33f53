// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/Context.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/engine.hpp>
#include <tutti/core/log.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/train/anomaly.hpp>
#include <tutti/train/any_engine.hpp>
#include <tutti/train/backward.hpp>
#include <tutti/train/forward.hpp>
#include <tutti/train/fused_step.hpp>
#include <tutti/train/graphed.hpp>
#include <tutti/train/microbatching.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/several.hpp>
#include <tutti/train/step_traits.hpp>
#include <tutti/train/transfer.hpp>

namespace tutti::train {

namespace detail {

// The random streams of the policies.
template <class Engine>
std::vector<Rng*> rngs_of(Engine& engine) {
  if constexpr (is_erased<Engine>) {
    return engine.rngs();
  } else {
    std::vector<Rng*> rngs;
    engine.for_each([&rngs](auto& policy) {
      if (Rng* rng = rng_of(policy)) {
        rngs.push_back(rng);
      }
    });
    return rngs;
  }
}

// The positions of all random streams that a forward pass draws from, to run it again alike.
class Replay {
 public:
  /// rngs: the policies' streams. LibTorch's own are those of the CPU and of `device`.
  Replay(std::vector<Rng*> rngs, at::Device device);

  void rewind();

 private:
  void remember(at::Device device);

  std::vector<Rng*> rngs_;
  std::vector<std::uint64_t> positions_;
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;  // LibTorch's own
};

// What an attempt at a batch has left, which holds memory.
void forget_attempt(State& state, Run& run);

// Of the pass just made, over all ranks: what an optimizer decides by is the same on each.
at::Tensor mean_over_ranks(at::Tensor loss, const State& state);

// The mean over ranks of what each one's microbatches weigh. Throws c10::ValueError on all ranks
// when some have more microbatches than others where ranks meet in every one.
double mean_weight(double weight, std::size_t microbatches, const State& state, const Run& run);

// How many tokens this batch's loss is a mean of.
std::int64_t num_loss_tokens(const Batch& batch, const State& state, const Run& run);

// Throws c10::Error: this loss, which needs no gradient, trains nothing.
void refuse_loss(const State& state);

// The losses with 0 for NaN: means of nothing.
Loss without_nan(Loss loss);

// Adds the losses of a microbatch to those of the batch.
void add_losses(State& state, double share);
void add_loss(at::Tensor& sum, const at::Tensor& loss, double share);

// In a turn of one of several optimizers: its loss by its name, and the others' share of the batch.
void add_turn_losses(State& state, double share, bool report);

}  // namespace detail

/// One optimizer step: TRAIN_BATCH of the specification. Holds what lives from batch to batch.
template <class Engine>
class Step {
 public:
  Step(Engine& engine, State& state, Run& run)
      : engine_(engine),
        state_(state),
        run_(run),
        transfer_(state.device),
        graphed_(engine, state, *this) {}
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  ~Step() {
    if (run_.graphs) {
      run_.graphs->forget();
    }
  }

  /// Trains on state.batch; leaves its losses in state.total_loss.
  void operator()() {
    whole_batch_ = state_.batch;
    if (run_.grad_accum > 0 && !state_.auto_microbatching) {
      const std::int64_t examples = run_.train.num_samples(whole_batch_);
      state_.device_train_microbatch_size = (examples + run_.grad_accum - 1) / run_.grad_accum;
    }
    if (detail::takes_step(engine_)) {
      in_microbatches([this] { take_step(); });
    } else if (has_own_way()) {
      calls_ ? step_with_closure() : take_turns();
    } else {
      in_microbatches([this] {
        if (pass(/*sync=*/true)) {
          update();
        }
      });
    }
    if (run_.scaler) {
      run_.scaler->update();
    }
    parts_.clear();
    whole_batch_ = {};
  }

 private:
  friend Graphed<Engine, Step>;

  static_assert(detail::one_takes_step<Engine>,
                "tutti: two policies of the recipe take the optimizer's step into their own hands "
                "(they have a step() member, as SAM has); keep one of them.");

  // Runs `work` with the batch in microbatches.
  template <class F>
  void in_microbatches(F&& work) {
    if (state_.auto_microbatching) {
      until_it_fits(work);
    } else {
      attempt(work);
    }
  }

  // Halves the microbatches until every rank has room. The optimizer moves once, after that.
  template <class F>
  void until_it_fits(F& work) {
    std::int64_t& size = state_.device_train_microbatch_size;
    if (size == 0) {
      size = state_.communicator->all_reduce_value(run_.train.num_samples(whole_batch_),
                                                   dist::ReduceOp::maximum);
    }
    detail::Replay replay(detail::rngs_of(engine_), state_.device);
    while (!attempt_fits(work)) {
      forget_attempt();
      size = smaller_microbatch(size, state_, "training");
      replay.rewind();
    }
    if (thrashes_(state_) && size > 1) {
      size = smaller_microbatch(size, state_, "and the allocator keeps starting over");
    }
  }

  template <class F>
  bool attempt_fits(F& work) {
    try {
      attempt(work);
      return true;
    } catch (const DoesNotFit&) {
      return false;
    }
  }

  // What an attempt left behind holds memory.
  void forget_attempt() {
    state_.batch = whole_batch_;
    parts_.clear();
    transfer_.forget();
    detail::forget_attempt(state_, run_);
  }

  template <class F>
  void attempt(F& work) {
    const std::int64_t size = state_.device_train_microbatch_size;
    if (size <= 0 || (state_.auto_microbatching && size >= run_.train.num_samples(whole_batch_))) {
      parts_.assign(1, whole_batch_);
    } else {
      parts_ = run_.train.split(whole_batch_, size);
    }
    work();
  }

  // Whether the optimizer calls a closure, or several take turns. Asked anew when the run has
  // another one.
  bool has_own_way() {
    const auto& optimizers = state_.optimizers;
    if (!optimizers.empty() && optimizers.front() != asked_) {
      asked_ = optimizers.front();
      calls_ = only_one_calls_closure(optimizers);
      own_way_ = calls_ || !run_.turns.empty();
    }
    return own_way_;
  }

  // The optimizer has the batch computed as often as it likes, at weights of its choice and always
  // with the same random draws. The first time counts as the batch's.
  void step_with_closure() {
    detail::Replay replay(detail::rngs_of(engine_), state_.device);
    int calls = 0;
    state_.optimizers.front()->step([&] {
      if (calls++ > 0) {
        replay.rewind();
      }
      in_microbatches([&] { pass(/*sync=*/true, /*report=*/calls == 1); });
      return mean_loss();
    });
    TUTTI_CHECK(calls > 0,
                "the optimizer derives from optim::CallsClosure, but its step() did not call the "
                "closure, so nothing was computed; call it, or do not derive from that");
  }

  at::Tensor mean_loss() { return detail::mean_over_ranks(std::exchange(pass_loss_, {}), state_); }

  // A policy has the batch computed as often as it likes, always with the same random draws.
  void take_step() {
    detail::Replay replay(detail::rngs_of(engine_), state_.device);
    int calls = 0;
    const auto again = [&](bool sync) {
      if (calls++ > 0) {
        replay.rewind();
      }
      return pass(sync, calls == 1);
    };
    detail::take_step(engine_, state_, again, [this] { update(); });
    state_.is_ascent = false;
  }

  // Each optimizer that is due has the batch computed for it alone, and steps.
  void take_turns() {
    const auto all = state_.optimizers;
    bool first = true;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Turn& turn = run_.turns[i];
      if (!turn.when || turn.when(state_)) {
        const OwnTurn own(state_, all, i, turn.name);
        in_microbatches([&] {
          if (pass(/*sync=*/true, /*report=*/first)) {
            update();
          }
        });
        first = false;
      }
    }
    TUTTI_CHECK(!first, "no optimizer is due in batch ", state_.timestamp.batch,
                " of the run; let `when` of one of them return true");
  }

  void update() {
    optimizer_step_.step(engine_, state_);
    if (run_.parallel) {
      run_.parallel->after_step();
    }
  }

  // Forward and backward of all microbatches. report: their losses and metrics are the batch's.
  // Returns whether the gradients are finite.
  bool pass(bool sync, bool report = true) {
    if (report) {
      run_.train_metrics.reset();
    }
    pass_loss_.reset();
    state_.is_ascent = !sync;
    engine_.template fire<BeforeTrainBatch>(state_);
    zero_gradients(state_);
    if (report) {
      state_.total_loss.clear();
      run_.logged.clear();
    }
    // The shards of a sharded model have no gradients but those of all ranks.
    const dist::NoSync no_sync(sync || state_.sharding != nullptr ? nullptr : run_.parallel.get());
    const double total = total_weight();
    if (state_.auto_microbatching) {
      // No gradient is sent before every rank has got through, so nobody is left in a reduction.
      if (!all_agree(fits([&] { microbatches(total, report); }), *state_.communicator)) {
        throw DoesNotFit();
      }
      if (run_.parallel) {
        run_.parallel->after_backward();
      }
    } else {
      microbatches(total, report);
    }
    state_.batch = whole_batch_;
    bool finite = true;
    if (run_.scaler) {
      for (auto& optimizer : state_.optimizers) {
        finite = run_.scaler->unscale(*optimizer, *state_.communicator) && finite;
      }
    }
    if (!calls_) {
      optimizer_step_.offer(engine_, state_, run_, finite);
    }
    if constexpr (detail::may_skip<Engine>) {
      state_.skip_step = false;
      engine_.template fire<AfterTrainBatch>(state_);
      return finite && !state_.skip_step;
    } else {
      engine_.template fire<AfterTrainBatch>(state_);
      return finite;
    }
  }

  void microbatches(double total, bool report) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      state_.is_last_microbatch = i + 1 == parts_.size();
      microbatch(parts_[i], share(parts_[i], total), report);
    }
  }

  double weight(const Batch& batch) const {
    return static_cast<double>(run_.weigh_by_tokens ? detail::num_loss_tokens(batch, state_, run_)
                                                    : run_.train.num_samples(batch));
  }

  // The mean over ranks of what a rank's microbatches weigh together.
  double total_weight() const {
    if (parts_.size() == 1 && state_.world_size == 1) {
      return 1;
    }
    double total = 0;
    for (const Batch& part : parts_) {
      total += weight(part);
    }
    return detail::mean_weight(total, parts_.size(), state_, run_);
  }

  // 0: the loss of this microbatch is a mean of nothing.
  double share(const Batch& part, double total) const {
    if (parts_.size() == 1 && state_.world_size == 1) {
      return 1;
    }
    const double own = weight(part);
    return own == 0 ? 0 : own / total;
  }

  void microbatch(const Batch& part, double share, bool report) {
    if (run_.parallel) {
      run_.parallel->before_forward(state_.is_last_microbatch);
    }
    state_.batch = run_.train.transform_microbatch(transfer_(part));
    counts_ = share != 0;
    const Batch seen = report && !run_.train_metrics.empty() ? state_.batch : Batch{};
    engine_.template fire<BeforeForward>(state_);
    listens_ = report && !run_.graphs && state_.logger.wants_metrics();
    run_.logged.set_weight(share);
    if (run_.graphs) {
      run_.graphs->train(state_, graphed_, share);
    } else {
      forward_to_backward(share);
    }
    if (report) {
      detail::add_losses(state_, share);
      update_metrics(seen);
    }
    if (own_way_) {
      add_own_losses(share, report);
    }
  }

  void add_own_losses(double share, bool report) {
    if (calls_) {
      detail::add_loss(pass_loss_, state_.loss, share);
    } else {
      detail::add_turn_losses(state_, share, report);
    }
  }

  void forward_to_backward(double share) {
    if (run_.turns.empty() && detail::is_undivided(engine_) && forward_and_loss()) {
      backward(share);
      engine_.template fire<AfterBackward>(state_);
      return;
    }
    forward();
    engine_.template fire<AfterForward>(state_);
    engine_.template fire<BeforeLoss>(state_);
    {
      const auto low = state_.autocast();
      const tutti::detail::Listening listening(listener());
      take_loss(loss());
    }
    engine_.template fire<AfterLoss>(state_);
    engine_.template fire<BeforeBackward>(state_);
    backward(share);
    engine_.template fire<AfterBackward>(state_);
  }

  void forward() {
    cast_inputs(state_);
    {
      const auto low = state_.autocast();
      const tutti::detail::Listening listening(listener());
      state_.outputs = train::forward(state_);
    }
    if (run_.graphs) {
      run_.graphs->see(state_.outputs);
    }
  }

  // False: the model has no such thing for this batch.
  bool forward_and_loss() {
    cast_inputs(state_);
    const auto low = state_.autocast();
    const tutti::detail::Listening listening(listener());
    auto both = train::forward_and_loss(state_);
    if (!both) {
      return false;
    }
    state_.outputs = std::move(both->first);
    take_loss(std::move(both->second));
    return true;
  }

  // Who hears log() in this microbatch; null: nobody.
  tutti::detail::LoggedValues* listener() { return listens_ ? &run_.logged : nullptr; }

  // Of the model, unless the engine knows a shorter way to it.
  Loss loss() {
    if constexpr (requires { engine_.loss(state_); }) {
      return engine_.loss(state_);
    } else {
      return train::loss(state_);
    }
  }
  void model_loss() {
    const auto low = state_.autocast();
    take_loss(train::loss(state_));
  }
  void take_loss(Loss loss) {
    state_.loss_parts = counts_ ? std::move(loss) : detail::without_nan(std::move(loss));
    state_.loss = state_.loss_parts.total();
  }

  void backward(double share) {
    if (!state_.loss.requires_grad()) {
      detail::refuse_loss(state_);
    }
    at::Tensor total = share == 1 ? state_.loss : state_.loss.mul(share);
    if (run_.scaler) {
      total = run_.scaler->scale(total);
    }
    if (run_.parallel) {
      run_.parallel->before_backward(total);
    }
    try {
      if (run_.autograd_engine) {
        total.backward();
      } else {
        backward_(total);
      }
    } catch (const std::exception& error) {
      if (run_.parallel) {
        run_.parallel->explain(error);
      }
      if (run_.detect_anomaly) {
        explain_anomaly(state_, error);
      }
      throw;
    }
    if (run_.parallel && !state_.auto_microbatching) {
      run_.parallel->after_backward();
    }
  }

  void update_metrics(const Batch& seen) {
    if (!run_.train_metrics.empty()) {
      const auto low = state_.autocast();
      run_.train_metrics.update(state_.task, seen, state_.outputs);
    }
  }

  Engine& engine_;
  State& state_;
  Run& run_;
  Batch whole_batch_;         // on the host
  std::vector<Batch> parts_;  // its microbatches
  Transfer transfer_;
  Backward backward_;
  ThrashWatch thrashes_;
  at::Tensor pass_loss_;  // of all microbatches, where the optimizer asks for it
  std::shared_ptr<torch::optim::Optimizer> asked_;
  bool calls_ = false;    // that one calls a closure
  bool listens_ = false;  // to log(), in this microbatch
  bool counts_ = true;    // this microbatch has what its loss is a mean of
  bool own_way_ = false;  // it does, or several take turns
  Graphed<Engine, Step> graphed_;
  detail::OptimizerStep<Engine, detail::may_fold<Engine>> optimizer_step_;
};

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/step.inl.hpp>
#endif
