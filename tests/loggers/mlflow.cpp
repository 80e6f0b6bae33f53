#include <tutti/loggers/mlflow.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <tutti/core/recipe.hpp>

#include "loggers/run.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::MLflowLogger;
using tutti::detail::HttpReply;
using tutti::detail::Json;
using tutti::detail::MLflowRun;

static_assert(tutti::Recipe<MLflowLogger>::valid);
static_assert(tutti::role_of<MLflowLogger> == tutti::Role::logger);

namespace {

// As much of an MLflow server as the logger speaks to.
struct Server {
  std::mutex mutex;
  bool has_run = false;
  bool has_experiment = false;
  std::atomic<bool> dead = false;
  std::atomic<int> busy = 0;       // requests answered with 503
  std::vector<std::string> calls;  // endpoints, without what changes
  std::vector<Json> bodies;
  std::vector<std::string> metrics;  // "loss/train/total 0 1.000000"
  std::vector<std::string> params;
  std::size_t largest = 0;  // metrics in a request
  std::string artifact_uri = "mlflow-artifacts:/7/r1/artifacts";
  std::map<std::string, std::string> files;  // that were put, by path
  int put_status = 200;
  std::vector<std::string> wrong;  // what was asked and is not known, by a thread of the logger's

  ~Server() { CHECK(wrong == std::vector<std::string>()); }

  HttpReply operator()(std::string_view method, const std::string& path, const std::string& body,
                       std::chrono::milliseconds) {
    const std::lock_guard lock(mutex);
    if (dead) {
      return {0, "Connection refused"};
    }
    if (busy > 0) {
      --busy;
      return {503, "later"};
    }
    if (method == "PUT") {
      if (put_status == 200) {
        files[path] = body;
      }
      return {put_status, put_status == 200 ? "{}" : "no room"};
    }
    const std::string prefix = "/api/2.0/mlflow/";
    if (!path.starts_with(prefix)) {
      wrong.push_back(path);
      return {404, "{}"};
    }
    const std::string endpoint = path.substr(prefix.size());
    calls.push_back(std::string(method) + " " + endpoint);
    bodies.push_back(body.empty() ? Json() : tutti::detail::parse_json(body));
    return answer(endpoint, bodies.back());
  }

  HttpReply answer(const std::string& endpoint, const Json& body) {
    if (endpoint.starts_with("experiments/get-by-name")) {
      return has_experiment ? HttpReply{200, R"({"experiment": {"experiment_id": "7"}})"}
                            : HttpReply{404, R"({"error_code": "RESOURCE_DOES_NOT_EXIST"})"};
    }
    if (endpoint == "experiments/create") {
      return {200, R"({"experiment_id": "7"})"};
    }
    const std::string run =
        R"({"info": {"run_id": "r1", "artifact_uri": ")" + artifact_uri +
        R"("}, "data": {"params": [{"key": "lr", "value": "0.5"}], "tags": [{"key": )"
        R"("mlflow.loggedArtifacts", "value": "[{\"path\": \"a.json\"}]"}]}})";
    if (endpoint == "runs/search") {
      return {200, has_run ? R"({"runs": [)" + run + "]}" : "{}"};
    }
    if (endpoint.starts_with("runs/get")) {
      return {200, R"({"run": )" + run + "}"};
    }
    if (endpoint == "runs/create") {
      return {200,
              R"({"run": {"info": {"run_id": "r1", "artifact_uri": ")" + artifact_uri + R"("}}})"};
    }
    if (endpoint == "runs/log-batch") {
      take(body);
    }
    return {200, "{}"};
  }

  void take(const Json& body) {
    if (const Json* list = body.find("metrics")) {
      largest = std::max(largest, list->size());
      for (std::size_t i = 0; i < list->size(); ++i) {
        const Json& item = list->at(i);
        if (item["timestamp"].integer() <= 1'700'000'000'000) {
          wrong.push_back("the timestamp " + std::to_string(item["timestamp"].integer()));
        }
        metrics.push_back(item["key"].string() + " " + std::to_string(item["step"].integer()) +
                          " " +
                          (item["value"].is_number() ? std::to_string(item["value"].number())
                                                     : item["value"].string()));
      }
    }
    if (const Json* list = body.find("params")) {
      for (std::size_t i = 0; i < list->size(); ++i) {
        params.push_back(list->at(i)["key"].string() + "=" + list->at(i)["value"].string());
      }
    }
  }

  [[nodiscard]] tutti::detail::HttpSend sender() {
    return [this](auto... arguments) { return (*this)(arguments...); };
  }
};

