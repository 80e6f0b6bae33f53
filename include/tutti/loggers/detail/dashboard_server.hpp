// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <httplib.h>

#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/utf8.hpp>
#include <tutti/loggers/detail/dashboard_page.hpp>
#include <tutti/loggers/detail/run_record.hpp>
#include <tutti/loggers/detail/run_summary.hpp>

namespace tutti::detail {

struct DashboardServerOptions {
  std::filesystem::path folder;  // whose runs are shown: itself, and the folders in it
  std::filesystem::path mine{};  // the run that the page opens with; empty: the newest
  std::string host = "127.0.0.1";
  int port = 0;                      // 0: the first free one from 6070 on
  std::vector<std::string> names{};  // by which browsers may call this machine, besides its own
  std::string token{};               // empty: drawn
  std::size_t most_readers = 32;     // pages that are told of news; further ones ask now and then
  std::chrono::milliseconds beat{500};  // between looks at the files
};

// Serves the page of loggers/dashboard.hpp. What it tells of comes from the files of runs alone,
// which it names by numbers: no part of a request is ever a path.
class DashboardServer {
 public:
  // Takes the port. Throws std::runtime_error when that is not to be had.
  explicit DashboardServer(DashboardServerOptions options);
  DashboardServer(const DashboardServer&) = delete;
  DashboardServer& operator=(const DashboardServer&) = delete;
  ~DashboardServer() { stop(); }

  // "http://127.0.0.1:6070/<token>/"
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] int port() const { return options_.port; }

  // Answers until stop() is called.
  void serve();
  void stop();

  // Nobody has asked for so long, and no page is open.
  [[nodiscard]] std::chrono::seconds idle() const;

 private:
  struct Run {
    explicit Run(const std::filesystem::path& folder) : record(folder) {}
    std::mutex lock{};
    RunRecord record;
    double written = 0;              // when a file of it was last written
    std::atomic<bool> read = false;  // it is followed
  };

  void make_server();
  void take_port();
  void draw_token();
  void route();
  void find_runs();
  void follow();
  [[nodiscard]] bool is_mine(const httplib::Request& request) const;
  [[nodiscard]] bool knows(const std::string& host) const;
  void answer(const httplib::Request& request, httplib::Response& reply);
  void stream(httplib::Response& reply);
  [[nodiscard]] std::string list();
  [[nodiscard]] Run* run_of(const httplib::Request& request);

  static std::int64_t number_of(const httplib::Request& request, const char* name,
                                std::int64_t otherwise) {
    const std::string text = request.get_param_value(name);
    std::int64_t value = otherwise;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }
  static std::int64_t now() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::seconds>(since).count();
  }
  static void say(httplib::Response& reply, int status, const std::string& text) {
    reply.status = status;
    reply.set_content(text, "text/plain; charset=utf-8");
  }

  DashboardServerOptions options_;
  std::string address_;
  std::optional<httplib::Server> server_;
  std::mutex lock_;  // of runs_
  std::deque<std::unique_ptr<Run>> runs_;
  std::mutex news_lock_;
  std::condition_variable news_;
  std::uint64_t version_ = 1;
  std::atomic<bool> stops_ = false;
  std::atomic<std::size_t> readers_ = 0;
  std::atomic<std::int64_t> asked_ = now();
  std::thread follower_;
};

inline DashboardServer::DashboardServer(DashboardServerOptions options)
    : options_(std::move(options)) {
  if (options_.token.empty()) {
    draw_token();
  }
  take_port();
}

inline void DashboardServer::draw_token() {
  constexpr std::string_view digits = "0123456789abcdef";
  std::random_device random;  // the system's
  for (int i = 0; i < 8; ++i) {
    for (unsigned word = random(), k = 0; k < 4; ++k, word >>= 8U) {
      options_.token += digits[word & 15U];
    }
  }
}

