// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/dist/launch.hpp>

namespace tutti::dist::detail {

TUTTI_INLINE void refuse_unless(bool holds, const std::string& what) {
  if (!holds) {
    throw std::invalid_argument("tutti-run: " + what);
  }
}

TUTTI_INLINE int bound_port(int port) {
  const int handle = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  const bool bound =
      handle >= 0 && ::bind(handle, plain, size) == 0 && ::getsockname(handle, plain, &size) == 0;
  ::close(handle);
  return bound ? ntohs(address.sin_port) : 0;
}

TUTTI_INLINE int free_port() {
  static std::atomic<unsigned> turn{std::random_device{}()};
  int given_out = 0;  // from here on by the kernel
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> given_out;
  constexpr int first = 10'000;
  const int count = std::min(given_out, 29'000) - first;  // PyTorch's own is 29500
  int port = 0;
  for (int tries = 0; tries < count && port == 0; ++tries) {
    port = bound_port(first + static_cast<int>(turn++ % static_cast<unsigned>(count)));
  }
  port = port == 0 ? bound_port(0) : port;
  refuse_unless(port != 0, "no port is free; set --master_port");
  return port;
}

TUTTI_INLINE std::string expanded(std::string_view text,
                                  const std::map<std::string, std::string>& with) {
  std::string out;
  if (const auto home = with.find("HOME");
      home != with.end() && (text == "~" || text.starts_with("~/"))) {
    out = home->second;
    text.remove_prefix(1);
  }
  while (!text.empty()) {
    std::size_t end = 1;
    std::string_view name;
    if (text.starts_with("${")) {
      end = std::min(text.find('}'), text.size() - 1) + 1;
      name = text.substr(2, end - 3);
    } else if (text.front() == '$') {
      while (end < text.size() &&
             (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_')) {
        ++end;
      }
      name = text.substr(1, end - 1);
    }
    const auto found = with.find(std::string(name));
    out += found != with.end() && !name.empty() ? std::string_view(found->second)
                                                : text.substr(0, end);
    text.remove_prefix(end);
  }
  return out;
}

TUTTI_INLINE std::string file_of(std::string pattern,
                                 const std::map<std::string, std::string>& where) {
  for (const auto& [field, variable] :
       {std::pair("{rank}", "RANK"), std::pair("{local_rank}", "LOCAL_RANK"),
        std::pair("{world_size}", "WORLD_SIZE"),
        std::pair("{local_world_size}", "LOCAL_WORLD_SIZE"), std::pair("{node_rank}", "NODE_RANK"),
        std::pair("{restart_count}", "TORCHELASTIC_RESTART_COUNT")}) {
    for (std::size_t at = 0; (at = pattern.find(field, at)) != std::string::npos;) {
      pattern.replace(at, std::strlen(field), where.at(variable));
    }
  }
  return pattern;
}

}  // namespace tutti::dist::detail

namespace tutti::dist::detail {

TUTTI_INLINE Run::Run(LaunchOptions options)
    : options_(std::move(options)),
      any_port_(options_.master_port == 0),
      restarts_(options_.max_restarts, options_.restart_delay, options_.min_uptime) {
  options_.complete();
  token_ = !options_.token_file.empty()            ? token_of_file(options_.token_file)
           : options_.world_size == options_.nproc ? new_token()
                                                   : std::string();
  if (options_.flight_folder.empty()) {
    const char* folder = std::getenv("TMPDIR");
    options_.flight_folder = std::string(folder != nullptr && *folder != 0 ? folder : "/tmp") +
                             "/tutti-flight-" + new_token().substr(0, 16);
  }
}

TUTTI_INLINE std::string Run::run_id() const {
  if (options_.rdzv.empty()) {
    return mark_;
  }
  const std::string bytes = hmac(token_, "run " + options_.rdzv);
  return ::tutti::detail::hexadecimal(reinterpret_cast<const std::uint8_t*>(bytes.data()), 8);
}

TUTTI_INLINE Child Run::start(int local_rank, const RunPage& page) const {
  auto where = place(options_, local_rank);
  where[launch_variable] = mark_;
  where[page_variable] = std::to_string(page.file());
  where["TORCHELASTIC_RESTART_COUNT"] = std::to_string(restart_count_);
  where["TORCHELASTIC_RUN_ID"] = run_id();
  where["TUTTI_FLIGHT_FOLDER"] = options_.flight_folder;
  if (!options_.address.empty()) {
    where[address_variable] = options_.address;
  }
  if (!token_.empty()) {
    where[token_variable] = token_;
  }
  std::map<std::string, std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string_view::npos &&
        !text.starts_with("TORCHELASTIC_")) {  // of a launcher around this one
      all.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  for (const auto& [name, value] : where) {
    all[name] = value;
  }
  ChildOptions child{.words = {}, .variables = {}, .reads_input = false};
  child.shared_file = page.file();
  child.reads_input = local_rank == 0 && ::isatty(0) == 0;
  for (const std::string& word : options_.command) {
    child.words.push_back(expanded(word, all));
  }
  for (const auto& [name, value] : all) {
    child.variables.push_back(name + '=' + value);
  }
  const bool own = local_rank == 0;
  return {child, own ? Output() : Output(file_of(options_.stdout_file, where)),
          own ? Output() : Output(file_of(options_.stderr_file, where))};
}

TUTTI_INLINE Outcome Run::attempt(MeetingClient* meeting) {
  const RunPage page(options_.nproc, mark_);
  std::vector<Child> children;
  WatchOptions watched{.base_rank = options_.base_rank,
                       .world_size = options_.world_size,
                       .cleanup_timeout = options_.cleanup_timeout,
                       .monitor_interval = options_.monitor_interval,
                       .health = {options_.health_timeout, options_.hang_timeout},
                       .flight_folder = options_.flight_folder};
  if (meeting != nullptr) {
    watched.monitor_interval = std::min(watched.monitor_interval, std::chrono::milliseconds(100));
    watched.outside = [meeting]() -> Order {
      const MeetingClient::Order order = meeting->order(std::chrono::milliseconds(0));
      return {.why = order.what == MeetingSays::stop || order.what == MeetingSays::over
                         ? order.why.empty() ? "the run is over" : order.why
                         : std::string(),
              .signal = order.what == MeetingSays::told ? order.number : 0};
    };
    watched.told = [meeting](int signal) { meeting->told(signal); };
    watched.failed = [meeting](int status, const std::string& why) {
      meeting->failed(status, why);
    };
  }
  Watch watch(std::move(watched), children, page, entry_);
  for (int local_rank = 0; local_rank < options_.nproc; ++local_rank) {
    children.push_back(start(local_rank, page));
    if (options_.verbose) {
      std::fprintf(stderr, "tutti-run: rank %d of %d is pid %d\n", options_.base_rank + local_rank,
                   options_.world_size, children.back().pid());
    }
  }
  const Outcome outcome = watch();
  if (outcome.status != 0 && !outcome.cause.empty() &&
      ::access(options_.flight_folder.c_str(), F_OK) == 0) {
    std::fprintf(stderr, "tutti-run: what the ranks did last is in %s\n",
                 options_.flight_folder.c_str());
  }
  return outcome;
}

TUTTI_INLINE int Run::asked_to_end_within(std::chrono::milliseconds pause) {
  using Clock = std::chrono::steady_clock;
  const sigset_t taken = Watch::signals();
  const auto limit = Clock::now() + pause;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(limit - Clock::now());
    const auto rest = left.count() > 0 ? left.count() : 0;
    const timespec moment{rest / 1'000'000'000, rest % 1'000'000'000};
    const int signal = ::sigtimedwait(&taken, nullptr, &moment);
    if (Watch::asks_to_end(signal)) {
      return signal;
    }
    if (rest == 0 && signal < 0) {
      return 0;
    }
  }
}

TUTTI_INLINE void Run::summarize(const Outcome& outcome, std::chrono::milliseconds lasted) const {
  const std::string how = outcome.status == 0     ? "it ended well"
                          : outcome.cause.empty() ? "it was told to end"
                                                  : outcome.cause;
  std::fprintf(stderr, "tutti-run: attempt %d of at most %d, %s: %s\n", restart_count_ + 1,
               options_.max_restarts + joins_ + 1, Restarts::seconds(lasted).c_str(), how.c_str());
}

TUTTI_INLINE int Run::operator()() {
  const BlockedSignals blocked(Watch::signals());
  return options_.rdzv.empty() ? alone() : together();
}

TUTTI_INLINE int Run::alone() {
  using Clock = std::chrono::steady_clock;
  const Guard guard(entry_, options_.cleanup_timeout);
  for (;;) {
    const auto start = Clock::now();
    const Outcome outcome = attempt(nullptr);
    using Milliseconds = std::chrono::milliseconds;
    if (options_.max_restarts > 0) {
      summarize(outcome, std::chrono::duration_cast<Milliseconds>(Clock::now() - start));
    }
    if (outcome.status == 0 || outcome.told) {
      return outcome.status;
    }
    const auto uptime = std::chrono::duration_cast<Milliseconds>(outcome.ended - start);
    const auto pause = restarts_.after(outcome.status, uptime);
    if (!pause) {
      if (!restarts_.why_not().empty()) {
        std::fprintf(stderr, "tutti-run: the run is not started again: %s\n",
                     restarts_.why_not().c_str());
      }
      return outcome.status;
    }
    std::fprintf(stderr, "tutti-run: all ranks are started again in %s\n",
                 Restarts::seconds(*pause).c_str());
    if (asked_to_end_within(*pause) != 0) {
      return outcome.status;
    }
    restart_count_ = restarts_.count();
    if (any_port_) {
      options_.master_port = free_port();
    }
  }
}

TUTTI_INLINE int Run::together() {
  const auto colon = options_.rdzv.rfind(':');
  std::string host = options_.rdzv.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {  // of an address of IPv6
    host = host.substr(1, host.size() - 2);
  }
  const int port = std::atoi(options_.rdzv.c_str() + colon + 1);
  const MeetingOptions rules{.least = options_.least_nodes,
                             .most = options_.most_nodes,
                             .join_timeout = options_.join_timeout,
                             .last_call = options_.last_call,
                             .silence = options_.node_timeout,
                             .cleanup_timeout = options_.cleanup_timeout,
                             .max_restarts = options_.max_restarts,
                             .restart_delay = options_.restart_delay,
                             .min_uptime = options_.min_uptime};
  MeetingProcess served(host, port, token_, rules);
  const Guard guard(entry_, options_.cleanup_timeout);
  const int status = meet(host, port, rules);
  served.finish();
  return status;
}

TUTTI_INLINE int Run::meet(const std::string& host, int port, const MeetingOptions& rules) {
  using Clock = std::chrono::steady_clock;
  MeetingClient meeting(host, port, token_, rules);
  Machine machine{.nproc = options_.nproc, .host = host_name(), .port = free_port()};
  machine.address = options_.address = meeting.address();
  meeting.join(machine);
  std::optional<Clock::time_point> leaves_at;
  int leaves_with = 0;
  for (;;) {
    const MeetingClient::Order order = meeting.order(std::chrono::milliseconds(100));
    if (order.what == MeetingSays::start) {
      options_.node_rank = machine.before = order.place.node_rank;
      options_.nodes = order.place.nodes;
      options_.base_rank = order.place.base_rank;
      options_.world_size = order.place.world_size;
      options_.master_addr = order.place.master_addr;
      options_.master_port = order.place.master_port;
      restart_count_ = order.place.restart_count;
      joins_ = order.place.joins;
      const auto start = Clock::now();
      const Outcome outcome = attempt(&meeting);
      if (options_.max_restarts > 0 || outcome.status != 0) {
        summarize(outcome,
                  std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start));
      }
      meeting.ended(outcome.status);
      if (outcome.status != 0 && !outcome.told) {
        machine.port = free_port();
        meeting.join(machine);
      }
    } else if (order.what == MeetingSays::stop) {  // after this machine's ranks had ended well
      machine.port = free_port();
      meeting.join(machine);
    } else if (order.what == MeetingSays::over) {
      if (!order.why.empty()) {
        std::fprintf(stderr, "tutti-run: the run is over: %s\n", order.why.c_str());
      }
      return order.number;
    }
    if (const int signal = asked_to_end_within(std::chrono::milliseconds(0));
        signal != 0 && !leaves_at) {
      meeting.told(signal);
      leaves_at = Clock::now() + std::chrono::seconds(2);
      leaves_with = 128 + signal;
    }
    if (leaves_at && Clock::now() > *leaves_at) {
      return leaves_with;
    }
  }
}

}  // namespace tutti::dist::detail

namespace tutti::dist {

TUTTI_INLINE int launch(LaunchOptions options) {
  return detail::Run(std::move(options))();
}

}  // namespace tutti::dist
