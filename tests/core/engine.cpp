#include <tutti/core/engine.hpp>

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/core/logger.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::AfterForward;
using tutti::BatchEnd;
using tutti::BatchStart;
using tutti::Engine;
using tutti::Init;
using tutti::Role;
using tutti::State;

using Trace = std::vector<std::string>;

// Hooks only ever take the state by reference, so an engine can be run without one: no test here
// looks into it, and State stays the incomplete type that <tutti/fwd.hpp> declares.
alignas(16) char no_state[16];
State& state = reinterpret_cast<State&>(no_state);

Trace trace;  // what ran, in order

void note(std::string_view who, std::string_view what) {
  trace.push_back(std::string(who) + " " + std::string(what));
}

Trace take() {
  return std::exchange(trace, {});
}

template <char Name>
struct Speaks {
  void apply(Init, State&) const { note({&name, 1}, "init"); }
  void apply(BatchStart, State&) const { note({&name, 1}, "batch_start"); }
  void apply(AfterForward, State&) const { note({&name, 1}, "after_forward"); }
  void close(State&) const { note({&name, 1}, "close"); }
  static constexpr char name = Name;
};
struct A final : Speaks<'A'> {
  static constexpr std::string_view name = "A";
};
struct B final : Speaks<'B'> {
  static constexpr std::string_view name = "B";
};

struct Watcher final {
  void apply(Init, const State&) const { note("Watcher", "init"); }
  void apply(BatchStart, const State&) const { note("Watcher", "batch_start"); }
};
struct Listener final {
  void log_metrics(std::span<const tutti::LoggedMetric>, std::int64_t) {}
  void apply(Init, State&) const { note("Listener", "init"); }
  void apply(BatchStart, State&) const { note("Listener", "batch_start"); }
};

// Runs while `wanted`; says when it is asked.
template <int N>
struct Asks {
  bool wanted = true;
  bool match(BatchStart, const State&) const {
    note("Asks" + std::to_string(N), "asked");
    return wanted;
  }
  void apply(BatchStart, State&) const { note("Asks" + std::to_string(N), "batch_start"); }
};
struct First final : Asks<1> {};
struct Second final : Asks<2> {};
struct AsksAsCallback final {
  static constexpr Role role = Role::callback;
  bool match(BatchStart, const State&) const {
    note("Callback", "asked");
    return true;
  }
  void apply(BatchStart, State&) const { note("Callback", "batch_start"); }
};

struct Throws final {
  void apply(BatchStart, State&) const { throw std::runtime_error("hook"); }
  void close(State&) const {
    note("Throws", "close");
    throw std::runtime_error("close");
  }
};
struct ThrowsToo final {
  void apply(BatchEnd, State&) const {}
  void close(State&) const { throw std::runtime_error("later close"); }
};

struct Checked final {
  double rate = 1;
  void validate() const {
    if (rate < 0) {
      throw std::invalid_argument("rate is negative");
    }
  }
  void apply(BatchStart, State&) const {}
};

// Looks at whoever else is in the recipe, and at itself never.
struct Jealous final {
  void apply(BatchStart, State&) const {}
  void validate_with(const Jealous&) const { throw std::logic_error("asked about itself"); }
  void validate_with(const Checked& other) const {
    if (other.rate > 1) {
      throw std::invalid_argument("Checked goes too fast for Jealous");
    }
  }
};

struct Counts final {
  int count = 0;
  void apply(BatchStart, State&) { ++count; }
};

struct MoveOnly final {
  explicit MoveOnly(int value) : value(std::make_unique<int>(value)) {}
  std::unique_ptr<int> value;
  void apply(BatchStart, State&) {}
};

struct Records final {
  void apply(BatchEnd, const State&) const {}
  void record_event(std::string_view event) { note("event", event); }
  void record_policy(std::string_view event, std::string_view policy, Role role) {
    const std::string_view roles[]{"algorithm", "callback", "logger"};
    note(event, std::string(policy) + " " + std::string(roles[static_cast<int>(role)]));
  }
};

struct Stateless1 final {
  void apply(BatchStart, State&) const {}
};
struct Stateless2 final {
  void apply(BatchEnd, State&) const {}
};

template <class E, class... Ps>
Trace fired(Engine<Ps...> engine) {
  trace.clear();
  engine.template fire<E>(state);
  return take();
}

}  // namespace

TEST_CASE("fire runs the policies of the event in the recipe's order", "[core][engine][trace]") {
  using E = Engine<Listener, A, Watcher, B>;
  CHECK(fired<BatchStart>(E{}) ==
        Trace{"A batch_start", "B batch_start", "Watcher batch_start", "Listener batch_start"});
  CHECK(fired<Init>(E{}) == Trace{"Listener init", "Watcher init", "A init", "B init"});
  CHECK(fired<AfterForward>(E{}) == Trace{"B after_forward", "A after_forward"});
  CHECK(fired<BatchEnd>(E{}).empty());
}