// A server without a port. One that failed to get a port takes none later (cpp-httplib 0.18).
inline void DashboardServer::make_server() {
  server_.emplace();
  // cpp-httplib's own choice is SO_REUSEPORT, by which two servers share a port unawares.
  server_->set_socket_options([](auto socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  const std::size_t threads = options_.most_readers + 16;
  server_->new_task_queue = [threads] { return new httplib::ThreadPool(threads); };
  server_->set_keep_alive_timeout(1);
  server_->set_read_timeout(5);
  server_->set_write_timeout(5);
  server_->set_payload_max_length(1024);
  route();
}

inline void DashboardServer::take_port() {
  constexpr int usual = 6070;
  const int first = options_.port != 0 ? options_.port : usual;
  const int last = options_.port != 0 ? options_.port : usual + 99;
  int port = first;
  for (make_server(); port <= last && !server_->bind_to_port(options_.host, port); ++port) {
    make_server();
  }
  if (port > last) {
    throw std::runtime_error(
        "cannot listen on " + options_.host + ", port " + std::to_string(first) +
        (last > first ? " to " + std::to_string(last) : std::string()) +
        ": it is taken, or no address of this machine; choose another with --port or --host");
  }
  options_.port = port;
  std::string shown = options_.host;
  if (shown == "0.0.0.0" || shown == "::") {
    char name[256] = "localhost";
    ::gethostname(name, sizeof name - 1);
    shown = name;
  } else if (shown.find(':') != std::string::npos) {
    shown = "[" + shown + "]";
  }
  address_ = "http://" + shown + ":" + std::to_string(port) + "/" + options_.token + "/";
}

inline void DashboardServer::route() {
  server_->set_default_headers(
      {{"Cache-Control", "no-store"},
       {"X-Content-Type-Options", "nosniff"},
       {"X-Frame-Options", "DENY"},
       {"Referrer-Policy", "no-referrer"},
       {"Cross-Origin-Resource-Policy", "same-origin"},
       {"Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' "
        "data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}});
  server_->set_pre_routing_handler(
      [this](const httplib::Request& request, httplib::Response& reply) {
        const std::string host = request.get_header_value("Host");
        if (!knows(host)) {
          say(reply, 403,
              "This page does not answer to that name of the machine; call it localhost, or start "
              "tutti-dashboard with --allow-host NAME.\n");
        } else if (request.method != "GET" && request.method != "HEAD") {
          say(reply, 405, "This page is only read.\n");
        } else if (!is_mine(request)) {
          say(reply, 403, "The address lacks its token; take the whole one that was printed.\n");
        } else {
          asked_ = now();
          answer(request, reply);
        }
        return httplib::Server::HandlerResponse::Handled;
      });
}

// Another site's page can make a browser call this server by a name of its own, which then means
// this machine (DNS rebinding), but not by a number.
inline bool DashboardServer::knows(const std::string& header) const {
  const bool in_brackets = header.starts_with('[');
  const auto end = in_brackets ? header.find(']') : header.find(':');
  if (header.empty() || (in_brackets && end == std::string::npos)) {
    return false;
  }
  const std::string name = in_brackets ? header.substr(1, end - 1) : header.substr(0, end);
  unsigned char number[16];
  if (::inet_pton(in_brackets ? AF_INET6 : AF_INET, name.c_str(), number) == 1) {
    return true;
  }
  char own[256] = "localhost";
  ::gethostname(own, sizeof own - 1);
  const bool on_all = options_.host != "127.0.0.1" && options_.host != "::1";
  return name == "localhost" || (on_all && name == own) || name == options_.host ||
         std::find(options_.names.begin(), options_.names.end(), name) != options_.names.end();
}

// Takes as long for a token that is nearly right as for any other.
inline bool DashboardServer::is_mine(const httplib::Request& request) const {
  const std::string& path = request.path;
  const std::size_t size = options_.token.size();
  if (path.size() < size + 1 || (path.size() > size + 1 && path[size + 1] != '/')) {
    return false;
  }
  unsigned differs = 0;
  for (std::size_t i = 0; i < size; ++i) {
    differs |= static_cast<unsigned>(static_cast<unsigned char>(path[i + 1]) ^
                                     static_cast<unsigned char>(options_.token[i]));
  }
  return differs == 0;
}

inline void DashboardServer::answer(const httplib::Request& request, httplib::Response& reply) {
  const std::string what = request.path.substr(options_.token.size() + 1);
  const auto json = [&](const std::string& text) {  // a type that cpp-httplib does not compress
    reply.set_content(text, "application/vnd.tutti+json");
  };
  if (what.empty()) {
    reply.set_redirect("/" + options_.token + "/");
  } else if (what == "/") {
    reply.set_content(dashboard_page({}), "text/html; charset=utf-8");
  } else if (what == "/runs") {
    json(list());
  } else if (what == "/events") {
    stream(reply);
  } else if (what == "/run" || what == "/curves" || what == "/image") {
    Run* const run = run_of(request);
    if (run == nullptr) {
      say(reply, 404, "There is no run of that number.\n");
      return;
    }
    const std::lock_guard guard(run->lock);
    if (!run->read.exchange(true)) {
      run->record.poll();
    }
    if (what == "/run") {
      json(summary_json(run->record));
    } else if (what == "/curves") {
      constexpr std::int64_t most_buckets = 4000;
      constexpr std::size_t most_curves = 1000;
      std::vector<std::size_t> which;
      const std::string numbers = request.get_param_value("s");
      for (std::string_view rest = numbers; !rest.empty() && which.size() < most_curves;) {
        std::size_t number = std::numeric_limits<std::size_t>::max();
        std::from_chars(rest.data(), rest.data() + rest.size(), number);
        which.push_back(number);
        rest.remove_prefix(std::min(rest.find(','), rest.size() - 1) + 1);
      }
      using Limits = std::numeric_limits<std::int64_t>;
      const auto count = std::clamp<std::int64_t>(number_of(request, "n", 500), 1, most_buckets);
      json(curves_json(run->record, which, number_of(request, "from", Limits::min()),
                       number_of(request, "to", Limits::max()), static_cast<std::size_t>(count)));
    } else if (const std::string bytes = image_bytes(run->record, number_of(request, "file", -1));
               !bytes.empty()) {
      reply.set_content(bytes, "image/png");
    } else {
      say(reply, 404, "There is no image of that number.\n");
    }
  } else {
    say(reply, 404, "There is nothing here.\n");
  }
}

// Tells a page, as server-sent events, that there is news; at most once a second.
inline void DashboardServer::stream(httplib::Response& reply) {
  if (readers_.fetch_add(1) >= options_.most_readers) {
    --readers_;
    say(reply, 503, "Too many pages are open; this one asks now and then.\n");
    return;
  }
  reply.set_chunked_content_provider(
      "text/event-stream",
      [this, told = std::uint64_t{0}](std::size_t, httplib::DataSink& sink) mutable {
        std::uint64_t version = told;
        {
          std::unique_lock guard(news_lock_);
          // Not longer: that a page has left is seen when it is written to, the second time at
          // last.
          news_.wait_for(guard, std::chrono::seconds(1),
                         [&] { return stops_ || version_ != told; });
          version = version_;
        }
        const std::string text =
            version != told ? "data: " + std::to_string(version) + "\n\n" : ":\n\n";
        told = version;
        if (stops_ || !sink.write(text.data(), text.size())) {
          return false;
        }
        std::unique_lock guard(news_lock_);
        news_.wait_for(guard, std::chrono::seconds(1), [&] { return stops_.load(); });
        return !stops_;
      },
      [this](bool) { --readers_; });
}

inline DashboardServer::Run* DashboardServer::run_of(const httplib::Request& request) {
  const std::int64_t id = number_of(request, "id", -1);
  const std::lock_guard guard(lock_);
  return id >= 0 && static_cast<std::size_t>(id) < runs_.size()
             ? runs_[static_cast<std::size_t>(id)].get()
             : nullptr;
}

inline std::string DashboardServer::list() {
  find_runs();
  const std::lock_guard guard(lock_);
  std::string text;
  std::int64_t mine = -1;
  std::error_code error;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    Run& run = *runs_[i];
    std::string status;
    double start = run.written;
    if (run.read) {
      const std::unique_lock taken(run.lock, std::try_to_lock);
      if (taken.owns_lock()) {  // else it is being read, which may take a second
        status = run.record.status();
        start = run.record.facts().start;
      }
    }
    const std::filesystem::path& folder = run.record.folder();
    if (!options_.mine.empty() && std::filesystem::equivalent(folder, options_.mine, error)) {
      mine = static_cast<std::int64_t>(i);
    }
    text += (text.empty() ? "" : ",") + ("{\"id\":" + std::to_string(i)) +
            ",\"folder\":" + json_quoted(utf8(folder.filename().string())) +
            ",\"status\":" + json_quoted(status) +
            ",\"start\":" + std::to_string(static_cast<std::int64_t>(start)) + "}";
  }
  return "{\"mine\":" + std::to_string(mine) + ",\"runs\":[" + text + "]}";
}

inline void DashboardServer::find_runs() {
  constexpr std::size_t most = 1000;
  const std::lock_guard guard(lock_);
  const auto look = [&](const std::filesystem::path& folder) {
    const auto files = RunRecord::files_in(folder);
    if (files.empty()) {
      return;
    }
    const auto known = std::find_if(runs_.begin(), runs_.end(), [&](const auto& run) {
      return run->record.folder() == folder;
    });
    if (known == runs_.end() && runs_.size() == most) {
      return;
    }
    Run& run = known != runs_.end() ? **known : *runs_.emplace_back(std::make_unique<Run>(folder));
    struct stat facts{};
    if (::stat(files.front().c_str(), &facts) == 0) {
      run.written = static_cast<double>(facts.st_mtime);
    }
  };
  look(options_.folder);
  std::vector<std::filesystem::path> folders;
  std::error_code error;
  for (std::filesystem::directory_iterator at(options_.folder, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code unknown;
    if (at->is_directory(unknown)) {
      folders.push_back(at->path());
    }
  }
  std::sort(folders.begin(), folders.end());
  std::for_each(folders.begin(), folders.end(), look);
}

inline void DashboardServer::follow() {
  while (!stops_) {
    std::vector<Run*> followed;
    {
      const std::lock_guard guard(lock_);
      for (const auto& run : runs_) {
        if (run->read) {
          followed.push_back(run.get());
        }
      }
    }
    bool news = false;
    for (Run* run : followed) {
      const std::lock_guard guard(run->lock);
      news = run->record.poll() || news;
    }
    std::unique_lock guard(news_lock_);
    version_ += news ? 1 : 0;
    if (news) {
      news_.notify_all();
    }
    news_.wait_for(guard, options_.beat, [&] { return stops_.load(); });
  }
}

inline void DashboardServer::serve() {
  find_runs();
  follower_ = std::thread([this] { follow(); });
  server_->listen_after_bind();
}

inline void DashboardServer::stop() {
  {
    const std::lock_guard guard(news_lock_);
    stops_ = true;
  }
  news_.notify_all();
  server_->stop();
  if (follower_.joinable()) {
    follower_.join();
  }
}

inline std::chrono::seconds DashboardServer::idle() const {
  return std::chrono::seconds(readers_ > 0 ? 0 : now() - asked_);
}

}  // namespace tutti::detail
