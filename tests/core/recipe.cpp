#include <tutti/core/recipe.hpp>

#include <cstdint>
#include <span>
#include <type_traits>

#include <tutti/core/logger.hpp>

#include "support/catch.hpp"

namespace {

using tutti::AfterForward;
using tutti::BatchEnd;
using tutti::BeforeForward;
using tutti::EvalAfterForward;
using tutti::Init;
using tutti::Recipe;
using tutti::State;
using tutti::types;

// Acts on one event of each kind that the order rules tell apart.
template <int N>
struct Acts {
  void apply(Init, State&) {}
  void apply(BeforeForward, State&) {}
  void apply(AfterForward, State&) {}
  void apply(EvalAfterForward, State&) {}
  void apply(BatchEnd, State&) {}
};
struct A final : Acts<0> {};
struct B final : Acts<1> {};
struct C final : Acts<2> {};

struct Watcher final {
  void apply(Init, const State&) {}
  void apply(AfterForward, const State&) {}
};
struct OtherWatcher final {
  void apply(Init, const State&) {}
  void apply(AfterForward, const State&) {}
};
struct Listener final {
  void log_metrics(std::span<const tutti::LoggedMetric>, std::int64_t) {}
  void apply(Init, State&) {}
  void apply(AfterForward, State&) {}
};

struct mixes {};
struct Mixer final : Acts<3> {
  using tags = types<mixes>;
};
struct AfterMixing final : Acts<4> {
  using runs_after = types<mixes>;
};
struct BeforeA final : Acts<5> {
  using runs_before = types<A>;
};
struct NeedsMixing final : Acts<6> {
  using requires_policy = types<mixes>;
};
struct NotWithNobody final : Acts<7> {
  using conflicts_with = types<mixes>;
};
struct RulesAboutItself final : Acts<8> {
  using tags = types<mixes>;
  using runs_after = types<mixes>;
  using conflicts_with = types<mixes>;
};

template <class Got, class... Expected>
constexpr bool is = std::is_same_v<Got, types<Expected...>>;

template <class E, class... Ps>
using order = typename Recipe<Ps...>::template order<E>;

}  // namespace

TEST_CASE("algorithms run in the order listed", "[core][recipe][law]") {
  STATIC_REQUIRE(is<order<BeforeForward, B, A, C>, B, A, C>);
  STATIC_REQUIRE(is<order<Init, B, A, C>, B, A, C>);
  STATIC_REQUIRE(is<order<BatchEnd, B, A, C>, B, A, C>);
}

TEST_CASE("events whose name begins with after_ run algorithms in reverse, others do not",
          "[core][recipe][law]") {
  STATIC_REQUIRE(is<order<AfterForward, A, B, C>, C, B, A>);
  STATIC_REQUIRE(is<order<EvalAfterForward, A, B, C>, A, B, C>);
  STATIC_REQUIRE(is<order<BatchEnd, A, B, C>, A, B, C>);
}

TEST_CASE("algorithms run before callbacks and callbacks before loggers, at Init the other way",
          "[core][recipe][law]") {
  STATIC_REQUIRE(is<order<AfterForward, Listener, Watcher, A, OtherWatcher, B>, B, A, Watcher,
                    OtherWatcher, Listener>);
  STATIC_REQUIRE(is<order<Init, A, Watcher, B, Listener, OtherWatcher>, Listener, Watcher,
                    OtherWatcher, A, B>);
}

TEST_CASE("only those that act on an event are in its order", "[core][recipe]") {
  STATIC_REQUIRE(is<order<BeforeForward, Watcher, A>, A>);
  STATIC_REQUIRE(is<order<tutti::FitStart, Watcher, A>>);
  STATIC_REQUIRE(is<order<BeforeForward>>);
  STATIC_REQUIRE(Recipe<A, Watcher>::handles<BeforeForward>);
  STATIC_REQUIRE(!Recipe<Watcher>::handles<BeforeForward>);
  STATIC_REQUIRE(!Recipe<>::handles<Init>);
}

