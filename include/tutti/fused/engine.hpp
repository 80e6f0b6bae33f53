// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include <tutti/core/detail/batch_memory.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/state.hpp>
#include <tutti/fused/detail/stage_selection.hpp>
#include <tutti/fused/pass.hpp>
#include <tutti/losses/mixed_cross_entropy.hpp>
#include <tutti/losses/targets.hpp>

/// How a Trainer's recipe runs its batch transforms in one pass over the pixels.
namespace tutti::fused {

/// An engine whose policies, where they say what they do to a pixel, do it in one pass.
///
/// Base: a tutti::Engine. Between AfterDataloader and BeforeForward the policies that are stages
/// only draw; the pass runs once for each microbatch. Before a policy that may look at the batch
/// the pass is run up to there, and the rest runs policy by policy; so everybody sees, and the
/// model computes, what Base gives. Only batches of bytes are fused. Where the run is on a CUDA
/// device for which this program can make kernels, bytes are moved there and the pass is a kernel.
template <class Base>
class Engine : public Base {
  template <class E>
  using Order = typename Base::recipe::template order<E>;
  using Whole = Order<AfterDataloader>;
  using Parts = Order<BeforeForward>;
  using Stages = typename detail::StageSelection<Whole, Parts>::type;

  template <class... Ps>
  static std::tuple<detail::NodeOf<Ps>...> nodes_of(types<Ps...>);
  using Nodes = decltype(nodes_of(Stages{}));
  template <class... Ns>
  static Plan<Ns...> plan_of(const std::tuple<Ns...>&);
  using PlanType = decltype(plan_of(std::declval<Nodes>()));

  // The loss may be that of pairs of targets.
  static constexpr bool foldable =
      detail::targets_can_follow(Stages{}, typename Base::policies{}) &&
      detail::nobody_reads_targets<Stages>(Order<BeforeLoss>{}) &&
      detail::nobody_reads_targets<Stages>(Order<AfterLoss>{}) &&
      detail::nobody_reads_targets<Stages>(Order<BeforeBackward>{}) &&
      detail::nobody_reads_targets<Stages>(Order<AfterBackward>{});

  template <class P>
  static constexpr bool is_stage = ::tutti::detail::contains<P, Stages>;

  // What has been drawn and not been done yet.
  struct Drawn {
    Frame source;
    Frame frame;  // after the stages so far
    Nodes nodes;
    detail::Store store;
    bool pending = false;
  };

 public:
  using Base::Base;

  /// Passes may wait until BeforeForward: nothing but the policies sees batches before that.
  void allow_deferred(bool yes) { allow_deferred_ = yes; }

  /// As Base's.
  template <Event E>
  void fire(State& state) {
    if constexpr (std::is_same_v<E, AfterDataloader>) {
      whole_ = {};
      fire_drawing<E>(whole_, state, Whole{});
      if (whole_.pending && (!allow_deferred_ || !has_pass(state.device))) {
        run(whole_, state);
      }
    } else if constexpr (std::is_same_v<E, BatchStart>) {
      if (whole_.pending && somebody_reads<E>(state, Order<E>{})) {
        run(whole_, state);
      }
      Base::template fire<E>(state);
    } else if constexpr (::tutti::detail::contains<
                             E, types<BeforeTrainBatch, AfterTrainBatch, BatchEnd>>) {
      row_ = 0;
      if (whole_.pending && is_raw(state.batch.inputs()) && somebody_reads<E>(state, Order<E>{})) {
        Drawn shown = whole_;
        run(shown, state);
      }
      Base::template fire<E>(state);
    } else if constexpr (std::is_same_v<E, BeforeForward>) {
      pairs_.reset();
      if (whole_.pending) {
        begin_part(state.batch.inputs().size(0));
        fire_drawing<E>(part_, state, Parts{});
        if (part_.pending) {
          run(part_, state);
        }
      } else {
        Base::template fire<E>(state);
      }
    } else if constexpr (std::is_same_v<E, BeforeLoss> && foldable) {
      folded_ = pairs_ && folds(state);
      if (folded_) {
        smoothing_ = 0;
        fire_folded<E>(state, Order<E>{});
      } else {
        Base::template fire<E>(state);
      }
    } else if constexpr (std::is_same_v<E, AfterLoss> && foldable) {
      if (folded_) {
        fire_folded<E>(state, Order<E>{});
      } else {
        Base::template fire<E>(state);
      }
    } else {
      Base::template fire<E>(state);
    }
  }

  /// The loss of the microbatch: of pairs of targets where the policies that mix them left it to
  /// this, else the model's own.
  [[nodiscard]] Loss loss(const State& state) const {
    if (!folded_) {
      return state.task.loss(state.outputs, state.batch);
    }
    return functional::mixed_cross_entropy(state.outputs.tensor(), state.batch.targets(),
                                           pairs_->rows, pairs_->weights, smoothing_);
  }

