#ifdef TUTTI_WITH_HTTP

#include <tutti/loggers/dashboard_command.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <httplib.h>

#include <tutti/core/detail/json_parse.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::parse_dashboard;
using tutti::detail::DashboardServer;
using tutti::detail::DashboardServerOptions;
using tutti::detail::Json;
using tutti::detail::parse_json;

namespace {

constexpr const char* first_line =
    R"({"type": "start", "step": 0, "time": 100, "run_name": "r", "rank": 0, "world_size": 1})"
    "\n";

std::string loss_line(int step) {
  return "{\"type\": \"metrics\", \"step\": " + std::to_string(step) +
         ", \"time\": 100.5, \"values\": {\"loss\": " + std::to_string(step) + "}}\n";
}

// A folder with two runs, and its page.
struct Served {
  explicit Served(DashboardServerOptions options = {}) {
    for (const char* run : {"a", "b"}) {
      std::filesystem::create_directory(folder / run);
      write_bytes(folder / run / "dashboard.jsonl", first_line + loss_line(0));
    }
    write_bytes(folder / "secret", "the secret");
    options.folder = folder.path();
    options.token = "0123456789abcdef";
    options.beat = std::chrono::milliseconds(20);
    server = std::make_unique<DashboardServer>(options);
    thread = std::thread([this] { server->serve(); });
  }
  ~Served() {
    server->stop();
    thread.join();
  }

  [[nodiscard]] httplib::Client client() const {
    return httplib::Client("127.0.0.1", server->port());
  }
  // The status and what was said.
  [[nodiscard]] std::pair<int, std::string> get(const std::string& path,
                                                const httplib::Headers& headers = {}) const {
    httplib::Client to = client();
    const auto reply = to.Get(path, headers);
    return reply ? std::pair{reply->status, reply->body} : std::pair{0, std::string()};
  }
  [[nodiscard]] Json json(const std::string& path) const {
    const auto [status, body] = get("/0123456789abcdef/" + path);
    REQUIRE(status == 200);
    return parse_json(body);
  }

  TemporaryFolder folder{};
  std::unique_ptr<DashboardServer> server{};
  std::thread thread{};
};

// A request as bytes, for those that no client makes.
std::string raw(int port, const std::string& request) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string got;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0 &&
      ::send(fd, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
    std::array<char, 4096> piece{};
    for (ssize_t n = 1; n > 0;) {
      n = ::recv(fd, piece.data(), piece.size(), 0);
      got.append(piece.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    }
  }
  ::close(fd);
  return got;
}

}  // namespace

TEST_CASE("the page and its data come to whoever has the address", "[loggers][dashboard]") {
  const Served served;
  CHECK(served.server->address() ==
        "http://127.0.0.1:" + std::to_string(served.server->port()) + "/0123456789abcdef/");
  const auto [status, page] = served.get("/0123456789abcdef/");
  CHECK(status == 200);
  CHECK_THAT(page, ContainsSubstring("<script id=\"data\" type=\"application/json\"></script>"));
  CHECK(served.get("/0123456789abcdef").first == 302);
  const Json runs = served.json("runs");
  REQUIRE(runs["runs"].size() == 2);
  CHECK(runs["runs"][1]["folder"].string() == "b");
  CHECK(served.json("run?id=0")["series"][0][0].string() == "loss");
  CHECK(served.json("curves?id=0&s=0")["0"]["m"].size() == 1);
  CHECK(served.json("curves?id=0&s=0,7,x,-1,99999999999999999999,&n=-5&from=x")["0"]["x"].size() ==
        1);
  CHECK(served.json("runs")["runs"][0]["status"].string() == "died");
  // A run that begins later is found.
  std::filesystem::create_directory(served.folder / "c");
  write_bytes(served.folder / "c/metrics.jsonl", first_line);
  CHECK(served.json("runs")["runs"].size() == 3);
}

