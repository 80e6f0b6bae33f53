#include <tutti/core/recipe.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <tutti/core/logger.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::AfterDataloader;
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
  void apply(AfterDataloader, State&) {}
  void apply(AfterForward, State&) {}
  void apply(EvalAfterForward, State&) {}
  void apply(BatchEnd, State&) {}
};
struct A final : Acts<0> {};
struct B final : Acts<1> {};
struct C final : Acts<2> {};

template <int N>
struct AtLoss final {
  void apply(tutti::AfterLoss, State&) {}
};

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

struct First final : Acts<9> {
  static constexpr tutti::Rules rules{.runs_first = {tutti::id<AfterDataloader>}};
};
struct Last final : Acts<10> {
  static constexpr tutti::Rules rules{.runs_last = {tutti::id<AfterDataloader>, tutti::id<Init>}};
};
struct AfterLast final : Acts<11> {
  static constexpr tutti::Rules rules{
      .runs_after = {{tutti::id<Last>, "it copies what Last has made"}},
  };
};
struct Warns final : Acts<12> {
  static constexpr tutti::Rules rules{.warns_with = {{tutti::id<A>, "they are opposed"}}};
};

struct mixes {};
struct Mixer final : Acts<3> {
  static constexpr tutti::Rules rules{.tags = {tutti::id<mixes>}};
};
struct AfterMixing final : Acts<4> {
  static constexpr tutti::Rules rules{.runs_after = {{tutti::id<mixes>}}};
};
struct BeforeA final : Acts<5> {
  static constexpr tutti::Rules rules{.runs_before = {{tutti::id<A>}}};
};
struct Plain final {
  static constexpr tutti::Rules rules{
      .tags = {tutti::id<mixes>, tutti::id<tutti::clips_gradients>}};
  void apply(BatchEnd, State&) {}
};
struct Norms final : Acts<13> {
  static constexpr tutti::Rules rules{.tags = {tutti::id<tutti::LowPrecisionLayerNorm>}};
};
struct Selects final : Acts<14> {
  static constexpr tutti::Rules rules{.tags = {tutti::id<tutti::SelectiveBackprop>}};
};
struct NeedsMixing final : Acts<6> {
  static constexpr tutti::Rules rules{.requires_policy = {{tutti::id<mixes>}}};
};
struct NotWithNobody final : Acts<7> {
  static constexpr tutti::Rules rules{.conflicts_with = {{tutti::id<mixes>}}};
};
struct RulesAboutItself final : Acts<8> {
  static constexpr tutti::Rules rules{
      .tags = {tutti::id<mixes>},
      .runs_after = {{tutti::id<mixes>}},
      .conflicts_with = {{tutti::id<mixes>}},
  };
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

TEST_CASE("algorithms run in reverse where an event undoes what an earlier one did",
          "[core][recipe][law]") {
  STATIC_REQUIRE(is<order<AfterForward, A, B, C>, C, B, A>);
  STATIC_REQUIRE(is<order<tutti::AfterLoss, AtLoss<0>, AtLoss<1>>, AtLoss<1>, AtLoss<0>>);
  STATIC_REQUIRE(is<order<AfterDataloader, A, B, C>, A, B, C>);
  STATIC_REQUIRE(is<order<EvalAfterForward, A, B, C>, A, B, C>);
  STATIC_REQUIRE(is<order<BatchEnd, A, B, C>, A, B, C>);
}

TEST_CASE("pins put algorithms first and last at their events alone", "[core][recipe][law]") {
  STATIC_REQUIRE(is<order<AfterDataloader, Last, A, First>, First, A, Last>);
  STATIC_REQUIRE(is<order<BeforeForward, Last, A, First>, Last, A, First>);
  STATIC_REQUIRE(is<order<Init, Last, A, First>, A, First, Last>);
}

TEST_CASE("who must run after the last runs after it, and behind everybody else",
          "[core][recipe][law]") {
  STATIC_REQUIRE(is<order<Init, AfterLast, Last, A>, A, Last, AfterLast>);
  STATIC_REQUIRE(is<order<BeforeForward, AfterLast, Last, A>, Last, AfterLast, A>);
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

TEST_CASE("reference_order orders as the reference does and takes no part", "[core][recipe][law]") {
  using tutti::reference_order;
  STATIC_REQUIRE(is<order<BeforeForward, reference_order, A, BeforeA>, A, BeforeA>);
  STATIC_REQUIRE(is<order<AfterForward, A, BeforeA, reference_order>, BeforeA, A>);
  STATIC_REQUIRE(is<order<AfterDataloader, reference_order, A, First, B>, B, First, A>);
  STATIC_REQUIRE(
      is<order<BeforeForward, reference_order, Norms, A, Selects, B>, Selects, A, B, Norms>);
  STATIC_REQUIRE(
      is<order<AfterDataloader, reference_order, Norms, A, Selects, B>, Norms, B, A, Selects>);
  STATIC_REQUIRE(Recipe<A, reference_order>::valid);
}

TEST_CASE("accept, by type or by tag, silences a warning", "[core][recipe]") {
  STATIC_REQUIRE(tutti::detail::warnings<Warns, A>.size == 1);
  STATIC_REQUIRE(tutti::detail::warnings<A, Warns>.size == 1);
  STATIC_REQUIRE(tutti::detail::warnings<Warns, B>.size == 0);
  STATIC_REQUIRE(tutti::detail::warnings<Warns, A, tutti::accept<A, Warns>>.size == 0);
  STATIC_REQUIRE(tutti::detail::warnings<Warns, A, tutti::accept<B, Warns>>.size == 1);
  STATIC_REQUIRE(Recipe<Warns, A, tutti::accept<Warns, A>>::valid);
}

TEST_CASE("a recipe describes who runs when and why", "[core][recipe][trace]") {
  constexpr std::string_view text = Recipe<AfterLast, Last, Watcher, Plain>::describe();
  STATIC_REQUIRE(text.starts_with("recipe: AfterLast, Last, Watcher, Plain\nevents:\n"));
  CHECK(std::string(text) ==
        "recipe: AfterLast, Last, Watcher, Plain\n"
        "events:\n"
        "  init: Watcher, Last, AfterLast\n"
        "  after_dataloader: Last, AfterLast\n"
        "  before_forward: Last, AfterLast\n"
        "  after_forward: AfterLast, Last, Watcher\n"
        "  batch_end: Last, AfterLast, Plain\n"
        "  eval_after_forward: Last, AfterLast\n"
        "policies:\n"
        "  AfterLast (algorithm)\n"
        "  Last (algorithm)\n"
        "  Watcher (callback)\n"
        "  Plain (algorithm): mixes, clips_gradients\n"
        "rules:\n"
        "  AfterLast runs after Last, because it copies what Last has made\n"
        "  Last runs last at after_dataloader\n"
        "  Last runs last at init\n");
  CHECK(std::string(Recipe<>::describe()) == "recipe: (no policies)\n");
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

}  // namespace UNITY_BUILD_UNIQUE_ID