  /// Who is fused, a line each, and who ends a pass before its time.
  [[nodiscard]] static std::string describe_fused() {
    std::string text = "fused, for batches of bytes:\n";
    detail::describe<AfterDataloader, Stages>(text, Whole{});
    detail::describe<BeforeForward, Stages>(text, Parts{});
    if (foldable) {
      text += "  loss: cross entropy of pairs of targets, none of them dense\n";
    }
    return text;
  }

 private:
  [[nodiscard]] static bool has_pass(const at::Device& device) {
    return device.is_cpu() || (detail::has_kernels && device.is_cuda());
  }
  [[nodiscard]] static bool is_raw(const at::Tensor& x) {
    return x.dim() == 4 && x.scalar_type() == at::kByte && has_pass(x.device());
  }

  template <class... Ps>
  [[nodiscard]] bool wanted(types<Ps...>) const {
    const auto says = [](const auto& policy) {
      if constexpr (requires { policy.fuse; }) {
        return policy.fuse;
      } else {
        return true;
      }
    };
    return (says(detail::unswitched(this->template get<Ps>())) && ...);
  }

  // ---- Drawing -------------------------------------------------------------------------------

  void begin_whole(const State& state) {
    const at::Tensor& x = state.batch.inputs();
    whole_.pending = is_raw(x) && wanted(Stages{});
    if (whole_.pending) {
      const double elapsed = state.progress().elapsed_fraction().value_or(0);
      whole_.frame = {x.size(0), x.size(1), x.size(2), x.size(3), elapsed};
      whole_.source = whole_.frame;
    }
  }

  // The next microbatch: they come in order, as Batch::split gives them.
  void begin_part(std::int64_t images) {
    TUTTI_CHECK(row_ + images <= whole_.source.images, "fused::Engine: microbatches have ",
                row_ + images, " examples of a batch of ", whole_.source.images);
    part_ = whole_;
    part_.source.images = part_.frame.images = images;
    std::apply(
        [&](auto&... node) { ((node = detail::rows_of(std::move(node), row_, images)), ...); },
        part_.nodes);
    row_ += images;
  }

  template <class P>
  static auto ask(P& policy, const Frame& frame, State& state) {
    using Node = PixelsOf<P>;
    if constexpr (detail::MayDecline<P>) {
      return std::optional<Node>(policy.pixels(frame, state));
    } else {
      return std::optional<Node>(policy.pixels(frame));
    }
  }

  // Lets a stage draw. Returns false when it has to run by itself.
  template <class E, class P>
  bool draw(Drawn& drawn, State& state) {
    if constexpr (std::is_same_v<E, AfterDataloader>) {
      if (!drawn.pending) {
        begin_whole(state);
      }
    }
    if (!drawn.pending || drawn.store.type != at::kFloat) {
      return false;
    }
    auto node = ask(detail::unswitched(this->template get<P>()), drawn.frame, state);
    if (!node) {
      return false;
    }
    drawn.frame = after(drawn.frame, *node);
    std::get<place<P>()>(drawn.nodes) = std::move(*node);
    return true;
  }

  template <class P>
  static consteval std::size_t place() {
    return []<class... Ps>(types<Ps...>) { return detail::index<P, Ps...>(); }(Stages{});
  }

  // Base's fire(), but that stages draw, and that others find what was drawn done.
  template <class E, class... Ps>
  void fire_drawing(Drawn& drawn, State& state, types<Ps...>) {
    this->template record_fired<E>();
    [[maybe_unused]] const std::array<bool, sizeof...(Ps)> runs{
        (role_of<Ps> == Role::algorithm ? this->template asked<E, Ps>(state) : true)...};
    [[maybe_unused]] std::size_t i = 0;
    (fire_drawing_one<E, Ps>(runs[i++], drawn, state), ...);
  }

  template <class E, class P>
  void fire_drawing_one(bool runs, Drawn& drawn, State& state) {
    if constexpr (Matches<P, E>) {
      runs = role_of<P> == Role::algorithm ? runs : this->template asked<E, P>(state);
    }
    if (!runs) {
      return;
    }
    if constexpr (is_stage<P>) {
      if (draw<E, P>(drawn, state)) {
        this->template record_run<E, P>();
        return;
      }
    }
    if (drawn.pending) {
      if (detail::leave_to_pass(this->template get<P>(), state, drawn.store)) {
        this->template record_run<E, P>();
        return;
      }
      if (detail::reads(this->template get<P>(), state)) {
        run(drawn, state);
      }
    }
    this->template record_run<E, P>();
    this->template get<P>().apply(E{}, state);
  }

  // ---- Running -------------------------------------------------------------------------------

