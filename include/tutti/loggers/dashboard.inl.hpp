// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/loggers/dashboard.hpp>

#include <algorithm>
#include <charconv>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include <c10/util/Exception.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/thrown.hpp>
#include <tutti/core/detail/whole_file.hpp>
#include <tutti/loggers/detail/dashboard_report.hpp>
#include <tutti/loggers/detail/json_line.hpp>
#include <tutti/loggers/detail/picture_grid.hpp>
#include <tutti/loggers/detail/png.hpp>
#include <tutti/loggers/detail/run_record.hpp>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace tutti::detail {

TUTTI_INLINE std::string ViewerProcess::find() {
  const char* told = std::getenv("TUTTI_DASHBOARD");
  if (told != nullptr && *told != '\0') {
    return told;
  }
  const auto runs = [](const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
  };
  std::error_code error;
  const auto here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<std::filesystem::path> folders;
  if (!error) {
    folders = {here, here.parent_path(), here.parent_path() / "bin"};
  }
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "";
  while (!rest.empty()) {
    const auto end = std::min(rest.find(':'), rest.size());
    if (end > 0) {  // an empty entry is the working directory, which nobody means
      folders.emplace_back(rest.substr(0, end));
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  for (const auto& folder : folders) {
    if (runs(folder / "tutti-dashboard")) {
      return (folder / "tutti-dashboard").string();
    }
  }
  return {};
}

TUTTI_INLINE std::string ViewerProcess::start(const std::string& program,
                                              const std::vector<std::string>& arguments,
                                              std::string& problem) {
  stop();
  std::array<int, 2> life{-1, -1};
  std::array<int, 2> words{-1, -1};
  if (::pipe2(life.data(), O_CLOEXEC) != 0 || ::pipe2(words.data(), O_CLOEXEC) != 0) {
    problem = std::strerror(errno);
    for (const int fd : {life[0], life[1]}) {
      if (fd >= 0) {
        ::close(fd);
      }
    }
    return {};
  }
  std::vector<char*> words_of_command{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) {
    words_of_command.push_back(const_cast<char*>(argument.c_str()));
  }
  words_of_command.push_back(nullptr);

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, life[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, words[1], STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  // A session of its own: Ctrl-C is for the run.
  posix_spawnattr_setflags(
      &attributes,
      static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID));
  const int refused = ::posix_spawn(&child_, program.c_str(), &files, &attributes,
                                    words_of_command.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  ::close(life[0]);
  ::close(words[1]);
  life_ = life[1];
  std::string text;
  if (refused != 0) {
    child_ = -1;
    problem = std::strerror(refused);
  } else {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    std::array<char, 512> piece{};
    while (text.find('\n') == std::string::npos && std::chrono::steady_clock::now() < until) {
      pollfd end{words[0], POLLIN, 0};
      if (::poll(&end, 1, 100) <= 0) {
        continue;
      }
      const ssize_t got = ::read(words[0], piece.data(), piece.size());
      if (got <= 0) {
        break;
      }
      text.append(piece.data(), static_cast<std::size_t>(got));
    }
    const auto end = text.find('\n');
    problem = end == std::string::npos ? "it said nothing" : "";
    text.resize(end == std::string::npos ? 0 : end);
  }
  ::close(words[0]);
  if (text.empty()) {
    stop();
  }
  return text;
}

TUTTI_INLINE void ViewerProcess::stop() {
  if (life_ >= 0) {
    ::close(std::exchange(life_, -1));
  }
  if (child_ > 0) {
    ::waitpid(std::exchange(child_, -1), nullptr, WNOHANG);
  }
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE void Dashboard::validate() const {
  const auto slash = filename.find_last_of('/');
  const std::string base = slash == std::string::npos ? filename : filename.substr(slash + 1);
  TUTTI_CHECK_VALUE(base.starts_with("dashboard") && base.ends_with(".jsonl"),
                    "Dashboard: filename is \"", filename,
                    "\", expected a name that begins with \"dashboard\" and ends in \".jsonl\", by "
                    "which the page finds it");
  TUTTI_CHECK_VALUE(port >= 0 && port <= 65535, "Dashboard: port is ", port,
                    ", expected 1 to 65535, or 0 for a free one");
  TUTTI_CHECK_VALUE(!host.empty(),
                    "Dashboard: host is empty; write \"127.0.0.1\", or \"0.0.0.0\" "
                    "to show the page to other machines");
  expect(flush_seconds >= 0, "Dashboard: flush_seconds", flush_seconds, "0 or more seconds");
}

TUTTI_INLINE void Dashboard::apply(Init, const State& state) {
  run.rank = state.rank;
  run.speaks = state.rank == 0 || !rank_zero_only;
  if (run.speaks) {
    if (!rank_zero_only) {
      detail::check_one_file_per_rank("Dashboard: filename", filename, state);
    }
    run.file.open(std::string(name), run_path(filename, state), "filename");
    // As long as this process lives, the file is locked: so the page knows that the run does.
    struct flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    ::fcntl(run.file.descriptor(), F_SETLK, &lock);
  }
}

TUTTI_INLINE void Dashboard::apply(AfterLoad, const State& state) {
  if (!run.speaks) {
    return;
  }
  const std::int64_t step = state.timestamp.batch;
  std::string first =
      detail::json_line("start", step,
                        ", \"run_name\": " + detail::json_utf8(state.run_name) +
                            ", \"rank\": " + std::to_string(state.rank) +
                            ", \"world_size\": " + std::to_string(state.world_size));
  if (!run.plan.empty() && state.rank == 0) {
    first += detail::json_line("plan", step, ", \"text\": " + detail::json_utf8(run.plan));
  }
  run.file.begin(step > 0 || state.autoresume, overwrite, first, /*cut=*/true);
  run.latest.give_again(state, *this);
  write_values();  // a line of its own: what follows may have the same names
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder() + "/dashboard", error), end;
       !error && at != end; at.increment(error)) {
    const std::string file = at->path().stem().string();
    std::int64_t number = -1;
    std::from_chars(file.data(), file.data() + file.size(), number);
    run.images = std::max(run.images, number + 1);
  }
  if (state.rank == 0 && serve && run.address.empty()) {
    start_viewer(report.empty() ? report : run_path(report, state));
  }
}

TUTTI_INLINE void Dashboard::apply(BatchEnd, const State& state) {
  if (!run.speaks) {
    return;
  }
  if (run.step < state.timestamp.batch) {  // the next step's have their line when it ends
    write_values();
  }
  const auto now = std::chrono::steady_clock::now();
  if (now >= run.next_flush) {
    run.file.flush();
    run.next_flush = now + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                               std::chrono::duration<double>(flush_seconds));
  }
}

TUTTI_INLINE void Dashboard::close(const State& state) {
  if (!run.file.is_open()) {
    return;
  }
  write_values();
  const bool failed = detail::run_failed();
  std::string more = ", \"status\": \"";
  more += failed ? "failed\"" : run.stopped ? "stopped\"" : "finished\"";
  if (std::current_exception() != nullptr) {
    more += ", \"error\": " + detail::json_utf8(detail::thrown());
  }
  run.file.add(detail::json_line("end", state.timestamp.batch, more));
  const bool written = run.file.has_begun();
  run.file.close();
  if (written && state.rank == 0 && !report.empty()) {
    write_report(state);
  }
  run.viewer.stop();
}

TUTTI_INLINE void Dashboard::log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step) {
  if (!run.speaks) {
    return;
  }
  if (step != run.step) {
    write_values();
    run.step = step;
  }
  detail::append_json_metrics(run.values, metrics);
  run.latest.add(metrics, step);
}

