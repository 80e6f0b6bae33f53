#include <tutti/train/idle.hpp>

#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::State;
using tutti::Trainer;

struct OnEvaluation final {
  static constexpr tutti::Role role = tutti::Role::algorithm;
  int calls = 0;
  void apply(tutti::EvalEnd, const State&) { ++calls; }
};
struct OnIterations final {
  static constexpr tutti::Role role = tutti::Role::algorithm;
  int calls = 0;
  void apply(tutti::IterationEnd, const State&) { ++calls; }
};
struct OnBoth final {
  void apply(tutti::EvalEnd, const State&) {}
  void apply(tutti::BatchEnd, const State&) {}
};

// Both pairs, with a reason and without one.
struct Warns final {
  static constexpr tutti::Rules rules{
      .warns_with = {{tutti::id<OnBoth>, "one undoes the other"}, {tutti::id<OnIterations>}},
  };
  void apply(tutti::BatchEnd, const State&) {}
};

tutti::TrainerOptions options() {
  return {.train = tiny::batches(3), .max_duration = "1ep", .progress_bar = false};
}

}  // namespace

TEST_CASE("a policy of evaluation alone is refused where nothing is evaluated", "[train][idle]") {
  Trainer trainer{tiny::net(), options(), OnEvaluation{}};
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("OnEvaluation acts only on events of "
                                                     "evaluation"));
  auto with_eval = options();
  with_eval.eval = {{"test", tiny::batches(2)}};
  Trainer evaluates{tiny::net(), with_eval, OnEvaluation{}};
  evaluates.fit();
  CHECK(evaluates.get<OnEvaluation>().calls == 1);
}

TEST_CASE("a policy of iterations alone is refused where none ends", "[train][idle]") {
  Trainer trainer{tiny::net(), options(), OnIterations{}};
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("iteration_length"));
}

TEST_CASE("idle policies are accepted when told so, switched off, or busy elsewhere",
          "[train][idle]") {
  auto told = options();
  told.allow_idle_policies = true;
  Trainer{tiny::net(), told, OnEvaluation{}, OnIterations{}}.fit();
  Trainer{tiny::net(), options(), tutti::Switch<OnEvaluation>(OnEvaluation{}, false)}.fit();
  Trainer{tiny::net(), options(), OnBoth{}}.fit();
}

TEST_CASE("a pair that works against itself is warned of when the trainer is made",
          "[train][idle]") {
  Warnings warnings;
  tutti::train::warn_of_pairs<OnBoth, Warns>();
  REQUIRE(warnings.texts.size() == 1);
  CHECK(warnings.texts.back() ==
        "Warns and OnBoth work against each other: one undoes the other; remove one, or put "
        "tutti::accept<Warns, OnBoth> into the recipe to say that it is meant");
  tutti::train::warn_of_pairs<Warns, OnIterations>();
  REQUIRE(warnings.texts.size() == 2);
  CHECK_THAT(warnings.texts.back(), ContainsSubstring("against each other; remove one"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
