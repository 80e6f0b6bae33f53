// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/checkpoint/glob.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/detail/http.hpp>
#include <tutti/loggers/detail/mlflow_client.hpp>
#include <tutti/loggers/detail/picture_grid.hpp>
#include <tutti/loggers/detail/png.hpp>
#include <tutti/loggers/detail/sender.hpp>
#include <tutti/loggers/detail/text.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti {

/// Sends metrics, hyperparameters, images and tables to an MLflow server, at rank 0.
///
/// Images and tables become artifacts, `<name>_<step>_<number>.png` and `<name>_<step>.json`, by
/// way of the server (`mlflow server --serve-artifacts`, its default) or its folder on this
/// machine. The program is linked to cpp-httplib: the target tutti::http, which the CMake function
/// tutti_find_http() makes. A thread sends; a server that does not answer costs one warning, the
/// values wait and are sent later. The environment gives what MLflow's own clients take from it:
/// MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_TRACKING_USERNAME and _PASSWORD, or
/// MLFLOW_TRACKING_TOKEN.
/// Source: MosaicML Composer, `composer.loggers.MLFlowLogger`.
struct MLflowLogger final {
  static constexpr std::string_view name = "MLflowLogger";
  using events = types<Init, FitStart, EvalEnd, FitEnd>;

  std::string tracking_uri{};         ///< "http://host:5000"; empty: the environment's
  std::string experiment_name{};      ///< empty: the environment's, else "tutti"
  std::string run_name{};             ///< empty: the trainer's
  std::string run_group{};            ///< a tag by which runs are put together
  std::string run_id{};               ///< goes on with this run; empty: found by its name, or new
  bool resume = true;                 ///< goes on with the run of that name, if there is one
  std::int64_t metrics_interval = 1;  ///< batches of which one has its metrics kept; >= 1
  double flush_interval = 10;         ///< seconds between requests; > 0
  std::vector<std::string> ignore_metrics{};          ///< globs of names that are not sent
  std::vector<std::string> ignore_hyperparameters{};  ///< likewise
  std::vector<std::pair<std::string, std::string>> rename_metrics{};  ///< {{"old", "new"}}
  std::int64_t log_duplicated_metric_every_n_steps = 100;             ///< an unchanged value; >= 1
  double close_seconds = 30;  ///< that the end may wait for what is not sent yet; >= 0

  /// What it holds while it runs; not an option.
  struct Run {
    struct Metric {
      std::string key;  // as it is sent; empty: ignored
      double value = 0;
      std::int64_t step = 0;
      bool sent = false;
    };
    std::map<std::string, Metric, std::less<>> metrics{};
    std::shared_ptr<detail::MLflowRun> remote{};
    std::shared_ptr<std::atomic<std::size_t>> waiting{};  // bytes of artifacts
    bool fits = false;                                    // fit() has begun and not ended
    bool warned = false;
    std::unique_ptr<detail::Sender<detail::MLflowItem>> sender{};
  } run{};

  void validate() const {
    expect(metrics_interval >= 1, "MLflowLogger: metrics_interval", metrics_interval, "1 or more");
    expect(flush_interval > 0, "MLflowLogger: flush_interval", flush_interval, "more than 0 s");
    expect(close_seconds >= 0, "MLflowLogger: close_seconds", close_seconds, "0 or more seconds");
    expect(log_duplicated_metric_every_n_steps >= 1,
           "MLflowLogger: log_duplicated_metric_every_n_steps", log_duplicated_metric_every_n_steps,
           "1 or more");
  }

  /// Throws c10::Error when the server refuses; one that does not answer is tried again later.
  void apply(Init, const State& state) {
    if (state.rank == 0 && state.scratch_folder.empty()) {  // a dry run leaves nothing
      const auto [server, path] = split_uri();
      connect(client(server, path), server, state.run_name);
    }
  }
  void apply(FitStart, const State&) { run.fits = true; }
  void apply(EvalEnd, const State&) { hurry(); }
  void apply(FitEnd, const State&) {
    run.fits = false;
    hurry();
  }