TEST_CASE("who lacks the token is refused", "[loggers][dashboard][security]") {
  const Served served;
  for (const char* path :
       {"/", "/runs", "/0123456789abcdee/", "/0123456789abcdef0/", "/0123456789abcde/",
        "//0123456789abcdef/", "/x/0123456789abcdef/", "/?token=0123456789abcdef"}) {
    INFO(path);
    const auto [status, text] = served.get(path);
    CHECK(status == 403);
    CHECK_THAT(text, ContainsSubstring("The address lacks its token"));
  }
  DashboardServerOptions drawn{.folder = served.folder.path()};
  const DashboardServer one(drawn);
  const DashboardServer other(drawn);
  const auto token = [](const DashboardServer& server) {
    const std::string& text = server.address();
    return text.substr(text.size() - 33, 32);
  };
  CHECK(token(one).find('/') == std::string::npos);
  CHECK(token(one) != token(other));
}

TEST_CASE("another name of the machine is refused", "[loggers][dashboard][security]") {
  const Served served({.folder = {}, .names = {"workstation.example"}});
  const std::string page = "/0123456789abcdef/";
  for (const char* good : {"localhost", "localhost:9999", "127.0.0.1:1", "[::1]:6070", "10.0.0.7",
                           "workstation.example:80"}) {
    INFO(good);
    CHECK(served.get(page, {{"Host", good}}).first == 200);
  }
  for (const char* bad : {"evil.example", "evil.example:6070", "localhost.evil.example",
                          "127.0.0.1.evil.example", "[evil", "10.0.0", "localhost@evil.example"}) {
    INFO(bad);
    const auto [status, text] = served.get(page, {{"Host", bad}});
    CHECK(status == 403);
    CHECK_THAT(text, ContainsSubstring("does not answer to that name"));
  }
  CHECK_THAT(raw(served.server->port(), "GET " + page + " HTTP/1.0\r\n\r\n"),
             ContainsSubstring(" 403 "));
}

TEST_CASE("no request is a path", "[loggers][dashboard][security]") {
  const Served served;
  for (const char* path :
       {"../secret", "..%2fsecret", "%2e%2e/secret", "a/dashboard.jsonl", "../../../etc/passwd",
        "image?id=0&file=../../secret", "image?id=0&file=0", "run?id=-1", "run?id=99",
        "run?id=../a", "run", "curves", "nothing", "run/", "%00"}) {
    INFO(path);
    const std::string reply =
        raw(served.server->port(), "GET /0123456789abcdef/" + std::string(path) +
                                       " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    CHECK_THAT(reply, ContainsSubstring(" 404 ") || ContainsSubstring(" 400 ") ||
                          ContainsSubstring(" 403 "));
    CHECK(reply.find("the secret") == std::string::npos);
  }
}

TEST_CASE("the page is only read", "[loggers][dashboard][security]") {
  const Served served;
  httplib::Client client = served.client();
  CHECK(client.Post("/0123456789abcdef/runs", "x", "text/plain")->status == 405);
  CHECK(client.Delete("/0123456789abcdef/runs")->status == 405);
  const auto reply = client.Get("/0123456789abcdef/");
  CHECK(reply->get_header_value("X-Frame-Options") == "DENY");
  CHECK(reply->get_header_value("Referrer-Policy") == "no-referrer");
  CHECK(reply->get_header_value("Cache-Control") == "no-store");
  CHECK_THAT(reply->get_header_value("Content-Security-Policy"),
             ContainsSubstring("default-src 'none'") && ContainsSubstring("connect-src 'self'"));
  CHECK(!reply->has_header("Access-Control-Allow-Origin"));
}

TEST_CASE("a port that is taken is not shared", "[loggers][dashboard]") {
  const TemporaryFolder folder;
  const DashboardServer first({.folder = folder.path()});
  const DashboardServer second({.folder = folder.path()});
  CHECK(second.port() > first.port());
  CHECK_THROWS_WITH(DashboardServer({.folder = folder.path(), .port = first.port()}),
                    ContainsSubstring("port " + std::to_string(first.port()) + ": it is taken") &&
                        ContainsSubstring("choose another with --port or --host"));
  CHECK_THROWS_WITH(DashboardServer({.folder = folder.path(), .host = "203.0.113.7"}),
                    ContainsSubstring("no address of this machine"));
}

