// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/time.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/detail/sender.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti {

/// Tells a Slack channel, or any service with such a webhook, how a run goes: that it begins, its
/// metrics every log_interval, and how it ended.
///
///     SlackLogger{.include_keys = {"loss/train/total", "metrics/test/*"}, .log_interval = "1ep"}
///
/// Messages go through a command line program, curl unless `command` names another, on a thread of
/// their own: the run never waits for them but `close_seconds` at its end, and goes on without
/// when they cannot be sent. Rank 0 alone speaks.
/// Source: MosaicML Composer, `composer.loggers.SlackLogger`, there with a token and a channel.
struct SlackLogger final {
  static constexpr std::string_view name = "SlackLogger";
  static constexpr About about{.reads_gradients = false};
  using events = types<Init, FitStart, BatchEnd, EpochEnd>;

  /// The address of the webhook, which is a secret; empty: that of the environment's
  /// SLACK_WEBHOOK_URL.
  std::string webhook_url{};
  std::vector<std::string> include_keys = {"loss/train/total",
                                           "metrics/*"};  ///< globs of the metrics' names
  Time log_interval = "1ep";  ///< between messages with metrics, in ep or ba; 0: none
  /// How a message is sent, split into words as a shell would and run without one. {config}: a file
  /// for curl's --config with the address and the message. {file}: one with the message, JSON.
  std::string command = "curl --silent --show-error --fail --max-time 5 --config {config}";
  /// What the run waits for messages at its end, at most; >= 0. One attempt to send takes at most
  /// half of it, or a second.
  double close_seconds = 10;

  /// What it holds while it runs; not an option.
  struct Run {
    std::shared_ptr<detail::Sender<std::string>> sender{};
    std::map<std::string, double, std::less<>> values{};  // the latest of the metrics
    std::string name{};
    bool told = false;  // how the fit ended
  } run{};

  /// Throws c10::ValueError when an option is out of range.
  void validate() const;

  /// Throws c10::ValueError when there is no address.
  void apply(Init, const State& state);
  void apply(FitStart, const State& state);
  void apply(BatchEnd, const State& state);
  void apply(EpochEnd, const State& state);

  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step);
  void log_result(const LoggedResult& result);

  /// Tells of an exception, and waits for what has not been sent.
  void close(const State& state);

 private:
  void say(std::string text);
  [[nodiscard]] std::string list() const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/loggers/slack.inl.hpp>
#endif
