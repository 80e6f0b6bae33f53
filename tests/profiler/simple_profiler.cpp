#include <tutti/profiler/simple_profiler.hpp>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include <tutti/core/recipe.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::SimpleProfiler;

static_assert(tutti::Recipe<SimpleProfiler>::valid);
static_assert(tutti::role_of<SimpleProfiler> == tutti::Role::logger);

namespace {

struct Slow final {
  static constexpr std::string_view name = "Slow";
  void apply(tutti::BeforeForward, tutti::State&) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
};

std::string text_of(std::FILE* file) {
  std::string text;
  std::rewind(file);
  for (int letter = std::fgetc(file); letter != EOF; letter = std::fgetc(file)) {
    text += static_cast<char>(letter);
  }
  return text;
}

double ms(const SimpleProfiler::Span& span) {
  return std::chrono::duration<double, std::milli>(span.total).count();
}

}  // namespace

TEST_CASE("a fit ends with a table of its time", "[profiler]") {
  std::FILE* file = std::tmpfile();
  tutti::Trainer trainer{tiny::net(),
                         {.train = tiny::batches(4),
                          .max_duration = "2ep",
                          .optimizer = tutti::DecoupledSGDW{.lr = 0.1},
                          .device = "cpu",
                          .seed = 3,
                          .progress_bar = false},
                         Slow{},
                         SimpleProfiler{.stream = file}};
  trainer.fit();
  const auto& run = trainer.get<SimpleProfiler>().run;
  CHECK(run.spans.at("forward").calls == 8);
  CHECK(run.spans.at("epoch").calls == 2);
  CHECK(run.spans.at("dataloader").calls == 8);
  CHECK(run.spans.at("fit").calls == 1);
  const auto& slow = run.policies.at({"before_forward", "Slow"});
  CHECK(slow.calls == 8);
  CHECK(ms(slow) >= 8 * 3);
  CHECK(ms(run.spans.at("forward")) < ms(slow));  // without the policies at its ends
  CHECK(ms(run.spans.at("fit")) > ms(slow) + ms(run.spans.at("forward")));
  const std::string table = text_of(file);
  CHECK(table == trainer.get<SimpleProfiler>().report());
  CHECK(table.starts_with("what  "));
  CHECK_THAT(table, ContainsSubstring("Slow at before_forward") &&
                        ContainsSubstring("wait for the loader") && ContainsSubstring("100.0\n"));
  trainer.fit({.duration = "1ep"});
  CHECK(trainer.get<SimpleProfiler>().run.spans.at("forward").calls == 4);  // of this fit
  std::fclose(file);
}

TEST_CASE("the table can be short, and refuses to be nothing", "[profiler]") {
  SimpleProfiler profiler{.stream = nullptr, .rows = 1};
  CHECK(profiler.report().empty());
  profiler.run.spans["fit"] = {1, std::chrono::milliseconds(10)};
  profiler.run.spans["forward"] = {2, std::chrono::milliseconds(4)};
  CHECK_THAT(profiler.report(), ContainsSubstring("fit") && !ContainsSubstring("forward"));
  profiler.rows = 5;
  CHECK_THAT(profiler.report(), ContainsSubstring("2.0000         4.000    40.0"));
  profiler.least_percent = 50;
  CHECK_THAT(profiler.report(), !ContainsSubstring("forward"));
  CHECK_THROWS_WITH(SimpleProfiler{.rows = 0}.validate(), ContainsSubstring("rows is 0"));
  CHECK_THROWS_WITH(SimpleProfiler{.least_percent = 100}.validate(),
                    ContainsSubstring("least_percent is 100"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
