#include <tutti/dist/launch_command.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
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

// What tutti-run says, behind its exit status.
std::string run(Words words) {
  words.insert(words.begin(), "tutti-run");
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  const TemporaryFolder folder;
  std::array<int, 2> before{};
  std::fflush(stdout);
  const int file = ::open((folder / "said").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
  for (const int stream : {1, 2}) {
    before.at(static_cast<std::size_t>(stream - 1)) = ::dup(stream);
    ::dup2(file, stream);
  }
  const int status = dist::launch_main(static_cast<int>(arguments.size()), arguments.data());
  std::fflush(stdout);
  for (const int stream : {1, 2}) {
    ::dup2(before.at(static_cast<std::size_t>(stream - 1)), stream);
    ::close(before.at(static_cast<std::size_t>(stream - 1)));
  }
  ::close(file);
  return std::to_string(status) + ": " + read_bytes(folder / "said");
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

TEST_CASE("what the command line leaves out comes from the environment", "[dist][launch]") {
  const auto processes = [](std::map<std::string, std::string> values) {
    return parse_launch({"./a"}, variables(std::move(values))).nproc;
  };
  CHECK(processes({{"CUDA_VISIBLE_DEVICES", ""}}) == 1);
  CHECK(processes({{"CUDA_VISIBLE_DEVICES", "-1"}}) == 1);
  CHECK(processes({{"CUDA_VISIBLE_DEVICES", "3"}}) == 1);
  CHECK(processes({{"CUDA_VISIBLE_DEVICES", "0,1"}, {"LOCAL_WORLD_SIZE", "5"}}) == 5);
  CHECK(processes({{"CUDA_VISIBLE_DEVICES", "0,1"}, {"LOCAL_WORLD_SIZE", ""}}) == 2);
  // A world as large as this machine's part follows -n.
  LaunchOptions options =
      parse_launch({"-n", "2", "./a"},
                   variables({{"LOCAL_WORLD_SIZE", "4"}, {"WORLD_SIZE", "4"}, {"NODE_RANK", "0"}}));
  options.complete();
  CHECK(options.world_size == 2);
  CHECK(options.node_rank == 0);
  options = parse_launch({"--base_rank=4", "--cleanup_timeout", "5", "--stderr=e", "-n=2", "./a"},
                         variables({{"WORLD_SIZE", "8"}, {"NODE_RANK", "1"}, {"BASE_RANK", "6"}}));
  CHECK(options.nproc == 2);
  CHECK(options.world_size == 8);
  CHECK(options.base_rank == 4);
  CHECK(options.node_rank == 1);
  CHECK(options.cleanup_timeout == std::chrono::seconds(5));
  CHECK(options.stderr_file == "e");
  CHECK_FALSE(options.verbose);
}

TEST_CASE("tutti-run helps, tells its version and passes on how the program ended",
          "[dist][launch]") {
  for (const char* help : {"-h", "--help"}) {
    CHECK_THAT(run({help}), StartsWith("0: tutti-run [options] program [arguments]: starts"));
  }
  CHECK_THAT(run({}), StartsWith("2: tutti-run [options] program"));
  CHECK_THAT(run({"--version"}), StartsWith("0: tutti "));
  CHECK(run({"-n", "1", "sh", "-c", "echo --help"}) == "0: --help\n");
  CHECK_THAT(run({"-n", "1", "sh", "-c", "exit 5"}), StartsWith("5: tutti-run: rank 0 (pid "));
  CHECK_THAT(run({"-n", "two", "sh"}), StartsWith("2: tutti-run: -n is \"two\""));
  CHECK_THAT(run({"-n", "1", "/no/such"}), StartsWith("127: tutti-run: cannot start '/no/such'"));
  const TemporaryFolder folder;
  const std::string token = (folder / "token").string();
  std::ofstream(token) << std::string(64, 'a') << '\n';
  std::filesystem::permissions(token, std::filesystem::perms(0600));
  const auto meets = [&](const std::string& at, const std::string& patience = "0.3") {
    return run({"-n", "1", "--nnodes", "2", "--rdzv", at, "--token-file", token, "--join-timeout",
                patience, "true"});
  };
  CHECK_THAT(meets("nosuchhost.invalid:29604"),
             StartsWith("1: tutti-run: the name 'nosuchhost.invalid' does not resolve: "));
  CHECK_THAT(meets("nosuchhost.invalid:29604", "1.5"),
             StartsWith("1: tutti: the name 'nosuchhost.invalid' does not resolve: ") &&
                 ContainsSubstring("; it is tried for 1 s more\ntutti-run: the name "));
}

TEST_CASE("restarts are asked for in torchrun's spelling, too", "[dist][launch]") {
  using namespace std::chrono_literals;
  const auto none = variables({});
  const LaunchOptions options =
      parse_launch({"--nproc-per-node=2", "--max-restarts", "3", "--monitor-interval=0.05",
                    "--restart_delay", "2.5", "--min-uptime=0", "--health-timeout=4",
                    "--hang_timeout", "0", "--flight-folder=a-b", "./a"},
                   none);
  CHECK(options.nproc == 2);
  CHECK(options.max_restarts == 3);
  CHECK(options.monitor_interval == 50ms);
  CHECK(options.restart_delay == 2500ms);
  CHECK(options.min_uptime == 0ms);
  CHECK(options.health_timeout == 4s);
  CHECK(options.hang_timeout == 0ms);
  CHECK(options.flight_folder == "a-b");
  const LaunchOptions several =
      parse_launch({"--rdzv-endpoint=[::1]:29500", "--nnodes=2:4", "--token-file=t",
                    "--last-call=1", "--join-timeout=2", "--node-timeout=3", "./a"},
                   none);
  CHECK(several.rdzv == "[::1]:29500");
  CHECK(several.least_nodes == 2);
  CHECK(several.most_nodes == 4);
  CHECK(several.token_file == "t");
  CHECK(several.last_call == 1s);
  CHECK(several.join_timeout == 2s);
  CHECK(several.node_timeout == 3s);
  CHECK(parse_launch({"--nnodes", "3", "./a"}, none).most_nodes == 3);
  for (const char* nowhere : {"gpu01", ":29500", "gpu01:", "gpu01:0", "gpu01:65536"}) {
    CHECK_THROWS_WITH(parse_launch({"--rdzv", nowhere, "a"}, none), ContainsSubstring("--rdzv"));
  }
  CHECK_THROWS_WITH(parse_launch({"--restart-delay=soon", "a"}, none),
                    ContainsSubstring("--restart_delay is soon, expected 0 seconds or more"));
}

TEST_CASE("a command line that makes no sense is refused", "[dist][launch]") {
  const auto none = variables({});
  CHECK_THROWS_WITH(parse_launch({"--what", "1", "a"}, none),
                    ContainsSubstring("--what is no option"));
  CHECK_THROWS_WITH(parse_launch({"-n", "two", "a"}, none), ContainsSubstring("-n is \"two\""));
  CHECK_THROWS_WITH(parse_launch({"-n"}, none), ContainsSubstring("lacks its value"));
  CHECK_THROWS_WITH(parse_launch({"--cleanup_timeout=-1", "a"}, none),
                    ContainsSubstring("--cleanup_timeout is -1, expected 0 seconds or more"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
