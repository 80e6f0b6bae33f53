// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netdb.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <tuple>

#include <tutti/config.hpp>
#include <tutti/dist/detail/guard.hpp>
#include <tutti/dist/detail/launchers.hpp>
#include <tutti/dist/detail/listen.hpp>
#include <tutti/dist/detail/meeting.hpp>

// How the launchers of several machines agree, see meeting.hpp.

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE Meeting::Meeting(int listening, const std::string& token,
                              const MeetingOptions& options)
    : DoorServer(listening, token),
      options_(options),
      restarts_(options.max_restarts, options.restart_delay, options.min_uptime) {}

TUTTI_INLINE void Meeting::serve() {
  constexpr std::chrono::seconds patience{10};  // for machines to hear that it is over
  while (phase_ != Phase::over || (!members_.empty() && Clock::now() - since_ < patience)) {
    step(std::chrono::milliseconds(50));
    tick();
  }
}

TUTTI_INLINE void Meeting::joined(int client, const std::string&) {
  members_[client] = Member();
  if (phase_ == Phase::over) {
    send(client, Packed().number(number_of(MeetingSays::over)).number(status_).text("").bytes());
  }
}

TUTTI_INLINE void Meeting::received(int client, const std::string& message) {
  Member& member = members_.at(client);
  member.heard = Clock::now();
  Unpacked in(message);
  switch (static_cast<MachineSays>(in.number())) {
    case MachineSays::beat:
      break;
    case MachineSays::join: {
      Machine& machine = member.machine;
      machine.nproc = static_cast<int>(in.number());
      machine.host = in.text();
      machine.address = in.text();
      machine.port = static_cast<int>(in.number());
      machine.before = static_cast<int>(in.number());
      if (in.number() != member.starts) {
        break;  // said again before it heard that it has a place: the attempt is under way
      }
      member.joined = true;
      member.runs = false;
      if (phase_ == Phase::running &&
          std::count_if(members_.begin(), members_.end(),
                        [](const auto& one) { return one.second.runs; }) < options_.most) {
        stop(0, "the machine " + machine.host + " joins the run", false);
      }
      break;
    }
    case MachineSays::failed: {
      const int status = static_cast<int>(in.number());
      stop(status, in.text(), true);
      break;
    }
    case MachineSays::told: {
      const std::int64_t signal = in.number();
      if (phase_ == Phase::gathering) {
        end(static_cast<int>(128 + signal), "");
        break;
      }
      if (!member.runs) {
        break;  // it only waits for a place
      }
      told_ = true;
      for (const auto& [other, one] : members_) {
        if (other != client) {
          send(other, Packed().number(number_of(MeetingSays::told)).number(signal).bytes());
        }
      }
      break;
    }
    case MachineSays::ended:
      member.status = static_cast<int>(in.number());
      member.ended = true;
      if (phase_ == Phase::running && member.status != 0 && !told_) {
        stop(member.status, "ranks of " + member.machine.host + " have ended", true);
      }
      break;
  }
}

TUTTI_INLINE void Meeting::left(int client) {
  const Member member = members_.at(client);
  members_.erase(client);
  if (phase_ == Phase::running && member.runs) {
    stop(1, "the machine " + member.machine.host + " is gone: its launcher's connection is closed",
         true);
  }
}

TUTTI_INLINE int Meeting::count_joined() const {
  return static_cast<int>(std::count_if(members_.begin(), members_.end(),
                                        [](const auto& one) { return one.second.joined; }));
}

TUTTI_INLINE bool Meeting::anybody_runs() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& one) { return one.second.runs && !one.second.ended; });
}

TUTTI_INLINE void Meeting::tick() {
  const auto now = Clock::now();
  if (now - beaten_ >= std::chrono::milliseconds(200)) {
    beaten_ = now;
    for (const auto& [client, member] : members_) {
      tell(client, MeetingSays::beat);
    }
  }
  look_for_silence();
  if (phase_ == Phase::gathering) {
    gather();
  } else if (phase_ == Phase::running && !anybody_runs()) {
    int status = 0;
    for (const auto& [client, member] : members_) {
      status = status == 0 && member.runs ? member.status : status;
    }
    end(status, "");
  } else if (phase_ == Phase::stopping && !anybody_runs()) {
    next();
  }
}

