// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <tutti/core/detail/switched.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/state.hpp>
#include <tutti/fused/detail/order.hpp>
#include <tutti/fused/detail/segments.hpp>
#include <tutti/fused/pixels.hpp>

/// Which policies of a recipe are stages of its fused pass.
namespace tutti::fused::detail {

using ::tutti::detail::Unswitched;
using ::tutti::detail::unswitched;

template <class P>
using NodeOf = PixelsOf<Unswitched<P>>;

/// `P` changes inputs at `E`, and only there, as its pixel expression says.
template <class P, class E>
concept ActsAsStage = Fusible<Unswitched<P>> && Handles<P, E> &&
                      !(Handles<P, AfterDataloader> && Handles<P, BeforeForward>);

enum class Kind { none, scale, crops, flips, mix, paste, free };

template <class P, class E>
consteval Kind kind() {
  if constexpr (!ActsAsStage<P, E>) {
    return Kind::none;
  } else {
    using Node = NodeOf<P>;
    return std::is_same_v<Node, Scale>   ? Kind::scale
           : std::is_same_v<Node, Crops> ? Kind::crops
           : std::is_same_v<Node, Flips> ? Kind::flips
           : std::is_same_v<Node, Mix>   ? Kind::mix
           : std::is_same_v<Node, Paste> ? Kind::paste
                                         : Kind::free;
  }
}

/// Hooks of `P` may look at state.batch: it does not say that it never does, and is no logger.
template <class P>
concept MayRead = policy_traits<P>::about.reads_batch && role_of<P> != Role::logger;

/// The same of one policy at this moment, whose `reads_batch(state)` may know.
template <class P>
bool reads(const P& policy, const State& state) {
  if constexpr (tutti::detail::KnowsWhenItReads<Unswitched<P>>) {
    return unswitched(policy).reads_batch(state);
  } else {
    return MayRead<P>;
  }
}

/// How a pass writes the images.
struct Store {
  at::ScalarType type = at::kFloat;
  bool channels_last = false;

