// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::detail {

// What came back from a server.
struct HttpReply {
  int status = 0;      // 0: nothing came
  std::string body{};  // with status 0: why
};

// Sends one request and waits for the reply, no longer than `most`. method: GET, POST of JSON, PUT
// of bytes. path: after the server's address, with its query. Never throws.
using HttpSend = std::function<HttpReply(std::string_view method, const std::string& path,
                                         const std::string& body, std::chrono::milliseconds most)>;

}  // namespace tutti::detail

#ifdef TUTTI_WITH_HTTP

#include <csignal>
#include <ctime>
#include <memory>

#include <httplib.h>

namespace tutti::detail {

// Keeps a server that hangs up from ending this process by SIGPIPE.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;
  ~NoBrokenPipe() {
    const timespec now{};
    if (sigismember(&before_, SIGPIPE) == 0) {
      sigtimedwait(&signals_, nullptr, &now);  // takes away what the request left
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t signals_{};
  sigset_t before_{};
};

// Speaks HTTP by cpp-httplib, over one connection that is kept. server: "http://host:port". For one
// thread at a time.
inline HttpSend http_client(const std::string& server,
                            std::vector<std::pair<std::string, std::string>> headers) {
  auto client = std::make_shared<httplib::Client>(server);
  client->set_keep_alive(true);
  return [client, given = httplib::Headers(headers.begin(), headers.end())](
             std::string_view method, const std::string& path, const std::string& body,
             std::chrono::milliseconds most) -> HttpReply {
    const NoBrokenPipe guard;
    most = std::max(most, std::chrono::milliseconds(100));
    client->set_connection_timeout(most);
    client->set_read_timeout(most);
    client->set_write_timeout(most);
    const httplib::Result reply = method == "GET" ? client->Get(path, given)
                                  : method == "PUT"
                                      ? client->Put(path, given, body, "application/octet-stream")
                                      : client->Post(path, given, body, "application/json");
    if (!reply) {
      return {0, httplib::to_string(reply.error())};
    }
    return {reply->status, reply->body};
  };
}

}  // namespace tutti::detail

#endif