TEST_CASE("order rules by type and by tag move no more than they must", "[core][recipe][law]") {
  STATIC_REQUIRE(is<order<BeforeForward, A, B, BeforeA>, B, BeforeA, A>);
  STATIC_REQUIRE(is<order<BeforeForward, AfterMixing, A, Mixer, B>, A, Mixer, AfterMixing, B>);
  STATIC_REQUIRE(is<order<AfterForward, AfterMixing, A, Mixer, B>, B, AfterMixing, Mixer, A>);
  STATIC_REQUIRE(
      is<order<BeforeForward, Mixer, AfterMixing, BeforeA, A>, Mixer, AfterMixing, BeforeA, A>);
  STATIC_REQUIRE(is<order<BeforeForward, AfterMixing, A, B>, AfterMixing, A, B>);
}

TEST_CASE("reference_order switches the rules off, keeps the reversal, and takes no part",
          "[core][recipe][law]") {
  STATIC_REQUIRE(is<order<BeforeForward, tutti::reference_order, A, BeforeA>, A, BeforeA>);
  STATIC_REQUIRE(is<order<AfterForward, A, BeforeA, tutti::reference_order>, BeforeA, A>);
  STATIC_REQUIRE(Recipe<A, tutti::reference_order>::valid);
}

TEST_CASE("a recipe knows what it contains, by type and by tag", "[core][recipe]") {
  STATIC_REQUIRE(Recipe<A, Mixer>::has<A>);
  STATIC_REQUIRE(Recipe<A, Mixer>::has<mixes>);
  STATIC_REQUIRE(!Recipe<A, B>::has<mixes>);
  STATIC_REQUIRE(!Recipe<>::has<A>);
  STATIC_REQUIRE(Recipe<>::size == 0);
  STATIC_REQUIRE(Recipe<A, Mixer>::size == 2);
}

TEST_CASE("requirements and conflicts are met by type or tag, and nobody is its own enemy",
          "[core][recipe]") {
  STATIC_REQUIRE(Recipe<NeedsMixing, Mixer>::valid);
  STATIC_REQUIRE(Recipe<NotWithNobody, A>::valid);
  STATIC_REQUIRE(!tutti::detail::can_be_combined<NotWithNobody, Mixer>);
  STATIC_REQUIRE(!tutti::detail::can_be_combined<Mixer, NotWithNobody>);
  STATIC_REQUIRE(tutti::detail::can_be_combined<NotWithNobody, A>);
  STATIC_REQUIRE(Recipe<RulesAboutItself, A>::valid);
}

TEST_CASE("the sort is stable and finds the members of a cycle in running order",
          "[core][recipe][law]") {
  using tutti::detail::Edges;
  constexpr Edges<4> none{};
  STATIC_REQUIRE(tutti::detail::sort<4>(none).index == std::array<std::size_t, 4>{0, 1, 2, 3});

  constexpr Edges<4> last_first{{{}, {}, {}, {{true, false, false, false}}}};
  STATIC_REQUIRE(tutti::detail::sort<4>(last_first).index ==
                 std::array<std::size_t, 4>{1, 2, 3, 0});

  // 0 before 2, 2 before 3, 3 before 0; 1 is free.
  constexpr Edges<4> round{{{{false, false, true, false}},
                            {},
                            {{false, false, false, true}},
                            {{true, false, false, false}}}};
  STATIC_REQUIRE(tutti::detail::sort<4>(round).size == 1);
  constexpr auto cycle = tutti::detail::cycle<4>(round);
  STATIC_REQUIRE(cycle.size == 3);
  for (std::size_t k = 0; k < cycle.size; ++k) {
    CHECK(round[cycle.index[k]][cycle.index[(k + 1) % cycle.size]]);
  }
}
