#include <tutti/dist/launch_command.hpp>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using dist::LaunchOptions;
using dist::parse_launch;
using Words = std::vector<std::string>;

namespace {

dist::Lookup variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
}

}  // namespace

TEST_CASE("the command line is Composer's", "[dist][launch]") {
  const auto none = variables({{"CUDA_VISIBLE_DEVICES", "0,2,3"}});
  LaunchOptions options = parse_launch({"./a", "-n", "7"}, none);
  CHECK(options.nproc == 3);  // GPUs
  CHECK(options.command == Words{"./a", "-n", "7"});
  options = parse_launch({"-n", "2", "--world_size=8", "--node_rank", "3", "--master_addr", "h",
                          "--master_port", "99", "--stdout", "o{rank}", "-v", "--", "./a"},
                         none);
  options.complete();
  CHECK(options.base_rank == 6);
  CHECK(options.master_port == 99);
  CHECK(options.stdout_file == "o{rank}");
  CHECK(options.verbose);
  CHECK(options.command == Words{"./a"});
  options = parse_launch({"./a"}, variables({{"LOCAL_WORLD_SIZE", "4"},
                                             {"WORLD_SIZE", "8"},
                                             {"BASE_RANK", "4"},
                                             {"MASTER_ADDR", "h"},
                                             {"MASTER_PORT", "9"}}));
  options.complete();
  CHECK(options.nproc == 4);
  CHECK(options.node_rank == 1);
  options = {.nproc = 2, .command = {"a"}};
  options.complete();
  CHECK(options.master_addr == "127.0.0.1");
  CHECK(options.master_port > 0);
}

TEST_CASE("a command line that makes no sense is refused", "[dist][launch]") {
  const auto none = variables({});
  CHECK_THROWS_WITH(parse_launch({"--what", "1", "a"}, none),
                    ContainsSubstring("--what is no option"));
  CHECK_THROWS_WITH(parse_launch({"-n", "two", "a"}, none), ContainsSubstring("-n is \"two\""));
  CHECK_THROWS_WITH(parse_launch({"-n"}, none), ContainsSubstring("lacks its value"));
}