  /// Sends what is left and marks the run FINISHED, FAILED after an exception, or KILLED when a
  /// signal ended fit() before its time.
  void close(const State&) {
    if (!run.sender) {
      return;
    }
    run.sender->add({.kind = detail::MLflowItem::Kind::status,
                     .text = detail::run_failed() ? "FAILED"
                             : run.fits           ? "KILLED"
                                                  : "FINISHED"},
                    /*always=*/true);
    const auto most = std::chrono::duration<double>(close_seconds);
    const std::size_t lost =
        run.sender->close(std::chrono::duration_cast<std::chrono::milliseconds>(most));
    run.sender.reset();
    run.remote.reset();  // hangs up
    if (lost > 0) {
      TORCH_WARN("MLflowLogger: ", lost, " values have not reached the server");
    }
  }

  void log_metrics(std::span<const LoggedMetric> metrics, std::int64_t step) {
    if (!run.sender) {
      return;
    }
    const std::int64_t now = milliseconds();
    for (const LoggedMetric& metric : metrics) {
      Run::Metric& known = entry(metric.name);
      const bool repeats = known.sent && known.value == metric.value &&
                           step < known.step + log_duplicated_metric_every_n_steps;
      if (!known.key.empty() && !repeats) {
        known.value = metric.value;
        known.step = step;
        known.sent =
            run.sender->add({.key = known.key, .value = metric.value, .step = step, .time = now});
      }
    }
  }
  void log_hyperparameters(std::span<const Hyperparameter> values) {
    if (!run.sender) {
      return;
    }
    for (const Hyperparameter& value : values) {
      if (!matches_any(ignore_hyperparameters, value.name)) {
        const std::string text = detail::utf8(detail::hyperparameter_text(value.value));
        run.sender->add(
            {.kind = detail::MLflowItem::Kind::param,
             .key = detail::MLflowRun::key(value.name),
             .text = std::string(detail::utf8_cut(text, detail::MLflowRun::longest_text))},
            /*always=*/true);
      }
    }
  }

  /// Pictures in [0, 1], or integers in [0, 255]; what is outside is clamped.
  void log_images(const LoggedImages& images, std::int64_t step) {
    if (!run.sender) {
      return;
    }
    try {
      const bool many = images.images.dim() == 4;
      for (std::int64_t i = 0; i < (many ? images.images.size(0) : 1); ++i) {
        const at::Tensor image = many ? images.images.select(0, i) : images.images;
        keep(detail::MLflowItem::Kind::artifact,
             std::string(images.name) + "_" + std::to_string(step) + "_" + std::to_string(i) +
                 ".png",
             detail::png(detail::picture_grid(
                 {.name = images.name, .images = image, .channels_last = images.channels_last})));
      }
    } catch (const c10::Error& error) {
      if (!std::exchange(run.warned, true)) {
        TORCH_WARN("MLflowLogger: ", error.what_without_backtrace());
      }
    }
  }
  void log_table(const LoggedTable& table, std::int64_t step) {
    if (run.sender) {
      keep(detail::MLflowItem::Kind::table,
           std::string(table.name) + "_" + std::to_string(step) + ".json",
           detail::table_text(table));
    }
  }

  /// Begins to send through `send`; Init does it. For tests and other transports.
  void connect(detail::HttpSend send, const std::string& server, const std::string& trainer_run) {
    const auto given = [](const std::string& option, const char* variable, const char* fallback) {
      const char* value = std::getenv(variable);
      return !option.empty() ? option : std::string(value != nullptr ? value : fallback);
    };
    run.remote = std::make_shared<detail::MLflowRun>(
        std::move(send), server,
        detail::MLflowRun::Names{
            .experiment = given(experiment_name, "MLFLOW_EXPERIMENT_NAME", "tutti"),
            .run = run_name.empty() ? trainer_run : run_name,
            .group = run_group,
            .id = run_id,
            .resume = resume});
    run.remote->warn = [](const std::string& text) { TORCH_WARN("MLflowLogger: ", text); };
    run.waiting = std::make_shared<std::atomic<std::size_t>>(0);
    try {
      run.remote->open(std::chrono::steady_clock::now() + std::chrono::seconds(5));
    } catch (const detail::TryLater& reason) {
      TORCH_WARN("MLflowLogger: ", reason.what(), "; values wait until it does");
    } catch (const std::exception& reason) {
      TUTTI_CHECK(false, "MLflowLogger: ", reason.what(),
                  "; see tracking_uri, experiment_name and who may use them");
    }
    const auto interval = std::chrono::duration<double>(flush_interval);
    run.sender = std::make_unique<detail::Sender<detail::MLflowItem>>(
        detail::SenderOptions{
            .who = std::string(name),
            .interval = std::chrono::duration_cast<std::chrono::milliseconds>(interval)},
        [run = run.remote](std::deque<detail::MLflowItem>& items,
                           std::chrono::steady_clock::time_point until) {
          run->tell(items, until);
        });
  }