TEST_CASE("all algorithms are asked before the first of them runs", "[core][engine][trace]") {
  CHECK(fired<BatchStart>(Engine<First, Second>{}) ==
        Trace{"Asks1 asked", "Asks2 asked", "Asks1 batch_start", "Asks2 batch_start"});
  CHECK(fired<BatchStart>(Engine<First, A, Second>{First{{.wanted = false}}, A{}, Second{}}) ==
        Trace{"Asks1 asked", "Asks2 asked", "A batch_start", "Asks2 batch_start"});
}

TEST_CASE("a callback is asked when its turn comes", "[core][engine][trace]") {
  CHECK(fired<BatchStart>(Engine<AsksAsCallback, First>{}) ==
        Trace{"Asks1 asked", "Asks1 batch_start", "Callback asked", "Callback batch_start"});
  CHECK(fired<BatchStart>(Engine<AsksAsCallback, A>{}) ==
        Trace{"A batch_start", "Callback asked", "Callback batch_start"});
}

TEST_CASE("an exception in a hook leaves at once and later policies do not see the event",
          "[core][engine]") {
  Engine<A, Throws, B> engine;
  trace.clear();
  CHECK_THROWS_WITH(engine.fire<BatchStart>(state), "hook");
  CHECK(take() == Trace{"A batch_start"});
  CHECK(!engine.closed());
}

TEST_CASE("close reaches every policy once, in the order listed, and rethrows the first exception",
          "[core][engine]") {
  Engine<A, Throws, ThrowsToo, Watcher, B> engine;
  trace.clear();
  CHECK_THROWS_WITH(engine.close(state), "close");
  CHECK(take() == Trace{"A close", "Throws close", "B close"});
  CHECK(engine.closed());
  CHECK_NOTHROW(engine.close(state));
  CHECK(take().empty());
}

TEST_CASE("policies are constructed with their hyperparameters and validated", "[core][engine]") {
  Engine<A, Checked> engine{A{}, Checked{.rate = 0.5}};
  CHECK(engine.get<Checked>().rate == 0.5);
  CHECK_THROWS_WITH((Engine<A, Checked>{A{}, Checked{.rate = -1}}), "rate is negative");
  CHECK(Engine<MoveOnly>{MoveOnly(3)}.get<MoveOnly>().value != nullptr);
  STATIC_REQUIRE(std::is_default_constructible_v<Engine<A, B>>);
  STATIC_REQUIRE(!std::is_default_constructible_v<Engine<A, MoveOnly>>);
}

TEST_CASE("a policy may refuse the hyperparameters of another one, whatever their order",
          "[core][engine]") {
  CHECK_NOTHROW(Engine<Jealous, Checked>{Jealous{}, Checked{.rate = 0.5}});
  CHECK_THROWS_WITH((Engine<Jealous, Checked>{Jealous{}, Checked{.rate = 2}}),
                    "Checked goes too fast for Jealous");
  CHECK_THROWS_WITH((Engine<Checked, A, Jealous>{Checked{.rate = 2}, A{}, Jealous{}}),
                    "Checked goes too fast for Jealous");
}

TEST_CASE("a policy keeps what its hooks change", "[core][engine]") {
  Engine<Counts> engine;
  engine.fire<BatchStart>(state);
  engine.fire<BatchStart>(state);
  CHECK(std::as_const(engine).get<Counts>().count == 2);
}

TEST_CASE("for_each visits the policies in the order listed", "[core][engine]") {
  Engine<B, Watcher, A> engine;
  Trace names;
  engine.for_each([&](auto& policy) {
    names.emplace_back(tutti::name_of<std::remove_cvref_t<decltype(policy)>>());
  });
  CHECK(names == Trace{"B", "Watcher", "A"});
}

TEST_CASE("a recorder sees every event, handled or not, and every policy that runs",
          "[core][engine][trace]") {
  Engine<First, A, Records, Watcher> engine{First{{.wanted = false}}, A{}, Records{}, Watcher{}};
  trace.clear();
  engine.fire<BatchStart>(state);
  engine.fire<tutti::FitEnd>(state);
  engine.record("fit_end", "save:last");
  CHECK(take() == Trace{"event batch_start", "Asks1 asked", "batch_start A algorithm",
                        "A batch_start", "batch_start Watcher callback", "Watcher batch_start",
                        "event fit_end", "fit_end save:last algorithm"});
}

TEST_CASE("an engine without policies fires and closes", "[core][engine]") {
  Engine<> engine;
  engine.fire<BatchStart>(state);
  engine.close(state);
  CHECK(engine.closed());
}

TEST_CASE("policies without members add nothing to the size of the engine",
          "[core][engine][zero-cost]") {
  STATIC_REQUIRE(sizeof(Engine<Stateless1, Stateless2>) == sizeof(Engine<>));
  STATIC_REQUIRE(sizeof(Engine<A, B, Stateless1, Stateless2>) == sizeof(Engine<>));
  STATIC_REQUIRE(sizeof(Engine<Stateless1, Checked>) == sizeof(Engine<Checked>));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
