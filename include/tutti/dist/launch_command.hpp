// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <iterator>
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
    "                         {local_world_size}, {node_rank}, {restart_count} are filled in\n"
    "                         (temporary files)\n"
    "  --world_size N         processes on all machines (WORLD_SIZE, else nproc)\n"
    "  --node_rank N          number of this machine (NODE_RANK)\n"
    "  --base_rank N          rank of this machine's first process (BASE_RANK, else node_rank *\n"
    "                         nproc)\n"
    "  --master_addr HOST     of rank 0 (MASTER_ADDR, else 127.0.0.1)\n"
    "  --master_port PORT     of rank 0 (MASTER_PORT, else a free one)\n"
    "  --cleanup_timeout S    from SIGTERM to SIGKILL when a rank has failed (30)\n"
    "  --max_restarts N       starts all again when a rank has failed, so often (0)\n"
    "  --restart_delay S      before the first restart; doubles up to 30 s (1)\n"
    "  --min_uptime S         two failures in a row, each sooner after its start, end the run (5)\n"
    "  --monitor_interval S   how often ranks are looked at (0.1)\n"
    "  --health_timeout S     a rank that is stopped for so long is killed; 0: it is not (1)\n"
    "  --hang_timeout S       a batch, or a callback between batches, that lasts for so long ends "
    "the\n"
    "                         attempt; 0: it may last (300)\n"
    "  --flight_folder F      where ranks write their last collectives when the run fails (a new\n"
    "                         folder in TMPDIR)\n"
    "  --rdzv HOST:PORT       where the launchers of several machines meet and agree on ranks and\n"
    "                         attempts; an address of one of them; needs --token_file\n"
    "  --nnodes N[:MOST]      machines that meet, at least and at most\n"
    "  --last_call S          how long to wait for more than the least (30)\n"
    "  --join_timeout S       how long to wait for the least (600)\n"
    "  --node_timeout S       a launcher that is silent for so long is gone (1)\n"
    "  --token_file F         secret that ranks of several machines show each other, mode 0600\n"
    "                         (on one machine: a new one)\n"
    "  -v, --verbose          says what it does\n"
    "  --version, -h, --help\n";

inline int number_of(const std::string& name, std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  refuse_unless(error == std::errc() && end == text.data() + text.size() && !text.empty(),
                name + " is \"" + std::string(text) + "\", expected a whole number");
  return value;
}

/// Seconds, with a fraction or without, up to a year.
inline std::chrono::milliseconds seconds_of(const std::string& name, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  refuse_unless(is_number && value >= 0 && value <= 31'536'000.0,
                name + " is " + std::string(text) + ", expected 0 seconds or more");
  return std::chrono::milliseconds(std::llround(value * 1000));
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
    // torchrun's spelling is understood, too: --max-restarts.
    std::replace(name.begin() + std::min<std::ptrdiff_t>(2, std::ssize(name)), name.end(), '-',
                 '_');
    const auto number = [&] { return detail::number_of(name, value); };
    const auto seconds = [&] { return detail::seconds_of(name, value); };
    if (name == "-n" || name == "--nproc" || name == "--nproc_per_node") {
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
      options.cleanup_timeout = seconds();
    } else if (name == "--max_restarts") {
      options.max_restarts = number();
    } else if (name == "--restart_delay") {
      options.restart_delay = seconds();
    } else if (name == "--min_uptime") {
      options.min_uptime = seconds();
    } else if (name == "--monitor_interval") {
      options.monitor_interval = seconds();
    } else if (name == "--health_timeout") {
      options.health_timeout = seconds();
    } else if (name == "--hang_timeout") {
      options.hang_timeout = seconds();
    } else if (name == "--rdzv" || name == "--rdzv_endpoint") {
      const auto colon = value.rfind(':');
      const int port = colon == std::string::npos || colon == 0
                           ? 0
                           : detail::number_of(name, std::string_view(value).substr(colon + 1));
      detail::refuse_unless(port >= 1 && port <= 65535,
                            name + " is " + value + ", expected HOST:PORT");
      options.rdzv = value;
    } else if (name == "--nnodes") {
      const auto colon = value.find(':');
      options.least_nodes = detail::number_of(name, std::string_view(value).substr(0, colon));
      options.most_nodes = colon == std::string::npos
                               ? options.least_nodes
                               : detail::number_of(name, std::string_view(value).substr(colon + 1));
    } else if (name == "--last_call") {
      options.last_call = seconds();
    } else if (name == "--join_timeout") {
      options.join_timeout = seconds();
    } else if (name == "--node_timeout") {
      options.node_timeout = seconds();
    } else if (name == "--token_file") {
      options.token_file = value;
    } else if (name == "--flight_folder") {
      options.flight_folder = value;
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

/// The program `tutti-run`. Returns its exit status: launch()'s; 2 for a wrong command line, 127
/// when the program cannot be started, 1 when the launcher itself fails.
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
  } catch (const detail::CannotStart& error) {
    std::fprintf(stderr, "tutti-run: %s\n", error.what());
    return 127;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tutti-run: %s\n", error.what());
    return 1;
  }
}

}  // namespace tutti::dist
