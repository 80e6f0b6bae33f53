#include <tutti/core/rule.hpp>

#include <string_view>

#include "support/catch.hpp"

namespace tutti {
struct BlurPool;  // declared only, as in rules of policies that do not include each other
}

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;

struct tag {};
template <class... Layer>
struct kind {};

struct Speaks final {
  using events = types<BatchStart, BatchEnd>;
  static constexpr Rules rules{
      .tags = {id<tag>},
      .runs_before = {{id<BlurPool>, "it says so"}, {id<kind<int>>}},
      .runs_last = ids<events>,
      .graph = {.ahead = {id<BeforeLoss>}},
  };
  static constexpr About about{.reads_batch = false, .no_graph = "draws on the host"};
};
// GCC 12 refuses less in a class than in a template of one.
template <class Other>
struct OfTemplate final {
  static constexpr Rules rules{
      .tags = {id<tag>, id<Other>},
      .runs_after = {{id<Other>, "another one"}, {id<OfTemplate>}},
      .graph = {.in = {id<AfterLoss>}, .instead = {id<BeforeLoss>, id<AfterLoss>}},
  };
  static constexpr About about{.fuses_into_step = {id<BatchEnd>},
                               .no_sharding = "it needs the whole"};
};

constexpr bool same(Id a, Id b) {
  return a == b;
}

}  // namespace

TEST_CASE("the id of a type is the same as itself and as no other's", "[core][rule][law]") {
  STATIC_REQUIRE(same(id<tag>, id<tag>));
  STATIC_REQUIRE(same(id<BlurPool>, id<BlurPool>));
  STATIC_REQUIRE(!same(id<tag>, id<BlurPool>));
  STATIC_REQUIRE(!same(id<kind<int>>, id<kind<long>>));
  STATIC_REQUIRE(id<tag>.name() == "tag");
  STATIC_REQUIRE(id<BlurPool>.name() == "BlurPool");
  STATIC_REQUIRE(id<kind<BlurPool, tag>>.name() == "kind");
}

TEST_CASE("the id of an event is its place among all events", "[core][rule][law]") {
  STATIC_REQUIRE(id<Init> == static_cast<EventId>(0));
  STATIC_REQUIRE(id<PredictEnd> == static_cast<EventId>(all_events::size - 1));
  STATIC_REQUIRE(id<BatchEnd> != id<BatchStart>);
  STATIC_REQUIRE(to_string(id<BatchEnd>) == "batch_end");
  STATIC_REQUIRE(ids<all_events>.size() == all_events::size);
  STATIC_REQUIRE(ids<types<>>.size() == 0);
}

TEST_CASE("rules can be read back while the program is compiled", "[core][rule]") {
  STATIC_REQUIRE(Speaks::rules.runs_before.size() == 2);
  STATIC_REQUIRE(same(Speaks::rules.runs_before.begin()->id, id<BlurPool>));
  STATIC_REQUIRE(std::string_view(Speaks::rules.runs_before.begin()->reason) == "it says so");
  STATIC_REQUIRE(std::string_view(Speaks::rules.runs_before.begin()[1].reason).empty());
  STATIC_REQUIRE(Speaks::rules.runs_after.size() == 0);
  STATIC_REQUIRE(Speaks::rules.runs_last.begin()[1] == id<BatchEnd>);
  STATIC_REQUIRE(detail::holds(Speaks::rules.graph.ahead, id<BeforeLoss>));
  STATIC_REQUIRE(!detail::holds(Speaks::rules.graph.in, id<BeforeLoss>));
  STATIC_REQUIRE(!Speaks::about.reads_batch);
  STATIC_REQUIRE(Speaks::about.reads_gradients);
  STATIC_REQUIRE(Speaks::about.no_graph == "draws on the host");
}

TEST_CASE("so can those of a template", "[core][rule]") {
  using Of = OfTemplate<BlurPool>;
  STATIC_REQUIRE(same(Of::rules.tags.begin()[1], id<BlurPool>));
  STATIC_REQUIRE(same(Of::rules.runs_after.begin()[1].id, id<Of>));
  STATIC_REQUIRE(!same(Of::rules.runs_after.begin()[1].id, id<OfTemplate<tag>>));
  STATIC_REQUIRE(detail::holds(Of::rules.graph.instead, id<AfterLoss>));
  STATIC_REQUIRE(detail::holds(Of::about.fuses_into_step, id<BatchEnd>));
  STATIC_REQUIRE(Of::about.no_sharding == "it needs the whole");
}

TEST_CASE("rules and reasons are there when the program runs", "[core][rule]") {
  const Rules& rules = OfTemplate<BlurPool>::rules;
  CHECK(std::string_view(rules.runs_after.begin()->reason) == "another one");
  CHECK(rules.runs_after.begin()[1].id.mark == id<OfTemplate<BlurPool>>.mark);
  CHECK(rules.runs_after.begin()[1].id.name() == "OfTemplate");
}

TEST_CASE("what speaks of a recipe is no policy", "[core][rule]") {
  STATIC_REQUIRE(detail::is_directive<reference_order>);
  STATIC_REQUIRE(detail::is_directive<accept<Speaks, OfTemplate<tag>>>);
  STATIC_REQUIRE(!detail::is_directive<Speaks>);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