  [[nodiscard]] static PlanType plan(const Drawn& drawn) {
    return std::apply([&](const auto&... node) { return PlanType(drawn.source, node...); },
                      drawn.nodes);
  }

  // Replaces the raw images by what the stages so far make of them.
  void run(Drawn& drawn, State& state) {
    drawn.pending = false;
    const PlanType now = plan(drawn);
    at::Tensor& x = state.batch.inputs();
    const auto [n, channels, height, width, elapsed] = now.frame();
    const at::MemoryFormat format = drawn.store.format(x, now.frame());
    if (x.is_cpu()) {
      const at::Tensor out = memory_.tensor({n, channels, height, width}, drawn.store.type, format);
      now.run(x, out);
      x = out;
    } else {
      x = now(x, format, drawn.store.type);
    }
    if constexpr (foldable) {
      if (&drawn == &part_ && mixes_now(Stages{}) && state.task.has_cross_entropy()) {
        pairs_ = now.targets();
      }
    }
  }

  // Callbacks that ask when it is their turn count as reading.
  template <class E, class... Ps>
  [[nodiscard]] bool somebody_reads(const State& state, types<Ps...>) const {
    return ((detail::reads(this->template get<Ps>(), state) &&
             (role_of<Ps> != Role::algorithm || this->template asked<E, Ps>(state))) ||
            ...);
  }

  // ---- Targets -------------------------------------------------------------------------------

  template <class P>
  [[nodiscard]] bool mixes() const {
    if constexpr (detail::Mixer<P>) {
      return std::get<place<P>()>(part_.nodes).indices.defined();
    } else {
      return false;
    }
  }
  template <class... Ps>
  [[nodiscard]] bool mixes_now(types<Ps...>) const {
    return (mixes<Ps>() || ...);
  }

  // The loss can be that of the pairs: all that mixes is in the pass and mixes targets alike.
  [[nodiscard]] bool folds(const State& state) const {
    if (state.outputs.size() != 1 || !state.batch.has_targets()) {
      return false;
    }
    const at::Tensor& logits = state.outputs.tensor();
    const at::Tensor& targets = state.batch.targets();
    return logits.dim() == 2 && logits.is_floating_point() && targets.dim() == 1 &&
           targets.size(0) == logits.size(0) && functional::is_index_targets(targets) &&
           follow(state, Order<BeforeLoss>{}) && mixers_follow(state, Stages{});
  }
  template <class... Ps>
  [[nodiscard]] bool follow(const State& state, types<Ps...>) const {
    return (follows<Ps>(state) && ...);
  }
  template <class P>
  [[nodiscard]] bool follows(const State& state) const {
    if constexpr (detail::TargetsFollow<P>) {
      return !this->template asked<BeforeLoss, P>(state) ||
             detail::unswitched(this->template get<P>()).targets_follow(state);
    } else {
      return true;
    }
  }
  // Who has mixed images mixes targets, and nobody else.
  template <class... Ps>
  [[nodiscard]] bool mixers_follow(const State& state, types<Ps...>) const {
    const auto one = [&]<class P>(std::type_identity<P>) {
      if constexpr (!detail::Mixer<P>) {
        return true;
      } else if constexpr (!Handles<P, BeforeLoss>) {
        return !mixes<P>();
      } else {
        return mixes<P>() == this->template asked<BeforeLoss, P>(state);
      }
    };
    return (one(std::type_identity<Ps>{}) && ...);
  }

  // Base's fire() but for what the folded loss does.
  template <class E, class... Ps>
  void fire_folded(State& state, types<Ps...>) {
    this->template record_fired<E>();
    [[maybe_unused]] const std::array<bool, sizeof...(Ps)> runs{
        (role_of<Ps> == Role::algorithm ? this->template asked<E, Ps>(state) : true)...};
    [[maybe_unused]] std::size_t i = 0;
    (fire_folded_one<E, Ps>(runs[i++], state), ...);
  }
  template <class E, class P>
  void fire_folded_one(bool runs, State& state) {
    if constexpr (Matches<P, E>) {
      runs = role_of<P> == Role::algorithm ? runs : this->template asked<E, P>(state);
    }
    if (!runs) {
      return;
    }
    this->template record_run<E, P>();
    if constexpr (detail::Smoother<P>) {
      smoothing_ = detail::unswitched(this->template get<P>()).smoothing;
    } else if constexpr (!detail::Mixer<P>) {
      this->template get<P>().apply(E{}, state);
    }
  }

  Drawn whole_;           // for the whole batch
  Drawn part_;            // for a microbatch
  std::int64_t row_ = 0;  // of the whole batch, where the next microbatch begins
  bool allow_deferred_ = false;
  std::optional<MixedTargets> pairs_;
  tutti::detail::BatchMemory memory_;
  double smoothing_ = 0;
  bool folded_ = false;  // the loss of this microbatch is that of the pairs
};

}  // namespace tutti::fused