TEST_CASE("pages are told of news; one that leaves makes room for another",
          "[loggers][dashboard]") {
  const Served served({.folder = {}, .most_readers = 2});
  CHECK(served.json("run?id=0")["step"].integer() == 0);
  std::atomic<int> told = 0;
  std::atomic<bool> leaves = false;
  const auto read = [&] {
    httplib::Client client = served.client();
    client.set_read_timeout(20);
    client.Get("/0123456789abcdef/events", [&](const char* data, std::size_t size) {
      told += std::string(data, size).find("data: ") != std::string::npos ? 1 : 0;
      return !leaves;
    });
  };
  const auto until = [](const auto& holds) {
    bool does = holds();  // asked once a time: who asks for a place may be given it
    for (int i = 0; i < 1000 && !does; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      does = holds();
    }
    return does;
  };
  std::thread one(read);
  std::thread two(read);
  REQUIRE(until([&] { return told == 2; }));  // at once, of the state that there is
  const auto [status, text] = served.get("/0123456789abcdef/events");
  CHECK(status == 503);
  CHECK_THAT(text, ContainsSubstring("asks now and then"));
  CHECK(served.server->idle().count() == 0);
  std::ofstream(served.folder / "a/dashboard.jsonl", std::ios::app) << loss_line(1);
  CHECK(until([&] { return told >= 4; }));
  CHECK(served.json("run?id=0")["step"].integer() == 1);
  leaves = true;
  for (int i = 2; told < 6 && i < 100; ++i) {
    std::ofstream(served.folder / "a/dashboard.jsonl", std::ios::app) << loss_line(i);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  one.join();
  two.join();
  CHECK(until([&] {
    httplib::Client client = served.client();
    int got = 0;
    client.Get(
        "/0123456789abcdef/events",
        [&](const httplib::Response& reply) {
          got = reply.status;
          return false;
        },
        [](const char*, std::size_t) { return false; });
    return got == 200;
  }));
}

TEST_CASE("a thousand connections at once do not end the server", "[loggers][dashboard]") {
  const Served served;
  rlimit most{};
  ::getrlimit(RLIMIT_NOFILE, &most);
  most.rlim_cur = most.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &most);
  std::vector<int> all;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(served.server->port()));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 1000; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0) {
      break;
    }
    ::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to);
    all.push_back(fd);
  }
  const std::string ask = "GET /0123456789abcdef/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (const int fd : all) {
    ::send(fd, ask.data(), ask.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  CHECK(all.size() > 900);
  for (const int fd : all) {
    ::close(fd);
  }
  int status = 0;
  for (int i = 0; i < 20 && status != 200; ++i) {
    status = served.get("/0123456789abcdef/runs").first;
  }
  CHECK(status == 200);
}

TEST_CASE("a command line is read, and what is wrong with it said", "[loggers][dashboard]") {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  const auto command =
      parse_dashboard({path, "--port", "7070", "--host=0.0.0.0", "--allow-host", "box"});
  CHECK(command.folder == path);
  CHECK(command.port == 7070);
  CHECK(command.host == "0.0.0.0");
  CHECK(command.names == std::vector<std::string>{"box"});
  CHECK(parse_dashboard({}).host == "127.0.0.1");
  const auto refused = [](const std::vector<std::string>& words, const std::string& text) {
    CHECK_THROWS_WITH(parse_dashboard(words), ContainsSubstring(text));
  };
  refused({path, path}, "is a second folder, expected one");
  refused({path + "/none"}, "is no folder");
  refused({"--port"}, "lacks its value");
  refused({"--port", "65536"}, "--port is \"65536\", expected a whole number from 0 to 65535");
  refused({"--port", "80x"}, "expected a whole number");
  refused({"--host", ""}, "--host is empty");
  refused({"--prot", "80"}, "--prot is no option; see tutti-dashboard --help");
}

TEST_CASE("a report of any run is made by hand", "[loggers][dashboard]") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(tutti::detail::write_report_of(folder.path(), folder / "page.html"),
                    ContainsSubstring("has no run"));
  write_bytes(folder / "metrics.jsonl", first_line + loss_line(3));
  tutti::detail::write_report_of(folder.path(), folder / "page.html");
  CHECK_THAT(read_bytes(folder / "page.html"), ContainsSubstring("[\"loss\",0,3,3,1]"));
  CHECK_THROWS_WITH(tutti::detail::write_report_of(folder.path(), folder / "no/page.html"),
                    ContainsSubstring("No such file or directory"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID

#endif