TUTTI_INLINE void Meeting::look_for_silence() {
  const auto now = Clock::now();
  const auto most = phase_ == Phase::stopping
                        ? options_.silence + options_.cleanup_timeout + std::chrono::seconds(5)
                        : options_.silence;
  for (auto at = members_.begin(); at != members_.end();) {
    const Member member = at->second;
    if (now - member.heard <= most || phase_ == Phase::over) {
      ++at;
      continue;
    }
    const int client = at->first;
    at = members_.erase(at);
    forget(client);
    if (phase_ == Phase::running && member.runs) {
      stop(1,
           "the machine " + member.machine.host + " is gone: it has said nothing for " +
               Restarts::seconds(
                   std::chrono::duration_cast<std::chrono::milliseconds>(now - member.heard)),
           true);
    }
  }
}

TUTTI_INLINE void Meeting::gather() {
  const auto now = Clock::now();
  const int there = count_joined();
  if (there < options_.least) {
    enough_ = Clock::time_point();
    if (now - std::max(since_, not_before_) > options_.join_timeout) {
      end(1, std::to_string(there) + " of at least " + std::to_string(options_.least) +
                 " machines are there after " + Restarts::seconds(options_.join_timeout));
    }
    return;
  }
  if (enough_ == Clock::time_point()) {
    enough_ = now;
  }
  if (now >= not_before_ && (there >= options_.most || now - enough_ >= options_.last_call)) {
    start();
  }
}

TUTTI_INLINE void Meeting::start() {
  std::vector<int> order;
  for (const auto& [client, member] : members_) {
    if (member.joined) {
      order.push_back(client);
    }
  }
  std::sort(order.begin(), order.end(), [this](int a, int b) {
    const auto place = [this](int client) {
      const Machine& machine = members_.at(client).machine;
      return std::tuple(machine.before < 0, machine.before, machine.host, client);
    };
    return place(a) < place(b);
  });
  order.resize(std::min(order.size(), static_cast<std::size_t>(options_.most)));
  int world = 0;
  for (const int client : order) {
    world += members_.at(client).machine.nproc;
  }
  const Machine first = members_.at(order.front()).machine;
  int base = 0;
  int node = 0;
  phase_ = Phase::running;
  started_ = since_ = Clock::now();
  for (const int client : order) {
    Member& member = members_.at(client);
    member.runs = true;
    ++member.starts;
    member.joined = member.ended = false;
    member.status = 0;
    send(client, Packed()
                     .number(number_of(MeetingSays::start))
                     .number(restarts_.count() + joins_)
                     .number(node)
                     .number(static_cast<std::int64_t>(order.size()))
                     .number(base)
                     .number(world)
                     .text(first.address)
                     .number(first.port)
                     .number(joins_)
                     .bytes());
    base += member.machine.nproc;
    ++node;
  }
}

TUTTI_INLINE void Meeting::stop(int status, const std::string& why, bool counts) {
  if (phase_ != Phase::running) {
    return;
  }
  phase_ = Phase::stopping;
  since_ = Clock::now();
  status_ = status;
  counts_ = counts;
  for (const auto& [client, member] : members_) {
    if (member.runs) {
      send(client, Packed().number(number_of(MeetingSays::stop)).text(why).bytes());
    }
  }
}

TUTTI_INLINE void Meeting::next() {
  if (told_) {
    end(status_, "");
    return;
  }
  std::chrono::milliseconds pause{0};
  if (counts_) {
    const auto lasted = std::chrono::duration_cast<std::chrono::milliseconds>(since_ - started_);
    const auto found = restarts_.after(status_, lasted);
    if (!found) {
      end(status_, restarts_.why_not());
      return;
    }
    pause = *found;
  } else {
    ++joins_;
  }
  phase_ = Phase::gathering;
  since_ = Clock::now();
  not_before_ = since_ + pause;
  enough_ = Clock::time_point();
}

TUTTI_INLINE void Meeting::end(int status, const std::string& why) {
  phase_ = Phase::over;
  since_ = Clock::now();
  status_ = status;
  for (const auto& [client, member] : members_) {
    send(client, Packed().number(number_of(MeetingSays::over)).number(status).text(why).bytes());
  }
}

// A socket that listens there; -1: that is no address of this machine, or it is in use.
TUTTI_INLINE int listen_for_meeting(const std::string& host, int port) {
  ::addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  ::addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return -1;
  }
  const std::unique_ptr<::addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  bool only_loopback = true;
  for (const ::addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (is_loopback(*one->ai_addr) && !is_loopback(host)) {
      continue;  // as /etc/hosts may have it: others do not come there
    }
    only_loopback = false;
    const int descriptor = listen_at(one->ai_addr, one->ai_addrlen);
    if (descriptor >= 0) {
      return descriptor;
    }
  }
  return only_loopback ? listen_everywhere(port) : -1;
}

