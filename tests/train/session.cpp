#include <tutti/train/session.hpp>

#include <memory>
#include <string>
#include <vector>

#include <tutti/core/engine.hpp>
#include <tutti/train/engine_adapter.hpp>

#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

// What happened, in order.
struct Notes final {
  std::vector<std::string> lines{};
  bool throws = false;
  void apply(Init, const State&) { lines.emplace_back("init"); }
  void apply(FitStart, const State&) { lines.emplace_back("fit"); }
  void apply(BatchEnd, const State&) {
    lines.emplace_back("batch");
    TUTTI_CHECK(!throws, "enough");
  }
  void apply(EvalStandaloneStart, const State&) { lines.emplace_back("eval"); }
  void close(State&) { lines.emplace_back("close"); }
};
using Recorded = Engine<Notes>;

struct Bench {
  explicit Bench(TrainerOptions&& options) : session(std::move(options)) {}
  void begin() {
    session.begin(any, [] { return AnyModel(tiny::net()); });
  }
  train::Session session;
  Recorded engine;
  train::EngineAdapter<Recorded> any{engine};
  std::vector<std::string>& lines = engine.get<Notes>().lines;
};

TrainerOptions options() {
  return {.train = tiny::batches(2), .eval = {{"test", tiny::batches(1)}}, .max_duration = "1ep"};
}

}  // namespace

TEST_CASE("a session fits, evaluates, predicts and closes without knowing the recipe",
          "[train][session]") {
  Bench bench(options());
  bench.begin();
  CHECK(bench.lines == std::vector<std::string>{"init"});
  bench.session.fit({});
  CHECK(bench.lines == std::vector<std::string>{"init", "fit", "batch", "batch"});
  CHECK(bench.session.state().timestamp.batch == 2);
  bench.session.eval();
  CHECK(bench.lines.back() == "eval");
  DataSpec data = tiny::batches(3);
  CHECK(bench.session.predict(data, 2, true).size() == 2);
  bench.session.close();
  CHECK(bench.lines.back() == "close");
  CHECK_THROWS_WITH(bench.session.fit({.duration = "1ep"}),
                    ContainsSubstring("this trainer has been closed"));
}

TEST_CASE("what a policy throws closes all of them and is passed on", "[train][session]") {
  Bench bench(options());
  bench.begin();
  bench.engine.get<Notes>().throws = true;
  CHECK_THROWS_WITH(bench.session.fit({}), ContainsSubstring("enough"));
  CHECK(bench.lines == std::vector<std::string>{"init", "fit", "batch", "close"});
  CHECK(bench.any.closed());
}

TEST_CASE("what making the model throws closes the policies", "[train][session]") {
  Bench bench(options());
  const auto fails = []() -> AnyModel { TUTTI_CHECK(false, "no such model"); };
  CHECK_THROWS_WITH(bench.session.begin(bench.any, fails), ContainsSubstring("no such model"));
  CHECK(bench.lines == std::vector<std::string>{"close"});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