// A logger of a run, connected to the server, with Init left out.
void train(MLflowLogger& logger, Server& server, const std::string& run_name = "otter") {
  logger.connect(server.sender(), "http://test", run_name);
  tutti::State state;
  state.logger.add(logger);
  state.logger.log_hyperparameters({{"lr", 0.1}, {"run_name", run_name}});
  for (int i = 0; i < 3; ++i) {
    state.log_metrics({{"loss/train/total", 1.0 / (i + 1)}, {"same", 4.0}});
    state.timestamp = state.timestamp.to_next_batch(16);
  }
  logger.close(state);
}

}  // namespace

TEST_CASE("a run is made, told about and finished", "[loggers][trace]") {
  Server server;
  MLflowLogger logger{.experiment_name = "a b", .run_group = "g"};
  train(logger, server);
  CHECK(server.calls ==
        std::vector<std::string>{"GET experiments/get-by-name?experiment_name=a%20b",
                                 "POST experiments/create", "POST runs/search", "POST runs/create",
                                 "POST runs/log-batch", "POST runs/log-batch", "POST runs/update"});
  CHECK(server.bodies[1]["name"].string() == "a b");
  CHECK(server.bodies[2]["filter"].string() == "tags.run_name = 'otter'");
  CHECK(server.bodies[3]["experiment_id"].string() == "7");
  CHECK(server.bodies[3]["tags"][2]["value"].string() == "g");
  CHECK(server.bodies.back()["status"].string() == "FINISHED");
  CHECK(server.bodies.back()["end_time"].integer() > 1'700'000'000'000);
  CHECK(server.params == std::vector<std::string>{"lr=0.1", "run_name=otter"});
  CHECK(server.metrics == std::vector<std::string>{"loss/train/total 0 1.000000", "same 0 4.000000",
                                                   "loss/train/total 1 0.500000",
                                                   "loss/train/total 2 0.333333"});
}

TEST_CASE("the run of that name goes on, and its params stay", "[loggers][resume]") {
  Server server;
  server.has_run = server.has_experiment = true;
  MLflowLogger logger;
  train(logger, server);
  CHECK(server.calls[1] == "POST runs/search");
  CHECK(server.calls[2] == "POST runs/update");
  CHECK(server.bodies[2]["status"].string() == "RUNNING");
  CHECK(server.params == std::vector<std::string>{"run_name=otter"});

  Server other;
  other.has_run = other.has_experiment = true;
  MLflowLogger fresh{.resume = false};
  train(fresh, other);
  CHECK(other.calls[1] == "POST runs/create");

  Server third;
  MLflowLogger by_id{.run_id = "r/1"};
  train(by_id, third);
  CHECK(third.calls[0] == "GET runs/get?run_id=r%2F1");
}

