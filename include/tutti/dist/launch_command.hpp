// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/dist/environment.hpp>
#include <tutti/dist/launch.hpp>
#include <tutti/version.hpp>

/// The command line of `tutti-run`.
namespace tutti::dist {

namespace detail {

inline constexpr const char* launch_usage =
    "tutti-run [options] program [arguments]: starts the program once per rank\n"
    "  -n, --nproc N          processes on this machine\n"
    "                         (LOCAL_WORLD_SIZE, else the number of GPUs, else 1)\n"
    "  --stdout, --stderr F   files of all but local rank 0; {rank}, {local_rank}, {world_size},\n"
    "                         {local_world_size}, {node_rank} are filled in (temporary files)\n"
    "  --world_size N         processes on all machines (WORLD_SIZE, else nproc)\n"
    "  --node_rank N          number of this machine (NODE_RANK)\n"
    "  --base_rank N          rank of this machine's first process (BASE_RANK, else node_rank *\n"
    "                         nproc)\n"
    "  --master_addr HOST     of rank 0 (MASTER_ADDR, else 127.0.0.1)\n"
    "  --master_port PORT     of rank 0 (MASTER_PORT, else a free one)\n"
    "  --cleanup_timeout S    from SIGTERM to SIGKILL when a rank has failed (30)\n"
    "  -v, --verbose          says what it does\n"
    "  --version, -h, --help\n";

inline int number_of(const std::string& name, std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  refuse_unless(error == std::errc() && end == text.data() + text.size() && !text.empty(),
                name + " is \"" + std::string(text) + "\", expected a whole number");
  return value;
}

/// GPUs that a program of this machine can see.
inline int number_of_gpus(const Lookup& variable) {
  if (const char* visible = variable("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    const std::string_view list = visible;
    return list.empty() || list == "-1"
               ? 0
               : 1 + static_cast<int>(std::count(list.begin(), list.end(), ','));
  }
  int found = 0;
  while (::access(("/dev/nvidia" + std::to_string(found)).c_str(), F_OK) == 0) {
    ++found;
  }
  return found;
}

}  // namespace detail

/// The options that a command line means; without --help and --version, see launch_main().
///
/// arguments: without the program's own name. variable: looks up variables of the environment.
/// Throws std::invalid_argument naming what is wrong.
inline LaunchOptions parse_launch(const std::vector<std::string>& arguments,
                                  const Lookup& variable = Environment::process_variable) {
  const auto of_environment = [&](const char* name, int otherwise) {
    const char* text = variable(name);
    return text == nullptr || *text == 0 ? otherwise : detail::number_of(name, text);
  };
  LaunchOptions options;
  const int usual = of_environment("LOCAL_WORLD_SIZE", 0);
  options.nproc = usual > 0 ? usual : std::max(1, detail::number_of_gpus(variable));
  const int world = of_environment("WORLD_SIZE", 0);
  options.world_size = world != usual ? world : 0;
  options.base_rank = of_environment("BASE_RANK", -1);
  options.node_rank = of_environment("NODE_RANK", -1);
  options.master_port = of_environment("MASTER_PORT", 0);
  if (const char* host = variable("MASTER_ADDR"); host != nullptr) {
    options.master_addr = host;
  }
  std::size_t at = 0;
  for (; at < arguments.size() && arguments[at].starts_with('-'); ++at) {
    std::string name = arguments[at];
    if (name == "--") {
      ++at;
      break;
    }
    if (name == "-v" || name == "--verbose") {
      options.verbose = true;
      continue;
    }
    const auto equals = name.find('=');
    detail::refuse_unless(equals != std::string::npos || at + 1 < arguments.size(),
                          name + " is no option, or lacks its value; see tutti-run --help");
    const std::string value =
        equals != std::string::npos ? name.substr(equals + 1) : arguments[at + 1];
    name = name.substr(0, equals);
    const auto number = [&] { return detail::number_of(name, value); };
    if (name == "-n" || name == "--nproc") {
      options.nproc = number();
    } else if (name == "--world_size") {
      options.world_size = number();
    } else if (name == "--base_rank") {
      options.base_rank = number();
    } else if (name == "--node_rank") {
      options.node_rank = number();
    } else if (name == "--master_addr") {
      options.master_addr = value;
    } else if (name == "--master_port") {
      options.master_port = number();
    } else if (name == "--cleanup_timeout") {
      const int seconds = number();
      detail::refuse_unless(seconds >= 0, name + " is " + value + ", expected 0 seconds or more");
      options.cleanup_timeout = std::chrono::seconds(seconds);
    } else if (name == "--stdout") {
      options.stdout_file = value;
    } else if (name == "--stderr") {
      options.stderr_file = value;
    } else {
      detail::refuse_unless(false, name + " is no option; see tutti-run --help");
    }
    at += equals == std::string::npos ? 1 : 0;
  }
  options.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(at), arguments.end());
  return options;
}

/// The program `tutti-run`. Returns its exit status: launch()'s, 2 for a wrong command line.
inline int launch_main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const std::string first = arguments.empty() ? "--help" : arguments.front();
  if (first == "-h" || first == "--help") {
    std::fputs(detail::launch_usage, arguments.empty() ? stderr : stdout);
    return arguments.empty() ? 2 : 0;
  }
  if (first == "--version") {
    std::printf("tutti %d.%d.%d\n", TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR, TUTTI_VERSION_PATCH);
    return 0;
  }
  try {
    return launch(parse_launch(arguments));
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tutti-run: %s\n", error.what());
    return 127;
  }
}

}  // namespace tutti::dist
