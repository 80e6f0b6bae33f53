// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/utf8.hpp>
#include <tutti/loggers/detail/http.hpp>
#include <tutti/loggers/detail/sender.hpp>

namespace tutti::detail {

// One thing to tell an MLflow server about a run.
struct MLflowItem {
  enum class Kind { metric, param, artifact, table, status } kind = Kind::metric;
  std::string key{};
  std::string text{};  // of a param; of a status: FINISHED, FAILED
  double value = 0;
  std::int64_t step = 0;
  std::int64_t time = 0;                      // milliseconds since 1970
  std::shared_ptr<const std::string> file{};  // of an artifact or table, whose name is the key
};

// A run on an MLflow server, by its REST interface. For one thread at a time.
//
// Functions throw TryLater when the server does not answer or is busy, and std::runtime_error with
// its words when it refuses.
// Source: mlflow.org/docs/latest/rest-api.html
class MLflowRun {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t most_metrics = 1000;  // in a request, as the server demands
  static constexpr std::size_t most_params = 100;
  static constexpr std::size_t longest_key = 250;    // bytes
  static constexpr std::size_t longest_text = 6000;  // bytes of a param's value

  struct Names {
    std::string experiment;
    std::string run;    // found again by the tag run_name, which is this
    std::string group;  // tag run_group; empty: none
    std::string id;     // goes on with this run; empty: finds or makes one
    bool resume = true;
  };

  MLflowRun(HttpSend send, std::string server, Names names)
      : send_(std::move(send)), server_(std::move(server)), names_(std::move(names)) {}

  [[nodiscard]] const std::string& id() const { return id_; }

  // Told of artifacts that cannot be stored, once.
  std::function<void(const std::string&)> warn = [](const std::string&) {};

  // Finds or makes the experiment and the run.
  void open(Clock::time_point until) {
    until_ = until;
    if (!names_.id.empty()) {
      adopt(call("GET", "runs/get?run_id=" + escaped(names_.id), "")["run"]);
      return;
    }
    const std::string experiment = experiment_id();
    if (names_.resume && find(experiment)) {
      return;
    }
    std::string tags = tag("run_name", names_.run) + ", " + tag("mlflow.runName", names_.run);
    tags += names_.group.empty() ? "" : ", " + tag("run_group", names_.group);
    const Json made = call("POST", "runs/create",
                           "{\"experiment_id\": " + json_quoted(experiment) +
                               ", \"run_name\": " + json_quoted(names_.run) +
                               ", \"start_time\": " + now() + ", \"tags\": [" + tags + "]}");
    remember(made["run"]["info"]);
  }

  // Tells the server about items from the front, until all have arrived.
  void tell(std::deque<MLflowItem>& items, Clock::time_point until) {
    if (id_.empty()) {
      open(until);
    }
    until_ = until;
    while (!items.empty()) {
      const MLflowItem::Kind kind = items.front().kind;
      std::size_t count = 1;
      if (kind == MLflowItem::Kind::status) {
        set_status(items.front().text);
      } else if (kind == MLflowItem::Kind::artifact || kind == MLflowItem::Kind::table) {
        store(items.front());
      } else {
        const std::size_t most = kind == MLflowItem::Kind::metric ? most_metrics : most_params;
        while (count < std::min(most, items.size()) && items[count].kind == kind) {
          ++count;
        }
        log_batch(items, count, kind);
      }
      items.erase(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(count));
    }
  }

  // A file's name, which stays inside the run's folder.
  static std::string file_name(std::string_view name) {
    std::string out;
    for (const char c : key(name)) {
      const bool odd = c == ' ' || c == ':' || (c == '.' && out.ends_with('.')) ||
                       (c == '/' && (out.empty() || out.ends_with('/')));
      out += odd ? '_' : c;
    }
    return out;
  }

  // A name as the server allows it.
  static std::string key(std::string_view name) {
    std::string out(utf8_cut(name, longest_key));
    for (char& c : out) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
      c = plain || std::string_view("_-. :/").find(c) != std::string_view::npos ? c : '_';
    }
    return out;
  }

 private:
  static constexpr std::string_view tables_tag = "mlflow.loggedArtifacts";