TUTTI_INLINE void Dashboard::log_hyperparameters(std::span<const Hyperparameter> values) {
  if (run.speaks) {
    run.file.add(detail::json_line("hyperparameters", -1,
                                   ", \"values\": {" + detail::json_members(values) + "}"));
  }
}

TUTTI_INLINE void Dashboard::log_images(const LoggedImages& images, std::int64_t step) {
  if (run.rank != 0 || !run.file.is_open()) {
    return;
  }
  constexpr auto kept = static_cast<std::int64_t>(detail::RunRecord::most_images);
  std::string problem;
  try {
    const std::filesystem::path place = folder() + "/dashboard";
    std::error_code error;
    std::filesystem::create_directories(place, error);
    const std::string picture = detail::png(detail::picture_grid(images));
    problem =
        error ? error.message()
              : detail::write_whole_file(place / (std::to_string(run.images) + ".png"), picture);
    if (problem.empty()) {
      std::filesystem::remove(place / (std::to_string(run.images - kept) + ".png"), error);
      run.file.add(detail::json_line("image", step,
                                     ", \"name\": " + detail::json_utf8(images.name) +
                                         ", \"file\": " + std::to_string(run.images)));
      ++run.images;
    }
  } catch (const std::exception&) {
    problem = detail::thrown();
  }
  if (!problem.empty() && !std::exchange(run.warned, true)) {
    TORCH_WARN("Dashboard: an image is left out: ", problem);
  }
}