TEST_CASE("names are chosen, changed and cut as the server allows", "[loggers][law]") {
  Server server;
  MLflowLogger logger{.ignore_metrics = {"time/*"},
                      .ignore_hyperparameters = {"secret*"},
                      .rename_metrics = {{"old", "new"}},
                      .log_duplicated_metric_every_n_steps = 2};
  logger.connect(server.sender(), "http://test", "otter");
  tutti::State state;
  state.logger.add(logger);
  state.logger.log_hyperparameters(
      {{"secret_key", 1.0}, {"long", std::string(7000, 'x')}, {"f(x)", true}});
  for (int i = 0; i < 4; ++i) {
    state.log_metrics({{"time/batch", 1.0 * i}, {"old", 1.0}});
    state.timestamp = state.timestamp.to_next_batch(16);
  }
  state.log_metrics({{"nan", std::numeric_limits<double>::quiet_NaN()},
                     {"inf", -std::numeric_limits<double>::infinity()}});
  logger.close(state);
  CHECK(server.metrics == std::vector<std::string>{"new 0 1.000000", "new 2 1.000000", "nan 4 NaN",
                                                   "inf 4 -Infinity"});
  CHECK(server.params == std::vector<std::string>{"long=" + std::string(6000, 'x'), "f_x_=true"});
}

TEST_CASE("requests keep to the server's limits", "[loggers][law]") {
  Server server;
  MLflowLogger logger{.flush_interval = 1000};
  logger.connect(server.sender(), "http://test", "otter");
  tutti::State state;
  state.logger.add(logger);
  for (int i = 0; i < 250; ++i) {
    const std::string key = "h" + std::to_string(i);
    state.logger.log_hyperparameters({{key, 1.0}});
  }
  for (int i = 0; i < 2500; ++i) {
    state.logger.log_metrics({{"loss", 1.0 * i}}, i);
  }
  logger.close(state);
  CHECK(server.metrics.size() == 2500);
  CHECK(server.params.size() == 250);
  CHECK(server.largest <= 1000);
  for (const Json& body : server.bodies) {
    CHECK((!body.contains("params") || body["params"].size() <= 100));
  }
}

TEST_CASE("a server that is away at first, or busy, gets everything later", "[loggers][law]") {
  Server server;
  server.dead = true;
  MLflowLogger logger{.flush_interval = 0.01};
  logger.connect(server.sender(), "http://test", "otter");
  tutti::State state;
  state.logger.add(logger);
  state.log_metrics({{"loss", 1.0}});
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  server.busy = 1;
  server.dead = false;
  logger.close(state);
  CHECK(server.metrics == std::vector<std::string>{"loss 0 1.000000"});
  CHECK(server.bodies.back()["status"].string() == "FINISHED");
}

namespace {

// Two pictures and a table; returns what was warned of.
std::vector<std::string> show(Server& server) {
  std::vector<std::string> warned;
  MLflowLogger logger;
  logger.connect(server.sender(), "http://test", "otter");
  logger.run.remote->warn = [&](const std::string& text) { warned.push_back(text); };
  tutti::State state;
  state.logger.add(logger);
  const at::Tensor images = at::zeros({2, 3, 4, 5});
  state.logger.log_images({.name = "Images/Train", .images = images}, 6);
  const std::vector<std::string> columns{"a", "b"};
  const std::vector<std::vector<std::string>> rows{{"1", "x"}};
  state.logger.log_table({.name = "../a table", .columns = columns, .rows = rows}, 7);
  state.log_metrics({{"loss", 1.0}});
  logger.close(state);
  CHECK(server.metrics == std::vector<std::string>{"loss 0 1.000000"});
  return warned;
}

}  // namespace

TEST_CASE("images and tables are put where the server keeps files", "[loggers]") {
  Server server;
  server.has_run = server.has_experiment = GENERATE(false, true);
  CHECK(show(server).empty());
  const std::string at = "/api/2.0/mlflow-artifacts/artifacts/7/r1/artifacts/";
  REQUIRE(server.files.size() == 3);
  CHECK(server.files.at(at + "Images/Train_6_0.png").starts_with("\x89PNG"));
  CHECK(server.files.contains(at + "Images/Train_6_1.png"));
  CHECK(server.files.at(at + "._/a_table_7.json") ==
        R"({"columns": ["a", "b"], "data": [["1", "x"]]})");
  const auto tag = std::find(server.calls.begin(), server.calls.end(), "POST runs/set-tag");
  REQUIRE(tag != server.calls.end());
  const Json& body = server.bodies[static_cast<std::size_t>(tag - server.calls.begin())];
  CHECK(body["key"].string() == "mlflow.loggedArtifacts");
  const std::string mine = R"({"path": "._/a_table_7.json", "type": "table"}])";
  CHECK(body["value"].string() ==
        (server.has_run ? R"([{"path": "a.json"}, )" + mine : "[" + mine));
}