TUTTI_INLINE MeetingProcess::MeetingProcess(const std::string& host, int port,
                                            const std::string& token,
                                            const MeetingOptions& options) {
  const int listening = listen_for_meeting(host, port);
  if (listening < 0) {
    return;
  }
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setsid();
    ::prctl(PR_SET_NAME, "tutti-meeting");
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
      ::signal(signal, SIG_IGN);
    }
    if (::getppid() == parent) {
      Meeting(listening, token, options).serve();
    }
    ::_exit(0);
  }
  ::close(listening);
}

TUTTI_INLINE void MeetingProcess::finish() {
  while (pid_ > 0 && ::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

TUTTI_INLINE MeetingProcess::~MeetingProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    finish();
  }
}

TUTTI_INLINE MeetingClient::MeetingClient(const std::string& host, int port,
                                          const std::string& token, const MeetingOptions& options)
    : door_(host, port, token, options.join_timeout), silence_(options.silence) {}

TUTTI_INLINE void MeetingClient::send(const Packed& message) {
  try {
    if (!lost_) {
      door_.send(message.bytes());
    }
  } catch (const std::runtime_error&) {
    lost_ = true;
  }
}

TUTTI_INLINE void MeetingClient::join(const Machine& machine) {
  heard_ = Clock::now();
  send(Packed()
           .number(static_cast<std::int64_t>(MachineSays::join))
           .number(machine.nproc)
           .text(machine.host)
           .text(machine.address)
           .number(machine.port)
           .number(machine.before)
           .number(starts_));
}

TUTTI_INLINE void MeetingClient::failed(int status, const std::string& why) {
  send(Packed().number(static_cast<std::int64_t>(MachineSays::failed)).number(status).text(why));
}

TUTTI_INLINE void MeetingClient::told(int signal) {
  send(Packed().number(static_cast<std::int64_t>(MachineSays::told)).number(signal));
}

TUTTI_INLINE void MeetingClient::ended(int status) {
  send(Packed().number(static_cast<std::int64_t>(MachineSays::ended)).number(status));
}

TUTTI_INLINE void MeetingClient::beat() {
  if (Clock::now() - beaten_ >= std::chrono::milliseconds(200)) {
    beaten_ = Clock::now();
    send(Packed().number(static_cast<std::int64_t>(MachineSays::beat)));
  }
}

TUTTI_INLINE MeetingClient::Order MeetingClient::order(std::chrono::milliseconds most) {
  if (over_.what == MeetingSays::over) {
    return over_;
  }
  const auto limit = Clock::now() + most;
  std::string message;
  do {
    beat();
    try {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now());
      if (!lost_ && door_.try_receive(message, std::clamp(left, std::chrono::milliseconds(0),
                                                          std::chrono::milliseconds(100)))) {
        heard_ = Clock::now();
        Unpacked in(message);
        Order order{.what = static_cast<MeetingSays>(in.number())};
        if (order.what == MeetingSays::start) {
          ++starts_;
          order.place.restart_count = static_cast<int>(in.number());
          order.place.node_rank = static_cast<int>(in.number());
          order.place.nodes = static_cast<int>(in.number());
          order.place.base_rank = static_cast<int>(in.number());
          order.place.world_size = static_cast<int>(in.number());
          order.place.master_addr = in.text();
          order.place.master_port = static_cast<int>(in.number());
          order.place.joins = static_cast<int>(in.number());
        } else if (order.what == MeetingSays::stop) {
          order.why = in.text();
        } else if (order.what == MeetingSays::told) {
          order.number = static_cast<int>(in.number());
        } else if (order.what == MeetingSays::over) {
          order.number = static_cast<int>(in.number());
          order.why = in.text();
          over_ = order;
        }
        if (order.what != MeetingSays::beat) {
          return order;
        }
        continue;
      }
    } catch (const std::runtime_error&) {
      lost_ = true;
    }
    if (lost_ || Clock::now() - heard_ > silence_ + std::chrono::seconds(1)) {
      lost_ = true;
      return {.what = MeetingSays::over,
              .number = 1,
              .why = "the machine at which the launchers meet is gone"};
    }
  } while (Clock::now() < limit);
  return {};
}

}  // namespace tutti::dist::detail

#endif
