#include <tutti/train/loop.hpp>

#include <tutti/trainer.hpp>

#include <cstdint>
#include <optional>

#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Trainer;

/// Gives two batches once: start() forgets to begin anew.
struct UsedUp {
  int given = 0;
  void start(std::int64_t, std::int64_t) {}
  std::optional<tutti::Batch> next() {
    return given++ < 2 ? std::optional(tiny::batches(1).front()) : std::nullopt;
  }
};

tutti::TrainerOptions options(tutti::DataSpec data, const char* length) {
  return {.train = std::move(data),
          .max_duration = tutti::Time::parse(length),
          .optimizer = tutti::SGD{.lr = 0.1},
          .progress_bar = false};
}

}  // namespace

TEST_CASE("an epoch without a batch is an error, not an epoch that goes round for ever",
          "[train][loop]") {
  Trainer<> used_up{tiny::net(), options(UsedUp{}, "5ba")};
  CHECK_THROWS_WITH(used_up.fit(), ContainsSubstring("gave no batch in epoch 1") &&
                                       ContainsSubstring("begin anew at every start("));
  CHECK(used_up.state().timestamp.batch == 2);
  Trainer<> empty{tiny::net(), options(tiny::batches(0), "1ep")};
  CHECK_THROWS_WITH(empty.fit(), ContainsSubstring("gave no batch in epoch 0"));
}

TEST_CASE("a length in a unit that never passes is refused, not trained for ever",
          "[train][loop]") {
  CHECK_THROWS_WITH((Trainer<>{tiny::net(), options(tiny::batches(3), "1iter")}),
                    ContainsSubstring("max_duration is 1iter, but iteration_length is not set"));
  tutti::TrainerOptions iterations = options(tiny::batches(3), "2iter");
  iterations.iteration_length = "2ep";
  Trainer<> four{tiny::net(), iterations};
  four.fit();
  CHECK(four.state().timestamp.epoch == 4);
  Trainer<> tokens{tiny::net(), options(tiny::batches(3), "100tok")};
  CHECK_THROWS_WITH(tokens.fit(), ContainsSubstring("max_duration is 100tok, and the batches have "
                                                    "no tokens; give DataSpec a num_tokens"));
}
