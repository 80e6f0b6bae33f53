#include <tutti/core/graphs.hpp>

#include "support/catch.hpp"

#include <string_view>
#include <type_traits>

#include <tutti/core/switch.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::Equals;

namespace {

struct Penalty final {
  static constexpr Rules rules{.graph = {.in = {id<AfterLoss>}}};
  void apply(AfterLoss, State&) const {}
};
struct Mixer final {
  static constexpr Rules rules{
      .graph = {.ahead = {id<BeforeLoss>}, .instead = {id<BeforeBackward>}},
  };
  void apply(BeforeForward, State&) {}
  void apply(BeforeLoss, State&) const {}
  void apply(BeforeBackward, State&) const {}
  bool match(BeforeBackward, const State&) const { return false; }
};
struct Restorer final {
  static constexpr Rules rules{.graph = {.behind = {id<AfterLoss>}}};
  void apply(AfterLoss, State&) const {}
};
struct Watcher final {
  void apply(AfterLoss, const State&) {}
  void apply(AfterForward, const State&) {}
};
struct Noise final {
  void apply(AfterBackward, State&) const {}
};
struct Around final {
  void apply(AfterDataloader, State&) const {}
  void apply(BeforeForward, State&) const {}
  void apply(AfterTrainBatch, State&) const {}
};
struct Unknown final {
  void apply(AfterForward, State&) const {}
};
struct NoMatch final {
  static constexpr Rules rules{.graph = {.instead = {id<AfterLoss>}}};
  void apply(AfterLoss, State&) const {}
};
struct Drawing final {
  static constexpr About about{.no_graph = "draws on the host"};
  void apply(Init, State&) const {}
};

template <class... Ps>
using PlanOf = GraphPlan<Recipe<Ps...>>;

static_assert(PlanOf<>::possible);
static_assert(PlanOf<Around, Mixer, Restorer, Penalty, Watcher, Noise>::possible);
static_assert(!PlanOf<Unknown>::possible && !PlanOf<Drawing>::possible &&
              !PlanOf<NoMatch>::possible);
static_assert(PlanOf<Switch<Mixer>, Switch<Watcher>>::possible &&
              !PlanOf<Switch<Drawing>>::possible);
static_assert(PlanOf<const Watcher>::possible);

using All = PlanOf<Mixer, Restorer, Penalty, Watcher, Noise>;
static_assert(std::is_same_v<All::ahead<BeforeLoss>, types<Mixer>>);
static_assert(std::is_same_v<All::instead<BeforeBackward>, types<Mixer>>);
static_assert(std::is_same_v<All::inside<AfterLoss>, types<Penalty>>);
static_assert(std::is_same_v<All::behind<AfterLoss>, types<Restorer, Watcher>>);
static_assert(std::is_same_v<All::behind<AfterBackward>, types<Noise>>);
static_assert(std::is_same_v<All::behind<AfterForward>, types<Watcher>>);

}  // namespace

TEST_CASE("a recipe that cannot have graphs names the policy in the way", "[core][graphs]") {
  CHECK(PlanOf<Around>::why_not().empty());
  CHECK_THAT(PlanOf<Drawing>::why_not(), Equals("Drawing draws on the host"));
  CHECK_THAT((PlanOf<Around, Unknown, Drawing>::why_not()), Equals("Drawing draws on the host"));
  CHECK_THAT((PlanOf<Around, Unknown>::why_not()),
             Equals("Unknown acts on after_forward, between the forward and the end of the "
                    "backward pass, and does not say where its hook runs beside a graph "
                    "(rules.graph: .in, .ahead, .behind)"));
}

TEST_CASE("a hook that is called behind the graph has none of the graph after it",
          "[core][graphs]") {
  // Algorithms run the other way round at AfterLoss.
  STATIC_REQUIRE(PlanOf<Restorer, Penalty>::possible);
  STATIC_REQUIRE(!PlanOf<Penalty, Restorer>::possible);
  CHECK_THAT((PlanOf<Penalty, Restorer>::why_not()),
             Equals("Penalty acts on after_loss after Restorer, and its hook would have to run "
                    "before that one's (rules.graph: .ahead, .in and .behind run in this order)"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
