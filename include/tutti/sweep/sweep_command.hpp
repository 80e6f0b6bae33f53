// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include <tutti/sweep/settings.hpp>
#include <tutti/sweep/sweep.hpp>
#include <tutti/version.hpp>

/// The command line of `tutti-sweep`.
namespace tutti::sweep {

namespace detail {

inline constexpr const char* sweep_usage =
    "tutti-sweep [options] FILE program [arguments]: runs the program with many values of its "
    "flags\n"
    "  FILE                   ranges of flags and settings; the options below, but the last two,\n"
    "                         may stand in it, and have the last word here\n"
    "  program [arguments]    {folder}, {trial}, {slot} and names of flags in braces are filled\n"
    "                         in; the other flags follow as --name=value, and --run-folder\n"
    "                         where there is no {folder}\n"
    "  --method M             grid, random or halving (random)\n"
    "  --metric NAME          in the program's metrics.jsonl\n"
    "  --goal G               minimize or maximize\n"
    "  --value V              last or best of a trial's values (last)\n"
    "  --trials N             how many; of random and halving\n"
    "  --seed N               of what is drawn (0)\n"
    "  -j, --jobs N           trials at a time (1)\n"
    "  --folder F             of the sweep (sweeps/<name of the file>)\n"
    "  --metrics_file F       in a trial's folder (metrics.jsonl, else dashboard.jsonl)\n"
    "  --time_limit T         as 90, 15m, 2h, 1d; then it ends, and goes on when called again\n"
    "  --trial_time_limit T   a trial that takes longer has failed\n"
    "  --cleanup_timeout T    from SIGTERM to SIGKILL (30)\n"
    "  --resource FLAG        of halving: the flag that says how long a trial trains\n"
    "  --min_resource, --max_resource R   of halving: of the first and the last rung, as 1ep, "
    "27ep\n"
    "  --eta N                of halving: of so many trials one goes on (3)\n"
    "  --resume               the program goes on in its folder when it is started there again\n"
    "  --retry_failed         runs trials once more that have failed\n"
    "  --dry_run              prints the commands and runs none\n"
    "  --version, -h, --help\n";

}  // namespace detail

/// The program `tutti-sweep`. Returns its exit status: Sweep's, 2 for a wrong command line, file or
/// folder, 127 when the program cannot be started or files cannot be written.
inline int sweep_main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const std::string first = arguments.empty() ? "--help" : arguments.front();
  if (first == "-h" || first == "--help") {
    std::fputs(detail::sweep_usage, arguments.empty() ? stderr : stdout);
    return arguments.empty() ? 2 : 0;
  }
  if (first == "--version") {
    std::printf("tutti %d.%d.%d\n", TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR, TUTTI_VERSION_PATCH);
    return 0;
  }
  try {
    return Sweep(parse_sweep(arguments))();
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tutti-sweep: %s\n", error.what());
    return 127;
  }
}

}  // namespace tutti::sweep