TEST_CASE("files go into the server's folder where that is on this machine", "[loggers]") {
  const TemporaryFolder folder;
  Server server;
  server.artifact_uri = GENERATE("", "file://") + (folder / "artifacts").string();
  CHECK(show(server).empty());
  CHECK(server.files.empty());
  CHECK(read_bytes(folder / "artifacts/Images/Train_6_1.png").starts_with("\x89PNG"));
  CHECK(sorted_names(folder / "artifacts/._") == std::vector<std::string>{"a_table_7.json"});
}

TEST_CASE("files that cannot be kept are warned of once, and the rest goes on", "[loggers]") {
  Server elsewhere;
  elsewhere.artifact_uri = "s3://bucket/a";
  auto warned = show(elsewhere);
  REQUIRE(warned.size() == 1);
  CHECK_THAT(warned[0], ContainsSubstring("keeps files in \"s3://bucket/a\", expected mlflow-"));
  Server refusing;
  refusing.put_status = 403;
  warned = show(refusing);
  REQUIRE(warned.size() == 1);
  CHECK_THAT(warned[0], ContainsSubstring("answers Images/Train_6_0.png with HTTP 403: no room"));
}

TEST_CASE("a run that a signal ends is marked as killed", "[loggers]") {
  Server server;
  MLflowLogger logger;
  logger.connect(server.sender(), "http://test", "otter");
  tutti::State state;
  logger.apply(tutti::FitStart{}, state);  // and no FitEnd
  logger.close(state);
  CHECK(server.bodies.back()["status"].string() == "KILLED");
  MLflowLogger whole;
  whole.connect(server.sender(), "http://test", "otter");
  whole.apply(tutti::FitStart{}, state);
  whole.apply(tutti::FitEnd{}, state);
  whole.close(state);
  CHECK(server.bodies.back()["status"].string() == "FINISHED");
}

TEST_CASE("a run that fails is marked so", "[loggers]") {
  Server server;
  MLflowLogger logger;
  logger.connect(server.sender(), "http://test", "otter");
  tutti::State state;
  try {
    throw std::runtime_error("crash");
  } catch (const std::runtime_error&) {
    logger.close(state);
  }
  CHECK(server.bodies.back()["status"].string() == "FAILED");
}

TEST_CASE("a dead server costs no more than the deadline", "[loggers][law]") {
  Server server;
  server.dead = true;
  MLflowLogger logger{.close_seconds = 0.2};
  logger.connect(server.sender(), "http://test", "otter");
  tutti::State state;
  state.logger.add(logger);
  state.log_metrics({{"loss", 1.0}});
  const auto start = std::chrono::steady_clock::now();
  logger.close(state);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  CHECK(server.metrics.empty());
}

TEST_CASE("a wrong address or a refusal is an error before training", "[loggers]") {
  tutti::State state;
  MLflowLogger nowhere{.tracking_uri = "localhost:5000"};
  CHECK_THROWS_WITH(nowhere.apply(tutti::Init{}, state),
                    ContainsSubstring("tracking_uri is \"localhost:5000\", expected \"http://"));
  MLflowLogger refused;
  CHECK_THROWS_WITH(
      refused.connect([](auto...) { return HttpReply{401, "You are not authenticated."}; },
                      "http://test", "otter"),
      ContainsSubstring("the MLflow server http://test answers experiments/get-by-name with HTTP "
                        "401: You are not authenticated.; see tracking_uri"));
  CHECK_THROWS_WITH(MLflowLogger{.flush_interval = 0}.validate(),
                    ContainsSubstring("flush_interval is 0"));
  state.rank = 1;
  MLflowLogger silent;
  silent.apply(tutti::Init{}, state);
  silent.close(state);
}

