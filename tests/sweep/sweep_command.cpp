#include <tutti/sweep/sweep_command.hpp>

#include <string>

#include "support/catch.hpp"
#include "sweep/fake_program.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

TEST_CASE("tutti-sweep helps, tells its version and refuses what it does not know", "[sweep]") {
  const FakeProgram program;
  for (const char* help : {"-h", "--help"}) {
    const auto ended = program.run({help});
    CHECK(ended.status == 0);
    CHECK_THAT(ended.out, StartsWith("tutti-sweep [options] FILE program [arguments]: runs"));
  }
  CHECK_THAT(program.run({"--version"}).out, StartsWith("tutti "));
  auto ended = program.run({"--job=2"});
  CHECK(ended.status == 2);
  CHECK(ended.error == "tutti-sweep: --job is no option; see tutti-sweep --help\n");
  program.ranges("trials = 1\n[flags]\nlr = {log_uniform = [0, 1]}\n");
  ended = program.run();
  CHECK(ended.status == 2);
  CHECK_THAT(ended.error, StartsWith("tutti-sweep: '") &&
                              ContainsSubstring("r.toml': the range of the flag lr is 0 to 1 on a "
                                                "log scale"));
  program.ranges("trials = 1\n[flags]\nlr = 0.5\n");
  ended = program.run({}, {"/no/such/program"});
  CHECK(ended.status == 127);
  CHECK_THAT(ended.error, StartsWith("tutti-sweep: cannot start '/no/such/program': No such file"));
}

TEST_CASE("all settings are in the help", "[sweep]") {
  const std::string help = tutti::sweep::detail::sweep_usage;
  for (const auto& setting : tutti::sweep::detail::all_settings()) {
    INFO(setting.name);
    CHECK_THAT(help, ContainsSubstring("--" + std::string(setting.name)));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
