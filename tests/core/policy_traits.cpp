#include <tutti/core/policy_traits.hpp>

#include <string_view>
#include <type_traits>

#include <tutti/core/switch.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;

struct tag {};
struct other_tag {};
struct Plain final {
  void apply(BatchEnd, State&) {}
};
struct Speaks final {
  static constexpr std::string_view name = "speaker";
  static constexpr Role role = Role::callback;
  using events = types<BatchEnd>;
  static constexpr Rules rules{
      .tags = {id<tag>},
      .runs_after = {{id<other_tag>}, {id<Plain>, "it says so"}},
  };
  static constexpr About about{.skips_steps = true};
  void apply(BatchEnd, State&) {}
};

// Members of these names that are something else; a recipe refuses them.
struct OfObject final {
  Rules rules{};
  const About about{};
};
struct NotConstant final {
  static inline const Rules rules{.tags = {id<tag>}};
  static inline About about{};
};
struct OfOtherTypes final {
  using rules = types<>;
  void about();
};

// What a policy holds while it runs, and what only has the name.
struct Holds final {
  struct Run {
    int seen = 0;
  } run{};
};
struct OfAnotherType final {
  struct Run {};
  int run = 0;
};

using detail::facts;
using detail::find_rule;
using detail::means;

}  // namespace

TEST_CASE("what a policy leaves out has its default", "[core][policy]") {
  STATIC_REQUIRE(policy_traits<Plain>::name == "Plain");
  STATIC_REQUIRE(!policy_traits<Plain>::has_role);
  STATIC_REQUIRE(!policy_traits<Plain>::lists_events);
  STATIC_REQUIRE(policy_traits<Plain>::rules.tags.size() == 0);
  STATIC_REQUIRE(policy_traits<Plain>::about.reads_batch);
  STATIC_REQUIRE(policy_traits<int>::about.reads_gradients);
}

TEST_CASE("what it says is read", "[core][policy]") {
  using Traits = policy_traits<Speaks>;
  STATIC_REQUIRE(Traits::name == "speaker");
  STATIC_REQUIRE(Traits::has_role);
  STATIC_REQUIRE(std::is_same_v<Traits::events, types<BatchEnd>>);
  STATIC_REQUIRE(Traits::rules.tags.size() == 1);
  STATIC_REQUIRE(Traits::about.skips_steps);
  STATIC_REQUIRE(policy_traits<const Speaks>::about.skips_steps);
}

TEST_CASE("a switch says what its policy says, under a name of its own", "[core][policy]") {
  STATIC_REQUIRE(policy_traits<Named<"second", Speaks>>::name == "speaker.second");
  STATIC_REQUIRE(policy_traits<Switch<Switch<Speaks>>>::rules.tags.size() == 1);
  STATIC_REQUIRE(policy_traits<Switch<Speaks>>::about.skips_steps);
  STATIC_REQUIRE(policy_traits<const Switch<Speaks>>::about.skips_steps);
}

TEST_CASE("a name in a rule means a type, a tag, and what a switch holds", "[core][policy][law]") {
  STATIC_REQUIRE(means<Speaks, Speaks>);
  STATIC_REQUIRE(means<tag, Speaks>);
  STATIC_REQUIRE(!means<other_tag, Speaks>);
  STATIC_REQUIRE(!means<tag, Plain>);
  STATIC_REQUIRE(means<Speaks, Switch<Switch<Speaks>>>);
  STATIC_REQUIRE(means<Switch<Speaks>, Switch<Switch<Speaks>>>);
  STATIC_REQUIRE(means<tag, Switch<Speaks>>);
  STATIC_REQUIRE(!means<Switch<Speaks>, Speaks>);
}

TEST_CASE("the first rule about a policy is found, by type or by tag", "[core][policy][law]") {
  constexpr const Rules& rules = policy_traits<Speaks>::rules;
  STATIC_REQUIRE(find_rule(rules.runs_after, facts<Plain>) == 1);
  STATIC_REQUIRE(find_rule(rules.runs_after, facts<Switch<Plain>>) == 1);
  STATIC_REQUIRE(find_rule(rules.runs_after, facts<Speaks>) == 2);
  STATIC_REQUIRE(find_rule(rules.runs_before, facts<Plain>) == 0);
}

TEST_CASE("only a constant of the type is a policy's value", "[core][policy]") {
  STATIC_REQUIRE(detail::HasRules<Speaks> && detail::HasAbout<Speaks>);
  STATIC_REQUIRE(!detail::HasRules<OfObject> && !detail::HasAbout<OfObject>);
  STATIC_REQUIRE(!detail::HasRules<NotConstant> && !detail::HasAbout<NotConstant>);
  STATIC_REQUIRE(!detail::HasRules<OfOtherTypes> && !detail::HasAbout<OfOtherTypes>);
}

TEST_CASE("what a policy holds while it runs is a member of its own type", "[core][policy]") {
  STATIC_REQUIRE(detail::HoldsRun<Holds> && detail::HoldsRun<const Holds>);
  STATIC_REQUIRE(detail::HoldsRun<Switch<Speaks>>);
  STATIC_REQUIRE(!detail::HoldsRun<Plain>);
  STATIC_REQUIRE(!detail::HoldsRun<OfAnotherType>);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