#ifdef TUTTI_WITH_HTTP

TEST_CASE("the logger speaks HTTP, below a path and with a password", "[loggers][trace]") {
  Server server;
  httplib::Server http;
  std::string password;
  const auto handle = [&](const httplib::Request& request, httplib::Response& response) {
    password = request.get_header_value("Authorization");
    const HttpReply reply =
        server(request.method, request.target.substr(5), request.body, std::chrono::seconds(1));
    response.status = reply.status;
    response.set_content(reply.body, "application/json");
  };
  http.Get("/base/.*", handle);
  http.Post("/base/.*", handle);
  const int port = http.bind_to_any_port("127.0.0.1");
  std::thread thread([&] { http.listen_after_bind(); });
  ::setenv("MLFLOW_TRACKING_USERNAME", "me", 1);
  ::setenv("MLFLOW_TRACKING_PASSWORD", "secret", 1);
  MLflowLogger logger{.tracking_uri = "http://127.0.0.1:" + std::to_string(port) + "/base/"};
  {
    FakeRun run{logger, "1ep"};
    run.epoch();
    run.evaluate();
    logger.close(run.state);
  }
  ::unsetenv("MLFLOW_TRACKING_USERNAME");
  ::unsetenv("MLFLOW_TRACKING_PASSWORD");
  http.stop();
  thread.join();
  CHECK(password == "Basic bWU6c2VjcmV0");
  CHECK(server.metrics.size() == 7);
  CHECK(server.bodies.back()["status"].string() == "FINISHED");

  // Nobody there any more: training begins and ends all the same.
  MLflowLogger alone{.tracking_uri = "http://127.0.0.1:" + std::to_string(port),
                     .close_seconds = 0.2};
  FakeRun run{alone, "1ep"};
  run.epoch();
  CHECK_NOTHROW(alone.close(run.state));
}

// Not run by itself: mlflow_real.py names the server and reads what it has.
TEST_CASE("a run for the real MLflow server to read", "[.][writer]") {
  const char* uri = std::getenv("TUTTI_MLFLOW_URI");
  const char* name = std::getenv("TUTTI_MLFLOW_RUN");
  REQUIRE(uri != nullptr);
  REQUIRE(name != nullptr);
  MLflowLogger logger{.tracking_uri = uri, .experiment_name = "tutti's \"test\"", .run_name = name};
  FakeRun run{logger, "2ep"};
  run.state.logger.log_hyperparameters({{"text", std::string(7000, 'x')}, {"layers (n)", true}});
  run.epoch();
  run.evaluate();
  run.state.log_metrics({{"nan", std::numeric_limits<double>::quiet_NaN()}});
  for (int i = 0; i < 1500; ++i) {
    run.state.logger.log_metrics({{"many", 1.0 * i}}, i);
  }
  const at::Tensor images = at::ones({2, 3, 4, 5});
  run.state.logger.log_images({.name = "Images/Train", .images = images}, 6);
  const std::vector<std::string> columns{"a", "b"};
  const std::vector<std::vector<std::string>> rows{{"1", "x"}, {"2", "y"}};
  run.state.logger.log_table({.name = "texts", .columns = columns, .rows = rows}, 7);
  const bool fails = std::getenv("TUTTI_MLFLOW_FAIL") != nullptr;
  try {
    if (fails) {
      throw std::runtime_error("crash");
    }
    logger.close(run.state);
  } catch (const std::runtime_error&) {
    logger.close(run.state);
  }
}

#else

TEST_CASE("without an HTTP library the logger says what to install", "[loggers]") {
  tutti::State state;
  MLflowLogger logger{.tracking_uri = "http://127.0.0.1:1"};
  CHECK_THROWS_WITH(logger.apply(tutti::Init{}, state),
                    ContainsSubstring("install libcpp-httplib-dev, call tutti_find_http()"));
}

#endif

}  // namespace UNITY_BUILD_UNIQUE_ID
