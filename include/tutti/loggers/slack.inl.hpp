// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/loggers/slack.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include <stdlib.h>
#include <unistd.h>

#include <tutti/checkpoint/glob.hpp>
#include <tutti/core/detail/command.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/utf8.hpp>

namespace tutti::detail {

// A file of this user's alone, as long as this lives.
class SecretFile {
 public:
  explicit SecretFile(std::string_view text) {
    path_ = (std::filesystem::temp_directory_path() / "tutti-slack-XXXXXX").string();
    const int fd = ::mkstemp(path_.data());  // readable by its owner alone
    TUTTI_CHECK(fd >= 0, "SlackLogger: cannot make '", path_, "': ", std::strerror(errno));
    const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::close(fd);
    if (!written) {
      ::unlink(path_.c_str());
    }
    TUTTI_CHECK(written, "SlackLogger: cannot write '", path_, "': ", std::strerror(errno));
  }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  ~SecretFile() { ::unlink(path_.c_str()); }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Throws TryLater when the program takes longer than `most`.
TUTTI_INLINE CommandResult run_in_time(const std::vector<std::string>& words,
                                       std::chrono::milliseconds most) {
  try {
    return run_command(words, most);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("was killed after") == std::string::npos) {
      throw;
    }
    throw TryLater(text);
  }
}

// Sends one message. Throws TryLater where the network is to blame, std::runtime_error otherwise.
TUTTI_INLINE void send_to_webhook(const std::string& command, const std::string& url,
                                  const std::string& message, std::chrono::milliseconds most) {
  const SecretFile body(message);
  const SecretFile config("url = " + json_quoted(url) +
                          "\nheader = \"Content-Type: application/json\"\ndata-binary = " +
                          json_quoted("@" + body.path()) + "\noutput = \"/dev/null\"\n");
  std::vector<std::string> words = detail::words_of(command);
  for (std::string& word : words) {
    for (const auto& [placeholder, path] :
         {std::pair{std::string_view("{config}"), config.path()}, {"{file}", body.path()}}) {
      if (const auto at = word.find(placeholder); at != std::string::npos) {
        word.replace(at, placeholder.size(), path);
      }
    }
  }
  const CommandResult result = run_in_time(words, most);
  if (result.status != 0) {
    const std::string text = "'" + words.front() + "' ended with status " +
                             std::to_string(result.status) + ": " + result.error.substr(0, 500);
    // What curl says of names, connections and times; the server's refusals are 22.
    for (const int network : {5, 6, 7, 28, 35, 52, 55, 56}) {
      if (result.status == network) {
        throw TryLater(text);
      }
    }
    throw std::runtime_error(text);
  }
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE void SlackLogger::validate() const {
  expect((log_interval.unit() == TimeUnit::epoch || log_interval.unit() == TimeUnit::batch) &&
             log_interval.value() >= 0,
         "SlackLogger: log_interval", log_interval, "0 or more in ep or ba");
  expect(close_seconds >= 0, "SlackLogger: close_seconds", close_seconds, "0 or more seconds");
  expect(
      command.find("{config}") != std::string::npos || command.find("{file}") != std::string::npos,
      "SlackLogger: command", command, "one with {config} or {file}");
  detail::words_of(command);
}

TUTTI_INLINE void SlackLogger::apply(Init, const State& state) {
  if (state.rank != 0) {
    return;
  }
  const char* const given = std::getenv("SLACK_WEBHOOK_URL");
  const std::string url = !webhook_url.empty() ? webhook_url : given != nullptr ? given : "";
  TUTTI_CHECK_VALUE(!url.empty(),
                    "SlackLogger: there is no webhook; set webhook_url, or SLACK_WEBHOOK_URL in "
                    "the environment");
  run.name = state.run_name;
  detail::SenderOptions options;
  options.who = std::string(name);
  options.capacity = 1000;
  options.batch = 1;
  options.interval = std::chrono::seconds(1);
  const auto attempt =
      std::chrono::milliseconds(std::llround(1000 * std::max(1.0, close_seconds / 2)));
  run.sender = std::make_shared<detail::Sender<std::string>>(
      options, [command = command, url, most = attempt](
                   std::deque<std::string>& items, std::chrono::steady_clock::time_point until) {
        while (!items.empty()) {
          const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
              until - std::chrono::steady_clock::now());
          if (left.count() <= 0) {
            return;
          }
          detail::send_to_webhook(command, url, items.front(), std::min(left, most));
          items.pop_front();
        }
      });
}

TUTTI_INLINE void SlackLogger::say(std::string text) {
  if (run.sender) {
    run.sender->add("{\"text\": " + detail::json_quoted(detail::utf8(text)) + "}");
    run.sender->hurry();
  }
}

TUTTI_INLINE std::string SlackLogger::list() const {
  std::string out;
  for (const auto& [key, value] : run.values) {
    std::array<char, 32> number{};
    std::snprintf(number.data(), number.size(), "%.6g", value);
    out.append("\n").append(key).append(": ").append(number.data());
  }
  return out;
}

TUTTI_INLINE void SlackLogger::apply(FitStart, const State& state) {
  run.told = false;
  say(run.name + " begins at " + to_string(state.timestamp.get(TimeUnit::batch)) + ", for " +
      to_string(state.max_duration) + ", on " + std::to_string(state.world_size) +
      (state.world_size == 1 ? " process" : " processes"));
}

TUTTI_INLINE void SlackLogger::apply(BatchEnd, const State& state) {
  if (log_interval.unit() == TimeUnit::batch && log_interval &&
      state.timestamp.batch % log_interval.count() == 0) {
    say(run.name + " at " + to_string(state.timestamp.get(TimeUnit::batch)) + list());
  }
}

TUTTI_INLINE void SlackLogger::apply(EpochEnd, const State& state) {
  if (log_interval.unit() == TimeUnit::epoch && log_interval &&
      state.timestamp.epoch % log_interval.count() == 0) {
    say(run.name + " at " + to_string(state.timestamp.get(TimeUnit::epoch)) + list());
  }
}

TUTTI_INLINE void SlackLogger::log_metrics(std::span<const LoggedMetric> metrics, std::int64_t) {
  if (!run.sender) {
    return;
  }
  for (const LoggedMetric& metric : metrics) {
    for (const std::string& glob : include_keys) {
      if (checkpoint::glob_matches(glob, metric.name)) {
        run.values.insert_or_assign(std::string(metric.name), metric.value);
        break;
      }
    }
  }
}

TUTTI_INLINE void SlackLogger::log_result(const LoggedResult& result) {
  run.told = true;
  const State& state = result.state;
  std::string text = run.name + (result.complete ? " is done at " : " was stopped at ") +
                     to_string(state.timestamp.get(TimeUnit::batch)) + list();
  if (!result.latest_checkpoint.empty()) {
    text.append("\ncheckpoint: ").append(result.latest_checkpoint);
  }
  say(std::move(text));
}

TUTTI_INLINE void SlackLogger::close(const State& state) {
  if (!run.sender) {
    return;
  }
  if (!run.told && detail::run_failed()) {
    say(run.name + " failed at " + to_string(state.timestamp.get(TimeUnit::batch)) + list());
  }
  const auto most = std::chrono::duration<double>(close_seconds / 2);
  const std::size_t lost =
      run.sender->close(std::chrono::duration_cast<std::chrono::milliseconds>(most));
  run.sender.reset();
  if (lost > 0) {
    TORCH_WARN("SlackLogger: ", lost, " messages have not reached the webhook");
  }
}

}  // namespace tutti