  /// As the raw images lie, unless channels last are wanted and make a difference.
  [[nodiscard]] at::MemoryFormat format(const at::Tensor& raw, const Frame& out) const {
    const bool matters = out.channels > 1 && out.height * out.width > 1;
    return channels_last && matters ? at::MemoryFormat::ChannelsLast : raw.suggest_memory_format();
  }
};

/// `P` can say that it only stores images otherwise.
template <class P>
concept Stores =
    tutti::detail::WantsChannelsLast<Unswitched<P>> || tutti::detail::WantsType<Unswitched<P>>;

/// Whether all that `P` would do to the images is to store them otherwise, which `store` then says.
template <class P>
bool leave_to_pass(const P& policy, const State& state, Store& store) {
  if constexpr (tutti::detail::WantsChannelsLast<Unswitched<P>>) {
    const bool wants = unswitched(policy).wants_channels_last(state);
    store.channels_last = store.channels_last || wants;
    return wants;
  } else if constexpr (tutti::detail::WantsType<Unswitched<P>>) {
    const auto type = unswitched(policy).wants_type(state);
    store.type = type.value_or(store.type);
    return type.has_value();
  } else {
    return false;
  }
}

/// `P` decides batch by batch whether its pixels can be fused.
template <class P>
concept MayDecline = requires(Unswitched<P>& policy, const Frame& frame, State& state) {
  policy.pixels(frame, state);
};

struct Candidate {
  Kind kind;
  bool reads;
  bool may_decline;
};
template <class P, class E>
inline constexpr Candidate candidate{kind<P, E>(), MayRead<P>, MayDecline<P>};

template <std::size_t N>
struct Selection {
  std::array<std::size_t, N> index{};
  std::size_t size = 0;
};

/// Those that fit into one pass, as Order demands: the first `whole` ones act on whole batches, of
/// which only microbatches are mixed. None without a Scale; before it nothing that could end the
/// pass, which gives floats.
template <std::size_t N>
consteval Selection<N> select_stages(const std::array<Candidate, N>& all, std::size_t whole) {
  Selection<N> out;
  bool scaled = false;
  bool mixed = false;
  bool cropped = false;
  bool flipped = false;
  bool others = false;
  for (std::size_t i = 0; i < N; ++i) {
    const Kind k = all[i].kind;
    const bool fits = k == Kind::scale   ? !scaled && i < whole
                      : k == Kind::crops ? !cropped && !others
                      : k == Kind::flips ? !flipped && !others
                      : k == Kind::mix   ? scaled && !mixed && i >= whole
                      : k == Kind::paste ? i >= whole
                                         : k == Kind::free;
    if (fits && (scaled || k == Kind::scale || !all[i].may_decline)) {
      out.index[out.size++] = i;
      scaled = scaled || k == Kind::scale;
      mixed = mixed || k == Kind::mix;
      cropped = cropped || k == Kind::crops;
      flipped = flipped || k == Kind::flips;
      others = others || (k != Kind::crops && k != Kind::flips);
    } else if (!scaled && all[i].reads) {
      out.size = 0;
      cropped = flipped = others = false;
    }
  }
  return scaled ? out : Selection<N>{};
}

/// The stages among policies that act AfterDataloader and those that act BeforeForward, in order.
template <class Whole, class Parts>
struct StageSelection;
template <class... Ws, class... Ps>
struct StageSelection<types<Ws...>, types<Ps...>> {
  static constexpr auto selected = select_stages<sizeof...(Ws) + sizeof...(Ps)>(
      {candidate<Ws, AfterDataloader>..., candidate<Ps, BeforeForward>...}, sizeof...(Ws));
  template <std::size_t... I>
  static consteval auto list(std::index_sequence<I...>) {
    return types<::tutti::detail::nth<selected.index[I], Ws..., Ps...>...>{};
  }
  using type = decltype(list(std::make_index_sequence<selected.size>{}));
};

/// `P` mixes examples by its pixel expression.
template <class P>
concept Mixer = Fusible<Unswitched<P>> && Mixes<NodeOf<P>>;

/// What `P` does to targets BeforeLoss is the share of a plan's targets that is its own, and it
/// knows when that holds.
template <class P>
concept TargetsFollow = tutti::detail::TargetsFollow<Unswitched<P>>;

/// `P` blends the targets with the uniform distribution.
template <class P>
concept Smoother = TargetsFollow<P> && !Mixer<P> && requires(const Unswitched<P>& policy) {
  { policy.smoothing } -> std::convertible_to<double>;
};

/// Somebody mixes targets as well as inputs, and at most one smooths them.
template <class... Stages, class... Ps>
consteval bool targets_can_follow(types<Stages...>, types<Ps...>) {
  return ((Mixer<Stages> && TargetsFollow<Stages>) || ...) && (0 + ... + int{Smoother<Ps>}) <= 1;
}

/// Nobody but who mixes and smooths the targets that the loss is computed with sees them.
template <class Stages, class... Ps>
consteval bool nobody_reads_targets(types<Ps...>) {
  return ((!MayRead<Ps> || Smoother<Ps> ||
           (::tutti::detail::contains<Ps, Stages> && Mixer<Ps> && TargetsFollow<Ps>)) &&
          ...);
}

/// A line for each of the stages at `E`, and for who ends a pass there.
template <class E, class Stages, class... Ps>
void describe(std::string& text, types<Ps...>) {
  const auto one = [&]<class P>(std::type_identity<P>) {
    constexpr bool is_stage = ::tutti::detail::contains<P, Stages>;
    if constexpr (is_stage || MayRead<P>) {
      text.append("  ").append(E::name).append(" ").append(name_of<P>()).append(": ");
      if constexpr (is_stage) {
        text.append(NodeOf<P>::formula).append("\n");
      } else if constexpr (Stores<P>) {
        text.append("how the pass stores images\n");
      } else {
        text.append("not fused; when it runs, what was drawn before it is done first\n");
      }
    }
  };
  (one(std::type_identity<Ps>{}), ...);
}

/// The rows [first, first + n) of what was drawn for a batch.
template <class Node>
Node rows_of(Node node, std::int64_t first, std::int64_t n) {
  const auto keep = [&](auto& values) {
    values.erase(values.begin() + first + n, values.end());
    values.erase(values.begin(), values.begin() + first);
  };
  if constexpr (std::is_same_v<Node, Holes>) {
    if (node.boxes.size() > 1) {
      keep(node.boxes);
    }
  } else if constexpr (std::is_same_v<Node, Crops>) {
    if (!node.corners.empty()) {
      keep(node.corners);
    }
  } else if constexpr (std::is_same_v<Node, Flips>) {
    if (!node.flipped.empty()) {
      keep(node.flipped);
    }
  }
  return node;
}

}  // namespace tutti::fused::detail