 private:
  // Leaves a file to be sent, unless too much waits already.
  void keep(detail::MLflowItem::Kind kind, const std::string& file, std::string bytes) {
    constexpr std::size_t most = std::size_t{256} << 20U;
    if (*run.waiting + bytes.size() > most) {
      if (!std::exchange(run.warned, true)) {
        TORCH_WARN("MLflowLogger: the server takes images and tables too slowly; some are lost");
      }
      return;
    }
    *run.waiting += bytes.size();
    const auto done = [waiting = run.waiting](const std::string* text) {
      *waiting -= text->size();
      delete text;
    };
    run.sender->add(
        {.kind = kind,
         .key = detail::MLflowRun::file_name(file),
         .file = std::shared_ptr<const std::string>(new std::string(std::move(bytes)), done)});
  }

  static bool matches_any(const std::vector<std::string>& globs, std::string_view text) {
    for (const std::string& glob : globs) {
      if (checkpoint::glob_matches(glob, text)) {
        return true;
      }
    }
    return false;
  }

  static std::int64_t milliseconds() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  }

  Run::Metric& entry(std::string_view metric) {
    auto found = run.metrics.find(metric);
    if (found == run.metrics.end()) {
      std::string_view sent_as = metric;
      for (const auto& [old_name, new_name] : rename_metrics) {
        sent_as = old_name == metric ? std::string_view(new_name) : sent_as;
      }
      found = run.metrics.emplace(std::string(metric), Run::Metric{}).first;
      found->second.key =
          matches_any(ignore_metrics, metric) ? "" : detail::MLflowRun::key(sent_as);
    }
    return found->second;
  }

  void hurry() {
    if (run.sender) {
      run.sender->hurry();
    }
  }

  // "http://host:5000/at/path" as "http://host:5000" and "/at/path".
  [[nodiscard]] std::pair<std::string, std::string> split_uri() const {
    const char* variable = std::getenv("MLFLOW_TRACKING_URI");
    std::string uri = !tracking_uri.empty() ? tracking_uri : variable != nullptr ? variable : "";
    TUTTI_CHECK_VALUE(uri.starts_with("http://") || uri.starts_with("https://"),
                      "MLflowLogger: tracking_uri is \"", uri,
                      "\", expected \"http://host:port\" or \"https://...\"; start a server with "
                      "\"mlflow server\", and name it here or in MLFLOW_TRACKING_URI");
    while (uri.ends_with('/')) {
      uri.pop_back();
    }
    const auto slash = uri.find('/', uri.find("://") + 3);
    return {uri.substr(0, slash), slash == std::string::npos ? "" : uri.substr(slash)};
  }

  static detail::HttpSend client(const std::string& server, const std::string& path) {
#ifdef TUTTI_WITH_HTTP
#ifndef CPPHTTPLIB_OPENSSL_SUPPORT
    TUTTI_CHECK_VALUE(!server.starts_with("https://"), "MLflowLogger: tracking_uri is \"", server,
                      "\", but cpp-httplib was found without OpenSSL; use http://");
#endif
    const auto variable = [](const char* which) {
      const char* value = std::getenv(which);
      return std::string(value != nullptr ? value : "");
    };
    std::vector<std::pair<std::string, std::string>> headers;
    if (const std::string token = variable("MLFLOW_TRACKING_TOKEN"); !token.empty()) {
      headers.emplace_back("Authorization", "Bearer " + token);
    } else if (const std::string user = variable("MLFLOW_TRACKING_USERNAME"); !user.empty()) {
      headers.push_back(
          httplib::make_basic_authentication_header(user, variable("MLFLOW_TRACKING_PASSWORD")));
    }
    return
        [send = detail::http_client(server, headers), path](
            std::string_view method, const std::string& endpoint, const std::string& body,
            std::chrono::milliseconds most) { return send(method, path + endpoint, body, most); };
#else
    TUTTI_CHECK(false,
                "MLflowLogger: this program was compiled without an HTTP library, so it cannot "
                "reach ",
                server, path,
                "; install libcpp-httplib-dev, call tutti_find_http() in "
                "CMake and link the target tutti::http (or compile with -DTUTTI_WITH_HTTP=1 and "
                "link -lcpp-httplib)");
    return {};
#endif
  }
};

}  // namespace tutti