  static std::string now() {
    const auto time = std::chrono::system_clock::now().time_since_epoch();
    return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
  }
  static std::string tag(std::string_view name, const std::string& value) {
    return "{\"key\": " + json_quoted(name) + ", \"value\": " + json_quoted(utf8(value)) + "}";
  }
  // For a path or query. also: left as they are.
  static std::string escaped(std::string_view text, std::string_view also = "") {
    constexpr std::string_view hex = "0123456789ABCDEF";
    std::string out;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if ((byte | 32) >= 'a' && (byte | 32) <= 'z') {
        out += c;
      } else if ((byte >= '0' && byte <= '9') || c == '-' || c == '_' || c == '.' ||
                 also.find(c) != std::string_view::npos) {
        out += c;
      } else {
        out += {'%', hex[byte >> 4], hex[byte & 15]};
      }
    }
    return out;
  }

  // Keeps a file of the run where its artifacts are.
  void store(const MLflowItem& item) {
    constexpr std::string_view proxied = "mlflow-artifacts:";
    try {
      if (artifacts_.starts_with(proxied)) {
        std::string_view path = std::string_view(artifacts_).substr(proxied.size());
        if (path.starts_with("//")) {  // with a host, which is the server
          path.remove_prefix(std::min(path.find('/', 2), path.size()));
        }
        path.remove_prefix(path.starts_with('/') ? 1 : 0);
        check(send_("PUT",
                    "/api/2.0/mlflow-artifacts/artifacts/" + escaped(path, "/") + "/" +
                        escaped(item.key, "/"),
                    *item.file, left()),
              item.key);
      } else {
        write_file(item);
      }
      if (item.kind == MLflowItem::Kind::table) {  // by which the server's pages find it
        tables_ += (tables_.empty() ? "" : ", ") + ("{\"path\": " + json_quoted(item.key)) +
                   ", \"type\": \"table\"}";
        call("POST", "runs/set-tag",
             "{\"run_id\": " + json_quoted(id_) + ", \"key\": " + json_quoted(tables_tag) +
                 ", \"value\": " + json_quoted("[" + tables_ + "]") + "}");
      }
    } catch (const TryLater&) {
      throw;
    } catch (const std::runtime_error& error) {
      if (!std::exchange(warned_, true)) {
        warn(std::string(error.what()) + "; images and tables are not kept there");
      }
    }
  }

  // The server keeps its files in a folder, which this machine sees or not.
  void write_file(const MLflowItem& item) const {
    constexpr std::string_view scheme = "file://";
    std::string folder = artifacts_;
    folder.erase(0, folder.starts_with(scheme) ? scheme.size() : 0);
    if (!folder.starts_with('/')) {
      throw std::runtime_error("the MLflow server " + server_ + " keeps files in \"" + artifacts_ +
                               "\", expected mlflow-artifacts:/... (mlflow server "
                               "--serve-artifacts) or a folder");
    }
    const std::filesystem::path path = folder + '/' + item.key;
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << *item.file;
    if (!file.flush()) {
      throw std::runtime_error("cannot write '" + path.string() +
                               "', where the MLflow server keeps files");
    }
  }

  [[nodiscard]] std::chrono::milliseconds left() const {
    const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(until_ - Clock::now());
    return std::clamp(time, std::chrono::milliseconds(100), std::chrono::milliseconds(10000));
  }

  // Throws unless the server took it.
  void check(const HttpReply& reply, std::string_view endpoint) const {
    if (reply.status == 0) {
      throw TryLater("the MLflow server " + server_ + " does not answer (" + reply.body + ")");
    }
    if (reply.status == 408 || reply.status == 429 || reply.status >= 500) {
      throw TryLater("the MLflow server " + server_ + " is busy or ill (HTTP " +
                     std::to_string(reply.status) + ")");
    }
    if (reply.status != 200) {
      const std::string words = reply.body.substr(0, reply.body.find('\n')).substr(0, 300);
      throw std::runtime_error("the MLflow server " + server_ + " answers " +
                               std::string(endpoint.substr(0, endpoint.find('?'))) + " with HTTP " +
                               std::to_string(reply.status) + ": " + words);
    }
  }

  // The reply's JSON; with may_be_missing null when the server says that there is no such thing.
  Json call(std::string_view method, const std::string& endpoint, const std::string& body,
            bool may_be_missing = false) {
    const HttpReply reply = send_(method, "/api/2.0/mlflow/" + endpoint, body, left());
    Json answer;
    bool is_json = true;
    try {
      answer = parse_json(reply.body);
    } catch (const std::exception&) {
      is_json = false;
    }
    const Json* code = answer.find("error_code");
    if (reply.status == 404 && may_be_missing && code != nullptr && code->is_string() &&
        code->string() == "RESOURCE_DOES_NOT_EXIST") {
      return {};
    }
    check(reply, endpoint);
    if (!is_json) {
      throw std::runtime_error("the MLflow server " + server_ + " answers " +
                               endpoint.substr(0, endpoint.find('?')) +
                               " with HTTP 200: " + reply.body.substr(0, 300));
    }
    return answer;
  }

  std::string experiment_id() {
    const std::string by_name =
        "experiments/get-by-name?experiment_name=" + escaped(names_.experiment);
    Json found = call("GET", by_name, "", /*may_be_missing=*/true);
    if (found.is_null()) {
      try {
        return call("POST", "experiments/create",
                    "{\"name\": " + json_quoted(utf8(names_.experiment)) + "}")["experiment_id"]
            .string();
      } catch (const TryLater&) {
        throw;
      } catch (const std::runtime_error&) {  // another run made it meanwhile
        found = call("GET", by_name, "");
      }
    }
    return found["experiment"]["experiment_id"].string();
  }

  // Goes on with the newest run of that name.
  bool find(const std::string& experiment) {
    const char quote = names_.run.find('\'') == std::string::npos ? '\'' : '"';
    if (names_.run.find(quote) != std::string::npos) {
      return false;  // the server's language has no way to write such a name
    }
    const std::string filter = "tags.run_name = " + (quote + utf8(names_.run)) + quote;
    const Json found = call("POST", "runs/search",
                            "{\"experiment_ids\": [" + json_quoted(experiment) +
                                "], \"filter\": " + json_quoted(filter) +
                                ", \"max_results\": 1, \"order_by\": [\"start_time DESC\"]}");
    const Json* runs = found.find("runs");
    if (runs == nullptr || runs->size() == 0) {
      return false;
    }
    adopt(runs->at(std::size_t{0}));
    return true;
  }

  void remember(const Json& info) {
    id_ = info["run_id"].string();
    const Json* uri = info.find("artifact_uri");
    artifacts_ = uri != nullptr && uri->is_string() ? uri->string() : "";
  }

  void adopt(const Json& run) {
    remember(run["info"]);
    const Json* data = run.find("data");
    const Json* params = data != nullptr ? data->find("params") : nullptr;
    for (std::size_t i = 0; params != nullptr && i < params->size(); ++i) {
      known_.insert(params->at(i)["key"].string());
    }
    const Json* tags = data != nullptr ? data->find("tags") : nullptr;
    for (std::size_t i = 0; tags != nullptr && i < tags->size(); ++i) {
      const std::string& list = tags->at(i)["value"].string();
      if (tags->at(i)["key"].string() == tables_tag && list.size() > 2) {
        tables_ = list.substr(1, list.size() - 2);
      }
    }
    set_status("RUNNING");
  }

  void set_status(const std::string& status) {
    call("POST", "runs/update",
         "{\"run_id\": " + json_quoted(id_) + ", \"status\": " + json_quoted(status) +
             (status == "RUNNING" ? "" : ", \"end_time\": " + now()) + "}");
  }

  void log_batch(const std::deque<MLflowItem>& items, std::size_t count, MLflowItem::Kind kind) {
    std::string list;
    std::vector<std::string> added;
    for (std::size_t i = 0; i < count; ++i) {
      const MLflowItem& item = items[i];
      if (kind == MLflowItem::Kind::metric) {
        list += (list.empty() ? "" : ", ") + metric(item);
      } else if (known_.insert(item.key).second) {  // a param never changes
        list += (list.empty() ? "" : ", ") + tag(item.key, item.text);
        added.push_back(item.key);
      }
    }
    if (!list.empty()) {
      const char* field = kind == MLflowItem::Kind::metric ? "metrics" : "params";
      try {
        call("POST", "runs/log-batch",
             "{\"run_id\": " + json_quoted(id_) + ", \"" + field + "\": [" + list + "]}");
      } catch (const TryLater&) {
        for (const std::string& key : added) {
          known_.erase(key);
        }
        throw;
      }
    }
  }

  static std::string metric(const MLflowItem& item) {
    std::array<char, 32> digits{};
    std::string value;
    if (std::isfinite(item.value)) {
      value.assign(digits.data(), std::to_chars(digits.begin(), digits.end(), item.value).ptr);
    } else {
      value = std::isnan(item.value) ? "\"NaN\""
              : item.value > 0       ? "\"Infinity\""
                                     : "\"-Infinity\"";
    }
    return "{\"key\": " + json_quoted(item.key) + ", \"value\": " + value +
           ", \"timestamp\": " + std::to_string(item.time) +
           ", \"step\": " + std::to_string(item.step) + "}";
  }

  HttpSend send_;
  std::string server_;
  Names names_;
  std::string id_;
  std::string artifacts_;  // where its files are
  std::string tables_;     // that it has got, as JSON
  bool warned_ = false;
  std::set<std::string> known_;  // params that the server has
  Clock::time_point until_{};
};

}  // namespace tutti::detail
