#include <tutti/core/policy.hpp>

#include <memory>
#include <span>
#include <string_view>

#include <tutti/core/logger.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::AfterLoss;
using tutti::BatchEnd;
using tutti::BatchStart;
using tutti::Init;
using tutti::Role;
using tutti::State;

struct Plain final {
  void apply(BatchStart, State&) const {}
};
struct Watches final {
  void apply(BatchEnd, const State&) {}
};
struct WatchesAndChanges final {
  void apply(BatchEnd, const State&) {}
  void apply(Init, State&) {}
};
struct Listens final {
  void log_metrics(std::span<const tutti::LoggedMetric>, std::int64_t) {}
};
struct ListensAndActs final {
  void apply(BatchStart, State&) {}
  void log_table(const tutti::LoggedTable&, std::int64_t) {}
};
struct SaysItIsACallback final {
  static constexpr Role role = Role::callback;
  static constexpr std::string_view name = "Renamed";
  void apply(BatchStart, State&) {}
};

struct NoState final {
  void apply(BatchStart) {}
};
struct WrongState final {
  void apply(BatchStart, int) {}
};
struct ThreeArguments final {
  void apply(BatchStart, State&, tutti::Logger&) {}
};
struct Returns final {
  int apply(BatchStart, State&) { return 1; }
};
struct ByPointer final {
  void apply(BatchStart, State*) {}
};
struct Nothing final {};
struct Pinned final {
  Pinned() = default;
  Pinned(Pinned&&) = delete;
  void apply(BatchStart, State&) {}
};

struct Asks final {
  void apply(BatchStart, State&) {}
  bool match(BatchStart, const State&) const { return true; }
};
struct AsksWrongly final {
  void apply(BatchStart, State&) {}
  int match(BatchStart, const State&) const { return 1; }
};
struct AsksUnqualified final {
  void apply(BatchStart, State&) {}
  bool match(BatchStart, const State&) { return true; }
};

struct EveryEvent final {
  template <class E>
  void apply(E, State&) {}
};

template <class T>
struct Generic final {
  void apply(BatchStart, State&) {}
};

}  // namespace

TEST_CASE("a policy handles exactly the events of its overloads", "[core][policy]") {
  STATIC_REQUIRE(tutti::Handles<Plain, BatchStart>);
  STATIC_REQUIRE(!tutti::Handles<Plain, BatchEnd>);
  STATIC_REQUIRE(tutti::Handles<WatchesAndChanges, Init>);
  STATIC_REQUIRE(tutti::Handles<WatchesAndChanges, BatchEnd>);
  STATIC_REQUIRE(tutti::Handles<EveryEvent, AfterLoss>);
  STATIC_REQUIRE(!tutti::Handles<int, BatchStart>);
}

TEST_CASE("a hook with wrong parameters or a result does not handle its event", "[core][policy]") {
  STATIC_REQUIRE(!tutti::Handles<NoState, BatchStart>);
  STATIC_REQUIRE(!tutti::Handles<WrongState, BatchStart>);
  STATIC_REQUIRE(!tutti::Handles<ThreeArguments, BatchStart>);
  STATIC_REQUIRE(!tutti::Handles<Returns, BatchStart>);
  STATIC_REQUIRE(!tutti::Handles<ByPointer, BatchStart>);
}

TEST_CASE("every hook that cannot be called is noticed all the same", "[core][policy]") {
  STATIC_REQUIRE(tutti::detail::Dead<NoState, BatchStart>);
  STATIC_REQUIRE(tutti::detail::Dead<WrongState, BatchStart>);
  STATIC_REQUIRE(tutti::detail::Dead<ThreeArguments, BatchStart>);
  STATIC_REQUIRE(tutti::detail::Dead<ByPointer, BatchStart>);
  STATIC_REQUIRE(!tutti::detail::Dead<NoState, BatchEnd>);
  STATIC_REQUIRE(!tutti::detail::Dead<Plain, BatchStart>);
  STATIC_REQUIRE(!tutti::detail::Dead<Nothing, BatchStart>);
  STATIC_REQUIRE(tutti::detail::NamesMatch<AsksWrongly, BatchStart>);
  STATIC_REQUIRE(!tutti::detail::NamesMatch<Plain, BatchStart>);
}

TEST_CASE("match is a const member that returns bool", "[core][policy]") {
  STATIC_REQUIRE(tutti::Matches<Asks, BatchStart>);
  STATIC_REQUIRE(!tutti::Matches<Asks, BatchEnd>);
  STATIC_REQUIRE(!tutti::Matches<AsksWrongly, BatchStart>);
  STATIC_REQUIRE(!tutti::Matches<AsksUnqualified, BatchStart>);
  STATIC_REQUIRE(!tutti::Matches<Plain, BatchStart>);
}

TEST_CASE("the role follows from what a policy can do", "[core][policy]") {
  STATIC_REQUIRE(tutti::role_of<Plain> == Role::algorithm);
  STATIC_REQUIRE(tutti::role_of<Watches> == Role::callback);
  STATIC_REQUIRE(tutti::role_of<WatchesAndChanges> == Role::algorithm);
  STATIC_REQUIRE(tutti::role_of<Listens> == Role::logger);
  STATIC_REQUIRE(tutti::role_of<ListensAndActs> == Role::logger);
  STATIC_REQUIRE(tutti::role_of<SaysItIsACallback> == Role::callback);

  STATIC_REQUIRE(tutti::Algorithm<Plain>);
  STATIC_REQUIRE(!tutti::Algorithm<Watches>);
  STATIC_REQUIRE(tutti::Callback<Watches>);
  STATIC_REQUIRE(!tutti::Callback<Listens>);
}

TEST_CASE("a type that acts on nothing, or cannot be moved, is no policy", "[core][policy]") {
  STATIC_REQUIRE(tutti::Policy<Plain>);
  STATIC_REQUIRE(tutti::Policy<Listens>);
  STATIC_REQUIRE(!tutti::Policy<Nothing>);
  STATIC_REQUIRE(!tutti::Policy<NoState>);
  STATIC_REQUIRE(!tutti::Policy<Pinned>);
  STATIC_REQUIRE(!tutti::Policy<int>);
  STATIC_REQUIRE(!tutti::Policy<Plain*>);
  STATIC_REQUIRE(!tutti::Policy<Plain&>);
}

TEST_CASE("a policy is called by its member, else by its type without namespace and arguments",
          "[core][policy]") {
  CHECK(tutti::name_of<Plain>() == "Plain");
  CHECK(tutti::name_of<SaysItIsACallback>() == "Renamed");
  CHECK(tutti::name_of<Generic<std::unique_ptr<int>>>() == "Generic");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