TUTTI_INLINE void Dashboard::log_table(const LoggedTable& table, std::int64_t step) {
  if (run.speaks) {
    run.file.add(detail::json_line(table, step));
  }
}

TUTTI_INLINE void Dashboard::log_result(const LoggedResult& result) {
  run.stopped = !result.complete;
  if (run.speaks && !result.best_checkpoint.empty()) {
    log_event("the best checkpoint is " + std::string(result.best_checkpoint),
              result.state.timestamp.batch);
  }
  write_all();
}

TUTTI_INLINE void Dashboard::log_event(std::string_view text, std::int64_t step) {
  if (run.speaks) {
    run.file.add(detail::json_line("event", step, ", \"text\": " + detail::json_utf8(text)));
  }
}

TUTTI_INLINE std::string Dashboard::folder() const {
  const auto parent = std::filesystem::path(run.file.path()).parent_path();
  return parent.empty() ? "." : parent.string();
}

TUTTI_INLINE void Dashboard::start_viewer(const std::string& at_end) {
  const std::string program = detail::ViewerProcess::find();
  const std::string otherwise =
      at_end.empty() ? "" : "; the page is written to '" + at_end + "' at the end";
  if (program.empty()) {
    TORCH_WARN(
        "Dashboard: the program tutti-dashboard, which serves the page, was found neither "
        "beside this program nor on the PATH: build it, which needs libcpp-httplib-dev, or "
        "name it in TUTTI_DASHBOARD",
        otherwise);
    return;
  }
  std::string problem;
  const std::string said = run.viewer.start(
      program,
      {"--of-run", folder(), "--host", host, "--port", std::to_string(port), "--report", at_end},
      problem);
  if (said.starts_with("http://")) {
    run.address = said;
    if (stream != nullptr) {
      std::fprintf(stream, "dashboard  %s\n", said.c_str());
      std::fflush(stream);
    }
  } else {
    TORCH_WARN("Dashboard: ", program, " serves no page: ", said.empty() ? problem : said,
               otherwise);
  }
}

TUTTI_INLINE void Dashboard::write_values() {
  if (!run.values.empty()) {
    run.file.add(detail::json_line("metrics", run.step, ", \"values\": {" + run.values + "}"));
    run.values.clear();
  }
}

TUTTI_INLINE void Dashboard::write_all() {
  write_values();
  run.file.flush();
}

TUTTI_INLINE void Dashboard::write_report(const State& state) {
  const std::string path = run_path(report, state);
  std::string problem;
  try {
    detail::RunRecord record{folder()};
    record.poll();
    problem = detail::write_whole_file(path, detail::report_page(record));
  } catch (const std::exception&) {  // the end of a run is no place to fail
    problem = detail::thrown();
  }
  if (!problem.empty()) {
    TORCH_WARN("Dashboard: cannot write '", path, "': ", problem);
    return;
  }
  detail::upload_file(remote_file_name, path, state);
}

}  // namespace tutti
