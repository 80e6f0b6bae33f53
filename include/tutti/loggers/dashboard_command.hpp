// SPDX-License-Identifier: Apache-2.0
#pragma once

#if !__has_include(<httplib.h>)
#error "tutti: dashboard_command.hpp needs cpp-httplib; link tutti::http, of tutti_find_http()"
#endif

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <tutti/core/detail/whole_file.hpp>
#include <tutti/loggers/detail/dashboard_report.hpp>
#include <tutti/loggers/detail/dashboard_server.hpp>
#include <tutti/version.hpp>

/// The command line of `tutti-dashboard`.
namespace tutti {

namespace detail {

inline constexpr const char* dashboard_usage =
    "tutti-dashboard [options] [folder]: shows the runs of a folder, and how they go, in a "
    "browser\n"
    "  folder                 a run's, or one with folders of runs (.)\n"
    "  --host ADDRESS         of this machine to listen on (127.0.0.1: for this machine alone)\n"
    "  --port N               to listen on (the first free one from 6070 on)\n"
    "  --allow-host NAME      by which browsers may call this machine, besides localhost\n"
    "  --report FILE          writes the page of one run as a file instead, and ends\n"
    "  --version, -h, --help\n"
    "Dashboard starts it with these:\n"
    "  --of-run               the folder is a run's, which lives as long as stdin is open; serves\n"
    "                         its neighbours too, and writes --report if it dies\n"
    "  --linger S             goes on so long after it, unless a page is open (60)\n";

}  // namespace detail

/// What a command line of `tutti-dashboard` means.
struct DashboardCommand {
  std::filesystem::path folder = ".";
  std::string host = "127.0.0.1";
  int port = 0;
  std::vector<std::string> names{};
  std::filesystem::path report{};
  bool of_run = false;
  std::chrono::seconds linger{60};
};

/// Reads one, without the program's own name, --help and --version.
/// Throws std::invalid_argument naming what is wrong.
inline DashboardCommand parse_dashboard(const std::vector<std::string>& arguments) {
  DashboardCommand command;
  const auto refuse_unless = [](bool good, const std::string& text) {
    if (!good) {
      throw std::invalid_argument("tutti-dashboard: " + text);
    }
  };
  bool has_folder = false;
  for (std::size_t at = 0; at < arguments.size(); ++at) {
    std::string name = arguments[at];
    if (!name.starts_with("-")) {
      refuse_unless(!has_folder, "\"" + name + "\" is a second folder, expected one");
      has_folder = true;
      command.folder = name;
      continue;
    }
    if (name == "--of-run") {
      command.of_run = true;
      continue;
    }
    const auto equals = name.find('=');
    refuse_unless(equals != std::string::npos || at + 1 < arguments.size(),
                  name + " is no option, or lacks its value; see tutti-dashboard --help");
    const std::string value =
        equals != std::string::npos ? name.substr(equals + 1) : arguments[++at];
    name = name.substr(0, equals);
    const auto number = [&](int most) {
      int read = -1;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), read);
      refuse_unless(
          error == std::errc() && end == value.data() + value.size() && read >= 0 && read <= most,
          name + " is \"" + value + "\", expected a whole number from 0 to " +
              std::to_string(most));
      return read;
    };
    if (name == "--host") {
      refuse_unless(!value.empty(), "--host is empty, expected an address of this machine");
      command.host = value;
    } else if (name == "--port") {
      command.port = number(65535);
    } else if (name == "--allow-host") {
      command.names.push_back(value);
    } else if (name == "--report") {
      command.report = value;
    } else if (name == "--linger") {
      command.linger = std::chrono::seconds(number(1000000));
    } else {
      refuse_unless(false, name + " is no option; see tutti-dashboard --help");
    }
  }
  std::error_code error;
  refuse_unless(std::filesystem::is_directory(command.folder, error),
                "\"" + command.folder.string() + "\" is no folder");
  return command;
}

namespace detail {

// Writes the page of a run as a file. Throws std::runtime_error when there is none, or no room.
inline void write_report_of(const std::filesystem::path& folder,
                            const std::filesystem::path& path) {
  RunRecord record{folder};
  record.poll();
  if (record.status() == "empty") {
    throw std::runtime_error("\"" + folder.string() +
                             "\" has no run: there is no dashboard.jsonl or metrics.jsonl in it");
  }
  const std::string problem = write_whole_file(path, report_page(record));
  if (!problem.empty()) {
    throw std::runtime_error("cannot write \"" + path.string() + "\": " + problem);
  }
}

// What Dashboard's program has from it but stdin and the pipe: devices, sockets, its log.
inline void close_inherited() {
  std::vector<int> open;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    if (fd > 2) {
      open.push_back(fd);
    }
  }
  for (const int fd : open) {
    ::close(fd);
  }
}

// Until the run is over and nobody looks any more.
inline void watch_run(const DashboardCommand& command, DashboardServer& server) {
  char nothing[64];
  while (::read(STDIN_FILENO, nothing, sizeof nothing) > 0) {
  }
  // It may be writing its last line, or have been killed: its lock says when that is known.
  RunRecord record{command.folder};
  for (int i = 0; i < 20 && (record.poll(), record.status() == "running"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  if (record.status() == "died" && !command.report.empty()) {
    write_whole_file(command.report, report_page(record));
  }
  const auto last = std::chrono::steady_clock::now() + std::chrono::hours(24);
  const auto over = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() < last &&
         (server.idle() < command.linger ||
          std::chrono::steady_clock::now() < over + command.linger)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  server.stop();
}

}  // namespace detail

/// The program `tutti-dashboard`. Returns its exit status: 0, 2 for a wrong command line, 1 when
/// it cannot do what that asks.
inline int dashboard_main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const std::string first = arguments.empty() ? "" : arguments.front();
  if (first == "-h" || first == "--help") {
    std::fputs(detail::dashboard_usage, stdout);
    return 0;
  }
  if (first == "--version") {
    std::printf("tutti %d.%d.%d\n", TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR, TUTTI_VERSION_PATCH);
    return 0;
  }
  DashboardCommand command;
  std::FILE* complaints = stderr;
  try {
    command = parse_dashboard(arguments);
    complaints = command.of_run ? stdout : stderr;
    if (!command.of_run && !command.report.empty()) {
      detail::write_report_of(command.folder, command.report);
      return 0;
    }
    std::signal(SIGPIPE, SIG_IGN);
    if (command.of_run) {
      detail::close_inherited();
      command.folder = std::filesystem::canonical(command.folder);
    }
    detail::DashboardServer server(
        {.folder = command.of_run ? command.folder.parent_path() : command.folder,
         .mine = command.of_run ? command.folder : std::filesystem::path(),
         .host = command.host,
         .port = command.port,
         .names = command.names});
    std::printf("%s\n", server.address().c_str());
    std::fflush(stdout);
    std::thread watcher;
    if (command.of_run) {
      const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
      ::dup2(nowhere, STDOUT_FILENO);  // whoever waits for the end of the run's output
      ::dup2(nowhere, STDERR_FILENO);
      watcher = std::thread([&] { detail::watch_run(command, server); });
    }
    server.serve();
    if (watcher.joinable()) {
      watcher.join();
    }
    return 0;
  } catch (const std::invalid_argument& error) {
    std::fprintf(complaints, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(complaints, "tutti-dashboard: %s\n", error.what());
    return 1;
  }
}

}  // namespace tutti
